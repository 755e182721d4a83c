"""StatisticalModel: what a batch size does to noise and to the epochs needed (Eqs. 6 and 7)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from scavenger.cluster import ClusterConfig
from scavenger.grid import Floats
from scavenger.noise import noise_at


@dataclass(frozen=True, slots=True)
class RootNoise:
    """The paper's noise, which falls with the root of the batch: γ/K = n0 + n1 / sqrt(B) (Eq. 7).

    Attributes:
        floor: γ/K that no batch removes.
        per_root: n1, in roots of samples.
    """

    floor: float
    per_root: float

    def __post_init__(self) -> None:
        for name in ("floor", "per_root"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"{name} must be finite and not negative, got {value}")
        if self.floor + self.per_root <= 0:
            raise ValueError("floor and per_root are both 0: there is no noise to follow")

    def normalized(self, global_batch: Floats) -> Floats:
        """γ/K of each batch (Eq. 7)."""
        return np.asarray(self.floor + self.per_root / np.sqrt(global_batch))


@dataclass(frozen=True, slots=True)
class StatisticalModel:
    """Epochs by batch, e(B) ∝ 1 + w / (B + φ) + B / B_crit, every term >= 0 (SCIENCE §2).

    The middle term is the paper's, epochs in proportion to noise (Eq. 6), with the exact noise
    ρ = φ / (B + φ) and w = θ φ. The last is the rising arm, right of the best learning rate; its
    prior is B_crit = κ φ. With ``root_noise`` it is the paper's law instead, e ∝ γ/K (Eqs. 6, 7).

    Attributes:
        critical_batch: B_crit in samples, at which the rising arm equals the constant. None where
            nothing tells: no batch is then held to cost epochs. Zero for gradients
            without noise, where every further sample is wasted.
        noise_scale: φ in samples; None where it could not be measured.
        noisy_samples: w in samples, 0 without a falling arm.
        root_noise: The paper's law of noise; None for the exact one.
        critical_deviation: Standard deviation of the logarithm of ``critical_batch``.
        spread: Relative standard deviation of epochs around the law where it was fitted to runs.
        bend: Further relative standard deviation at batches that were not run: of a law fitted to
            two batches nothing says how epochs bend between them and beyond.
        run_batches: The batches of these runs, in samples.
    """

    critical_batch: float | None
    noise_scale: float | None
    noisy_samples: float = 0.0
    root_noise: RootNoise | None = None
    critical_deviation: float = 0.0
    spread: float = 0.0
    bend: float = 0.0
    run_batches: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for name in (
            "critical_batch",
            "noise_scale",
            "noisy_samples",
            "critical_deviation",
            "spread",
            "bend",
        ):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value >= 0):
                raise ValueError(f"{name} must be finite and not negative, got {value}")

    def relative_epochs(self, global_batch: int, reference_batch: int) -> float:
        """Epochs at one batch per epoch at another, e(B) / e(B0) (Eq. 6, SCIENCE §2).

        >>> StatisticalModel(critical_batch=100, noise_scale=None).relative_epochs(300, 100)
        2.0
        """
        shape = self.shape(np.array([global_batch, reference_batch], dtype=float))
        return float(shape[0] / shape[1])

    def shape(self, global_batch: Floats) -> Floats:
        """Epochs of each batch up to a factor; only ratios mean anything."""
        if self.root_noise is not None:
            return self.root_noise.normalized(global_batch)
        falling = self.noisy_samples / (global_batch + (self.noise_scale or 0.0))
        if self.critical_batch is None:
            return np.asarray(1 + falling)
        # Multiplied by B_crit, which may be 0.
        return np.asarray((1 + falling) * self.critical_batch + global_batch)

    def deviations(self, global_batch: Floats, reference_batch: int) -> Floats:
        """Relative standard deviation of e(B) / e(B0), 0 at the reference batch itself."""
        batches = np.append(global_batch, float(reference_batch))
        rising = self.rising_share(batches)
        unknown = (rising[:-1] - rising[-1]) * self.critical_deviation
        elsewhere = np.hypot(self.spread, self._bends(batches))
        is_reference = global_batch == reference_batch
        return np.asarray(np.hypot(unknown, np.where(is_reference, 0.0, elsewhere)))

    def _bends(self, batches: Floats) -> Floats:
        """Deviation that a bend may cause between each batch and the last."""
        if not self.bend:
            return np.zeros(len(batches) - 1)
        bends = np.where(np.isin(batches, self.run_batches), 0.0, self.bend)
        return np.asarray(np.hypot(bends[:-1], bends[-1]))

    def rising_share(self, global_batch: Floats) -> Floats:
        """Share of the rising arm in each batch's epochs; how they follow 1 / B_crit."""
        if self.critical_batch is None or self.root_noise is not None:
            return np.zeros_like(global_batch)
        return np.asarray(global_batch / self.shape(global_batch))

    def progress(self, global_batch: int, reference_batch: int, dataset_size: int) -> float:
        """Reference epochs one iteration is worth, B / D · e(B0) / e(B) (SCIENCE §2).

        Work done at any configuration counts in this unit, so a target known in reference epochs
        is reached when the progress of all iterations adds up to it.
        """
        relative = self.relative_epochs(global_batch, reference_batch)
        return global_batch / dataset_size / relative

    def noise(self, config: ClusterConfig) -> float | None:
        """Predicted noise γ of a configuration (Eqs. 2 and 7); None without a noise scale."""
        if self.root_noise is not None:
            batch = np.array([config.global_batch], dtype=float)
            return config.workers * float(self.root_noise.normalized(batch)[0])
        if self.noise_scale is None:
            return None
        return noise_at(self.noise_scale, config)

    def at_noise_scale(self, noise_scale: float) -> StatisticalModel:
        """Return the law at another φ in samples: B_crit = κ φ and w = θ φ follow it, κ and θ stay.

        A law that knows no noise scale has nothing to follow, and stays as it is.

        >>> StatisticalModel(critical_batch=100, noise_scale=50).at_noise_scale(150).critical_batch
        300.0
        """
        if not self.noise_scale:
            return self
        critical, factor = self.critical_batch, noise_scale / self.noise_scale
        return replace(
            self,
            noise_scale=noise_scale,
            critical_batch=None if critical is None else critical * factor,
            noisy_samples=self.noisy_samples * factor,
        )

    @property
    def law(self) -> str:
        """The law in use, in symbols."""
        if self.root_noise is not None:
            return "e ∝ γ/K = n0 + n1/√B"
        terms = ["1"]
        if self.noisy_samples:
            terms.append("w/(B + φ)")
        if self.critical_batch is not None:
            terms.append("B/B_crit")
        return f"e ∝ {' + '.join(terms)}"
