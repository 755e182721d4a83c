"""``scavenger fit``: fits the models to measurements in CSV files and chooses a configuration."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scavenger.cli.errors import TableNotFound
from scavenger.cli.options import (
    JsonOption,
    OutputOption,
    TableFilesArgument,
    match_table_names,
    parse_counts,
)
from scavenger.cli.output import OutputFormat, get_terminal
from scavenger.errors import DocumentProblem, NotEnoughData
from scavenger.job.fields import Bounds, closest_name, read_duration, read_money, read_price
from scavenger.models.epochs import FinishedRun, LawFamily
from scavenger.models.forms import Topology
from scavenger.offline.fitted_laws import FitRequest
from scavenger.offline.tables.files import ListedPrice, MeasurementTables
from scavenger.offline.tables.runs import common_target, nearest_ancestor
from scavenger.offline.tables.steps import StepTable
from scavenger.planning.limits import Within
from scavenger.planning.objective import Objective
from scavenger.planning.objectives import OBJECTIVES, make_objective

if TYPE_CHECKING:
    from scavenger.offline.fit import FitReport


if TYPE_CHECKING:
    FitObjective = str
else:  # typer lists the members of an enumeration in its help
    FitObjective = StrEnum("FitObjective", {name.upper(): name for name in OBJECTIVES})


class FittedLaws(StrEnum):
    """Which laws to fit."""

    MEASURED = "measured"
    PAPER = "paper"


class TopologyChoice(StrEnum):
    """How gradients travel."""

    ALL_REDUCE = "all_reduce"
    PARAMETER_SERVER = "parameter_server"


TableOption = Annotated[
    str | None,
    typer.Option("--table", help="Which table of the file; * stands for anything."),
]
PriceOption = Annotated[
    str | None,
    typer.Option(
        "--price",
        help="Of one machine, e.g. '0.13402 USD/h', or a machine such as e2-standard-4@us-east1 "
        "from a file of prices. Without it cost counts machine-hours.",
    ),
]
ObjectiveOption = Annotated[FitObjective, typer.Option("--objective", help="What to choose by.")]
TimeWeightOption = Annotated[
    float,
    typer.Option(
        "--time-weight", min=0, max=1, help="For weighted: 0 counts only cost, 1 only time."
    ),
]
MaxCostOption = Annotated[str | None, typer.Option("--max-cost", help="Limit, e.g. '40 USD'.")]
MaxTimeOption = Annotated[str | None, typer.Option("--max-time", help="Limit, e.g. 3h12m.")]
DatasetSizeOption = Annotated[
    int | None, typer.Option("--dataset-size", min=1, help="Samples of one epoch.")
]
EpochsOption = Annotated[
    float | None, typer.Option("--epochs", help="Epochs to the target, at --at-batch.")
]
AtBatchOption = Annotated[
    int | None, typer.Option("--at-batch", min=1, help="Batch the epochs are counted at.")
]
TopologyOption = Annotated[
    TopologyChoice | None,
    typer.Option("--topology", help="How gradients travel, if the file does not say."),
]
LawsOption = Annotated[
    FittedLaws,
    typer.Option("--laws", help="Let the data choose the form of the laws, or take the paper's."),
]
WorkersOption = Annotated[
    str | None, typer.Option("--workers", help="Workers to predict, e.g. 2..16 or 2,4,8.")
]
BatchOption = Annotated[
    str | None,
    typer.Option(
        "--batch", help="Batches to predict: a list, or 64..1024 for the doublings between."
    ),
]
NoiseScaleOption = Annotated[
    float | None,
    typer.Option("--noise-scale", min=0, help="Gradient noise scale in samples, if known."),
]
PlotOption = Annotated[
    Path | None, typer.Option("--plot", help="Draw the curve to this .svg or .png file.")
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
    laws: LawsOption = FittedLaws.MEASURED,
    workers: WorkersOption = None,
    batch: BatchOption = None,
    noise_scale: NoiseScaleOption = None,
    plot: PlotOption = None,
    json: JsonOption = False,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Fit the laws to your own measurements and choose a configuration. Nothing is started.

    One file holds seconds per iteration; a second one may hold epochs by batch, or a metric along
    runs, and a third one prices. Their columns tell which is which.
    """
    # What fits takes longer to import than every other command takes to run.
    from scavenger.cli.fit_report import fit_to_json, render_fit
    from scavenger.cli.options import invalid_table, read_table_files
    from scavenger.offline.fit import report_fit

    terminal = get_terminal(context)
    asked = FitOptions(
        objective=str(objective),
        time_weight=time_weight,
        price=price,
        max_cost=max_cost,
        max_time=max_time,
        dataset_size=dataset_size,
        epochs=epochs,
        at_batch=at_batch,
        topology=None if topology is None else topology.value,
        laws=laws.value,
        workers=workers,
        batch=batch,
        noise_scale=noise_scale,
    )
    if plot is not None:
        # Before a long fit, not after it.
        validate_plot_file(plot)
    tables = read_table_files(files)
    steps = pick_table(tables, table)
    if tables.ignored:
        terminal.print_message(f"Columns without meaning here: {', '.join(tables.ignored)}")
    request = build_request(asked, tables, steps)
    try:
        report = report_fit(steps, request)
    except NotEnoughData as error:
        raise invalid_table(files[0], [DocumentProblem("", str(error))]) from None
    if json or output is OutputFormat.JSON:
        terminal.write_line(fit_to_json(report))
    else:
        terminal.stdout.print(render_fit(report))
    if plot is not None:
        save_picture(report, plot)
        terminal.print_message(f"Drawn: {plot}")


