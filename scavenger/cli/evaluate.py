"""``scavenger evaluate``: how well the models predict measurements that they were not fitted to."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Annotated, Literal, TypeVar

import typer
from pydantic import TypeAdapter
from rich.console import Console, Group, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from scavenger.cli.options import OutputOption, expand_counts, parse_counts
from scavenger.cli.output import (
    UNKNOWN_VALUE,
    OutputFormat,
    ResponsiveTable,
    format_number,
    get_terminal,
    long_name_column,
    number_column,
    plain_text,
    word_column,
)
from scavenger.cli.table_files import TableFilesArgument, match_table_names, read_table_files
from scavenger.job.fields import Bounds
from scavenger.models.epochs import LawFamily
from scavenger.models.forms import Topology
from scavenger.offline.evaluation.checks import (
    EvaluatedFigure,
    Evaluation,
    EvaluationFinding,
    EvaluationScope,
    EvaluationTask,
    GroupMean,
    list_tasks,
    summarise_findings,
)
from scavenger.offline.evaluation.prediction_errors import EpochsAccuracy, StepTimeAccuracy
from scavenger.offline.evaluation.regret import DEADLINE_FACTOR, REGRET_OBJECTIVES, Regret
from scavenger.offline.evaluation.sampling import (
    DesignName,
    RandomDesign,
    Restriction,
    SearchDesign,
)
from scavenger.offline.tables.files import MeasurementTables
from scavenger.offline.tables.runs import TARGET_SHARE

MIN_FIT_POINTS, MAX_FIT_POINTS = 2, 64
MAX_RANDOM_DESIGNS = 1000

TablePatternOption = Annotated[
    str | None, typer.Option("--table", help="Only these tables, e.g. 'pollux/*/spread'.")
]
PointsOption = Annotated[
    str, typer.Option("--points", help="Numbers of configurations to fit to, e.g. 4,6,8.")
]
ComparedLawsOption = Annotated[
    Literal["both", "measured", "paper"],
    typer.Option("--laws", help="Models to compare: the best-fitting forms, the paper's."),
]
WorkersFilterOption = Annotated[
    str | None, typer.Option("--workers", help="Only rows with these workers, e.g. 6..16.")
]
MinWorkersOption = Annotated[
    int, typer.Option("--min-workers", min=1, help="Only rows with at least this many workers.")
]
BatchRatioOption = Annotated[
    float | None,
    typer.Option(
        "--batch-ratio",
        help="Predict each window of batches whose largest is at most this multiple of the least.",
    ),
]
FourCornersOption = Annotated[
    bool,
    typer.Option("--four-corners", help="Leave out tables with fewer than four distinct corners."),
]
RandomDesignsOption = Annotated[
    int,
    typer.Option(
        "--random",
        min=0,
        max=MAX_RANDOM_DESIGNS,
        help="Number of random choices of configurations to fit to, for each number of points.",
    ),
]
SeedOption = Annotated[int, typer.Option("--seed", min=0, help="Seed of the random choices.")]
DefaultTopologyOption = Annotated[
    Topology,
    typer.Option("--topology", help="How gradients travelled, if the file does not say."),
]


def evaluate(
    context: typer.Context,
    files: TableFilesArgument,
    points: PointsOption = "4,6,8",
    table: TablePatternOption = None,
    laws: ComparedLawsOption = "both",
    workers: WorkersFilterOption = None,
    min_workers: MinWorkersOption = 1,
    batch_ratio: BatchRatioOption = None,
    four_corners: FourCornersOption = False,
    random: RandomDesignsOption = 0,
    seed: SeedOption = 0,
    topology: DefaultTopologyOption = "all_reduce",
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Predict measurements from a few of their rows, and compare with the other rows.

    The few rows are those that a search would probe, and with --random also random ones. Predicted
    are seconds per iteration from a few configurations, epochs from two or three batches and noise
    from two; and what a choice by such predictions loses against the best measured configuration.
    """
    terminal = get_terminal(context)
    if batch_ratio is not None and not 1 < batch_ratio < math.inf:
        # A ratio of 1 would leave windows of a single batch, from which nothing can be predicted.
        message = f"{batch_ratio:g} must be above 1: write e.g. 2.7"
        raise typer.BadParameter(message, param_hint="--batch-ratio")
    fewest, most = worker_bounds(workers, min_workers)
    scope = EvaluationScope(
        points=parse_points(points),
        laws=("measured", "paper") if laws == "both" else (laws,),
        restriction=Restriction(fewest, most, batch_ratio, four_corners),
        topology=topology,
        designs=(SearchDesign(), RandomDesign(random, seed)) if random else (SearchDesign(),),
    )
    tables = select_tables(read_table_files(files), table)
    tasks = list_tasks(tables, scope)
    findings = tuple(run_tasks(tasks, terminal.stderr))
    if not findings:
        terminal.print_message("Nothing to check: no table has more rows than points to fit to")
    evaluation = summarise_findings(findings)
    document = TypeAdapter(Evaluation).dump_python(evaluation, mode="json")
    versioned = {"version": EVALUATION_FORMAT_VERSION, **document}
    names = sorted({finding.table for finding in findings})
    terminal.print_document(versioned, output, render_evaluation(evaluation), names)


