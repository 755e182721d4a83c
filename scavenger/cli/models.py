"""``scavenger model``: lists, shows and forgets the stored models that later jobs reuse."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from scavenger.cli.errors import ConfirmationRequired
from scavenger.cli.jobs import YesOption
from scavenger.cli.options import OneProjectOption, OutputOption
from scavenger.cli.output import (
    UNKNOWN_VALUE,
    Cell,
    OutputFormat,
    ResponsiveTable,
    format_amount,
    format_config,
    format_number,
    format_percent,
    get_terminal,
    long_name_column,
    number_column,
    plain_text,
    render_facts,
    text_column,
    word_column,
)
from scavenger.client.client import Client
from scavenger.schemas.models import ForecastView, ModelDetailView, StoredModelList, StoredModelView

SignatureArgument = Annotated[
    str,
    typer.Argument(
        metavar="MODEL", help="Model key, or signature where several have it (model list -o json)."
    ),
]

model_commands = typer.Typer(no_args_is_help=True, help="Stored models, which later jobs reuse.")


@model_commands.callback()
def root() -> None:
    """List, show or forget stored models, which later jobs reuse."""


@model_commands.command("list", epilog="Example: scavenger model list -o json")
def list_models(
    context: typer.Context,
    project: OneProjectOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """List stored models: a job whose model is stored needs no search."""
    terminal = get_terminal(context)
    with terminal.connect() as client:
        stored = StoredModelList(models=list(client.models(project)))
    if stored.models or output is not OutputFormat.TABLE:
        terminal.print_result(stored, output, render_models(stored))
    if not stored.models:
        terminal.print_message("No models yet. The first job of a model key stores one.")


@model_commands.command("show", epilog="Example: scavenger model show digits/mlp")
def show_model(
    context: typer.Context, model: SignatureArgument, output: OutputOption = OutputFormat.TABLE
) -> None:
    """Show a stored model, with the forecasts of its jobs and what came of them."""
    terminal = get_terminal(context)
    with terminal.connect() as client:
        found = client.model(find_signature(client, model))
    terminal.print_result(found, output, render_model(found))


@model_commands.command("forget", epilog="Example: scavenger model forget digits/mlp --yes")
def forget_model(
    context: typer.Context,
    model: SignatureArgument,
    yes: YesOption = False,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Forget a stored model: the next job of it searches anew."""
    terminal = get_terminal(context)
    with terminal.connect() as client:
        signature = find_signature(client, model)
        question = f"Forget {signature}? The next job of it searches anew."
        if not yes:
            if not terminal.is_interactive:
                raise ConfirmationRequired(question, "--yes")
            typer.confirm(question, abort=True, err=True)
        forgotten = client.forget_model(signature)
    terminal.print_result(forgotten, output, plain_text(f"Forgotten: {signature}"))


def find_signature(client: Client, wanted: str) -> str:
    """Return the signature of a model by it, or by a key that only one model has."""
    found = [
        each.signature for each in client.models() if wanted in (each.signature, each.model_key)
    ]
    return found[0] if len(found) == 1 else wanted


FORECAST_COLUMNS = (
    word_column("JOB"),
    long_name_column("NAME"),
    word_column("PHASE", 2),
    word_column("CONFIG", 1),
    word_column("DUE (UTC)", 4),
    word_column("ENDED (UTC)", 3),
    word_column("IN BAND", 1),
    number_column("FORECAST", 2),
    number_column("SPENT", 1),
)


def render_model(model: ModelDetailView) -> RenderableType:
    """Render a model with the forecasts of its jobs."""
    judged = model.calibration
    coverage = (
        "no forecast can be judged yet"
        if judged is None
        else f"{format_percent(judged.coverage)} of {judged.forecasts} within their 80 % span"
    )
    facts = [
        ("model", f"{model.model_key} ({model.project})"),
        ("signature", model.signature),
        ("jobs", str(model.jobs)),
        ("law", model.laws.law),
        (
            "error",
            f"±{format_number(100 * model.laws.mean_relative_error)} % of measured iterations",
        ),
        ("targets", describe_targets(model)),
        ("forecasts", coverage),
    ]
    rows = [_forecast_row(each) for each in model.forecasts]
    return Group(render_facts(facts), Text(), ResponsiveTable(FORECAST_COLUMNS, rows))


def _forecast_row(forecast: ForecastView) -> tuple[Cell, ...]:
    in_band = {None: UNKNOWN_VALUE, True: "✔ yes", False: "✗ no"}[forecast.is_within]
    return (
        plain_text(forecast.job),
        plain_text(forecast.name),
        forecast.phase.value,
        format_config(forecast.chosen),
        format_moment(forecast.due_until),
        format_moment(forecast.finished_at),
        in_band,
        UNKNOWN_VALUE if forecast.cost is None else format_amount(forecast.cost),
        format_amount(forecast.spent),
    )


def format_moment(at: datetime | None) -> str:
    """Write a moment to the minute."""
    return UNKNOWN_VALUE if at is None else f"{at:%Y-%m-%d %H:%M}"


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
