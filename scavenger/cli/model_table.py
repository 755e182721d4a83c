"""Table of the stored models."""

from __future__ import annotations

from rich.console import RenderableType

from scavenger.cli.figures import number, words
from scavenger.cli.fitted_table import Cell, FittedTable, figure, folded, long_name, word
from scavenger.view import StoredModelList, StoredModelView

COLUMNS = (
    long_name("MODEL"),
    figure("JOBS", 2),
    figure("φ", 4),
    figure("ERROR", 5),
    folded("EPOCHS TO TARGET", 1),
    word("UPDATED (UTC)", 3),
)


def show_models(models: StoredModelList) -> RenderableType:
    """Show stored models, one row each."""
    return FittedTable(COLUMNS, [model_row(model) for model in models.models])


def model_row(model: StoredModelView) -> tuple[Cell, ...]:
    """Return the cells of a model."""
    return (
        words(model.model_key),
        str(model.jobs),
        number(model.laws.noise_scale),
        f"±{number(100 * model.laws.mean_relative_error)} %",
        words(targets_of(model)),
        f"{model.updated_at:%Y-%m-%d %H:%M}",
    )


def targets_of(model: StoredModelView) -> str:
    """Say how many epochs each target took, at the reference batch."""
    known = model.epochs_to_target.items()
    epochs = " · ".join(f"{target}: {number(value)}" for target, value in known)
    return f"{epochs} (at batch {model.reference_batch})" if epochs else "not known yet"
