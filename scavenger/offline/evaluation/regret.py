"""Regret: the cost of choosing from a few probes, against choosing from everything measured."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from scavenger.cluster import ClusterConfig, Floats, MemoryModel, config_columns
from scavenger.errors import NothingFeasible
from scavenger.measurement.profiling import Measurement
from scavenger.models.epochs import FinishedRun, LawFamily, average_runs, epochs_at, fit_epochs_law
from scavenger.models.forms import Topology
from scavenger.models.iteration_time_fitting import fit_step_time
from scavenger.models.performance import PerformanceModel, forms_for
from scavenger.offline.evaluation.prediction_errors import spread_batches
from scavenger.offline.evaluation.sampling import Design, DesignName, ProbedRows, Restriction
from scavenger.offline.tables.steps import StepTable
from scavenger.planning.constrained_objective import ConstrainedObjective
from scavenger.planning.curve import (
    TradeoffCurve,
    TradeoffPoint,
    curve_from_forecast,
    forecast_grid,
)
from scavenger.planning.knee import find_knee, knee_row_of_points
from scavenger.planning.objectives import Cheapest, Fastest
from scavenger.pricing import PriceModel, ResourcePrice

RegretObjective = Literal[
    "fastest", "cheapest", "cheapest_in_time", "cheapest_likely_in_time", "knee"
]

REGRET_OBJECTIVES: tuple[RegretObjective, ...] = (
    "fastest",
    "cheapest",
    "cheapest_in_time",
    "cheapest_likely_in_time",
    "knee",
)
# The deadline, as a multiple of the least time there is.
DEADLINE_FACTOR = 1.5
REGRET_BATCHES = 3
# Every worker costs the same, on a shared machine too.
UNIT_PRICE = PriceModel(ResourcePrice(1.0, 0.0, 1.0, MemoryModel(0.0, 0.0)))


@dataclass(frozen=True, slots=True)
class Regret:
    """What one objective loses on one table by choosing from predictions.

    Attributes:
        table: Name of the table of seconds; its epochs come from the table it begins with.
        laws: Laws the choice was predicted with.
        points: Configurations that were probed.
        design: How these were chosen.
        wish: The objective; ``cheapest_in_time`` is 90 % sure to meet a deadline of 1.5 times the
            least time, as a job is, ``cheapest_likely_in_time`` is only expected to.
        windows: Parts of the table in which was chosen.
        regret: Mean of the true figure of the choice over the best one, less 1: time, cost, cost,
            and for the knee the root of time times cost. At least 0.
        late: Share of the choices with which the deadline is missed in truth.
    """

    table: str
    laws: LawFamily
    points: int
    design: DesignName
    wish: RegretObjective
    windows: int
    regret: float
    late: float


@dataclass(frozen=True, slots=True)
class WindowTruth:
    """What every configuration of a window really takes.

    Attributes:
        configs: The configurations.
        time: Seconds times samples, up to the size of the data set.
        cost: The same times workers.
    """

    configs: tuple[ClusterConfig, ...]
    time: Floats
    cost: Floats

    def row(self, config: ClusterConfig) -> int:
        """Return where a configuration stands."""
        return self.configs.index(config)

    @property
    def deadline(self) -> float:
        """The deadline that choices are made under."""
        return DEADLINE_FACTOR * float(self.time.min())


def regrets(
    table: StepTable,
    runs: Sequence[FinishedRun],
    points: int,
    laws: LawFamily,
    restriction: Restriction,
    topology: Topology,
    design: Design,
) -> tuple[Regret, ...]:
    """Choose by every objective from a few probes and three batches' epochs.

    Only configurations within the batches whose epochs were measured count, because beyond them
    nothing tells the truth.
    """
    known = average_runs(runs)
    if len(known) < REGRET_BATCHES:
        return ()
    within = tuple(
        m
        for m in table.measurements
        if known[0].global_batch <= m.config.global_batch <= known[-1].global_batch
    )
    windows = [w for w in restriction.windows(within) if len(w) > points]
    outcomes = []
    for window in windows:
        truth = true_figures(window, known)
        for probed in design.choose_rows(window, points):
            curve = predict_window(window, known, probed, laws, topology)
            outcomes.append({wish: outcome_of(wish, truth, curve) for wish in REGRET_OBJECTIVES})
    return tuple(
        Regret(
            table=table.name,
            laws=laws,
            points=points,
            design=design.name,
            wish=wish,
            windows=len(windows),
            regret=float(np.mean([outcome[wish][0] for outcome in outcomes])),
            late=float(np.mean([outcome[wish][1] for outcome in outcomes])),
        )
        for wish in REGRET_OBJECTIVES
        if outcomes
    )


def true_figures(window: Sequence[Measurement], runs: Sequence[FinishedRun]) -> WindowTruth:
    """Return what was measured; epochs between measured batches lie on a line in logarithms."""
    configs = tuple(m.config for m in window)
    batches = np.array([config.global_batch for config in configs], dtype=float)
    seconds = np.array([m.step_time for m in window])
    log_epochs = np.interp(
        np.log(batches),
        [math.log(run.global_batch) for run in runs],
        [math.log(run.epochs) for run in runs],
    )
    time = np.exp(log_epochs) / batches * seconds
    return WindowTruth(configs, time, time * np.array([config.workers for config in configs]))


def predict_window(
    window: Sequence[Measurement],
    runs: Sequence[FinishedRun],
    probed: ProbedRows,
    laws: LawFamily,
    topology: Topology,
) -> TradeoffCurve:
    """Predict a window from a few of its configurations and from three batches' epochs."""
    parallel = fit_step_time(probed, topology, forms=forms_for(laws))
    known = spread_batches(runs, REGRET_BATCHES)
    statistical = fit_epochs_law((), runs=known, laws=laws)
    reference = known[0].global_batch
    epochs = epochs_at(statistical, known, reference)
    model = PerformanceModel(parallel, statistical, 1, reference, epochs)
    grid = config_columns(m.config for m in window)
    return curve_from_forecast(
        forecast_grid(grid, model, UNIT_PRICE, {m.config: m.step_time for m in probed})
    )