def worker_bounds(workers: str | None, fewest: int) -> tuple[int, int | None]:
    """Return the fewest and the most workers of the rows to keep."""
    if workers is None:
        return fewest, None
    counts = parse_counts(workers)
    low, high = (counts.low, counts.high) if isinstance(counts, Bounds) else (counts[0], counts[-1])
    return max(low, fewest), high


def parse_points(text: str) -> tuple[int, ...]:
    """Read the numbers of points to fit to.

    Raises:
        typer.BadParameter: The text is no such list; the message says what to write.
    """
    listed = expand_counts(text)
    if not MIN_FIT_POINTS <= listed[0] <= listed[-1] <= MAX_FIT_POINTS:
        message = f"{text} must be from {MIN_FIT_POINTS} to {MAX_FIT_POINTS}: write e.g. 4,6,8"
        raise typer.BadParameter(message, param_hint="--points")
    return listed


def select_tables(tables: MeasurementTables, pattern: str | None) -> MeasurementTables:
    """Keep the tables that match a pattern, and epochs and noise of the folders above them.

    Raises:
        TableNotSelected: No table matches.
    """
    if pattern is None:
        return tables
    every = [table.name for table in tables.steps]
    every += [table.name for table in tables.epochs] + [table.name for table in tables.noise]
    names = set(match_table_names(every, pattern))
    steps = tuple(table for table in tables.steps if table.name in names)
    kept = names.union(*(ancestor_names(table.name) for table in steps))
    return replace(
        tables,
        steps=steps,
        epochs=tuple(table for table in tables.epochs if table.name in kept),
        noise=tuple(table for table in tables.noise if table.name in kept),
    )


def ancestor_names(name: str) -> list[str]:
    """Return a table's name and those of the folders above it.

    >>> ancestor_names("pollux/bert/T4")
    ['pollux', 'pollux/bert', 'pollux/bert/T4']
    """
    parts = name.split("/")
    return ["/".join(parts[:end]) for end in range(1, len(parts) + 1)]


