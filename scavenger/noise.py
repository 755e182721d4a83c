"""Gradient noise γ and the noise scale φ from squared gradient norms (Eq. 2).

Plain floats only, so that the agent beside the training process imports nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from scavenger.cluster import ClusterConfig
from scavenger.protocol import StepColumns


def noise(local_norm_sq: float, mean_norm_sq: float) -> float:
    """Gradient noise of the shards' gradients around their mean (Eq. 2).

    Args:
        local_norm_sq: Mean over shards of ||g_k||², of one iteration or averaged over several.
        mean_norm_sq: ||ḡ||² of the aggregated gradient, averaged over the same iterations.

    Returns:
        γ, from 1 (all shards agree) to about the number of shards (orthogonal gradients).

    Raises:
        ValueError: The norms are not finite or ``mean_norm_sq`` is not positive: skip the row.

    >>> noise(6.0, mean_norm_sq=4.0)
    1.5
    """
    if not (math.isfinite(local_norm_sq) and local_norm_sq >= 0):
        raise ValueError(f"local_norm_sq must be finite and not negative, got {local_norm_sq}")
    if not (math.isfinite(mean_norm_sq) and mean_norm_sq > 0):
        raise ValueError(f"mean_norm_sq must be finite and positive, got {mean_norm_sq}")
    ratio = local_norm_sq / mean_norm_sq
    if not math.isfinite(ratio):
        raise ValueError(f"mean_norm_sq {mean_norm_sq} is too small beside {local_norm_sq}")
    return ratio


def normalized_noise(local_norm_sq: float, mean_norm_sq: float, shards: int) -> float:
    """Noise divided by the number of shards, so that cluster sizes compare (Eq. 2).

    Returns:
        γ/K, from 1/K (all shards agree) to about 1 (orthogonal gradients).

    Raises:
        ValueError: As for ``noise``.

    >>> normalized_noise(4.0, mean_norm_sq=4.0, shards=2)
    0.5
    """
    return noise(local_norm_sq, mean_norm_sq) / shards


def noise_scale(
    local_norm_sq: float, mean_norm_sq: float, shards: int, global_batch: int
) -> float | None:
    """Noise scale φ = tr Σ / |G|² in samples, from the unbiased pieces (SCIENCE §1).

    Returns:
        φ, finite and not negative; None when the estimate of |G|² is not positive, which says
        that the noise is too large against the gradient to be measured from these norms.

    >>> noise_scale(6.0, mean_norm_sq=3.0, shards=4, global_batch=64)
    32.0
    """
    pair = ShardNorms(shards, local_norm_sq, mean_norm_sq)
    return scale_of(pair.gradient_variance(global_batch), pair.gradient_norm_sq)


def noise_at(noise_scale: float, config: ClusterConfig) -> float:
    """Noise γ that a noise scale predicts at any configuration, K (b + φ) / (B + φ) (SCIENCE §1).

    >>> noise_at(32.0, ClusterConfig(workers=4, global_batch=64))
    2.0
    """
    share = (config.local_batch + noise_scale) / (config.global_batch + noise_scale)
    return config.workers * share


def corrected_noise(noise_scale: float, global_batch: int) -> float:
    """Noise that no longer depends on the number of workers, ρ = φ / (B + φ) (SCIENCE §1).

    Returns:
        ρ, from 0 (no noise) to 1 (nothing but noise).
    """
    return noise_scale / (global_batch + noise_scale)


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
    def gradient_norm_sq(self) -> float:
        """Unbiased estimate of |G|²; below zero when noise hides the gradient."""
        shrinkage = (self.local_norm_sq - self.mean_norm_sq) / (self.shards - 1)
        return self.mean_norm_sq - shrinkage

    def gradient_variance(self, global_batch: int) -> float:
        """Unbiased estimate of tr Σ, the variance of one sample's gradient."""
        return (self.local_norm_sq - self.mean_norm_sq) / (self.shards - 1) * global_batch


