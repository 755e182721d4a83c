"""``scavenger fit``: fits the models to measurements in CSV files and chooses a configuration."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from scavenger.cli.errors import TableNotSelected
from scavenger.cli.fit_picture import draw_fit
from scavenger.cli.fit_report import fit_document, render_fit
from scavenger.cli.options import OutputOption, choice_parser, expand_batches, expand_counts
from scavenger.cli.output import OutputFormat, get_terminal
from scavenger.cli.programs import require_extra
from scavenger.cli.table_files import (
    TableFilesArgument,
    invalid_table,
    match_table_names,
    read_table_files,
)
from scavenger.errors import DocumentProblem, NotEnoughData
from scavenger.job.fields import closest_name, read_duration, read_money, read_price
from scavenger.models.epochs import FinishedRun, LawFamily
from scavenger.models.forms import Topology
from scavenger.offline.fit import FitReport, report_fit
from scavenger.offline.fitted_laws import FitRequest
from scavenger.offline.tables.files import ListedPrice, MeasurementTables
from scavenger.offline.tables.runs import common_target, nearest_ancestor
from scavenger.offline.tables.steps import StepTable
from scavenger.planning.constrained_objective import ConstrainedObjective
from scavenger.planning.objective import Objective
from scavenger.planning.objectives import OBJECTIVES, make_objective

TableOption = Annotated[
    str | None,
    typer.Option("--table", help="Table to fit, by name; * matches any part of one."),
]
PriceOption = Annotated[
    str | None,
    typer.Option(
        "--price",
        help="Price of one machine, e.g. '0.13402 USD/h', or a machine of a file of prices, e.g. "
        "e2-standard-4@us-east1. Default: cost counts machine-hours.",
    ),
]
ObjectiveOption = Annotated[
    str,
    typer.Option(
        "--objective",
        parser=choice_parser(OBJECTIVES),
        metavar="|".join(OBJECTIVES),
        help="What to optimize.",
    ),
]
TimeWeightOption = Annotated[
    float,
    typer.Option(
        "--time-weight",
        min=0,
        max=1,
        help="Weight of time for --objective weighted: 0 counts only cost, 1 only time.",
    ),
]
MaxCostOption = Annotated[
    str | None, typer.Option("--max-cost", help="Limit of cost, e.g. '40 USD'.")
]
MaxTimeOption = Annotated[str | None, typer.Option("--max-time", help="Limit of time, e.g. 3h12m.")]
DatasetSizeOption = Annotated[
    int | None, typer.Option("--dataset-size", min=1, help="Number of samples in one epoch.")
]
EpochsOption = Annotated[
    float | None, typer.Option("--epochs", help="Epochs to the target at batch --at-batch.")
]
AtBatchOption = Annotated[
    int | None, typer.Option("--at-batch", min=1, help="Global batch that --epochs refers to.")
]
TopologyOption = Annotated[
    Topology | None,
    typer.Option("--topology", help="How gradients travel, if the file does not say."),
]
LawsOption = Annotated[
    LawFamily,
    typer.Option("--laws", help="Models: the forms that fit the data best, or the paper's."),
]
WorkersOption = Annotated[
    str | None, typer.Option("--workers", help="Worker counts to predict, e.g. 2..16 or 2,4,8.")
]
BatchOption = Annotated[
    str | None,
    typer.Option(
        "--batch", help="Global batches to predict: a list, or 64..1024 for doublings in a range."
    ),
]
NoiseScaleOption = Annotated[
    float | None,
    typer.Option("--noise-scale", min=0, help="Gradient noise scale in samples, if known."),
]
PlotOption = Annotated[
    Path | None, typer.Option("--plot", help="File for a picture of the curve, .svg or .png.")
]


def fit(
    context: typer.Context,
    files: TableFilesArgument,
    table: TableOption = None,
    price: PriceOption = None,
    objective: ObjectiveOption = "knee",
    time_weight: TimeWeightOption = 0.5,
    max_cost: MaxCostOption = None,
    max_time: MaxTimeOption = None,
    dataset_size: DatasetSizeOption = None,
    epochs: EpochsOption = None,
    at_batch: AtBatchOption = None,
    topology: TopologyOption = None,
    laws: LawsOption = "measured",
    workers: WorkersOption = None,
    batch: BatchOption = None,
    noise_scale: NoiseScaleOption = None,
    plot: PlotOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Fit the models to your own measurements and choose a configuration. Starts no machine.

    One file holds seconds per iteration. A second one may hold epochs by batch, or a metric along
    runs, and a third one prices. Columns tell which file is which.
    """
    terminal = get_terminal(context)
    if epochs is not None and not (math.isfinite(epochs) and epochs > 0):
        raise typer.BadParameter(f"{epochs:g} must be above 0", param_hint="--epochs")
    if epochs is not None and at_batch is None:
        message = "needs --at-batch: epochs depend on the batch, so say which one"
        raise typer.BadParameter(message, param_hint="--epochs")
    if max_cost is not None and price is None:
        message = "needs --price: dollars cannot be counted without one"
        raise typer.BadParameter(message, param_hint="--max-cost")
    if plot is not None:
        # Fits may take minutes: a picture that cannot be drawn is refused before, not after.
        validate_plot_file(plot)
    tables = read_table_files(files)
    steps = pick_table(tables, table)
    if tables.ignored:
        terminal.print_message(f"Ignored columns: {', '.join(tables.ignored)}")
    request = FitRequest(
        objective=build_objective(objective, time_weight, max_cost, max_time),
        price_per_hour=parse_machine_price(price, tables.prices),
        dataset_size=dataset_size,
        epochs=epochs,
        at_batch=at_batch,
        runs=find_finished_runs(tables, steps),
        noise_scale=noise_scale,
        topology=topology,
        laws=laws,
        workers=expand_counts(workers),
        global_batches=expand_batches(batch),
    )
    try:
        report = report_fit(steps, request)
    except NotEnoughData as error:
        raise invalid_table(files[0], [DocumentProblem("", str(error))]) from None
    configs = [judged.point.config for judged in report.points]
    names = [f"k{config.workers}-b{config.global_batch}" for config in configs]
    terminal.print_document(fit_document(report), output, render_fit(report), names)
    if plot is not None:
        save_picture(report, plot)
        terminal.print_message(f"Wrote {plot}")


