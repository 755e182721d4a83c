"""Knee: the objective that stops where further money buys little time (III-E).

``kneed`` says where the knee of a curve is. How sure that is follows from 64 posterior draws of the
curve, and asking ``kneed`` for each of them took longer than predicting a hundred thousand
configurations: ``knee_row`` finds the same knee in columns. A law
(tests/laws/test_tradeoff_laws.py) holds the two together.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from scavenger.cluster import Floats
from scavenger.planning.curve import TradeoffCurve, TradeoffPoint, pareto_front, pareto_rows
from scavenger.planning.objective import (
    Choice,
    compare_with_cheapest,
    compare_with_fastest,
    fastest_and_cheapest,
    format_point_count,
)

# Rounding puts points of a straight front this far from its chord.
MIN_KNEE_DEPTH = 1e-9


@dataclass(frozen=True, slots=True)
class Knee:
    """Where the front bends: beyond it, more money buys little time (III-E).

    The kneedle algorithm on the front; where it finds no bend, the point farthest below the chord
    of the normalised front; where none is below it, the end with the smaller time times cost.
    Repeated on posterior samples of the curve, it says how sure the bend is.
    """

    name: ClassVar[str] = "knee"
    time_weight: ClassVar[float] = 0.5

    def choose(self, curve: TradeoffCurve) -> Choice:
        """Return the knee of the front."""
        choice = find_knee(pareto_front(curve.points))
        return choice if len(curve.points) < 2 else with_support(choice, curve)


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
        why = f"knee of {format_point_count(front)}: {compare_with_fastest(bends[0], fast)}{also}"
        return Choice(bends[0], why, other_knees=bends[1:], bends=True)
    point, how = farthest_below_chord(front)
    versus = (
        compare_with_cheapest(point, cheap) if point == fast else compare_with_fastest(point, fast)
    )
    return Choice(point, f"{how}: {versus}", bends=point not in (fast, cheap))


def with_support(choice: Choice, curve: TradeoffCurve) -> Choice:
    """Add how often posterior samples have the same knee, and which one they have else."""
    if not curve.draws:
        return choice
    # In the order in which objectives break ties, or one of two equal points counts for the other.
    points = sorted(curve.points, key=lambda point: point.config)
    factors = np.array([curve.draws[point.config].factors for point in points])
    times = np.array([point.time for point in points])[:, None] * factors
    costs = np.array([point.cost for point in points])[:, None] * factors
    found = Counter(knee_row_of_points(*sample) for sample in zip(times.T, costs.T, strict=True))
    own = points.index(choice.point)
    support = found[own] / factors.shape[1]
    others = [(row, count) for row, count in found.most_common() if row != own]
    runner_up = points[others[0][0]] if others else None
    share = others[0][1] / factors.shape[1] if others else 0.0
    second = f", {share:.0%} choose {runner_up.config}" if runner_up else ""
    why = f"{choice.why}; {support:.0%} of the posterior samples agree{second}"
    return replace(choice, why=why, support=support, runner_up=runner_up)


def knee_row_of_points(times: Floats, costs: Floats) -> int:
    """Return the row of the knee of the front of all rows."""
    rows = pareto_rows(times, costs)
    # A curve needs one cost for each time: the first of equal rows.
    rows = rows[np.append(True, np.diff(times[rows]) > 0)]
    return int(rows[knee_row(times[rows], costs[rows])])


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
        if (point.time == located.knee or point.time in located.all_knees)
        and depth > MIN_KNEE_DEPTH
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
    if below[deepest] > MIN_KNEE_DEPTH:
        found = front[deepest]
        return (
            found,
            f"no sharp bend in {format_point_count(front)}, so the one farthest below their chord",
        )
    end = min((front[0], front[-1]), key=lambda point: point.time * point.cost)
    name = "fastest" if end is front[0] else "cheapest"
    return (
        end,
        f"no bend in {format_point_count(front)}, so the {name} end, "
        "where time times cost is least",
    )


def time_and_cost_columns(points: Sequence[TradeoffPoint]) -> tuple[Floats, Floats]:
    """Return times and costs of points."""
    return np.array([point.time for point in points]), np.array([point.cost for point in points])


def knee_row(times: Floats, costs: Floats) -> int:
    """Return the row of the knee of a front.

    The first bend that kneedle finds; where it finds none, the row farthest below the chord; where
    none is below it, the end with the smaller time times cost.

    Args:
        times: Ascending, at least one.
        costs: Descending.
    """
    last = len(times) - 1
    if last == 0:
        return 0
    below = chord_depths(times, costs)
    bend = first_bend_row(times, costs) if last > 1 else None
    if bend is not None and below[bend] > MIN_KNEE_DEPTH:
        return bend
    deepest = int(np.argmax(below))
    if below[deepest] > MIN_KNEE_DEPTH:
        return deepest
    return 0 if times[0] * costs[0] <= times[last] * costs[last] else last


def chord_depths(times: Floats, costs: Floats) -> Floats:
    """Depth of each row of a front below its chord, both axes scaled to 1; 0 at the ends."""
    along = (times - times[0]) / (times[-1] - times[0])
    return np.asarray(1 - along - (costs - costs[-1]) / (costs[0] - costs[-1]))


def first_bend_row(times: Floats, costs: Floats) -> int | None:
    """Return the row of the first bend of a convex, falling curve by kneedle; None without one.

    The difference of the curve to its diagonal has a bend at a local maximum after which it falls,
    before any local minimum, by more than the mean distance of two rows.
    """
    along = scale_to_unit(times)
    fallen = scale_to_unit(costs)
    difference = (fallen.max() - fallen) - along
    before = np.append(difference[0], difference[:-1])
    after = np.append(difference[1:], difference[-1])
    is_top = (difference >= before) & (difference >= after)
    is_bottom = (difference <= before) & (difference <= after)
    rows = np.arange(len(difference))
    top = np.maximum.accumulate(np.where(is_top, rows, -1))[:-1]
    bottom = np.maximum.accumulate(np.where(is_bottom, rows, -1))[:-1]
    threshold = difference[top] - abs(np.diff(along).mean())
    falls = (top > bottom) & (difference[1:] < threshold)
    return int(top[np.argmax(falls)]) if falls.any() else None


def scale_to_unit(values: Floats) -> Floats:
    """Return values between 0 and 1."""
    return np.asarray((values - values.min()) / (values.max() - values.min()))
