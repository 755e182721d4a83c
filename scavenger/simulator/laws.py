"""LawTruth: a truth that follows the laws, but for a roughness of its own in each configuration."""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass

import numpy as np

from scavenger.cluster import ClusterConfig
from scavenger.models.performance import PerformanceModel


@dataclass(frozen=True, slots=True)
class LawTruth:
    """What a model predicts is the truth (Eqs. 3, 4, 6, 8).

    Attributes:
        model: The laws; ``epochs_at_reference`` must be known.
        roughness: Standard deviation of the logarithm of each configuration's iteration time
            around the law: no cluster follows a law of a few terms (SCIENCE §3).
        seed: Of the roughness; the same for all questions about one job.
    """

    model: PerformanceModel
    roughness: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.model.epochs_at_reference is None:
            raise ValueError("epochs_at_reference is None: a simulated job needs a target")
        if not (math.isfinite(self.roughness) and self.roughness >= 0):
            raise ValueError(f"roughness must be finite and not negative, got {self.roughness}")

    @property
    def dataset_size(self) -> int:
        """Samples of one epoch."""
        return self.model.dataset_size

    @property
    def noise_scale(self) -> float | None:
        """Noise scale φ in samples; None where the model has none."""
        return self.model.statistical.noise_scale

    def epochs_needed(self, global_batch: int) -> float:
        """Epochs to target (Eq. 6)."""
        return self.model.epochs_needed(global_batch)

    def compute_time(self, config: ClusterConfig) -> float:
        """Seconds of an iteration that are not synchronisation (Eq. 9)."""
        return self.model.parallel.compute_time(config) * self._deviation(config)

    def sync_time(self, config: ClusterConfig) -> float:
        """Exposed seconds of synchronisation (Eq. 10)."""
        return self.model.parallel.sync_time(config) * self._deviation(config)

    def _deviation(self, config: ClusterConfig) -> float:
        """Factor around the law, the same whenever this configuration is asked for."""
        if self.roughness == 0:
            return 1.0
        machine = zlib.crc32(config.machine_type.encode())
        key = [self.seed, config.workers, config.global_batch, config.workers_per_machine, machine]
        return math.exp(self.roughness * float(np.random.default_rng(key).standard_normal()))