def validate_plot_file(file: Path) -> None:
    """Check that a picture can be drawn to a file.

    Raises:
        typer.BadParameter: The suffix names no known kind of picture.
        ExtraNotInstalled: Matplotlib is not installed.
    """
    if file.suffix.lower() not in (".svg", ".png"):
        message = f"{file} ends in neither .svg nor .png: write e.g. curve.svg"
        raise typer.BadParameter(message, param_hint="--plot")
    require_extra("plots", "matplotlib")


def save_picture(report: FitReport, file: Path) -> None:
    """Draw a report to a file."""
    try:
        draw_fit(report, file)
    except OSError as error:
        message = f"cannot be written: {error.strerror or error}"
        raise typer.BadParameter(f"{file} {message}", param_hint="--plot") from None


def pick_table(tables: MeasurementTables, pattern: str | None) -> StepTable:
    """Return the table of seconds that a pattern names, or the only one.

    Raises:
        TableNotSelected: No table matches, or several do.
    """
    if not tables.steps:
        raise TableNotSelected(
            "No file holds seconds per iteration: a column step_time is needed", ()
        )
    found = match_table_names([table.name for table in tables.steps], pattern)
    if len(found) > 1:
        meant = f"{pattern} matches" if pattern else "There are"
        raise TableNotSelected(f"{meant} {len(found)} tables, but a fit takes one", found)
    return next(table for table in tables.steps if table.name == found[0])


def build_objective(
    name: str, time_weight: float, max_cost: str | None, max_time: str | None
) -> Objective:
    """Return the objective, within its limits if there are some."""
    objective = make_objective(name, time_weight=time_weight)
    cost = parse_option("--max-cost", lambda text: float(read_money(text)), max_cost)
    time = parse_option("--max-time", read_duration, max_time)
    if cost is None and time is None:
        return objective
    if cost is not None and cost <= 0:
        raise typer.BadParameter("must be above 0 USD", param_hint="--max-cost")
    return ConstrainedObjective(objective, max_cost=cost, max_time=time)


def parse_option(name: str, read: Callable[[str], float], text: str | None) -> float | None:
    """Read the text of an option; None where it was left out."""
    if text is None:
        return None
    try:
        return read(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=name) from None


def parse_machine_price(text: str | None, prices: tuple[ListedPrice, ...]) -> float | None:
    """Return dollars per machine-hour: as written, or of a machine in a file of prices."""
    if text is None or not prices or " " in text:
        return parse_option("--price", lambda text: float(read_price(text)), text)
    offered = {price.key: price.price_per_hour for price in prices if price.price_per_hour > 0}
    if text in offered:
        return offered[text]
    regions = sorted(key for key in offered if key.partition("@")[0] == text)
    close = regions[0] if regions else closest_name(text, tuple(offered))
    hint = f": write e.g. {close}" if close else ""
    raise typer.BadParameter(f"no price of {text} in the files{hint}", param_hint="--price")


def find_finished_runs(tables: MeasurementTables, steps: StepTable) -> tuple[FinishedRun, ...]:
    """Return the epochs that finished runs of the table's job took; none where no file has them.

    Raises:
        TableNotSelected: None of several tables belongs to the table.
    """
    known = {table.name: table.runs for table in tables.epochs}
    for table in tables.noise:
        target = common_target(table)
        if target is not None:
            known.setdefault(table.name, target.runs)
    if len(known) == 1:
        return next(iter(known.values()))
    name = nearest_ancestor(steps.name, known)
    if known and name is None:
        what = f"No table of epochs is named {steps.name} or after a folder above it"
        raise TableNotSelected(what, tuple(known))
    return known[name] if name is not None else ()
