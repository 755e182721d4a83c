"""PerformanceModel: time to target, from iterations needed and seconds per iteration."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scavenger.cluster import ClusterConfig
from scavenger.grid import Floats, Grid
from scavenger.models.averaged import StepTimeModel
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
        epochs_deviation: Relative standard deviation of ``epochs_at_reference``, 0 where it is
            what the user asked for; runs to a metric differ.
    """

    parallel: StepTimeModel
    statistical: StatisticalModel
    dataset_size: int
    reference_batch: int
    epochs_at_reference: float | None
    epochs_deviation: float = 0.0

    def __post_init__(self) -> None:
        for name in ("dataset_size", "reference_batch"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        epochs = self.epochs_at_reference
        if epochs is not None and not (math.isfinite(epochs) and epochs > 0):
            raise ValueError(f"epochs_at_reference must be finite and positive, got {epochs}")
        if not (math.isfinite(self.epochs_deviation) and self.epochs_deviation >= 0):
            raise ValueError(
                f"epochs_deviation must be finite and not negative, got {self.epochs_deviation}"
            )

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

    def all_epochs(self, grid: Grid) -> Floats:
        """Epochs to target of each configuration, e(B) (Eq. 6)."""
        at_reference = 1.0 if self.epochs_at_reference is None else self.epochs_at_reference
        shape = self.statistical.shape(np.append(grid.global_batch, float(self.reference_batch)))
        return np.asarray(at_reference * shape[:-1] / shape[-1])

    def deviations(self, grid: Grid, is_measured: NDArray[np.bool_]) -> Floats:
        """Relative standard deviation of time to target, less where an iteration was timed."""
        epochs = self.statistical.deviations(grid.global_batch, self.reference_batch)
        steps = np.where(is_measured, self.parallel.repeats, self.parallel.deviations(grid))
        return np.asarray(np.sqrt(epochs**2 + self.epochs_deviation**2 + steps**2))

    def _relative_epochs(self, global_batch: int) -> float:
        return self.statistical.relative_epochs(global_batch, self.reference_batch)
