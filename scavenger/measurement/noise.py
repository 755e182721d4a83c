"""Gradient noise γ and the noise scale φ from squared gradient norms (Eq. 2).

Plain floats only, so that the agent beside the training process imports nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from scavenger.cluster import ClusterConfig
from scavenger.measurement.steps import StepColumns


def noise_at(noise_scale: float, config: ClusterConfig) -> float:
    """Noise γ that a noise scale predicts at any configuration, K (b + φ) / (B + φ) (SCIENCE §1).

    >>> noise_at(32.0, ClusterConfig(workers=4, global_batch=64))
    2.0
    """
    share = (config.local_batch + noise_scale) / (config.global_batch + noise_scale)
    return config.workers * share


@dataclass(frozen=True, slots=True)
class ShardNorms:
    """Squared gradient norms of one iteration, or their mean over several.

    Attributes:
        shards: Equal independent parts of the global batch, at least 2.
        local_norm_sq: Mean over shards of ||g_k||².
        mean_norm_sq: ||ḡ||² of the aggregated gradient.
    """

    shards: int
    local_norm_sq: float
    mean_norm_sq: float

    def __post_init__(self) -> None:
        if self.shards < 2:
            raise ValueError(f"noise needs at least 2 shards, got {self.shards}")

    @property
    def aggregated_gradient_variance(self) -> float:
        """Unbiased estimate of tr Σ / B, the variance of the aggregated gradient."""
        return (self.local_norm_sq - self.mean_norm_sq) / (self.shards - 1)

    @property
    def gradient_norm_sq(self) -> float:
        """Unbiased estimate of |G|²; below zero when noise hides the gradient."""
        return self.mean_norm_sq - self.aggregated_gradient_variance

    def gradient_variance(self, global_batch: int) -> float:
        """Unbiased estimate of tr Σ, the variance of one sample's gradient."""
        return self.aggregated_gradient_variance * global_batch


def shard_norms(columns: StepColumns, start: int = 0) -> tuple[ShardNorms, ...]:
    """Return the rows from ``start`` on that carry noise: several shards and finite norms."""
    series = (columns.shards, columns.local_norm_sq, columns.mean_norm_sq)
    return tuple(
        ShardNorms(shards, local, mean)
        for shards, local, mean in zip(*(one[start:] for one in series), strict=True)
        if shards > 1 and local is not None and mean is not None
        if math.isfinite(local) and math.isfinite(mean)
    )


@dataclass(frozen=True, slots=True)
class NoiseEstimate:
    """Noise of many iterations, every piece averaged before any ratio is taken.

    Attributes:
        noise: γ over the shards (Eq. 2).
        noise_scale: φ in samples; None when ``gradient_norm_sq`` is not positive, so that only
            "larger than can be measured with these rows" is known.
        gradient_norm_sq: Unbiased |G|², may be negative by chance.
        gradient_variance: Unbiased tr Σ of one sample's gradient.
        rows: Iterations the estimate is made of.
    """

    noise: float
    noise_scale: float | None
    gradient_norm_sq: float
    gradient_variance: float
    rows: int


def estimate_noise(columns: StepColumns, global_batch: int) -> NoiseEstimate | None:
    """Estimate noise from measured iterations (Eq. 2); None when no row carries any.

    Rows with one shard or without finite norms are skipped; shard counts may differ between rows.
    """
    return pool_noise(shard_norms(columns), global_batch)


def pool_noise(rows: Sequence[ShardNorms], global_batch: int) -> NoiseEstimate | None:
    """Pool rows into one estimate; None without rows or when γ has no finite value."""
    if not rows:
        return None
    local = safe_mean([row.local_norm_sq for row in rows])
    mean = safe_mean([row.mean_norm_sq for row in rows])
    spread = safe_mean([row.aggregated_gradient_variance for row in rows])
    norm_sq, variance = mean - spread, spread * global_batch
    if mean <= 0 or not all(map(math.isfinite, (local / mean, norm_sq, variance))):
        return None
    return NoiseEstimate(
        local / mean, noise_scale_from(variance, norm_sq), norm_sq, variance, len(rows)
    )


@dataclass(frozen=True, slots=True)
class SmoothedNoise:
    """Noise followed through training: |G|² and tr Σ averaged apart, forgetting old rows.

    Exponential moving averages of both unbiased pieces, debiased as in Adam by the weight given
    away so far; the ratio comes last (SCIENCE §1). Neither piece depends on K or B, so rows of
    different configurations may follow each other.

    Attributes:
        decay: Weight an old row keeps with each new one.
        gradient_norm_sq: Weighted sum of |G|² so far.
        gradient_variance: Weighted sum of tr Σ so far.
        weight: Sum of the weights so far, from 0 to 1.
        rows: Rows so far.
    """

    decay: float = 0.99
    gradient_norm_sq: float = 0.0
    gradient_variance: float = 0.0
    weight: float = 0.0
    rows: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.decay < 1:
            raise ValueError(f"decay must be from 0 to below 1, got {self.decay}")

    def with_row(self, row: ShardNorms, global_batch: int) -> SmoothedNoise:
        """Return the averages with one more iteration."""
        new = 1 - self.decay
        return replace(
            self,
            gradient_norm_sq=self.decay * self.gradient_norm_sq + new * row.gradient_norm_sq,
            gradient_variance=self.decay * self.gradient_variance
            + new * row.gradient_variance(global_batch),
            weight=self.decay * self.weight + new,
            rows=self.rows + 1,
        )

    @property
    def noise_scale(self) -> float | None:
        """φ in samples; None before the first row or while noise hides the gradient."""
        if not self.weight:
            return None
        return noise_scale_from(
            self.gradient_variance / self.weight, self.gradient_norm_sq / self.weight
        )


def safe_mean(values: Sequence[float]) -> float:
    """Return the mean; large norms that overflow in a sum are divided before it."""
    total = sum(values)
    return total / len(values) if math.isfinite(total) else sum(v / len(values) for v in values)


def noise_scale_from(variance: float, norm_sq: float) -> float | None:
    """Return φ = tr Σ / |G|², or None when that has no finite value."""
    if norm_sq <= 0 or not math.isfinite(variance / norm_sq):
        return None
    # Rounding can leave a variance just below zero where all shards agree.
    return max(variance / norm_sq, 0.0)
