"""``scavenger fit``: somebody's own measurements become a curve, without any service."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scavenger.cli.errors import NothingFits
from scavenger.cli.figures import words
from scavenger.cli.option import FormOption, JsonOption, TableFiles
from scavenger.cli.terminal import Form, terminal_of
from scavenger.errors import NotEnoughData, NothingFeasible, Problem

if TYPE_CHECKING:
    from scavenger.fit.report import FitReport


class Aim(StrEnum):
    """What to choose by."""

    KNEE = "knee"
    FASTEST = "fastest"
    CHEAPEST = "cheapest"
    WEIGHTED = "weighted"


class LawsName(StrEnum):
    """Which laws to fit."""

    MEASURED = "measured"
    PAPER = "paper"


class TopologyName(StrEnum):
    """How gradients travel."""

    ALL_REDUCE = "all_reduce"
    PARAMETER_SERVER = "parameter_server"


Table = Annotated[
    str | None,
    typer.Option("--table", help="Which table of the file; * stands for anything."),
]
Price = Annotated[
    str | None,
    typer.Option(
        "--price",
        help="Of one machine, e.g. '0.13402 USD/h', or a machine such as e2-standard-4@us-east1 "
        "from a file of prices. Without it cost counts machine-hours.",
    ),
]
Objective = Annotated[Aim, typer.Option("--objective", help="What to choose by.")]
TimeWeight = Annotated[
    float,
    typer.Option(
        "--time-weight", min=0, max=1, help="For weighted: 0 counts only cost, 1 only time."
    ),
]
MaxCost = Annotated[str | None, typer.Option("--max-cost", help="Limit, e.g. '40 USD'.")]
MaxTime = Annotated[str | None, typer.Option("--max-time", help="Limit, e.g. 3h12m.")]
DatasetSize = Annotated[
    int | None, typer.Option("--dataset-size", min=1, help="Samples of one epoch.")
]
Epochs = Annotated[
    float | None, typer.Option("--epochs", help="Epochs to the target, at --at-batch.")
]
AtBatch = Annotated[
    int | None, typer.Option("--at-batch", min=1, help="Batch the epochs are counted at.")
]
TopologyOption = Annotated[
    TopologyName | None,
    typer.Option("--topology", help="How gradients travel, if the file does not say."),
]
LawsOption = Annotated[
    LawsName,
    typer.Option("--laws", help="Let the data choose the form of the laws, or take the paper's."),
]
Workers = Annotated[
    str | None, typer.Option("--workers", help="Workers to predict, e.g. 2..16 or 2,4,8.")
]
Batch = Annotated[
    str | None,
    typer.Option(
        "--batch", help="Batches to predict: a list, or 64..1024 for the doublings between."
    ),
]
Scale = Annotated[
    float | None,
    typer.Option("--noise-scale", min=0, help="Gradient noise scale in samples, if known."),
]
Plot = Annotated[
    Path | None, typer.Option("--plot", help="Draw the curve to this .svg or .png file.")
]


def fit(
    context: typer.Context,
    files: TableFiles,
    table: Table = None,
    price: Price = None,
    objective: Objective = Aim.KNEE,
    time_weight: TimeWeight = 0.5,
    max_cost: MaxCost = None,
    max_time: MaxTime = None,
    dataset_size: DatasetSize = None,
    epochs: Epochs = None,
    at_batch: AtBatch = None,
    topology: TopologyOption = None,
    laws: LawsOption = LawsName.MEASURED,
    workers: Workers = None,
    batch: Batch = None,
    noise_scale: Scale = None,
    plot: Plot = None,
    json: JsonOption = False,
    output: FormOption = Form.TABLE,
) -> None:
    """Fit the laws to your own measurements and choose a configuration. Nothing is started.

    One file holds seconds per iteration; a second one may hold epochs by batch, or a metric along
    runs, and a third one prices. Their columns tell which is which.
    """
    # What fits takes longer to import than every other command takes to run.
    from scavenger.cli.fit_request import Asked, pick_table, request_of
    from scavenger.cli.fit_table import show_fit, write_fit
    from scavenger.cli.table_file import read_files, unusable
    from scavenger.fit.report import report_fit

    terminal = terminal_of(context)
    asked = Asked(
        objective=objective.value,
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
        require_picture(plot)
    tables = read_files(files)
    steps = pick_table(tables, table)
    if tables.ignored:
        terminal.say(words(f"Columns without meaning here: {', '.join(tables.ignored)}"))
    request = request_of(asked, tables, steps)
    try:
        report = report_fit(steps, request)
    except NotEnoughData as error:
        raise unusable(files[0], [Problem("", str(error))]) from None
    except NothingFeasible as error:
        raise NothingFits(str(error)) from None
    if json or output is Form.JSON:
        terminal.write(write_fit(report))
    else:
        terminal.data.print(show_fit(report))
    if plot is not None:
        save(report, plot)
        terminal.say(words(f"Drawn: {plot}"))


def require_picture(file: Path) -> None:
    """Refuse a picture that could not be drawn in the end.

    Raises:
        typer.BadParameter: The name tells no kind of picture there is.
        NoPlots: What draws pictures is not installed.
    """
    if file.suffix.lower() not in (".svg", ".png"):
        message = f"{file} ends in neither .svg nor .png: write e.g. curve.svg"
        raise typer.BadParameter(message, param_hint="--plot")
    from scavenger.cli.fit_picture import require_plots

    require_plots()


def save(report: FitReport, file: Path) -> None:
    """Draw a report to a file."""
    from scavenger.cli.fit_picture import draw_fit

    try:
        draw_fit(report, file)
    except OSError as error:
        message = f"cannot be written: {error.strerror or error}"
        raise typer.BadParameter(f"{file} {message}", param_hint="--plot") from None
