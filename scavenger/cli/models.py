"""``scavenger models``: the stored models that later jobs reuse."""

from __future__ import annotations

import typer
from rich.console import RenderableType

from scavenger.cli.options import OutputOption
from scavenger.cli.output import (
    Cell,
    OutputFormat,
    ResponsiveTable,
    format_number,
    get_terminal,
    long_name_column,
    number_column,
    plain_text,
    text_column,
    word_column,
)
from scavenger.schemas import StoredModelList, StoredModelView


def models(context: typer.Context, output: OutputOption = OutputFormat.TABLE) -> None:
    """List stored models: a job whose model is stored needs no search."""
    terminal = get_terminal(context)
    with terminal.connect() as client:
        stored = StoredModelList(models=list(client.models()))
    if stored.models or output is not OutputFormat.TABLE:
        terminal.print_result(stored, output, render_models(stored))
    if not stored.models:
        terminal.print_message("No models yet. The first job of a model key stores one.")


MODEL_COLUMNS = (
    long_name_column("MODEL"),
    number_column("JOBS", 2),
    number_column("φ", 4),
    number_column("ERROR", 5),
    text_column("EPOCHS TO TARGET", 1),
    word_column("UPDATED (UTC)", 3),
)


def render_models(models: StoredModelList) -> RenderableType:
    """Render a table of stored models."""
    return ResponsiveTable(MODEL_COLUMNS, [_model_row(model) for model in models.models])


def _model_row(model: StoredModelView) -> tuple[Cell, ...]:
    return (
        plain_text(model.model_key),
        str(model.jobs),
        format_number(model.laws.noise_scale),
        f"±{format_number(100 * model.laws.mean_relative_error)} %",
        plain_text(describe_targets(model)),
        f"{model.updated_at:%Y-%m-%d %H:%M}",
    )


def describe_targets(model: StoredModelView) -> str:
    """Write the epochs that each target took, at the reference batch."""
    known = model.epochs_to_target.items()
    epochs = " · ".join(f"{target}: {format_number(value)}" for target, value in known)
    return f"{epochs} (at batch {model.reference_batch})" if epochs else "not known yet"
