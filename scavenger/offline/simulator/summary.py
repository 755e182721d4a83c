"""summarise_outcomes(): many simulated runs of one strategy as medians and quartiles."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, median

import numpy as np

from scavenger.offline.simulator.simulation import SimulationOutcome


@dataclass(frozen=True, slots=True)
class Quartiles:
    """A figure over many runs: a quarter, half and three quarters of them stay below."""

    low: float
    median: float
    high: float


@dataclass(frozen=True, slots=True)
class BaselineQuartiles:
    """Quartiles against configurations run from the start to the target, nothing searched.

    Attributes:
        best: Against the best configuration there is, in this figure alone.
        median: Against the median over all configurations of the space.
        worst: Against the worst configuration.
    """

    best: Quartiles
    median: Quartiles
    worst: Quartiles


@dataclass(frozen=True, slots=True)
class SimulationSummary:
    """What one strategy does.

    Attributes:
        runs: Runs it is made of.
        agreement: Share of runs that chose what the oracle chooses.
        error: Mean absolute error of predicted time over the space; None where nothing was
            predicted.
        regret: See ``SimulationOutcome.regret``.
        time_overhead: Time to target against the oracle's, search included.
        cost_overhead: Cost to target against the oracle's, search included.
        search_time: Seconds the search cost.
        search_cost: Dollars the search cost.
        time: Seconds to target.
        cost: Dollars to target.
        probes: Mean number of probes.
        speedup: Seconds of other configurations over seconds of the run, search included.
        saving: Share of other configurations' dollars that the run saves, search included.
    """

    runs: int
    agreement: float
    error: Quartiles | None
    regret: Quartiles
    time_overhead: Quartiles
    cost_overhead: Quartiles
    search_time: Quartiles
    search_cost: Quartiles
    time: Quartiles
    cost: Quartiles
    probes: float
    speedup: BaselineQuartiles
    saving: BaselineQuartiles


def summarise_outcomes(outcomes: Sequence[SimulationOutcome]) -> SimulationSummary:
    """Return medians and quartiles over runs.

    Raises:
        ValueError: There are no runs.
    """
    if not outcomes:
        raise ValueError("no runs to summarise")
    errors = [outcome.mean_error for outcome in outcomes if outcome.mean_error is not None]
    return SimulationSummary(
        runs=len(outcomes),
        agreement=fmean(outcome.chosen == outcome.oracle.config for outcome in outcomes),
        error=quartiles(errors) if errors else None,
        regret=quartiles([outcome.regret for outcome in outcomes]),
        time_overhead=quartiles([outcome.time_overhead for outcome in outcomes]),
        cost_overhead=quartiles([outcome.cost_overhead for outcome in outcomes]),
        search_time=quartiles([outcome.search_time for outcome in outcomes]),
        search_cost=quartiles([outcome.search_cost for outcome in outcomes]),
        time=quartiles([outcome.time for outcome in outcomes]),
        cost=quartiles([outcome.cost for outcome in outcomes]),
        probes=fmean(len(outcome.observations) for outcome in outcomes),
        speedup=baseline_quartiles(outcomes, speedup_over),
        saving=baseline_quartiles(outcomes, saving_over),
    )


def quartiles(values: Sequence[float]) -> Quartiles:
    """Return the quartiles of at least one value."""
    low, middle, high = np.percentile(values, [25, 50, 75]).tolist()
    return Quartiles(low, middle, high)


def baseline_quartiles(
    outcomes: Sequence[SimulationOutcome],
    over: Callable[[SimulationOutcome, Callable[[list[float]], float]], float],
) -> BaselineQuartiles:
    """Compare runs with the best, the median and the worst configuration."""
    best, middle, worst = (
        quartiles([over(outcome, pick) for outcome in outcomes]) for pick in (min, median, max)
    )
    return BaselineQuartiles(best, middle, worst)


def speedup_over(outcome: SimulationOutcome, pick: Callable[[list[float]], float]) -> float:
    """Seconds of one configuration, from fast to slow, over the seconds of a run."""
    return pick([point.time for point in outcome.truth.points]) / outcome.time


def saving_over(outcome: SimulationOutcome, pick: Callable[[list[float]], float]) -> float:
    """Share of one configuration's dollars that a run saves; 0 where nothing costs anything."""
    cost = pick([point.cost for point in outcome.truth.points])
    return 1 - outcome.cost / cost if cost else 0.0
