"""What one probe tells us: the scaling indicators of a configuration."""

from __future__ import annotations

import math
from dataclasses import dataclass

from scavenger.cluster import ClusterConfig


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
        for name in ("noise", "noise_scale", "compute_time", "sync_time"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value >= 0):
                raise ValueError(f"{name} must be finite and not negative, got {value}")

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
        for name in ("step_time", "compute_time"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value >= 0):
                raise ValueError(f"{name} must be finite and not negative, got {value}")


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
