"""The cost/time curve of a job: one point per configuration, and its Pareto front."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from scavenger.cluster import ClusterConfig, ConfigSpace
from scavenger.indicators import Observation
from scavenger.models.performance import PerformanceModel
from scavenger.pricing import PriceModel

Basis = Literal["total", "relative"]


@dataclass(frozen=True, slots=True)
class TradeoffPoint:
    """What one configuration would take to reach the target.

    Attributes:
        config: The configuration.
        noise: Predicted γ; None where no noise scale is known.
        epochs: e(B) to target; relative to the reference batch on a relative curve.
        compute_time: Predicted seconds of compute per iteration.
        sync_time: Predicted seconds of synchronisation per iteration.
        step_time: Predicted seconds per iteration.
        measured_step_time: Seconds per iteration as measured; None where only predicted.
        time: Seconds to target; relative to the start configuration on a relative curve.
        cost: Dollars to target; relative to the start configuration on a relative curve.
    """

    config: ClusterConfig
    noise: float | None
    epochs: float
    compute_time: float
    sync_time: float
    step_time: float
    measured_step_time: float | None
    time: float
    cost: float


@dataclass(frozen=True, slots=True)
class TradeoffCurve:
    """Every configuration of a space with its time and cost to target.

    Attributes:
        points: One per configuration.
        basis: ``total`` in seconds and dollars, ``relative`` with the start configuration as 1.
    """

    points: tuple[TradeoffPoint, ...]
    basis: Basis

    def frontier(self) -> tuple[TradeoffPoint, ...]:
        """Return the points that no other is cheaper and faster than, from fast to slow."""
        return frontier(self.points)


def frontier(points: Iterable[TradeoffPoint]) -> tuple[TradeoffPoint, ...]:
    """Return exactly the non-dominated points, from fast to slow; equal points all stay."""
    front: list[TradeoffPoint] = []
    for point in sorted(points, key=lambda point: (point.time, point.cost, point.config)):
        last = front[-1] if front else None
        if (
            last is None
            or point.cost < last.cost
            or (point.time, point.cost) == (last.time, last.cost)
        ):
            front.append(point)
    return tuple(front)


def trace_curve(
    space: ConfigSpace,
    model: PerformanceModel,
    price: PriceModel,
    observations: Sequence[Observation],
) -> TradeoffCurve:
    """Predict time and cost of every configuration (Eqs. 3-5).

    A measured configuration uses its measured iteration time, the newest if there are several.
    While the epochs to target are unknown, the curve is relative to the start of the space.
    """
    measured = {o.config: o.indicators.step_time for o in observations}
    points = tuple(trace_point(c, model, price, measured.get(c)) for c in space)
    if model.epochs_at_reference is not None:
        return TradeoffCurve(points, "total")
    start = points[0]
    return TradeoffCurve(tuple(relative_to(start, point) for point in points), "relative")


def trace_point(
    config: ClusterConfig, model: PerformanceModel, price: PriceModel, measured: float | None
) -> TradeoffPoint:
    """Predict one configuration, with its measured seconds per iteration if there are any."""
    predicted = model.parallel.step_time(config)
    step_time = predicted if measured is None else measured
    time = model.iterations_needed(config.global_batch) * step_time
    return TradeoffPoint(
        config=config,
        noise=model.statistical.noise(config),
        epochs=model.epochs_needed(config.global_batch),
        compute_time=model.parallel.compute_time(config),
        sync_time=model.parallel.sync_time(config),
        step_time=predicted,
        measured_step_time=measured,
        time=time,
        cost=price.cost(config.workers, time),
    )


def relative_to(start: TradeoffPoint, point: TradeoffPoint) -> TradeoffPoint:
    """Return a point with time and cost as multiples of the start configuration's."""
    return replace(point, time=ratio(point.time, start.time), cost=ratio(point.cost, start.cost))


def ratio(value: float, unit: float) -> float:
    """Divide, leaving values alone whose unit is zero, such as every cost at a price of zero."""
    result = value / unit if unit else value
    return result if math.isfinite(result) else value
