"""The cost/time curve of a job: one point per configuration, and its Pareto front.

``Forecast`` holds time, cost and uncertainty of all configurations as columns; ``TradeoffCurve``
has them as points, with posterior samples that tell how sure a choice is.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal
from zlib import crc32

import numpy as np

from scavenger.cluster import (
    ClusterConfig,
    ConfigColumns,
    ConfigSpace,
    Floats,
    RowIndices,
    space_columns,
)
from scavenger.measurement.profiling import Observation
from scavenger.models.iteration_time import Z_90
from scavenger.models.performance import PerformanceModel
from scavenger.pricing import PriceModel


@dataclass(frozen=True, slots=True, eq=False)
class Forecast:
    """What each configuration of a grid would take to reach the target, as columns.

    Attributes:
        grid: The configurations.
        model: What it was predicted with.
        step_time: Predicted seconds per iteration.
        measured: Seconds per iteration as measured; nan where only predicted.
        time: Seconds to target.
        cost: Dollars to target.
        deviation: Relative standard deviation of time and cost.
    """

    grid: ConfigColumns
    model: PerformanceModel
    step_time: Floats
    measured: Floats
    time: Floats
    cost: Floats
    deviation: Floats

    def __len__(self) -> int:
        return len(self.grid)

    def select(self, rows: RowIndices) -> Forecast:
        """Return some of the rows."""
        return replace(
            self,
            grid=self.grid.select(rows),
            step_time=self.step_time[rows],
            measured=self.measured[rows],
            time=self.time[rows],
            cost=self.cost[rows],
            deviation=self.deviation[rows],
        )


def forecast_grid(
    grid: ConfigColumns,
    model: PerformanceModel,
    price: PriceModel,
    measured: Mapping[ClusterConfig, float],
) -> Forecast:
    """Predict time and cost of every configuration (Eqs. 3-5).

    A configuration whose seconds per iteration were measured uses them; what stays uncertain about
    it is their spread and the epochs.
    """
    predicted = model.parallel.step_times(grid)
    known = measured_column(grid, measured)
    is_measured = np.isfinite(known)
    seconds = np.where(is_measured, known, predicted)
    time = price.expected_wall_time(grid, model.iterations(grid) * seconds)
    return Forecast(
        grid=grid,
        model=model,
        step_time=predicted,
        measured=known,
        time=time,
        cost=price.costs(grid, time),
        deviation=model.deviations(grid, is_measured),
    )


def measured_column(grid: ConfigColumns, measured: Mapping[ClusterConfig, float]) -> Floats:
    """Return the measured seconds of each configuration, nan where there are none."""
    column = np.full(len(grid), np.nan)
    kinds = {key: number for number, key in enumerate(grid.machine_types)}
    stacks = {name: number for number, name in enumerate(grid.stacks)}
    for config, seconds in measured.items():
        rows = (
            (grid.workers == config.workers)
            & (grid.global_batch == config.global_batch)
            & (grid.workers_per_machine == config.workers_per_machine)
            & (grid.type_index == kinds.get(config.machine_type, -1))
            & (grid.stack_index == stacks.get(config.stack, -1))
        )
        column[rows] = seconds
    return column


Basis = Literal["total", "relative"]

POSTERIOR_DRAWS = 64
POSTERIOR_SEED = 20_221
# Largest logarithm of a factor in a sample: e^20 is no longer a forecast but still a number.
MAX_LOG_FACTOR = 20.0


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
        deviation: Relative standard deviation of time and cost.
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
    deviation: float = 0.0

    @property
    def time_range(self) -> tuple[float, float]:
        """Times that 10 % and 90 % of the possible outcomes stay below; the median is ``time``."""
        return log_normal_interval(self.time, self.deviation)

    @property
    def cost_range(self) -> tuple[float, float]:
        """Costs that 10 % and 90 % of the possible outcomes stay below; the median is ``cost``."""
        return log_normal_interval(self.cost, self.deviation)


@dataclass(frozen=True, slots=True)
class PosteriorDraws:
    """Posterior samples of one configuration, as factors on what is predicted.

    Attributes:
        step_time_factors: Factor on its seconds per iteration in each sample.
        epochs_factors: Factor on its epochs in each sample.
    """

    step_time_factors: tuple[float, ...]
    epochs_factors: tuple[float, ...]

    @property
    def factors(self) -> Floats:
        """Factor on its time and cost in each sample."""
        return np.asarray(np.array(self.step_time_factors) * np.array(self.epochs_factors))


@dataclass(frozen=True, slots=True)
class TradeoffCurve:
    """The configurations of a space with their time and cost to target.

    Attributes:
        points: One per configuration; of a very large space only those that can matter.
        basis: ``total`` in seconds and dollars, ``relative`` with the start configuration as 1.
        draws: Posterior samples of each configuration, as many for each; empty where nothing is
            uncertain.
        omitted_points: How many configurations are not among the points, as they cannot matter.
    """

    points: tuple[TradeoffPoint, ...]
    basis: Basis
    draws: Mapping[ClusterConfig, PosteriorDraws] = field(default_factory=dict, repr=False)
    omitted_points: int = 0

    def frontier(self) -> tuple[TradeoffPoint, ...]:
        """Return the points that no other is cheaper and faster than, from fast to slow."""
        return pareto_front(self.points)


def pareto_front(points: Iterable[TradeoffPoint]) -> tuple[TradeoffPoint, ...]:
    """Return exactly the non-dominated points, from fast to slow; equal points all stay."""
    listed = sorted(points, key=lambda point: (point.time, point.cost, point.config))
    times = np.array([point.time for point in listed])
    costs = np.array([point.cost for point in listed])
    return tuple(listed[row] for row in pareto_rows(times, costs))


def pareto_rows(times: Floats, costs: Floats) -> RowIndices:
    """Return the rows no other is cheaper and faster than, by time, then cost; equals all stay."""
    order = np.lexsort((costs, times))
    cheapest = np.minimum.accumulate(costs[order])
    before = np.append(np.inf, cheapest[:-1])
    # Of equal times only the cheapest, of equal costs only the fastest can be on the front.
    is_new = costs[order] < before
    leader = np.maximum.accumulate(np.where(is_new, np.arange(len(order)), 0))
    equals = (times[order] == times[order][leader]) & (costs[order] == costs[order][leader])
    return np.asarray(order[is_new | equals])


def predict_curve(
    space: ConfigSpace,
    model: PerformanceModel,
    price: PriceModel,
    observations: Sequence[Observation],
) -> TradeoffCurve:
    """Predict time and cost of every configuration (Eqs. 3-5).

    A measured configuration uses its measured iteration time, the newest if there are several.
    While the epochs to target are unknown, the curve is relative to the start of the space.
    """
    return curve_from_forecast(forecast_space(space, model, price, observations))


def forecast_space(
    space: ConfigSpace,
    model: PerformanceModel,
    price: PriceModel,
    observations: Sequence[Observation],
) -> Forecast:
    """Predict the configurations of a space as columns, the start of the space first.

    Those with a stack that was never measured are left out: nothing tells how fast they are.
    """
    measured = {o.config: o.indicators.step_time for o in observations}
    grid = space_columns(space.with_stacks({config.stack for config in measured}))
    return forecast_grid(grid, model, price, measured)


def curve_from_forecast(forecast: Forecast) -> TradeoffCurve:
    """Turn a forecast, whose first row is the start, into the points of a curve."""
    is_total = forecast.model.epochs_at_reference is not None
    time = forecast.time if is_total else relative_to_first(forecast.time)
    cost = forecast.cost if is_total else relative_to_first(forecast.cost)
    model, grid = forecast.model, forecast.grid
    columns = zip(
        map(grid.config, range(len(grid))),
        model.epochs_on_grid(grid).tolist(),
        model.parallel.compute_times(grid).tolist(),
        forecast.step_time.tolist(),
        forecast.measured.tolist(),
        time.tolist(),
        cost.tolist(),
        forecast.deviation.tolist(),
        strict=True,
    )
    points = tuple(
        TradeoffPoint(
            config=config,
            noise=model.statistical.noise(config),
            epochs=epochs,
            compute_time=compute,
            sync_time=max(step - compute, 0.0),
            step_time=step,
            measured_step_time=None if math.isnan(measured) else measured,
            time=seconds,
            cost=dollars,
            deviation=deviation,
        )
        for config, epochs, compute, step, measured, seconds, dollars, deviation in columns
    )
    draws = dict(zip((point.config for point in points), draw_posterior(forecast), strict=False))
    return TradeoffCurve(points, "total" if is_total else "relative", draws)


def draw_posterior(forecast: Forecast) -> list[PosteriorDraws]:
    """Draw posterior samples, the same ones each time, so that choices repeat."""
    model, grid = forecast.model, forecast.grid
    if model.parallel.spread is None:
        return []
    normal = np.random.default_rng(POSTERIOR_SEED).standard_normal((POSTERIOR_DRAWS, 6))
    config_normals = np.array([own_deviations(grid.config(row)) for row in range(len(grid))])
    stack_normals = np.array([own_stack_normals(name) for name in grid.stacks])
    of_steps = model.parallel.draw_log_factors(grid, normal[:, :5], config_normals, stack_normals)
    of_steps[np.isfinite(forecast.measured)] = 0.0
    rising = model.statistical.rising_share(
        np.append(grid.global_batch, float(model.reference_batch))
    )
    shift = (rising[:-1] - rising[-1])[:, None] * model.statistical.critical_deviation
    steps = np.exp(np.clip(of_steps, -MAX_LOG_FACTOR, MAX_LOG_FACTOR))
    epochs = np.exp(np.clip(-shift * normal[None, :, 5], -MAX_LOG_FACTOR, MAX_LOG_FACTOR))
    rows = zip(steps.tolist(), epochs.tolist(), strict=True)
    return [PosteriorDraws(tuple(step), tuple(epoch)) for step, epoch in rows]


def own_deviations(config: ClusterConfig) -> Floats:
    """Draw a configuration's own deviation in each sample, the same in any space it is in."""
    own = crc32(str(config).encode())
    return np.random.Generator(np.random.Philox(key=own)).standard_normal(POSTERIOR_DRAWS)


def own_stack_normals(stack: str) -> Floats:
    """Draw what a stack's two factors lie off in each sample, the same in any space it is in."""
    own = np.random.Philox(key=crc32(f"stack {stack}".encode()))
    return np.random.Generator(own).standard_normal((POSTERIOR_DRAWS, 2))


def relative_to_first(values: Floats) -> Floats:
    """Return values as multiples of the first, left alone where it is zero, as costs may be."""
    first = float(values[0])
    with np.errstate(all="ignore"):
        scaled = values / first if first else values
    return np.where(np.isfinite(scaled), scaled, values)


def log_normal_interval(median: float, deviation: float) -> tuple[float, float]:
    """Return what 10 % and 90 % of the outcomes stay below, for a log-normal figure."""
    factor = math.exp(min(Z_90 * deviation, MAX_LOG_FACTOR))
    high = median * factor
    return median / factor, high if math.isfinite(high) else median
