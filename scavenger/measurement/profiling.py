"""Condenses the iterations of one probe into an Observation (Eqs. 2 and 8).

A probe measures time or noise. Time takes some twenty iterations of each configuration. Noise takes
as long as it needs to settle, but of one configuration: one settled φ predicts the noise of all
others (SCIENCE §1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Literal

from scavenger.cluster import ClusterConfig
from scavenger.measurement.noise import NoiseEstimate, estimate_noise, shard_norms
from scavenger.measurement.stability import MIN_NOISE_WINDOW_ROWS_WITHOUT_LOSS, assess_stability
from scavenger.measurement.steps import StepColumns
from scavenger.number_checks import require_not_negative


@dataclass(frozen=True, slots=True)
class ScalingIndicators:
    """The measured noise and timing of one configuration (Eqs. 2 and 8).

    Attributes:
        noise: Gradient noise γ, E[mean_k ||g_k||²] / E[||ḡ||²]; None with one shard.
        noise_scale: φ = tr Σ / |G|² in samples; None when the configuration gives no information.
        compute_time: Seconds of an iteration that are not synchronisation (forward, backward,
            optimizer, data), of the slowest worker.
        sync_time: Exposed seconds of synchronisation, of the worker that waited least.
    """

    noise: float | None
    noise_scale: float | None
    compute_time: float
    sync_time: float

    def __post_init__(self) -> None:
        require_not_negative(self, "noise", "noise_scale", "compute_time", "sync_time")

    @property
    def step_time(self) -> float:
        """Seconds per iteration, compute_time + sync_time (Eq. 8)."""
        return self.compute_time + self.sync_time


@dataclass(frozen=True, slots=True)
class Measurement:
    """How long an iteration took in one configuration.

    Attributes:
        config: The configuration.
        step_time: Seconds per iteration.
        compute_time: Seconds of it that are not exposed synchronisation; None where the two were
            not measured apart.
    """

    config: ClusterConfig
    step_time: float
    compute_time: float | None = None

    def __post_init__(self) -> None:
        require_not_negative(self, "step_time", "compute_time")


@dataclass(frozen=True, slots=True)
class Observation:
    """One settled probe: a configuration, its indicators and how much was spent to learn them.

    Attributes:
        config: The configuration that was measured.
        indicators: What was measured.
        iterations: Iterations the figures are made of.
        has_settled_noise: Whether the noise of the job had settled by then. Early noise misleads by
            a factor of up to three, so it counts only while there is no other (SCIENCE §1).
    """

    config: ClusterConfig
    indicators: ScalingIndicators
    iterations: int
    has_settled_noise: bool = True

    @property
    def measurement(self) -> Measurement:
        """How long an iteration took, without what was learned about noise."""
        return Measurement(self.config, self.indicators.step_time, self.indicators.compute_time)


MeasuredQuantity = Literal["time", "noise"]

PROBE_ITERATIONS = 20
WARM_UP_ITERATIONS = 3
MAX_NOISE_ROWS = 4000
# As many as noise takes to settle at the earliest where no loss is logged.
MAX_ROWS_WITHOUT_NOISE = MIN_NOISE_WINDOW_ROWS_WITHOUT_LOSS


@dataclass(frozen=True, slots=True)
class ProbeComplete:
    """A probe for which enough was measured.

    Attributes:
        observation: What it amounts to.
        why: One sentence for people.
    """

    observation: Observation
    why: str


@dataclass(frozen=True, slots=True)
class ProbeIncomplete:
    """More iterations are needed; ``why`` says how many, or what they wait for."""

    why: str


@dataclass(frozen=True, slots=True)
class StepTiming:
    """Seconds per iteration, medians over the measured rows."""

    compute_time: float
    sync_time: float
    rows: int


def evaluate_probe(
    columns: StepColumns,
    config: ClusterConfig,
    *,
    measures: MeasuredQuantity,
    has_settled_noise: bool = False,
    losses_before: Sequence[float | None] = (),
    probe_iterations: int = PROBE_ITERATIONS,
    warm_up: int = WARM_UP_ITERATIONS,
    max_noise_rows: int = MAX_NOISE_ROWS,
) -> ProbeComplete | ProbeIncomplete:
    """Condense the iterations of one probe into an Observation (Eqs. 2 and 8).

    Args:
        columns: Every row of one generation, from its first iteration.
        config: The configuration they were measured in.
        measures: What the probe is for; one of noise measures time too.
        has_settled_noise: Whether the noise of the job had settled before this probe.
        losses_before: Losses logged before these rows, from the job's first iteration; a probe of
            noise judges by them whether the loss has fallen.
        probe_iterations: Rows with timing a probe needs.
        warm_up: First rows to leave out: caches, connections and allocators are still cold.
        max_noise_rows: Noise rows after which a probe of noise ends with the noise it has. It ends
            much sooner without any: a script that shows none in its first iterations never will.
    """
    warm = columns[warm_up:]
    timing = measure_time(warm)
    if timing.rows < probe_iterations:
        return ProbeIncomplete(f"{timing.rows} of {probe_iterations} iterations timed")
    if measures == "time":
        noise = estimate_noise(warm, config.global_batch)
        settled = complete_probe(config, timing, noise, f"{timing.rows} iterations timed")
        observation = replace(settled.observation, has_settled_noise=has_settled_noise)
        return replace(settled, observation=observation)
    stability = assess_stability(columns, config.global_batch, losses_before)
    if stability.is_stable:
        return complete_probe(config, timing, stability.noise, stability.why)
    noise_rows = len(shard_norms(columns))
    longest = max_noise_rows if noise_rows else min(max_noise_rows, MAX_ROWS_WITHOUT_NOISE)
    if (noise_rows or len(columns)) < longest:
        return ProbeIncomplete(stability.why)
    if not noise_rows:
        why = f"none of {len(columns)} iterations measured noise, so none is waited for"
        return complete_probe(config, timing, None, why)
    noise = estimate_noise(columns[len(columns) // 2 :], config.global_batch)
    why = f"noise did not settle in {len(columns)} iterations and is used as it is"
    return complete_probe(config, timing, noise, f"{why}: {stability.why}")


def measure_time(columns: StepColumns) -> StepTiming:
    """Take medians over the rows that ran unsplit, those with the fewest shards.

    What an iteration takes beyond synchronisation counts as compute, so that optimizer and data
    are part of it; the clocks of leader and slowest worker may disagree, so never less than the
    compute that was measured.
    """
    rows = zip(
        columns.shards, columns.compute_time, columns.sync_time, columns.step_time, strict=True
    )
    unsplit = min(columns.shards, default=1)
    timed = [row[1:] for row in rows if row[0] == unsplit]
    if not timed:
        return StepTiming(0.0, 0.0, 0)
    measured = median(compute for compute, _, _ in timed)
    unsynchronised = median(step - sync for _, sync, step in timed)
    sync = median(sync for _, sync, _ in timed)
    return StepTiming(max(unsynchronised, measured), sync, len(timed))


def complete_probe(
    config: ClusterConfig, timing: StepTiming, noise: NoiseEstimate | None, why: str
) -> ProbeComplete:
    """Put timing and noise together."""
    indicators = ScalingIndicators(
        noise=noise.noise if noise else None,
        noise_scale=noise.noise_scale if noise else None,
        compute_time=timing.compute_time,
        sync_time=timing.sync_time,
    )
    return ProbeComplete(Observation(config, indicators, timing.rows), why)
