"""PredictedPoint: what one configuration takes, and how sure that is."""

from __future__ import annotations

from dataclasses import dataclass

from scavenger.fit.place import Place, place_of
from scavenger.objective import Objective, Within
from scavenger.tradeoff import TradeoffCurve


@dataclass(frozen=True, slots=True)
class Interval:
    """What 10, 50 and 90 % of the possible outcomes stay below."""

    low: float
    median: float
    high: float


@dataclass(frozen=True, slots=True)
class PredictedPoint:
    """What one configuration takes.

    Attributes:
        place: The configuration.
        step_time: Predicted seconds per iteration.
        measured_step_time: Measured ones, which ``time`` and ``cost`` use; None if there are none.
        epochs: Epochs to target; on a relative curve, to those at the reference batch.
        time: Seconds to target; on a relative curve, to the start's.
        cost: Cost to target in the report's unit; on a relative curve, to the start's.
        is_on_front: Whether no other is cheaper and faster.
        violations: Limits it breaks or is not sure to meet.
    """

    place: Place
    step_time: float
    measured_step_time: float | None
    epochs: float
    time: Interval
    cost: Interval
    is_on_front: bool
    violations: tuple[str, ...]


def points_of(curve: TradeoffCurve, objective: Objective) -> tuple[PredictedPoint, ...]:
    """Return the points of a curve from fast to slow."""
    front = {point.config for point in curve.frontier()}
    limits = objective if isinstance(objective, Within) else Within(objective)
    ordered = sorted(curve.points, key=lambda point: (point.time, point.cost, point.config))
    return tuple(
        PredictedPoint(
            place=place_of(point.config),
            step_time=point.step_time,
            measured_step_time=point.measured_step_time,
            epochs=point.epochs,
            time=interval_around(point.time, point.time_range),
            cost=interval_around(point.cost, point.cost_range),
            is_on_front=point.config in front,
            violations=limits.violations(point, curve.basis),
        )
        for point in ordered
    )


def interval_around(median: float, ends: tuple[float, float]) -> Interval:
    """Return an interval from its median and ends."""
    return Interval(ends[0], median, ends[1])
