"""``scavenger evaluate``: how well the laws predict measurements they were not fitted to."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from scavenger.cli.figures import words
from scavenger.cli.fit import TopologyName
from scavenger.cli.option import FormOption, JsonOption, TableFiles, read_counts
from scavenger.cli.terminal import Form, terminal_of
from scavenger.quantity import Bounds

if TYPE_CHECKING:
    from scavenger.evaluation.evaluation import Check, Finding
    from scavenger.models.epochs import Laws
    from scavenger.tables.tables import Tables

FEWEST_POINTS, MOST_POINTS = 2, 64
MOST_DRAWS = 1000


class LawsChoice(StrEnum):
    """Which laws to compare."""

    BOTH = "both"
    MEASURED = "measured"
    PAPER = "paper"


LAWS: dict[LawsChoice, tuple[Laws, ...]] = {
    LawsChoice.BOTH: ("measured", "paper"),
    LawsChoice.MEASURED: ("measured",),
    LawsChoice.PAPER: ("paper",),
}
Table = Annotated[
    str | None, typer.Option("--table", help="Only these tables, e.g. 'pollux/*/spread'.")
]
Points = Annotated[
    str, typer.Option("--points", help="Numbers of configurations to fit to, e.g. 4,6,8.")
]
LawsOption = Annotated[
    LawsChoice, typer.Option("--laws", help="Laws to compare: the data's, the paper's lines.")
]
Workers = Annotated[
    str | None, typer.Option("--workers", help="Only rows with these workers, e.g. 6..16.")
]
MinWorkers = Annotated[
    int, typer.Option("--min-workers", min=1, help="Only rows with at least so many workers.")
]
BatchRatio = Annotated[
    float | None,
    typer.Option(
        "--batch-ratio",
        help="Predict windows of batches, the largest at most so many times the smallest, one by "
        "one.",
    ),
]
FourCorners = Annotated[
    bool,
    typer.Option("--four-corners", help="Leave out what has fewer than four distinct corners."),
]
Random = Annotated[
    int,
    typer.Option(
        "--random",
        min=0,
        max=MOST_DRAWS,
        help="Also fit to so many random choices of configurations, for each number of points.",
    ),
]
Seed = Annotated[
    int, typer.Option("--seed", min=0, help="The same seed makes the same random choices.")
]
TopologyOption = Annotated[
    TopologyName,
    typer.Option("--topology", help="How gradients travelled where a file does not say."),
]


def evaluate(
    context: typer.Context,
    files: TableFiles,
    points: Points = "4,6,8",
    table: Table = None,
    laws: LawsOption = LawsChoice.BOTH,
    workers: Workers = None,
    min_workers: MinWorkers = 1,
    batch_ratio: BatchRatio = None,
    four_corners: FourCorners = False,
    random: Random = 0,
    seed: Seed = 0,
    topology: TopologyOption = TopologyName.ALL_REDUCE,
    json: JsonOption = False,
    output: FormOption = Form.TABLE,
) -> None:
    """Predict tables of measurements from a few of their rows, and compare with the others.

    The rows are those a search would probe, and on request random ones too. Seconds per iteration
    from a few configurations, epochs from two and three batches, noise from two; and what choosing
    by such predictions loses against the best configuration measured.
    """
    # What fits takes longer to import than every other command takes to run.
    from scavenger.cli.evaluation_table import show_evaluation, write_evaluation
    from scavenger.cli.table_file import read_files
    from scavenger.evaluation.design import RandomDesign, SearchDesign
    from scavenger.evaluation.evaluation import Scope, list_checks, summarise
    from scavenger.evaluation.restriction import Restriction

    terminal = terminal_of(context)
    fewest, most = bounds_of(workers, min_workers)
    require_ratio(batch_ratio)
    scope = Scope(
        points=read_points(points),
        laws=LAWS[laws],
        restriction=Restriction(fewest, most, batch_ratio, four_corners),
        topology=topology.value,
        designs=(SearchDesign(), RandomDesign(random, seed)) if random else (SearchDesign(),),
    )
    tables = only(read_files(files), table)
    checks = list_checks(tables, scope)
    findings = tuple(run(checks, terminal.chatter))
    if not findings:
        terminal.say(words("Nothing to check: no table has more rows than points to fit to"))
    evaluation = summarise(findings)
    if json or output is Form.JSON:
        terminal.write(write_evaluation(evaluation))
    else:
        terminal.data.print(show_evaluation(evaluation))


def bounds_of(workers: str | None, fewest: int) -> tuple[int, int | None]:
    """Return the fewest and the most workers that count."""
    if workers is None:
        return fewest, None
    counts = read_counts(workers)
    low, high = (counts.low, counts.high) if isinstance(counts, Bounds) else (counts[0], counts[-1])
    return max(low, fewest), high


def require_ratio(ratio: float | None) -> None:
    """Refuse a ratio of batches that leaves a window of one."""
    if ratio is not None and not 1 < ratio < math.inf:
        message = f"{ratio:g} must be above 1: write e.g. 2.7"
        raise typer.BadParameter(message, param_hint="--batch-ratio")


def read_points(text: str) -> tuple[int, ...]:
    """Read numbers of points to fit to.

    Raises:
        typer.BadParameter: They are none; the message says what to write.
    """
    counts = read_counts(text)
    listed = tuple(range(counts.low, counts.high + 1)) if isinstance(counts, Bounds) else counts
    if not FEWEST_POINTS <= listed[0] <= listed[-1] <= MOST_POINTS:
        message = f"{text} must be from {FEWEST_POINTS} to {MOST_POINTS}: write e.g. 4,6,8"
        raise typer.BadParameter(message, param_hint="--points")
    return listed


def only(tables: Tables, pattern: str | None) -> Tables:
    """Keep the tables that a pattern means, and the epochs of those of seconds.

    Raises:
        NoSuchTable: There are none.
    """
    from scavenger.cli.table_file import matching

    if pattern is None:
        return tables
    every = [table.name for table in tables.steps]
    every += [table.name for table in tables.epochs] + [table.name for table in tables.noise]
    names = set(matching(every, pattern))
    steps = tuple(table for table in tables.steps if table.name in names)
    ancestors = {name for table in steps for name in lineage(table.name)}
    kept = names | ancestors
    return replace(
        tables,
        steps=steps,
        epochs=tuple(table for table in tables.epochs if table.name in kept),
        noise=tuple(table for table in tables.noise if table.name in kept),
    )


def lineage(name: str) -> list[str]:
    """Return a table's name and those of the folders above it.

    >>> lineage("pollux/bert/T4")
    ['pollux', 'pollux/bert', 'pollux/bert/T4']
    """
    parts = name.split("/")
    return ["/".join(parts[:end]) for end in range(1, len(parts) + 1)]


def run(checks: Sequence[Check], console: Console) -> Iterator[Finding]:
    """Run checks and yield what they find, with a bar where somebody looks."""
    columns = (TextColumn("checking"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        for check in bar.track(checks):
            yield from check()
