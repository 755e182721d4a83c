"""StatisticalModel: what a batch size does to noise and to the epochs needed (Eqs. 6 and 7)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from scavenger.cluster import ClusterConfig
from scavenger.noise import noise_at


@dataclass(frozen=True, slots=True)
class StatisticalModel:
    """Epochs rise with the batch as e(B) = e_min (1 + B / B_crit), the prior of SCIENCE §2.

    The paper's relation of epochs and noise (Eqs. 6 and 7) in its exact form: e is linear in
    1/ρ = 1 + B / φ, and B_crit = κ φ.

    Attributes:
        critical_batch: B_crit in samples, at which epochs are twice their minimum. None where noise
            could not be measured: no batch is then held to cost epochs. Zero for gradients
            without noise, where every further sample is wasted.
        noise_scale: φ in samples; None where it could not be measured.
    """

    critical_batch: float | None
    noise_scale: float | None

    def __post_init__(self) -> None:
        for name in ("critical_batch", "noise_scale"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value >= 0):
                raise ValueError(f"{name} must be finite and not negative, got {value}")

    def relative_epochs(self, global_batch: int, reference_batch: int) -> float:
        """Epochs at one batch per epoch at another, e(B) / e(B0) (Eq. 6, SCIENCE §2).

        Returns:
            Above 1 for larger batches, below 1 for smaller ones.

        >>> StatisticalModel(critical_batch=100, noise_scale=None).relative_epochs(300, 100)
        2.0
        """
        if self.critical_batch is None:
            return 1.0
        return (self.critical_batch + global_batch) / (self.critical_batch + reference_batch)

    def progress(self, global_batch: int, reference_batch: int, dataset_size: int) -> float:
        """Reference epochs one iteration is worth, B / D · e(B0) / e(B) (SCIENCE §2).

        Work done at any configuration counts in this unit, so a target known in reference epochs
        is reached when the progress of all iterations adds up to it.
        """
        relative = self.relative_epochs(global_batch, reference_batch)
        return global_batch / dataset_size / relative

    def noise(self, config: ClusterConfig) -> float | None:
        """Predicted noise γ of a configuration (Eqs. 2 and 7); None without a noise scale."""
        if self.noise_scale is None:
            return None
        return noise_at(self.noise_scale, config)
