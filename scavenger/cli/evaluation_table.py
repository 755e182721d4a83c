"""An Evaluation as tables for people, and as JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Protocol, TypeVar

from pydantic import TypeAdapter
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from scavenger.cli.figures import UNKNOWN, number, words
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


def start_table(*titles: str) -> Table:
    """Return a table whose first column is text and the others figures."""
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 1, 0, 0))
    for place, name in enumerate(titles):
        if place:
            table.add_column(name, justify="right", no_wrap=True)
        else:
            table.add_column(name, overflow="fold", min_width=len(name))
    return table


def show_step_times(evaluation: Evaluation) -> RenderableType:
    """Show predictions of seconds, ours beside the paper's lines."""
    table = start_table("TABLE", "POINTS", "DESIGN", "REST", "WINDOWS", "ERROR", "IN BAND", "LINES")
    for first, paper in pairs(evaluation.step_times):
        table.add_row(
            words(first.table),
            str(first.points),
            first.design,
            str(first.rest),
            str(first.windows),
            share(first.error),
            share(first.covered, 0),
            UNKNOWN if paper is None else share(paper.error),
        )
    return table


def show_epochs(evaluation: Evaluation) -> RenderableType:
    """Show predictions of epochs, ours beside the paper's law."""
    table = start_table("TABLE", "BATCHES", "REST", "ERROR", "IN BAND", "PAPER")
    for first, paper in pairs(evaluation.epochs):
        table.add_row(
            words(first.table),
            str(first.batches),
            str(first.rest),
            share(first.error),
            UNKNOWN if first.covered is None else share(first.covered, 0),
            UNKNOWN if paper is None else share(paper.error),
        )
    rule = (
        f"a metric's target lies {SHARE_OF_THE_WAY:.0%} of the way to the best one that every "
        "batch reaches"
    )
    return Group(table, Text(f"· {rule}", "dim"))


def show_noise(evaluation: Evaluation) -> RenderableType:
    """Show predictions of noise by both laws."""
    table = start_table("TABLE", "φ", "(B + φ) / B", "n0 + n1/√B")
    for error in evaluation.noise:
        table.add_row(
            words(error.table),
            number(error.noise_scale),
            share(error.error),
            share(error.root_error),
        )
    return table


def show_regrets(evaluation: Evaluation) -> RenderableType:
    """Show regrets, one row for each table, number of points and laws."""
    titles = ("FAST", "CHEAP", "IN TIME", "LATE", "LIKELY", "LATE", "KNEE")
    table = start_table("TABLE", "LAWS", "POINTS", "DESIGN", *titles)
    rows: dict[tuple[str, Laws, int, DesignName], dict[str, Regret]] = {}
    for each in evaluation.regrets:
        row = (each.table, each.laws, each.points, each.design)
        rows.setdefault(row, {})[each.wish] = each
    for (name, laws, points, design), found in rows.items():
        cells = (cell for wish in WISHES for cell in regret_cells(found[wish]))
        table.add_row(words(name), laws, str(points), design, *cells)
    return table


def regret_cells(regret: Regret) -> Iterable[str]:
    """Yield the regret and, of an objective with a deadline, how often it is missed."""
    yield f"{100 * regret.regret:.1f}"
    if "in_time" in regret.wish:
        yield f"{100 * regret.late:.0f}"


def show_means(means: Sequence[GroupMean]) -> RenderableType:
    """Show means by what was predicted, then by group."""
    width = max((len(mean.group or ALL) for mean in means), default=0)
    parts: list[RenderableType] = []
    for figure, meaning in FIGURES.items():
        own = [mean for mean in means if mean.figure == figure]
        if own:
            parts += [Text(meaning, "dim"), show_series(own, width)]
    return Group(*parts)


def show_series(means: Sequence[GroupMean], width: int) -> RenderableType:
    """Show the means of one figure, all groups as wide as the widest."""
    band = "IN TIME" if "in_time" in means[0].figure else "IN BAND"
    table = start_table("GROUP".ljust(width), "LAWS", "POINTS", "DESIGN", "TABLES", "ERROR", band)
    for mean in sorted(means, key=mean_order):
        table.add_row(
            words(mean.group or ALL),
            mean.laws,
            str(mean.points),
            mean.design,
            str(mean.tables),
            share(mean.error, 2),
            UNKNOWN if mean.covered is None else share(mean.covered, 0),
        )
    return table


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
