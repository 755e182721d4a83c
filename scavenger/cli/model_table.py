"""Table of the stored models."""

from __future__ import annotations

from rich.console import RenderableType
from rich.table import Table

from scavenger.cli.figures import number, words
from scavenger.view import StoredModelList, StoredModelView


def show_models(models: StoredModelList) -> RenderableType:
    """Show stored models, one row each."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("MODEL", overflow="fold")
    table.add_column("JOBS", justify="right")
    table.add_column("φ", justify="right")
    table.add_column("ERROR", justify="right")
    table.add_column("EPOCHS TO TARGET", overflow="fold")
    table.add_column("UPDATED (UTC)", no_wrap=True)
    for model in models.models:
        table.add_row(
            words(model.model_key),
            str(model.jobs),
            number(model.laws.noise_scale),
            f"±{number(100 * model.laws.mean_relative_error)} %",
            words(targets_of(model)),
            f"{model.updated_at:%Y-%m-%d %H:%M}",
        )
    return table


def targets_of(model: StoredModelView) -> str:
    """Say how many epochs each target took, at the reference batch."""
    known = model.epochs_to_target.items()
    epochs = " · ".join(f"{target}: {number(value)}" for target, value in known)
    return f"{epochs} (at batch {model.reference_batch})" if epochs else "not known yet"
