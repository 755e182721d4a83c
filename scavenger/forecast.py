"""Forecast: time and cost of every configuration at once, with what is uncertain about them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from scavenger.cluster import ClusterConfig
from scavenger.grid import Floats, Grid, Indices
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

    grid: Grid
    model: PerformanceModel
    step_time: Floats
    measured: Floats
    time: Floats
    cost: Floats
    deviation: Floats

    def __len__(self) -> int:
        return len(self.grid)

    def rows(self, rows: Indices) -> Forecast:
        """Return some of the rows."""
        return replace(
            self,
            grid=self.grid.rows(rows),
            step_time=self.step_time[rows],
            measured=self.measured[rows],
            time=self.time[rows],
            cost=self.cost[rows],
            deviation=self.deviation[rows],
        )


def foresee(
    grid: Grid,
    model: PerformanceModel,
    price: PriceModel,
    measured: Mapping[ClusterConfig, float],
) -> Forecast:
    """Predict time and cost of every configuration (Eqs. 3-5).

    A configuration whose seconds per iteration were measured uses them; what stays uncertain about
    it is their spread and the epochs.
    """
    predicted = model.parallel.step_times(grid)
    known = look_up(grid, measured)
    is_measured = np.isfinite(known)
    seconds = np.where(is_measured, known, predicted)
    iterations = model.all_epochs(grid) * model.dataset_size / grid.global_batch
    time = price.elapsed(grid, iterations * seconds)
    return Forecast(
        grid=grid,
        model=model,
        step_time=predicted,
        measured=known,
        time=time,
        cost=price.costs(grid, time),
        deviation=model.deviations(grid, is_measured),
    )


def look_up(grid: Grid, measured: Mapping[ClusterConfig, float]) -> Floats:
    """Return the measured seconds of each configuration, nan where there are none."""
    column = np.full(len(grid), np.nan)
    kinds = {key: number for number, key in enumerate(grid.machine_types)}
    for config, seconds in measured.items():
        rows = (
            (grid.workers == config.workers)
            & (grid.global_batch == config.global_batch)
            & (grid.workers_per_machine == config.workers_per_machine)
            & (grid.type_of == kinds.get(config.machine_type, -1))
        )
        column[rows] = seconds
    return column
