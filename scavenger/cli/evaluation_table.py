"""An Evaluation as tables for people, and as JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Protocol, TypeVar

from pydantic import TypeAdapter
from rich.console import Group, RenderableType
from rich.text import Text

from scavenger.cli.figures import UNKNOWN, number, words
from scavenger.cli.fitted_table import FittedTable, figure, key_figure, long_name, name
from scavenger.evaluation.design import DesignName
from scavenger.evaluation.evaluation import Evaluation, Figure, GroupMean
from scavenger.evaluation.regret import DEADLINE, WISHES, Regret
from scavenger.models.epochs import Laws
from scavenger.tables.metric_target import SHARE_OF_THE_WAY

VERSION = 1
ALL = "all tables"
FIGURES: dict[Figure, str] = {
    "step_time": "seconds per iteration, predicted from a few configurations",
    "epochs": "epochs to target, predicted from a few batches",
    "noise": "gradient noise, predicted from the two extreme batches",
    "fastest": "regret of the fastest: true time over the best, less 1",
    "cheapest": "regret of the cheapest: true cost over the best, less 1",
    "cheapest_in_time": f"regret of the cheapest that is 90 % sure to take {DEADLINE:g} × the "
    "least time at most",
    "cheapest_likely_in_time": f"regret of the cheapest that is expected to take {DEADLINE:g} × "
    "the least time at most",
    "knee": "regret of the knee: root of time times cost over the true knee's, less 1",
}


def write_evaluation(evaluation: Evaluation) -> str:
    """Write an evaluation as JSON; docs/measurements.md says what its keys mean."""
    document = TypeAdapter(Evaluation).dump_python(evaluation, mode="json")
    return json.dumps({"version": VERSION, **document}, indent=2, allow_nan=False)


def show_evaluation(evaluation: Evaluation) -> RenderableType:
    """Show an evaluation: each table, then the means by group."""
    parts: list[RenderableType] = []
    if evaluation.step_times:
        parts += ["Seconds per iteration", show_step_times(evaluation), ""]
    if evaluation.epochs:
        parts += ["Epochs to target", show_epochs(evaluation), ""]
    if evaluation.noise:
        parts += ["Gradient noise", show_noise(evaluation), ""]
    if evaluation.regrets:
        parts += ["Regret of choices, in percent", show_regrets(evaluation), ""]
    parts += ["Means over tables", show_means(evaluation.means)]
    return Group(*(words(p, "bold") if isinstance(p, str) else p for p in parts))


STEP_TIME_COLUMNS = (
    long_name("TABLE"),
    key_figure("POINTS"),
    name("DESIGN"),
    figure("REST", 4),
    figure("WINDOWS", 5),
    figure("ERROR", 1),
    figure("IN BAND", 3),
    figure("LINES", 2),
)
EPOCHS_COLUMNS = (
    long_name("TABLE"),
    key_figure("BATCHES"),
    figure("REST", 4),
    figure("ERROR", 1),
    figure("IN BAND", 3),
    figure("PAPER", 2),
)
NOISE_COLUMNS = (
    long_name("TABLE"),
    figure("φ", 2),
    figure("(B + φ) / B", 1),
    figure("n0 + n1/√B", 1),
)
REGRET_COLUMNS = (
    long_name("TABLE"),
    name("LAWS"),
    key_figure("POINTS"),
    name("DESIGN"),
    figure("FAST", 2),
    figure("CHEAP", 2),
    figure("IN TIME", 3),
    figure("LATE", 4),
    figure("LIKELY", 5),
    figure("LATE", 6),
    figure("KNEE", 1),
)


def show_step_times(evaluation: Evaluation) -> RenderableType:
    """Show predictions of seconds, ours beside the paper's lines."""
    rows = [
        (
            words(first.table),
            str(first.points),
            first.design,
            str(first.rest),
            str(first.windows),
            share(first.error),
            share(first.covered, 0),
            UNKNOWN if paper is None else share(paper.error),
        )
        for first, paper in pairs(evaluation.step_times)
    ]
    return FittedTable(STEP_TIME_COLUMNS, rows, gap=1)


