"""Which point of the curve a user wants: fastest, cheapest or the knee, within limits (III-E)."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

from scavenger.errors import NothingFeasible
from scavenger.tradeoff import Basis, TradeoffCurve, TradeoffPoint, frontier

# Rounding puts points of a straight front this far from its chord.
SHALLOWEST = 1e-9


@dataclass(frozen=True, slots=True)
class Choice:
    """The point an objective chose.

    Attributes:
        point: The chosen point.
        why: One sentence with figures.
    """

    point: TradeoffPoint
    why: str


class Objective(Protocol):
    """What a user optimises."""

    @property
    def name(self) -> str:
        """Word for this objective, as in documents and on pages."""

    def choose(self, curve: TradeoffCurve) -> Choice:
        """Choose one point of a curve that has at least one."""


@dataclass(frozen=True, slots=True)
class Fastest:
    """Least time; among equals the cheapest."""

    name: ClassVar[str] = "fastest"

    def choose(self, curve: TradeoffCurve) -> Choice:
        """Return the fastest point."""
        fast, cheap = ends(curve.points)
        return Choice(fast, f"fastest of {counted(curve.points)}: {against_cheapest(fast, cheap)}")


@dataclass(frozen=True, slots=True)
class Cheapest:
    """Least cost; among equals the fastest."""

    name: ClassVar[str] = "cheapest"

    def choose(self, curve: TradeoffCurve) -> Choice:
        """Return the cheapest point."""
        fast, cheap = ends(curve.points)
        return Choice(cheap, f"cheapest of {counted(curve.points)}: {against_fastest(cheap, fast)}")


@dataclass(frozen=True, slots=True)
class Knee:
    """Where the front bends: beyond it, more money buys little time (III-E).

    The kneedle algorithm on the front; where it finds no bend, the point farthest below the chord
    of the normalised front; where none is below it, the end with the smaller time times cost.
    """

    name: ClassVar[str] = "knee"

    def choose(self, curve: TradeoffCurve) -> Choice:
        """Return the knee of the front."""
        front = distinct(frontier(curve.points))
        fast, cheap = ends(front)
        if len(front) == 1:
            return Choice(fast, "the only point of the front: both fastest and cheapest")
        bend = kneedle(front) if len(front) > 2 else None
        if bend is not None:
            return Choice(bend, f"knee of {counted(front)}: {against_fastest(bend, fast)}")
        point, how = below_chord(front)
        versus = against_cheapest(point, cheap) if point == fast else against_fastest(point, fast)
        return Choice(point, f"{how}: {versus}")


@dataclass(frozen=True, slots=True)
class Within:
    """An objective under limits.

    Attributes:
        objective: What is optimised among the points within the limits.
        max_cost: Dollars the job may cost; None without limit.
        max_time: Seconds the job may take; None without limit.
    """

    objective: Objective
    max_cost: float | None = None
    max_time: float | None = None

    def __post_init__(self) -> None:
        for name in ("max_cost", "max_time"):
            limit = getattr(self, name)
            if limit is not None and not limit > 0:
                raise ValueError(f"{name} must be positive, got {limit}")

    @property
    def name(self) -> str:
        """Word for the objective that is limited."""
        return self.objective.name

    def choose(self, curve: TradeoffCurve) -> Choice:
        """Return what the objective chooses among the feasible points.

        A relative curve has no dollars and no seconds, so nothing is excluded and the sentence
        says that the limits cannot be judged yet.

        Raises:
            NothingFeasible: No point meets the limits; the message names the nearest relaxation.
        """
        if self.max_cost is None and self.max_time is None:
            return self.objective.choose(curve)
        if curve.basis == "relative":
            choice = self.objective.choose(curve)
            note = "the limits cannot be judged before the epochs to target are known"
            return Choice(choice.point, f"{choice.why}; {note}")
        kept = tuple(point for point in curve.points if not self.violations(point))
        if not kept:
            raise NothingFeasible(self._nearest_relaxation(curve.points))
        choice = self.objective.choose(TradeoffCurve(kept, curve.basis))
        share = f"{len(kept)} of {len(curve.points)} configurations meet the limits"
        return Choice(choice.point, f"{choice.why}; {share}")

    def violations(self, point: TradeoffPoint, basis: Basis = "total") -> tuple[str, ...]:
        """Say which limits a point breaks, in words; none on a relative curve."""
        if basis == "relative":
            return ()
        broken = []
        if self.max_cost is not None and point.cost > self.max_cost:
            broken.append(f"costs {exceeding(point.cost, self.max_cost, dollars)}")
        if self.max_time is not None and point.time > self.max_time:
            broken.append(f"takes {exceeding(point.time, self.max_time, duration)}")
        return tuple(broken)

    def _nearest_relaxation(self, points: Sequence[TradeoffPoint]) -> str:
        nearest = min(points, key=lambda point: (self._excess(point), point.config))
        broken = " and ".join(self.violations(nearest))
        return f"no configuration meets the limits; the nearest, {nearest.config}, {broken}"

    def _excess(self, point: TradeoffPoint) -> float:
        """Factor by which every limit would have to grow to admit a point."""
        cost = point.cost / self.max_cost if self.max_cost is not None else 0.0
        time = point.time / self.max_time if self.max_time is not None else 0.0
        return max(cost, time)


def ends(points: Sequence[TradeoffPoint]) -> tuple[TradeoffPoint, TradeoffPoint]:
    """Return the fastest and the cheapest point, ties broken by the other figure."""
    fast = min(points, key=lambda point: (point.time, point.cost, point.config))
    cheap = min(points, key=lambda point: (point.cost, point.time, point.config))
    return fast, cheap


def distinct(front: Sequence[TradeoffPoint]) -> tuple[TradeoffPoint, ...]:
    """Return the first of equal points, because a curve needs one cost for each time."""
    return tuple({point.time: point for point in reversed(front)}.values())[::-1]


def kneedle(front: Sequence[TradeoffPoint]) -> TradeoffPoint | None:
    """Find the bend of a front with the kneedle algorithm; None where it finds none."""
    # Importing kneed takes longer than everything else in the library together.
    from kneed import KneeLocator

    times = [point.time for point in front]
    costs = [point.cost for point in front]
    with warnings.catch_warnings():
        # It warns where it finds nothing; that is an answer here.
        warnings.simplefilter("ignore")
        knee = KneeLocator(times, costs, curve="convex", direction="decreasing").knee
    found = next((point for point in front if point.time == knee), None)
    # On a front that bulges outwards it names an end or a point above the chord.
    return found if found is not None and depth(found, front) > SHALLOWEST else None


def below_chord(front: Sequence[TradeoffPoint]) -> tuple[TradeoffPoint, str]:
    """Return the point farthest below the chord of a front of two or more, and what it is."""
    deepest = max(front, key=lambda point: depth(point, front))
    if depth(deepest, front) > SHALLOWEST:
        return deepest, f"no sharp bend in {counted(front)}, so the one farthest below their chord"
    end = min((front[0], front[-1]), key=lambda point: point.time * point.cost)
    name = "fastest" if end is front[0] else "cheapest"
    return end, f"no bend in {counted(front)}, so the {name} end, where time times cost is least"


def depth(point: TradeoffPoint, front: Sequence[TradeoffPoint]) -> float:
    """Depth below the chord of the front, both axes scaled to 1; 0 at the ends."""
    fast, cheap = front[0], front[-1]
    along = (point.time - fast.time) / (cheap.time - fast.time)
    return 1 - along - (point.cost - cheap.cost) / (fast.cost - cheap.cost)


def against_fastest(point: TradeoffPoint, fast: TradeoffPoint) -> str:
    """Compare a point with the fastest, in percent."""
    if point == fast:
        return "also the fastest"
    slower, cheaper = change(point.time, fast.time), -change(point.cost, fast.cost)
    return f"{slower:.0%} slower than the fastest, {cheaper:.0%} cheaper"


def against_cheapest(point: TradeoffPoint, cheap: TradeoffPoint) -> str:
    """Compare a point with the cheapest, in percent."""
    if point == cheap:
        return "also the cheapest"
    faster, dearer = -change(point.time, cheap.time), change(point.cost, cheap.cost)
    return f"{faster:.0%} faster than the cheapest, {dearer:.0%} dearer"


def change(value: float, base: float) -> float:
    """Relative change from a base; 0 where the base is 0, such as every cost at no price."""
    return value / base - 1 if base else 0.0


def counted(points: Sequence[TradeoffPoint]) -> str:
    """Say how many points were chosen from."""
    return f"{len(points)} point{'s' if len(points) > 1 else ''}"


def exceeding(value: float, limit: float, write: Callable[[float], str]) -> str:
    """Say by how much a figure exceeds its limit."""
    return f"{write(value)}, {change(value, limit):.1%} more than {write(limit)}"


def dollars(amount: float) -> str:
    """Write an amount of money for people."""
    return f"${amount:,.2f}" if amount >= 0.1 else f"${amount:.3g}"


def duration(seconds: float) -> str:
    """Write seconds for people, to a precision at which 1 % shows."""
    if seconds < 600:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.2f} h"
