"""Objectives, which choose a point of the curve, alone or within limits (III-E)."""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import ClassVar, Protocol

import numpy as np

from scavenger.cluster import Floats, RowIndices
from scavenger.errors import NothingFeasible
from scavenger.models.iteration_time import Z_90
from scavenger.planning.curve import (
    Basis,
    Forecast,
    TradeoffCurve,
    TradeoffPoint,
    pareto_front,
    pareto_rows,
)
from scavenger.planning.knee import LEAST_DEPTH, chord_depths, knee_row

# A limit counts as met when it is met this surely: an error of 5 % flips what lies at the border.
REQUIRED_CHANCE = 0.9
# A probability and its quantile differ in their last digits.
CHANCE_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class Choice:
    """The point an objective chose.

    Attributes:
        point: The chosen point.
        why: One sentence with figures.
        support: Share of the worlds the measurements allow in which this point is chosen too;
            None where nothing is uncertain or the objective is no matter of shape.
        runner_up: The point chosen in most of the other worlds.
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

    def choose(self, curve: TradeoffCurve) -> Choice:
        """Choose one point of a curve that has at least one."""


@dataclass(frozen=True, slots=True)
class Fastest:
    """Least time; among equals the cheapest."""

    name: ClassVar[str] = "fastest"

    def choose(self, curve: TradeoffCurve) -> Choice:
        """Return the fastest point."""
        fast, cheap = fastest_and_cheapest(curve.points)
        return Choice(
            fast, f"fastest of {count_points(curve.points)}: {compare_with_cheapest(fast, cheap)}"
        )


@dataclass(frozen=True, slots=True)
class Cheapest:
    """Least cost; among equals the fastest."""

    name: ClassVar[str] = "cheapest"

    def choose(self, curve: TradeoffCurve) -> Choice:
        """Return the cheapest point."""
        fast, cheap = fastest_and_cheapest(curve.points)
        return Choice(
            cheap, f"cheapest of {count_points(curve.points)}: {compare_with_fastest(cheap, fast)}"
        )


@dataclass(frozen=True, slots=True)
class Weighted:
    """Least time^w times cost^(1-w): each percent of time is worth w / (1-w) percent of cost.

    Attributes:
        time_weight: w, from 0 for the cheapest to 1 for the fastest.
    """

    time_weight: float

    name: ClassVar[str] = "weighted"

    def __post_init__(self) -> None:
        if not 0 <= self.time_weight <= 1:
            raise ValueError(f"time_weight must be from 0 to 1, got {self.time_weight}")

    def choose(self, curve: TradeoffCurve) -> Choice:
        """Return the point of the front with the least weighted product."""
        front = pareto_front(curve.points)
        best = min(front, key=lambda point: (self.loss(point), point.time, point.config))
        fast, _ = fastest_and_cheapest(front)
        weights = f"time {self.time_weight:.0%}, cost {1 - self.time_weight:.0%}"
        return Choice(best, f"least weighted loss ({weights}): {compare_with_fastest(best, fast)}")

    def loss(self, point: TradeoffPoint) -> float:
        """Logarithm of the weighted product; nothing beats what costs nothing."""
        factors = ((self.time_weight, point.time), (1 - self.time_weight, point.cost))
        return sum(
            weight * (math.log(value) if value > 0 else -math.inf)
            for weight, value in factors
            if weight > 0
        )


@dataclass(frozen=True, slots=True)
class Knee:
    """Where the front bends: beyond it, more money buys little time (III-E).

    The kneedle algorithm on the front; where it finds no bend, the point farthest below the chord
    of the normalised front; where none is below it, the end with the smaller time times cost.
    Repeated in other worlds that the measurements allow, it says how sure the bend is.
    """

    name: ClassVar[str] = "knee"

    def choose(self, curve: TradeoffCurve) -> Choice:
        """Return the knee of the front."""
        choice = find_knee(pareto_front(curve.points))
        return choice if len(curve.points) < 2 else with_support(choice, curve)


@dataclass(frozen=True, slots=True)
class Within:
    """An objective under limits, which count as met when that is at least 90 % sure.

    Attributes:
        objective: What is optimised among the points within the limits.
        max_cost: Dollars the job may cost; None without limit.
        max_time: Seconds the job may take; None without limit.
        max_workers: Workers that can be paid now; None where all can. The fewest always count, and
            where none of these points meets the other limits, the objective alone chooses.
    """

    objective: Objective
    max_cost: float | None = None
    max_time: float | None = None
    max_workers: int | None = None

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

        Where no point is 90 % sure to meet the limits, the surest that is expected to is taken.
        A relative curve has no dollars and no seconds, so nothing is excluded and the sentence
        says that the limits cannot be judged yet.

        Raises:
            NothingFeasible: No point is expected to meet the limits; the message names the
                nearest relaxation.
        """
        if self.max_workers is not None:
            return self._choose_among(curve, self.max_workers)
        if self.max_cost is None and self.max_time is None:
            return self.objective.choose(curve)
        if curve.basis == "relative":
            choice = self.objective.choose(curve)
            note = "the limits cannot be judged before the epochs to target are known"
            return replace(choice, why=f"{choice.why}; {note}")
        chances = {point.config: self.chance(point) for point in curve.points}
        kept = tuple(point for point in curve.points if chances[point.config] >= REQUIRED_CHANCE)
        if not kept:
            return self._surest(curve)
        choice = self.objective.choose(replace(curve, points=kept))
        drawn = "drawn " if curve.left_out else ""
        share = f"{len(kept)} of {len(curve.points)} {drawn}configurations meet the limits"
        likely = tuple(point for point in curve.points if chances[point.config] >= 0.5)
        # How sure it is does not matter, so that other worlds need not be drawn.
        missed = self.objective.choose(replace(curve, points=likely, draws={})).point
        if missed in kept:
            return replace(choice, why=f"{choice.why}; {share}")
        near = f"{missed.config} would be better but meets them only with"
        return replace(choice, why=f"{choice.why}; {share}; {near} {chances[missed.config]:.0%}")

    def _choose_among(self, curve: TradeoffCurve, workers: int) -> Choice:
        most = max(workers, min(point.config.workers for point in curve.points))
        fewer = replace(curve, points=tuple(p for p in curve.points if p.config.workers <= most))
        try:
            return replace(self, max_workers=None).choose(fewer)
        except NothingFeasible:
            return self.objective.choose(fewer)

    def chance(self, point: TradeoffPoint) -> float:
        """Probability that a point meets every limit; the less sure of the two where both hold.

        Time and cost err together, since both follow the same iterations and epochs.
        """
        limits = ((point.cost, self.max_cost), (point.time, self.max_time))
        return min(
            (chance_below(value, point.deviation, limit) for value, limit in limits if limit),
            default=1.0,
        )

    def violations(self, point: TradeoffPoint, basis: Basis = "total") -> tuple[str, ...]:
        """Say which limits a point breaks, or is not sure to meet; none on a relative curve."""
        if basis == "relative":
            return ()
        broken = []
        if self.max_cost is not None and point.cost > self.max_cost:
            broken.append(f"costs {describe_excess(point.cost, self.max_cost, format_dollars)}")
        if self.max_time is not None and point.time > self.max_time:
            broken.append(f"takes {describe_excess(point.time, self.max_time, format_seconds)}")
        chance = self.chance(point)
        if not broken and chance < REQUIRED_CHANCE:
            broken.append(f"meets the limits only with {chance:.0%}")
        return tuple(broken)

    def shortlist(self, forecast: Forecast) -> RowIndices:
        """Return the rows that can matter: the start, the front, and the front of the feasible.

        For spaces too large to draw, so that their other points need not be made at all.
        """
        if forecast.model.epochs_at_reference is None:
            feasible = np.arange(len(forecast))
        else:
            sureness = self._sureness(forecast)
            # Where nothing is sure enough, the surest are what is chosen from.
            enough = min(Z_90, float(sureness.max()))
            feasible = np.flatnonzero(sureness >= enough - CHANCE_ROUNDING)
        every = pareto_rows(forecast.time, forecast.cost)
        among = feasible[pareto_rows(forecast.time[feasible], forecast.cost[feasible])]
        return np.unique(np.concatenate([[0], every, among, self._payable(forecast)]))

    def _payable(self, forecast: Forecast) -> RowIndices:
        """Return the rows that can matter among those whose workers can be paid."""
        if self.max_workers is None:
            return np.arange(0)
        workers = forecast.grid.workers
        rows = np.flatnonzero(workers <= max(self.max_workers, workers.min()))
        return rows[replace(self, max_workers=None).shortlist(forecast.rows(rows))]

    def _sureness(self, forecast: Forecast) -> Floats:
        """Standard deviations by which each row stays below the tighter limit."""
        limits = ((forecast.cost, self.max_cost), (forecast.time, self.max_time))
        sureness = np.full(len(forecast), np.inf)
        for values, limit in limits:
            if limit is not None:
                with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
                    apart = (math.log(limit) - np.log(values)) / forecast.deviation
                # What is known to take exactly the limit meets it.
                sureness = np.minimum(sureness, np.where(np.isnan(apart), np.inf, apart))
        return sureness

    def _surest(self, curve: TradeoffCurve) -> Choice:
        surest = max(curve.points, key=lambda p: (self.chance(p), -p.time, -p.cost))
        chance = self.chance(surest)
        if chance < 0.5:
            raise NothingFeasible(self._nearest_relaxation(curve.points))
        return Choice(
            surest,
            f"the surest to meet the limits, though only with {chance:.0%}: "
            f"{format_dollars(surest.cost)} and {format_seconds(surest.time)} are expected",
        )

    def _nearest_relaxation(self, points: Sequence[TradeoffPoint]) -> str:
        nearest = min(points, key=lambda point: (self._excess(point), point.config))
        broken = " and ".join(self.violations(nearest))
        return f"no configuration meets the limits; the nearest, {nearest.config}, {broken}"

    def _excess(self, point: TradeoffPoint) -> float:
        """Factor by which every limit would have to grow to admit a point."""
        cost = point.cost / self.max_cost if self.max_cost is not None else 0.0
        time = point.time / self.max_time if self.max_time is not None else 0.0
        return max(cost, time)


