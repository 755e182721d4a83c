"""Objective: the interface of all objectives, the choice they make, and words to compare points.

How to add one: docs/adding-an-objective.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from scavenger.planning.curve import TradeoffCurve, TradeoffPoint


@dataclass(frozen=True, slots=True)
class Choice:
    """The point an objective chose.

    Attributes:
        point: The chosen point.
        why: One sentence with figures.
        support: Share of posterior samples in which this point is chosen too; None where nothing is
            uncertain, or the objective is not the knee.
        runner_up: The point chosen in most of the other samples.
        other_knees: Further bends of the front.
        bends: Whether the front bends at this point; always False for what is chosen otherwise
            than as the knee.
    """

    point: TradeoffPoint
    why: str
    support: float | None = None
    runner_up: TradeoffPoint | None = None
    other_knees: tuple[TradeoffPoint, ...] = ()
    bends: bool = False


class Objective(Protocol):
    """What a user optimises."""

    @property
    def name(self) -> str:
        """Word for this objective, as in documents and on pages."""

    @property
    def time_weight(self) -> float:
        """Weight of time against cost, from 0 to 1, when a search weighs a probe."""

    def choose(self, curve: TradeoffCurve) -> Choice:
        """Choose one point of a curve that has at least one.

        Raises:
            NothingFeasible: No point meets the limits of an objective that has any.
        """


def fastest_and_cheapest(points: Sequence[TradeoffPoint]) -> tuple[TradeoffPoint, TradeoffPoint]:
    """Return the fastest and the cheapest point, ties broken by the other figure."""
    fast = min(points, key=lambda point: (point.time, point.cost, point.config))
    cheap = min(points, key=lambda point: (point.cost, point.time, point.config))
    return fast, cheap


def compare_with_fastest(point: TradeoffPoint, fast: TradeoffPoint) -> str:
    """Compare a point with the fastest, in percent."""
    if point == fast:
        return "also the fastest"
    slower, cheaper = (
        relative_change(point.time, fast.time),
        -relative_change(point.cost, fast.cost),
    )
    return f"{slower:.0%} slower than the fastest, {cheaper:.0%} cheaper"


def compare_with_cheapest(point: TradeoffPoint, cheap: TradeoffPoint) -> str:
    """Compare a point with the cheapest, in percent."""
    if point == cheap:
        return "also the cheapest"
    faster, dearer = (
        -relative_change(point.time, cheap.time),
        relative_change(point.cost, cheap.cost),
    )
    return f"{faster:.0%} faster than the cheapest, {dearer:.0%} dearer"


def relative_change(value: float, base: float) -> float:
    """Relative change from a base; 0 where the base is 0, such as every cost at no price."""
    return value / base - 1 if base else 0.0


def format_point_count(points: Sequence[TradeoffPoint]) -> str:
    """Say how many points were chosen from."""
    return f"{len(points)} point{'s' if len(points) > 1 else ''}"
