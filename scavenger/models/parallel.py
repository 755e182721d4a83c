"""ParallelModel: seconds per iteration of any configuration (Eqs. 8-10)."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from scavenger.cluster import ClusterConfig


@dataclass(frozen=True, slots=True)
class ParallelModel:
    """Iteration time as two lines, compute in b = B / K and synchronisation in K (Eqs. 8-10).

    Attributes:
        compute_fixed: Seconds of compute that no batch size changes.
        compute_per_sample: Seconds of compute per sample of the local batch.
        sync_fixed: Seconds of synchronisation as soon as there are two workers.
        sync_per_worker: Seconds of synchronisation per worker.
    """

    compute_fixed: float
    compute_per_sample: float
    sync_fixed: float
    sync_per_worker: float

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"{field.name} must be finite and not negative, got {value}")

    def compute_time(self, config: ClusterConfig) -> float:
        """Seconds of an iteration that are not synchronisation (Eq. 9)."""
        return self.compute_fixed + self.compute_per_sample * config.local_batch

    def sync_time(self, config: ClusterConfig) -> float:
        """Exposed seconds of synchronisation, 0 for one worker (Eq. 10)."""
        if config.workers == 1:
            return 0.0
        return self.sync_fixed + self.sync_per_worker * config.workers

    def step_time(self, config: ClusterConfig) -> float:
        """Seconds per iteration (Eq. 8)."""
        return self.compute_time(config) + self.sync_time(config)