def chance_below(median: float, deviation: float, limit: float) -> float:
    """Probability that a log-normal figure stays below a limit."""
    if median <= 0:
        return 1.0
    if deviation == 0:
        return 1.0 if median <= limit else 0.0
    return NormalDist().cdf((math.log(limit) - math.log(median)) / deviation)


def find_knee(points: Sequence[TradeoffPoint]) -> Choice:
    """Return the knee of a front, from fast to slow, and its further bends."""
    front = distinct_times(points)
    fast, cheap = fastest_and_cheapest(front)
    if len(front) == 1:
        return Choice(fast, "the only point of the front: both fastest and cheapest")
    bends = find_bends(front) if len(front) > 2 else ()
    if bends:
        also = (
            f"; another bend at {', '.join(str(p.config) for p in bends[1:])}" if bends[1:] else ""
        )
        why = f"knee of {count_points(front)}: {compare_with_fastest(bends[0], fast)}{also}"
        return Choice(bends[0], why, other_knees=bends[1:], bends=True)
    point, how = farthest_below_chord(front)
    versus = (
        compare_with_cheapest(point, cheap) if point == fast else compare_with_fastest(point, fast)
    )
    return Choice(point, f"{how}: {versus}", bends=point not in (fast, cheap))


def with_support(choice: Choice, curve: TradeoffCurve) -> Choice:
    """Add how often the same knee is found in other worlds, and which one is found instead."""
    if not curve.draws:
        return choice
    # In the order in which objectives break ties, or one of two equal points counts for the other.
    points = sorted(curve.points, key=lambda point: point.config)
    factors = np.array([curve.draws[point.config].factors for point in points])
    times = np.array([point.time for point in points])[:, None] * factors
    costs = np.array([point.cost for point in points])[:, None] * factors
    found = Counter(knee_row_of_points(*world) for world in zip(times.T, costs.T, strict=True))
    own = points.index(choice.point)
    support = found[own] / factors.shape[1]
    others = [(row, count) for row, count in found.most_common() if row != own]
    runner_up = points[others[0][0]] if others else None
    second = f", {runner_up.config} in {others[0][1] / factors.shape[1]:.0%}" if runner_up else ""
    why = f"{choice.why}; so in {support:.0%} of what the measurements allow{second}"
    return replace(choice, why=why, support=support, runner_up=runner_up)