def shard_norms(columns: StepColumns, start: int = 0) -> tuple[ShardNorms, ...]:
    """Return the rows from ``start`` on that carry noise: several shards and finite norms."""
    rows = zip(columns.shards, columns.local_norm_sq, columns.mean_norm_sq, strict=True)
    return tuple(
        ShardNorms(shards, local, mean)
        for shards, local, mean in list(rows)[start:]
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
    return pooled_noise(shard_norms(columns), global_batch)


def pooled_noise(rows: Sequence[ShardNorms], global_batch: int) -> NoiseEstimate | None:
    """Pool rows into one estimate; None without rows or when γ has no finite value."""
    if not rows:
        return None
    local = mean_of([row.local_norm_sq for row in rows])
    mean = mean_of([row.mean_norm_sq for row in rows])
    norm_sq = mean_of([row.gradient_norm_sq for row in rows])
    variance = mean_of([row.gradient_variance(global_batch) for row in rows])
    if mean <= 0 or not all(map(math.isfinite, (local / mean, norm_sq, variance))):
        return None
    return NoiseEstimate(local / mean, scale_of(variance, norm_sq), norm_sq, variance, len(rows))


def mean_of(values: Sequence[float]) -> float:
    """Return the mean, divided before summing so that large norms do not overflow."""
    return sum(value / len(values) for value in values)


def scale_of(variance: float, norm_sq: float) -> float | None:
    """Return φ = tr Σ / |G|², or None when that has no finite value."""
    if norm_sq <= 0 or not math.isfinite(variance / norm_sq):
        return None
    # Rounding can leave a variance just below zero where all shards agree.
    return max(variance / norm_sq, 0.0)


@dataclass(frozen=True, slots=True)
class SmoothedNoise:
    """Exponential moving averages of the pieces, debiased as in Adam (SCIENCE §1).

    Start with ``SmoothedNoise()`` and keep what ``update`` returns. φ may be carried across a
    change of configuration; γ belongs to one number of shards.

    Attributes:
        decay: Weight of the past in every update, below 1.
        weight: Share of the averages that is data, 1 - decay^updates.
        local_sum: Undebiased average of mean_k ||g_k||².
        mean_sum: Undebiased average of ||ḡ||².
        norm_sq_sum: Undebiased average of |G|².
        variance_sum: Undebiased average of tr Σ.
    """

    decay: float = 0.95
    weight: float = 0.0
    local_sum: float = 0.0
    mean_sum: float = 0.0
    norm_sq_sum: float = 0.0
    variance_sum: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.decay < 1:
            raise ValueError(f"decay must be at least 0 and below 1, got {self.decay}")

    def update(
        self, local_norm_sq: float, mean_norm_sq: float, shards: int, global_batch: int
    ) -> SmoothedNoise:
        """Return the averages with one more iteration; unchanged when it carries no noise."""
        if shards < 2 or not (math.isfinite(local_norm_sq) and math.isfinite(mean_norm_sq)):
            return self
        row = ShardNorms(shards, local_norm_sq, mean_norm_sq)
        return replace(
            self,
            weight=self._blend(self.weight, 1.0),
            local_sum=self._blend(self.local_sum, local_norm_sq),
            mean_sum=self._blend(self.mean_sum, mean_norm_sq),
            norm_sq_sum=self._blend(self.norm_sq_sum, row.gradient_norm_sq),
            variance_sum=self._blend(self.variance_sum, row.gradient_variance(global_batch)),
        )

    def _blend(self, average: float, value: float) -> float:
        return self.decay * average + (1 - self.decay) * value

    @property
    def noise(self) -> float | None:
        """Smoothed γ (Eq. 2); None before the first update."""
        if self.mean_sum <= 0 or not math.isfinite(self.local_sum / self.mean_sum):
            return None
        return self.local_sum / self.mean_sum

    @property
    def noise_scale(self) -> float | None:
        """Smoothed φ in samples; None before data and while |G|² is not positive."""
        # Both averages carry the same start-up bias, so it cancels in the ratio.
        return scale_of(self.variance_sum, self.norm_sq_sum)

    @property
    def gradient_norm_sq(self) -> float | None:
        """Smoothed |G|², debiased; None before the first update."""
        return self.norm_sq_sum / self.weight if self.weight else None

    @property
    def gradient_variance(self) -> float | None:
        """Smoothed tr Σ, debiased; None before the first update."""
        return self.variance_sum / self.weight if self.weight else None
