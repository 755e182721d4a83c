"""What a search is expected to take, before the first machine is rented.

The search is played with imagined measurements: each probe shows what the laws known so far
predict. Without any law the number of probes is all that can be told.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from scavenger.cluster import ClusterConfig, config_columns
from scavenger.errors import NothingFeasible
from scavenger.measurement.profiling import Observation, ScalingIndicators
from scavenger.measurement.stability import MIN_NOISE_WINDOW_ROWS_WITHOUT_LOSS
from scavenger.models.performance import PerformanceModel
from scavenger.planning.decision import decide, fit_model
from scavenger.planning.search.strategy import Probe
from scavenger.planning.state import PlanningState

MAX_IMAGINED_PROBES = 400
# Where no law is known: seconds per sample, and of synchronisation per worker. Only the number of
# probes follows from them, which they hardly change.
GUESSED_COMPUTE_TIME, GUESSED_SYNC_TIME, GUESSED_NOISE_SCALE = 1e-3, 1e-2, 100.0


@dataclass(frozen=True, slots=True)
class SearchForecast:
    """What a search is expected to take.

    Attributes:
        probes: What it measures, in order.
        seconds: Until it chooses; training goes on meanwhile. None where no law is known.
        cost: Dollars until it chooses; None likewise.
    """

    probes: tuple[Probe, ...]
    seconds: float | None
    cost: float | None


def forecast_search(state: PlanningState) -> SearchForecast:
    """Play the search of a job to its end, with imagined measurements."""
    fitted = fit_model(state)
    model = None if fitted is None else fitted.model
    probes: list[Probe] = []
    while len(probes) < MAX_IMAGINED_PROBES:
        try:
            decision = decide(state)
        except NothingFeasible:
            break  # what was imagined meets no limit; what is measured may
        if not isinstance(decision, Probe):
            break
        probes.append(decision)
        state = replace(state, observations=(*state.observations, imagine(decision, model)))
    if model is None:
        return SearchForecast(tuple(probes), None, None)
    seconds = [probe_seconds(probe, model, state) for probe in probes]
    grid = config_columns(tuple(probe.config for probe in probes))
    per_hour = state.price.per_hour(grid).tolist() if probes else []
    cost = sum(price * span / 3600 for price, span in zip(per_hour, seconds, strict=True))
    return SearchForecast(tuple(probes), sum(seconds), cost)


def imagine(probe: Probe, model: PerformanceModel | None) -> Observation:
    """Return what a probe would show if the laws were right."""
    compute, sync = predict_times(probe.config, model)
    scale = None if model is None else model.statistical.noise_scale
    scale = GUESSED_NOISE_SCALE if scale is None else scale
    shown = ScalingIndicators(None, scale, compute, sync)
    return Observation(probe.config, shown, 1, has_settled_noise=probe.measures == "noise")


def predict_times(config: ClusterConfig, model: PerformanceModel | None) -> tuple[float, float]:
    """Return seconds of compute and of synchronisation of an iteration."""
    if model is None:
        sync = GUESSED_SYNC_TIME * config.workers if config.workers > 1 else 0.0
        return GUESSED_COMPUTE_TIME * config.local_batch, sync
    compute, step = model.parallel.compute_time(config), model.parallel.step_time(config)
    return min(compute, step), max(step - compute, 0.0)


def probe_seconds(probe: Probe, model: PerformanceModel, state: PlanningState) -> float:
    """Return what a probe takes: its iterations, and the change of machines before them."""
    overhead = state.probe_overhead
    settling = MIN_NOISE_WINDOW_ROWS_WITHOUT_LOSS if probe.measures == "noise" else 0
    iterations = max(overhead.iterations, settling)
    return iterations * sum(predict_times(probe.config, model)) + overhead.pause