def knee_row_of_points(times: Floats, costs: Floats) -> int:
    """Return the row of the knee of the front of all rows."""
    rows = pareto_rows(times, costs)
    # A curve needs one cost for each time: the first of equal rows.
    rows = rows[np.append(True, np.diff(times[rows]) > 0)]
    return int(rows[knee_row(times[rows], costs[rows])])


def fastest_and_cheapest(points: Sequence[TradeoffPoint]) -> tuple[TradeoffPoint, TradeoffPoint]:
    """Return the fastest and the cheapest point, ties broken by the other figure."""
    fast = min(points, key=lambda point: (point.time, point.cost, point.config))
    cheap = min(points, key=lambda point: (point.cost, point.time, point.config))
    return fast, cheap


def distinct_times(front: Sequence[TradeoffPoint]) -> tuple[TradeoffPoint, ...]:
    """Return the first of equal points, because a curve needs one cost for each time."""
    return tuple({point.time: point for point in reversed(front)}.values())[::-1]


def find_bends(front: Sequence[TradeoffPoint]) -> tuple[TradeoffPoint, ...]:
    """Find the bends of a front with the kneedle algorithm, the deepest first; empty for none."""
    # Importing kneed takes longer than everything else in the library together.
    from kneed import KneeLocator

    times, costs = time_and_cost_columns(front)
    with warnings.catch_warnings():
        # It warns where it finds nothing; that is an answer here.
        warnings.simplefilter("ignore")
        located = KneeLocator(times, costs, curve="convex", direction="decreasing")
    # On a front that bulges outwards it names an end or a point above the chord.
    bends = [
        (point, depth)
        for point, depth in zip(front, chord_depths(times, costs).tolist(), strict=True)
        if (point.time == located.knee or point.time in located.all_knees) and depth > LEAST_DEPTH
    ]
    first = [point for point, _ in bends if point.time == located.knee]
    rest = sorted(
        ((point, depth) for point, depth in bends if point.time != located.knee),
        key=lambda bend: -bend[1],
    )
    return (*first, *(point for point, _ in rest))


