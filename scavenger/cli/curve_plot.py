"""The cost/time curve as a plot of characters, each role with a shape of its own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

from rich.text import Text

from scavenger.cli.figures import cost_to_target, counted, time_to_target
from scavenger.view import ConfigView, CurveView, PointView

HEIGHT = 14
MARGIN = 10
BEYOND = 0.3


@dataclass(frozen=True, slots=True)
class Mark:
    """A shape and its style."""

    shape: str
    style: str
    meaning: str


INFEASIBLE = Mark("✕", "dim", "over a limit")
PREDICTED = Mark("◇", "", "predicted")
FRONT = Mark("◆", "cyan", "predicted, on the front")
MEASURED = Mark("●", "blue", "measured")
CHOSEN = Mark("▣", "bold green", "chosen")
KNEE = Mark("★", "bold yellow", "knee")
# A later mark is drawn over an earlier one.
MARKS = (INFEASIBLE, PREDICTED, FRONT, MEASURED, CHOSEN, KNEE)


@dataclass(frozen=True, slots=True)
class Window:
    """The part of the plane that is drawn."""

    fastest: float
    slowest: float
    cheapest: float
    dearest: float

    @classmethod
    def around(cls, points: Sequence[PointView]) -> Self:
        """Return the window that holds the feasible points, and what lies just beyond them."""
        feasible = [point for point in points if not point.violations] or points
        fastest, slowest = reach([p.time for p in feasible], [p.time for p in points])
        cheapest, dearest = reach([p.cost for p in feasible], [p.cost for p in points])
        return cls(fastest, slowest, cheapest, dearest)

    def __contains__(self, point: PointView) -> bool:
        is_in_time = self.fastest <= point.time <= self.slowest
        return is_in_time and self.cheapest <= point.cost <= self.dearest

    def place(self, point: PointView, width: int, height: int) -> tuple[int, int]:
        """Return row and column of a point, row 0 being the dearest."""
        column = share(point.time, self.fastest, self.slowest)
        row = 1 - share(point.cost, self.cheapest, self.dearest)
        return round(row * (height - 1)), round(column * (width - 1))


def reach(feasible: Sequence[float], values: Sequence[float]) -> tuple[float, float]:
    """Return the ends of an axis: what is over a limit by little is shown, by much is not.

    >>> reach([1.0, 2.0], [1.0, 2.0, 2.2, 9.0])
    (1.0, 2.2)
    """
    low, high = min(feasible), max(feasible)
    furthest = high + BEYOND * (high - low)
    return low, max(value for value in values if value <= furthest)


def share(value: float, low: float, high: float) -> float:
    """Return where a value lies between two others, from 0 to 1; in the middle of nothing."""
    return (value - low) / (high - low) if high > low else 0.5


def plot_curve(curve: CurveView, *, width: int, height: int = HEIGHT) -> Text:
    """Draw cost over time; the curve has at least one point.

    Args:
        curve: The curve.
        width: Columns there are, axis included.
        height: Rows of the plane itself.
    """
    window = Window.around(curve.points)
    seen = [point for point in curve.points if point in window]
    columns = max(width - MARGIN - 2, 10)
    marked = [(mark_of(point, curve), point) for point in seen]
    marked.sort(key=lambda pair: MARKS.index(pair[0]))
    cells = {window.place(point, columns, height): mark for mark, point in marked}
    plot = Text("cost to target\n", "dim")
    for row in range(height):
        plot.append(f"{row_label(row, height, window, curve.basis):>{MARGIN}} ┤", "dim")
        _append_row(plot, cells, row, columns)
    plot.append(time_axis(window, curve.basis, columns), "dim")
    plot.append_text(legend((mark for mark, _ in marked), len(curve.points) - len(seen)))
    return plot


def mark_of(point: PointView, curve: CurveView) -> Mark:
    """Return the shape of a point."""
    config = ConfigView(workers=point.workers, global_batch=point.global_batch)
    if config == curve.knee and curve.knee_bends:
        return KNEE
    if config == curve.chosen:
        return CHOSEN
    if point.violations:
        return INFEASIBLE
    if point.measured:
        return MEASURED
    return FRONT if point.on_front else PREDICTED


def row_label(row: int, height: int, window: Window, basis: str) -> str:
    """Return the cost beside a row: the dearest at the top, the cheapest at the bottom."""
    if row == 0:
        return cost_to_target(window.dearest, basis)
    return cost_to_target(window.cheapest, basis) if row == height - 1 else ""


def _append_row(plot: Text, cells: dict[tuple[int, int], Mark], row: int, columns: int) -> None:
    for column in range(columns):
        mark = cells.get((row, column))
        plot.append(mark.shape if mark else " ", mark.style if mark else "")
    plot.append("\n")


def time_axis(window: Window, basis: str, columns: int) -> str:
    """Draw the axis of time with its ends."""
    low, high = (time_to_target(time, basis) for time in (window.fastest, window.slowest))
    gap = columns - len(low) - len(high)
    title = "time to target".center(gap) if gap > 14 else " " * max(gap, 1)
    margin = " " * (MARGIN + 1)
    return f"{margin}└{'─' * columns}\n{margin} {low}{title}{high}\n"


def legend(marks: Iterable[Mark], hidden: int) -> Text:
    """Explain the shapes that were drawn."""
    drawn = set(marks)
    margin = " " * (MARGIN + 2)
    text = Text(margin)
    text.append("  ".join(f"{mark.shape} {mark.meaning}" for mark in MARKS if mark in drawn))
    if hidden:
        text.append(f"\n{margin}{counted(hidden, 'point')} far over a limit not shown", "dim")
    return text