def validate_plot_file(file: Path) -> None:
    """Refuse a picture that could not be drawn in the end.

    Raises:
        typer.BadParameter: The name tells no kind of picture there is.
        ExtraNotInstalled: Matplotlib is not installed.
    """
    if file.suffix.lower() not in (".svg", ".png"):
        message = f"{file} ends in neither .svg nor .png: write e.g. curve.svg"
        raise typer.BadParameter(message, param_hint="--plot")
    from scavenger.cli.fit_picture import require_matplotlib

    require_matplotlib()


def save_picture(report: FitReport, file: Path) -> None:
    """Draw a report to a file."""
    from scavenger.cli.fit_picture import draw_fit

    try:
        draw_fit(report, file)
    except OSError as error:
        message = f"cannot be written: {error.strerror or error}"
        raise typer.BadParameter(f"{file} {message}", param_hint="--plot") from None


@dataclass(frozen=True, slots=True)
class FitOptions:
    """Options as they were written; None where one was left out."""

    objective: str
    time_weight: float
    price: str | None
    max_cost: str | None
    max_time: str | None
    dataset_size: int | None
    epochs: float | None
    at_batch: int | None
    topology: Topology | None
    laws: LawFamily
    workers: str | None
    batch: str | None
    noise_scale: float | None


def pick_table(tables: MeasurementTables, pattern: str | None) -> StepTable:
    """Return the only table of seconds, or the one that is named.

    Raises:
        TableNotFound: There is none by this name, or several, or none at all.
    """
    if not tables.steps:
        raise TableNotFound("No file holds seconds per iteration: a column step_time is needed", ())
    found = match_table_names([table.name for table in tables.steps], pattern)
    if len(found) > 1:
        meant = f"{pattern} means" if pattern else "There are"
        raise TableNotFound(f"{meant} {len(found)} tables, and a fit is of one", found)
    return next(table for table in tables.steps if table.name == found[0])


def build_request(asked: FitOptions, tables: MeasurementTables, steps: StepTable) -> FitRequest:
    """Return what is asked of a table.

    Raises:
        typer.BadParameter: An option cannot be used; the message says what to write.
        TableNotFound: None of several tables of epochs belongs to the table.
    """
    epochs = asked.epochs
    if epochs is not None and not (math.isfinite(epochs) and epochs > 0):
        raise typer.BadParameter(f"{epochs:g} must be above 0", param_hint="--epochs")
    if epochs is not None and asked.at_batch is None:
        message = "needs --at-batch: epochs depend on the batch, so say which one"
        raise typer.BadParameter(message, param_hint="--epochs")
    if asked.max_cost is not None and asked.price is None:
        message = "needs --price: dollars cannot be counted without one"
        raise typer.BadParameter(message, param_hint="--max-cost")
    return FitRequest(
        objective=build_objective(asked),
        price_per_hour=parse_machine_price(asked.price, tables.prices),
        dataset_size=asked.dataset_size,
        epochs=epochs,
        at_batch=asked.at_batch,
        runs=find_finished_runs(tables, steps),
        noise_scale=asked.noise_scale,
        topology=asked.topology,
        laws=asked.laws,
        workers=expand_workers(asked.workers),
        global_batches=expand_batches(asked.batch),
    )


def build_objective(asked: FitOptions) -> Objective:
    """Return the objective, within its limits if there are some."""
    objective = make_objective(asked.objective, time_weight=asked.time_weight)
    cost = parse_option("--max-cost", lambda text: float(read_money(text)), asked.max_cost)
    time = parse_option("--max-time", read_duration, asked.max_time)
    if cost is None and time is None:
        return objective
    if cost is not None and cost <= 0:
        raise typer.BadParameter("must be above 0 USD", param_hint="--max-cost")
    return Within(objective, max_cost=cost, max_time=time)


def parse_option(name: str, read: Callable[[str], float], text: str | None) -> float | None:
    """Read an option's text; None where it was left out."""
    if text is None:
        return None
    try:
        return read(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=name) from None


def parse_machine_price(text: str | None, prices: tuple[ListedPrice, ...]) -> float | None:
    """Return dollars per machine-hour: as written, or of the machine that is named."""
    if text is None or not prices or " " in text:
        return parse_option("--price", lambda text: float(read_price(text)), text)
    offered = {price.key: price.price_per_hour for price in prices if price.price_per_hour > 0}
    if text in offered:
        return offered[text]
    regions = sorted(key for key in offered if key.partition("@")[0] == text)
    close = regions[0] if regions else closest_name(text, tuple(offered))
    hint = f": write e.g. {close}" if close else ""
    raise typer.BadParameter(f"the prices offer no {text}{hint}", param_hint="--price")


def find_finished_runs(tables: MeasurementTables, steps: StepTable) -> tuple[FinishedRun, ...]:
    """Return what finished runs of the table's job took; none where no file tells.

    Raises:
        TableNotFound: None of several tables belongs to the table.
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
        what = f"No table of epochs is called {steps.name}, or like a folder above it"
        raise TableNotFound(what, tuple(known))
    return known[name] if name is not None else ()


def expand_workers(text: str | None) -> tuple[int, ...]:
    """Return the worker counts of an option; a range means each of them."""
    counts = () if text is None else parse_counts(text)
    return (
        tuple(range(max(counts.low, 1), counts.high + 1)) if isinstance(counts, Bounds) else counts
    )


def expand_batches(text: str | None) -> tuple[int, ...]:
    """Return the batches of an option; a range means its ends and the doublings between.

    >>> expand_batches("64..400")
    (64, 128, 256, 400)
    """
    batches = () if text is None else parse_counts(text)
    if not isinstance(batches, Bounds):
        return batches
    low, high = max(batches.low, 1), batches.high
    between = (low << times for times in range(high.bit_length()))
    return (*(batch for batch in between if batch < high), high)