def run_tasks(tasks: Sequence[EvaluationTask], console: Console) -> Iterator[EvaluationFinding]:
    """Run tasks and yield what they find; a terminal shows a progress bar."""
    columns = (TextColumn("checking"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        for task in bar.track(tasks):
            yield from task()


EVALUATION_FORMAT_VERSION = 1  # counts up when a key of the JSON changes its meaning
ALL_TABLES = "all tables"
FIGURE_TITLES: dict[EvaluatedFigure, str] = {
    "step_time": "seconds per iteration, predicted from a few configurations",
    "epochs": "epochs to target, predicted from a few batches",
    "noise": "gradient noise, predicted from the two extreme batches",
    "fastest": "regret of the fastest: true time over the best, less 1",
    "cheapest": "regret of the cheapest: true cost over the best, less 1",
    "cheapest_in_time": "regret of the cheapest with a 90 % chance of finishing within "
    f"{DEADLINE_FACTOR:g} × the least time",
    "cheapest_likely_in_time": "regret of the cheapest that is expected to finish within "
    f"{DEADLINE_FACTOR:g} × the least time",
    "knee": "regret of the knee: root of time times cost over the true knee's, less 1",
}


def render_evaluation(evaluation: Evaluation) -> RenderableType:
    """Show an evaluation: each table, then the means by group."""
    parts: list[RenderableType] = []
    if evaluation.step_times:
        parts += ["Seconds per iteration", render_step_times(evaluation), ""]
    if evaluation.epochs:
        parts += ["Epochs to target", render_epochs(evaluation), ""]
    if evaluation.noise:
        parts += ["Gradient noise", render_noise(evaluation), ""]
    if evaluation.regrets:
        parts += ["Regret of choices, in percent", render_regrets(evaluation), ""]
    parts += ["Means over tables", render_means(evaluation.means)]
    return Group(*(plain_text(p, "bold") if isinstance(p, str) else p for p in parts))


STEP_TIME_COLUMNS = (
    long_name_column("TABLE"),
    number_column("POINTS"),
    word_column("DESIGN"),
    number_column("REST", 4),
    number_column("WINDOWS", 5),
    number_column("ERROR", 1),
    number_column("IN BAND", 3),
    number_column("PAPER", 2),
)
EPOCHS_COLUMNS = (
    long_name_column("TABLE"),
    number_column("BATCHES"),
    number_column("REST", 4),
    number_column("ERROR", 1),
    number_column("IN BAND", 3),
    number_column("PAPER", 2),
)
NOISE_COLUMNS = (
    long_name_column("TABLE"),
    number_column("φ", 2),
    number_column("(B + φ) / B", 1),
    number_column("n0 + n1/√B", 1),
)
REGRET_COLUMNS = (
    long_name_column("TABLE"),
    word_column("LAWS"),
    number_column("POINTS"),
    word_column("DESIGN"),
    number_column("FAST", 2),
    number_column("CHEAP", 2),
    number_column("IN TIME", 3),
    number_column("LATE", 4),
    number_column("LIKELY", 5),
    number_column("LATE", 6),
    number_column("KNEE", 1),
)


def render_step_times(evaluation: Evaluation) -> RenderableType:
    """Show predictions of seconds, ours beside the paper's lines."""
    rows = [
        (
            plain_text(first.table),
            str(first.points),
            first.design,
            str(first.rest),
            str(first.windows),
            format_share(first.error),
            format_share(first.covered, 0),
            UNKNOWN_VALUE if paper is None else format_share(paper.error),
        )
        for first, paper in pair_with_paper(evaluation.step_times)
    ]
    return ResponsiveTable(STEP_TIME_COLUMNS, rows, gap=1)


def render_epochs(evaluation: Evaluation) -> RenderableType:
    """Show predictions of epochs, ours beside the paper's law."""
    rows = [
        (
            plain_text(first.table),
            str(first.batches),
            str(first.rest),
            format_share(first.error),
            UNKNOWN_VALUE if first.covered is None else format_share(first.covered, 0),
            UNKNOWN_VALUE if paper is None else format_share(paper.error),
        )
        for first, paper in pair_with_paper(evaluation.epochs)
    ]
    rule = (
        f"a metric's target lies {TARGET_SHARE:.0%} of the way to the best one that every "
        "batch reaches"
    )
    return Group(ResponsiveTable(EPOCHS_COLUMNS, rows, gap=1), Text(f"· {rule}", "dim"))


def render_noise(evaluation: Evaluation) -> RenderableType:
    """Show predictions of noise by both laws."""
    rows = [
        (
            plain_text(error.table),
            format_number(error.noise_scale),
            format_share(error.error),
            format_share(error.root_error),
        )
        for error in evaluation.noise
    ]
    return ResponsiveTable(NOISE_COLUMNS, rows, gap=1)


def render_regrets(evaluation: Evaluation) -> RenderableType:
    """Show regrets, one row for each table, number of points and laws."""
    found_by: dict[tuple[str, LawFamily, int, DesignName], dict[str, Regret]] = {}
    for each in evaluation.regrets:
        row = (each.table, each.laws, each.points, each.design)
        found_by.setdefault(row, {})[each.wish] = each
    rows = [
        (
            plain_text(table),
            laws,
            str(points),
            design,
            *(cell for wish in REGRET_OBJECTIVES for cell in regret_cells(found[wish])),
        )
        for (table, laws, points, design), found in found_by.items()
    ]
    return ResponsiveTable(REGRET_COLUMNS, rows, gap=1)


def regret_cells(regret: Regret) -> Iterable[str]:
    """Yield the regret and, of an objective with a deadline, how often it is missed."""
    yield f"{100 * regret.regret:.1f}"
    if "in_time" in regret.wish:
        yield f"{100 * regret.late:.0f}"


def render_means(means: Sequence[GroupMean]) -> RenderableType:
    """Show means by what was predicted, then by group."""
    width = max((len(mean.group or ALL_TABLES) for mean in means), default=0)
    parts: list[RenderableType] = []
    for predicted, meaning in FIGURE_TITLES.items():
        own = [mean for mean in means if mean.figure == predicted]
        if own:
            parts += [Text(meaning, "dim"), render_group_means(own, width)]
    return Group(*parts)


def render_group_means(means: Sequence[GroupMean], width: int) -> RenderableType:
    """Show the means of one figure, all groups as wide as the widest."""
    band = "IN TIME" if "in_time" in means[0].figure else "IN BAND"
    columns = (
        long_name_column("GROUP".ljust(width)),
        word_column("LAWS"),
        number_column("POINTS"),
        word_column("DESIGN"),
        number_column("TABLES", 3),
        number_column("ERROR", 1),
        number_column(band, 2),
    )
    rows = [
        (
            plain_text(mean.group or ALL_TABLES),
            mean.laws,
            str(mean.points),
            mean.design,
            str(mean.tables),
            format_share(mean.error, 2),
            UNKNOWN_VALUE if mean.covered is None else format_share(mean.covered, 0),
        )
        for mean in sorted(means, key=mean_order)
    ]
    return ResponsiveTable(columns, rows, gap=1)


def mean_order(mean: GroupMean) -> tuple[bool, str, int, bool, str]:
    """Key of the order in which means are shown: all tables first, searches before chance."""
    return mean.group != "", mean.group, mean.points, mean.design == "random", mean.laws


# What was predicted by one of several laws.
ComparisonT = TypeVar("ComparisonT", bound=StepTimeAccuracy | EpochsAccuracy)


def pair_with_paper(
    errors: Sequence[ComparisonT],
) -> Iterable[tuple[ComparisonT, ComparisonT | None]]:
    """Yield each finding with that of the paper's laws, which follows it where both were asked."""
    for error, after in zip(errors, (*errors[1:], None), strict=True):
        if error.laws == "measured":
            is_paper = after is not None and after.laws == "paper" and after.table == error.table
            yield error, after if is_paper else None
    if all(error.laws == "paper" for error in errors):
        yield from ((error, error) for error in errors)


def format_share(value: float, digits: int = 1) -> str:
    """Write a share in percent.

    >>> format_share(0.0149, 2)
    '1.49 %'
    """
    return f"{100 * value:.{digits}f} %"