def outcome_of(
    wish: RegretObjective, truth: WindowTruth, curve: TradeoffCurve
) -> tuple[float, bool]:
    """Return the regret of a choice, and whether it misses its deadline."""
    row = truth.row(choose_for_objective(wish, truth, curve).config)
    is_late = "in_time" in wish and bool(truth.time[row] > truth.deadline)
    match wish:
        case "fastest":
            loss, best = truth.time, float(truth.time.min())
        case "cheapest":
            loss, best = truth.cost, float(truth.cost.min())
        case "cheapest_in_time" | "cheapest_likely_in_time":
            loss = truth.cost
            best = float(truth.cost[truth.time <= truth.deadline].min())
        case "knee":
            loss = np.sqrt(truth.time * truth.cost)
            best = float(loss[knee_row_of_points(truth.time, truth.cost)])
    return max(float(loss[row]) / best - 1, 0.0), is_late


def choose_for_objective(
    wish: RegretObjective, truth: WindowTruth, curve: TradeoffCurve
) -> TradeoffPoint:
    """Choose from predictions; where nothing is expected to be in time, the fastest."""
    match wish:
        case "fastest":
            return Fastest().choose(curve).point
        case "cheapest":
            return Cheapest().choose(curve).point
        case "knee":
            # Only the point counts here, and not how sure it is.
            return find_knee(curve.frontier()).point
        case "cheapest_in_time":
            # As a job with a deadline chooses; the fastest where that gives up.
            try:
                return ConstrainedObjective(Cheapest(), max_time=truth.deadline).choose(curve).point
            except NothingFeasible:
                return Fastest().choose(curve).point
        case "cheapest_likely_in_time":
            likely = tuple(p for p in curve.points if p.time <= truth.deadline)
            if not likely:
                return Fastest().choose(curve).point
            return Cheapest().choose(replace(curve, points=likely)).point
