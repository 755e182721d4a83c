"""PerformanceModel: time to target, from iterations needed and seconds per iteration."""

from __future__ import annotations

import math
from dataclasses import dataclass

from scavenger.cluster import ClusterConfig
from scavenger.models.parallel import ParallelModel
from scavenger.models.statistical import StatisticalModel


@dataclass(frozen=True, slots=True)
class PerformanceModel:
    """Everything that is known about a job's speed (Eqs. 3 and 4).

    Attributes:
        parallel: Seconds per iteration.
        statistical: What a batch costs in epochs.
        dataset_size: Samples of one epoch, D.
        reference_batch: B0 in samples, the batch the user's recipe was written for.
        epochs_at_reference: Epochs to target at ``reference_batch``; None while unknown, when
            every result is per epoch at the reference batch.
    """

    parallel: ParallelModel
    statistical: StatisticalModel
    dataset_size: int
    reference_batch: int
    epochs_at_reference: float | None

    def __post_init__(self) -> None:
        for name in ("dataset_size", "reference_batch"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        epochs = self.epochs_at_reference
        if epochs is not None and not (math.isfinite(epochs) and epochs > 0):
            raise ValueError(f"epochs_at_reference must be finite and positive, got {epochs}")

    def epochs_needed(self, global_batch: int) -> float:
        """Epochs to target, e(B); with unknown epochs relative to e(B0) = 1 (Eq. 6)."""
        at_reference = 1.0 if self.epochs_at_reference is None else self.epochs_at_reference
        return at_reference * self._relative_epochs(global_batch)

    def iterations_needed(self, global_batch: int) -> float:
        """Iterations to target, e D / B (Eq. 4)."""
        return self.epochs_needed(global_batch) * self.dataset_size / global_batch

    def training_time(self, config: ClusterConfig) -> float:
        """Seconds to target, iterations times seconds per iteration (Eq. 3)."""
        return self.iterations_needed(config.global_batch) * self.parallel.step_time(config)

    def progress_per_iteration(self, global_batch: int) -> float:
        """Reference epochs one iteration is worth, B / D · e(B0) / e(B) (SCIENCE §2)."""
        return self.statistical.progress(global_batch, self.reference_batch, self.dataset_size)

    def _relative_epochs(self, global_batch: int) -> float:
        return self.statistical.relative_epochs(global_batch, self.reference_batch)
