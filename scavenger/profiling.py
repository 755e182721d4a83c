"""From many measured iterations to one Observation; the controller hands over what workers report.

A probe measures time or noise. Time takes some twenty iterations of each configuration. Noise takes
as long as it needs to settle, but of one configuration: one settled φ predicts the noise of all
others (SCIENCE §1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from itertools import chain
from statistics import median
from typing import Literal

from scavenger.cluster import ClusterConfig
from scavenger.indicators import Observation, ScalingIndicators
from scavenger.noise import NoiseEstimate, estimate_noise, shard_norms
from scavenger.protocol import StepColumns
from scavenger.stability import judge_stability

Measures = Literal["time", "noise"]

PROBE_ITERATIONS = 20
WARM_UP = 3
MOST_NOISE_ROWS = 4000


@dataclass(frozen=True, slots=True)
class Settled:
    """Enough was measured.

    Attributes:
        observation: What it amounts to.
        why: One sentence for people.
    """

    observation: Observation
    why: str


@dataclass(frozen=True, slots=True)
class NotYet:
    """More iterations are needed; ``why`` says how many, or what they wait for."""

    why: str


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds per iteration, medians over the measured rows."""

    compute_time: float
    sync_time: float
    rows: int


def settle(
    columns: StepColumns,
    config: ClusterConfig,
    *,
    measures: Measures,
    has_settled_noise: bool = False,
    losses_before: Sequence[float | None] = (),
    probe_iterations: int = PROBE_ITERATIONS,
    warm_up: int = WARM_UP,
    most_noise_rows: int = MOST_NOISE_ROWS,
) -> Settled | NotYet:
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
        most_noise_rows: Noise rows, or rows if none carries noise, after which a probe of noise
            settles on the noise it has.
    """
    warm = rows_from(columns, warm_up)
    timing = measure_time(warm)
    if timing.rows < probe_iterations:
        return NotYet(f"{timing.rows} of {probe_iterations} iterations timed")
    if measures == "time":
        noise = estimate_noise(warm, config.global_batch)
        settled = observe(config, timing, noise, f"{timing.rows} iterations timed")
        observation = replace(settled.observation, has_settled_noise=has_settled_noise)
        return replace(settled, observation=observation)
    stability = judge_stability(columns, config.global_batch, losses_before)
    if stability.is_stable:
        return observe(config, timing, stability.noise, stability.why)
    if (len(shard_norms(columns)) or len(columns)) < most_noise_rows:
        return NotYet(stability.why)
    noise = estimate_noise(rows_from(columns, len(columns) // 2), config.global_batch)
    why = f"noise did not settle in {len(columns)} iterations and is used as it is"
    return observe(config, timing, noise, f"{why}: {stability.why}")


def rows_from(columns: StepColumns, start: int) -> StepColumns:
    """Return the rows from ``start`` on."""
    return StepColumns(*(getattr(columns, field.name)[start:] for field in fields(columns)))


def joined(parts: Sequence[StepColumns]) -> StepColumns:
    """Put the rows of all parts into one."""
    if len(parts) == 1:
        return parts[0]
    names = [field.name for field in fields(StepColumns)]
    return StepColumns(
        *(tuple(chain.from_iterable(getattr(part, name) for part in parts)) for name in names)
    )


def measure_time(columns: StepColumns) -> Timing:
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
        return Timing(0.0, 0.0, 0)
    measured = median(compute for compute, _, _ in timed)
    unsynchronised = median(step - sync for _, sync, step in timed)
    sync = median(sync for _, sync, _ in timed)
    return Timing(max(unsynchronised, measured), sync, len(timed))


def observe(
    config: ClusterConfig, timing: Timing, noise: NoiseEstimate | None, why: str
) -> Settled:
    """Put timing and noise together."""
    indicators = ScalingIndicators(
        noise=noise.noise if noise else None,
        noise_scale=noise.noise_scale if noise else None,
        compute_time=timing.compute_time,
        sync_time=timing.sync_time,
    )
    return Settled(Observation(config, indicators, timing.rows), why)