def farthest_below_chord(front: Sequence[TradeoffPoint]) -> tuple[TradeoffPoint, str]:
    """Return the point farthest below the chord of a front of two or more, and what it is."""
    times, costs = time_and_cost_columns(front)
    below = chord_depths(times, costs)
    deepest = int(np.argmax(below))
    if below[deepest] > LEAST_DEPTH:
        found = front[deepest]
        return (
            found,
            f"no sharp bend in {count_points(front)}, so the one farthest below their chord",
        )
    end = min((front[0], front[-1]), key=lambda point: point.time * point.cost)
    name = "fastest" if end is front[0] else "cheapest"
    return (
        end,
        f"no bend in {count_points(front)}, so the {name} end, where time times cost is least",
    )


def time_and_cost_columns(points: Sequence[TradeoffPoint]) -> tuple[Floats, Floats]:
    """Return times and costs of points."""
    return np.array([point.time for point in points]), np.array([point.cost for point in points])


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


def count_points(points: Sequence[TradeoffPoint]) -> str:
    """Say how many points were chosen from."""
    return f"{len(points)} point{'s' if len(points) > 1 else ''}"


def describe_excess(value: float, limit: float, write: Callable[[float], str]) -> str:
    """Say by how much a figure exceeds its limit."""
    return f"{write(value)}, {relative_change(value, limit):.1%} more than {write(limit)}"


def format_dollars(amount: float) -> str:
    """Write an amount of money for people."""
    return f"${amount:,.2f}" if amount >= 0.1 else f"${amount:.3g}"


def format_seconds(seconds: float) -> str:
    """Write seconds for people, to a precision at which 1 % shows."""
    if seconds < 600:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.2f} h"