def show_epochs(evaluation: Evaluation) -> RenderableType:
    """Show predictions of epochs, ours beside the paper's law."""
    rows = [
        (
            words(first.table),
            str(first.batches),
            str(first.rest),
            share(first.error),
            UNKNOWN if first.covered is None else share(first.covered, 0),
            UNKNOWN if paper is None else share(paper.error),
        )
        for first, paper in pairs(evaluation.epochs)
    ]
    rule = (
        f"a metric's target lies {SHARE_OF_THE_WAY:.0%} of the way to the best one that every "
        "batch reaches"
    )
    return Group(FittedTable(EPOCHS_COLUMNS, rows, gap=1), Text(f"· {rule}", "dim"))


def show_noise(evaluation: Evaluation) -> RenderableType:
    """Show predictions of noise by both laws."""
    rows = [
        (
            words(error.table),
            number(error.noise_scale),
            share(error.error),
            share(error.root_error),
        )
        for error in evaluation.noise
    ]
    return FittedTable(NOISE_COLUMNS, rows, gap=1)


def show_regrets(evaluation: Evaluation) -> RenderableType:
    """Show regrets, one row for each table, number of points and laws."""
    found_by: dict[tuple[str, Laws, int, DesignName], dict[str, Regret]] = {}
    for each in evaluation.regrets:
        row = (each.table, each.laws, each.points, each.design)
        found_by.setdefault(row, {})[each.wish] = each
    rows = [
        (
            words(table),
            laws,
            str(points),
            design,
            *(cell for wish in WISHES for cell in regret_cells(found[wish])),
        )
        for (table, laws, points, design), found in found_by.items()
    ]
    return FittedTable(REGRET_COLUMNS, rows, gap=1)


def regret_cells(regret: Regret) -> Iterable[str]:
    """Yield the regret and, of an objective with a deadline, how often it is missed."""
    yield f"{100 * regret.regret:.1f}"
    if "in_time" in regret.wish:
        yield f"{100 * regret.late:.0f}"


def show_means(means: Sequence[GroupMean]) -> RenderableType:
    """Show means by what was predicted, then by group."""
    width = max((len(mean.group or ALL) for mean in means), default=0)
    parts: list[RenderableType] = []
    for predicted, meaning in FIGURES.items():
        own = [mean for mean in means if mean.figure == predicted]
        if own:
            parts += [Text(meaning, "dim"), show_series(own, width)]
    return Group(*parts)


def show_series(means: Sequence[GroupMean], width: int) -> RenderableType:
    """Show the means of one figure, all groups as wide as the widest."""
    band = "IN TIME" if "in_time" in means[0].figure else "IN BAND"
    columns = (
        long_name("GROUP".ljust(width)),
        name("LAWS"),
        key_figure("POINTS"),
        name("DESIGN"),
        figure("TABLES", 3),
        figure("ERROR", 1),
        figure(band, 2),
    )
    rows = [
        (
            words(mean.group or ALL),
            mean.laws,
            str(mean.points),
            mean.design,
            str(mean.tables),
            share(mean.error, 2),
            UNKNOWN if mean.covered is None else share(mean.covered, 0),
        )
        for mean in sorted(means, key=mean_order)
    ]
    return FittedTable(columns, rows, gap=1)


def mean_order(mean: GroupMean) -> tuple[bool, str, int, bool, str]:
    """Key of the order in which means are shown: all tables first, searches before chance."""
    return mean.group != "", mean.group, mean.points, mean.design == "random", mean.laws


class Compared(Protocol):
    """What was predicted by one of several laws."""

    @property
    def table(self) -> str:
        """Name of the table."""

    @property
    def laws(self) -> Laws:
        """The laws."""


Found = TypeVar("Found", bound=Compared)


def pairs(errors: Sequence[Found]) -> Iterable[tuple[Found, Found | None]]:
    """Yield each finding with that of the paper's laws, which follows it where both were asked."""
    for error, after in zip(errors, (*errors[1:], None), strict=True):
        if error.laws == "measured":
            is_paper = after is not None and after.laws == "paper" and after.table == error.table
            yield error, after if is_paper else None
    if all(error.laws == "paper" for error in errors):
        yield from ((error, error) for error in errors)


def share(value: float, digits: int = 1) -> str:
    """Write a share in percent.

    >>> share(0.0149, 2)
    '1.49 %'
    """
    return f"{100 * value:.{digits}f} %"
