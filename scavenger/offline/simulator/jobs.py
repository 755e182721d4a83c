"""A simulated job, whose reported steps are drawn around a known truth."""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from scavenger.cluster import ClusterConfig, Floats, RowIndices
from scavenger.measurement.steps import StepColumns
from scavenger.models.performance import PerformanceModel
from scavenger.number_checks import require_above_zero, require_not_negative


class JobTruth(Protocol):
    """Means over a whole run, without what disturbs single iterations."""

    @property
    def dataset_size(self) -> int:
        """Samples of one epoch."""

    @property
    def noise_scale(self) -> float | None:
        """Noise scale φ in samples; None where gradients are not measured."""

    def epochs_needed(self, global_batch: int) -> float:
        """Epochs to target."""

    def compute_time(self, config: ClusterConfig) -> float:
        """Seconds of an iteration that are not synchronisation."""

    def sync_time(self, config: ClusterConfig) -> float:
        """Exposed seconds of synchronisation."""


@dataclass(frozen=True, slots=True)
class ModelTruth:
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
        require_not_negative(self, "roughness")

    @property
    def dataset_size(self) -> int:
        return self.model.dataset_size

    @property
    def noise_scale(self) -> float | None:
        return self.model.statistical.noise_scale

    def epochs_needed(self, global_batch: int) -> float:
        return self.model.epochs_needed(global_batch)

    def compute_time(self, config: ClusterConfig) -> float:
        return self.model.parallel.compute_time(config) * self._deviation(config)

    def sync_time(self, config: ClusterConfig) -> float:
        return self.model.parallel.sync_time(config) * self._deviation(config)

    def _deviation(self, config: ClusterConfig) -> float:
        """Factor around the law, the same whenever this configuration is asked for."""
        if self.roughness == 0:
            return 1.0
        machine = zlib.crc32(config.machine_type.encode())
        key = [self.seed, config.workers, config.global_batch, config.workers_per_machine, machine]
        return math.exp(self.roughness * float(np.random.default_rng(key).standard_normal()))


# Rounding must not leave a job a last iteration short of its target.
PROGRESS_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class TrainingDynamics:
    """How noise and loss go over a run: high noise and no progress first, then slow growth of φ.

    Attributes:
        settles_after: Iterations after which early noise is gone, all but a twentieth. A fifth of
            them is a plateau, on which the loss does not fall; 0 for a job without early noise.
        early_noise: Factor on φ at the first iteration.
        noise_growth: φ at the end of the run relative to its start.
        slowdown: Iteration time at the end relative to the start.
        directions: Directions the gradient noise of one sample spreads over; the fewer, the more
            a single iteration's norms jump.
        loss_jitter: Standard deviation of the logarithm of the logged loss.
    """

    settles_after: int = 0
    early_noise: float = 3.0
    noise_growth: float = 1.0
    slowdown: float = 1.0
    directions: int = 50
    loss_jitter: float = 0.03

    def __post_init__(self) -> None:
        require_above_zero(self, "early_noise", "noise_growth", "slowdown", "directions")
        require_not_negative(self, "settles_after", "loss_jitter")

    def noise_factor(self, iteration: Floats, progress: Floats) -> Floats:
        """Factor on φ; its geometric mean over a run without early noise is 1."""
        young = (self.early_noise - 1) * np.exp(
            -self._since_plateau(iteration) / self._early_noise_decay
        )
        growth = self.noise_growth ** (progress - 0.5)
        return np.asarray((1 + young * (self.settles_after > 0)) * growth)

    def time_factor(self, progress: Floats) -> Floats:
        """Factor on iteration time, a line whose mean over a run is 1."""
        return np.asarray(1 + self._slope * (progress - 0.5))

    def time_factor_integral(self, share: float) -> float:
        """Integral of the time factor from 0 to a share of the run."""
        return share + self._slope * (share**2 - share) / 2

    def loss(self, iteration: Floats) -> Floats:
        """Mean loss: flat on the plateau, then towards a tenth of where it started."""
        falling = max(self.settles_after / 2, 100.0)
        return np.asarray(2.3 * (0.1 + 0.9 * np.exp(-self._since_plateau(iteration) / falling)))

    @property
    def _slope(self) -> float:
        return 2 * (self.slowdown - 1) / (self.slowdown + 1)

    @property
    def _early_noise_decay(self) -> float:
        """Iterations in which early noise falls by a factor of e."""
        excess = max(abs(self.early_noise - 1), 0.05)
        return 0.8 * max(self.settles_after, 1) / max(math.log(excess / 0.05), 1.0)

    def _since_plateau(self, iteration: Floats) -> Floats:
        return np.asarray(np.maximum(iteration - self.settles_after / 5, 0.0))


@dataclass(frozen=True, slots=True)
class TimingJitter:
    """What makes two iterations of one configuration differ.

    Attributes:
        jitter: Standard deviation of the logarithm of measured seconds; their mean stays.
        straggler_chance: Probability that the slowest worker of an iteration is a straggler.
        straggler_factor: How many times as long its compute takes then.
    """

    jitter: float = 0.0
    straggler_chance: float = 0.0
    straggler_factor: float = 3.0

    def __post_init__(self) -> None:
        require_not_negative(self, "jitter")
        if not 0 <= self.straggler_chance <= 1:
            raise ValueError(f"straggler_chance must be from 0 to 1, got {self.straggler_chance}")
        if not (math.isfinite(self.straggler_factor) and self.straggler_factor >= 1):
            raise ValueError(f"straggler_factor must be at least 1, got {self.straggler_factor}")

    @property
    def mean_straggler_factor(self) -> float:
        """Mean factor of stragglers on compute."""
        return 1 + self.straggler_chance * (self.straggler_factor - 1)

    def draw_jitter(self, count: int, rng: np.random.Generator) -> Floats:
        """Draw factors on seconds, log-normal with mean 1."""
        return np.exp(rng.normal(-(self.jitter**2) / 2, self.jitter, count))

    def draw_straggler_factors(self, count: int, rng: np.random.Generator) -> Floats:
        """Draw factors on the compute of the slowest worker."""
        late = rng.random(count) < self.straggler_chance
        return np.where(late, self.straggler_factor, 1.0)


class SyntheticJob:
    """One training run to its target: rows drawn around a truth, as many at a time as asked for.

    Gradients are those of Gaussian noise around a mean: with S directions, ||ḡ||² is noncentral
    chi-square and the shards' spread around ḡ an independent chi-square, so that every estimator
    of γ and φ sees the distribution it is made for (Eq. 2, SCIENCE §1).

    Args:
        truth: What configurations take.
        rng: Where chance comes from.
        dynamics: How noise and loss go over a run.
        disturbance: What makes iterations differ.
        split_every: With one worker, split one of this many iterations in two shards so that
            noise can be measured; 0 never splits.
    """

    def __init__(
        self,
        truth: JobTruth,
        rng: np.random.Generator,
        *,
        dynamics: TrainingDynamics = TrainingDynamics(),
        disturbance: TimingJitter = TimingJitter(),
        split_every: int = 5,
    ) -> None:
        self.truth, self.rng = truth, rng
        self.dynamics, self.disturbance, self.split_every = dynamics, disturbance, split_every
        self.iterations = 0
        self.progress = 0.0

    @property
    def dataset_size(self) -> int:
        """Samples of one epoch."""
        return self.truth.dataset_size

    @property
    def is_finished(self) -> bool:
        """Tell whether the target is reached."""
        return self.progress >= 1

    def epochs_needed(self, global_batch: int) -> float:
        """Epochs to target at one batch from the first iteration on."""
        return self.truth.epochs_needed(global_batch)

    def compute_time(self, config: ClusterConfig) -> float:
        """Mean seconds of an iteration that are not synchronisation, stragglers included."""
        return self.truth.compute_time(config) * self.disturbance.mean_straggler_factor

    def sync_time(self, config: ClusterConfig) -> float:
        """Mean exposed seconds of synchronisation."""
        return self.truth.sync_time(config)

    def seconds_to(self, config: ClusterConfig, share: float) -> float:
        """Seconds from the first iteration to this share of the training, in one configuration."""
        iterations = 1 / self._progress_share(config.global_batch)
        seconds = self.compute_time(config) + self.sync_time(config)
        return iterations * seconds * self.dynamics.time_factor_integral(share)

    def advance(self, config: ClusterConfig, iterations: int) -> StepColumns:
        """Train this many iterations, fewer if the target is reached on the way.

        Returns:
            What workers would report of them: one row per iteration, seconds as a clock would
            have shown them.
        """
        share = self._progress_share(config.global_batch)
        left = max(math.ceil((1 - self.progress) / share - PROGRESS_ROUNDING), 0)
        count = min(iterations, left)
        number = self.iterations + 1 + np.arange(count)
        rows = self._rows(config, number, np.asarray(self.progress + share * np.arange(count)))
        self.iterations += count
        self.progress = 1.0 if count == left else self.progress + share * count
        return rows

    def _progress_share(self, global_batch: int) -> float:
        """Share of the whole training that one iteration is (Eq. 4)."""
        return global_batch / self.dataset_size / self.epochs_needed(global_batch)

    def _rows(self, config: ClusterConfig, number: RowIndices, progress: Floats) -> StepColumns:
        count = len(number)
        pace = self.dynamics.time_factor(progress)
        compute = (
            self.truth.compute_time(config) * pace * self.disturbance.draw_jitter(count, self.rng)
        )
        compute *= self.disturbance.draw_straggler_factors(count, self.rng)
        sync = self.truth.sync_time(config) * pace * self.disturbance.draw_jitter(count, self.rng)
        shards = self._shards(config, number)
        local, mean = self._norms(shards, config.global_batch, number, progress)
        flicker = np.exp(self.rng.normal(0.0, self.dynamics.loss_jitter, count))
        return StepColumns(
            iteration=tuple(number.tolist()),
            shards=tuple(shards.tolist()),
            local_norm_sq=none_if_not_finite(local),
            mean_norm_sq=none_if_not_finite(mean),
            compute_time=tuple(compute.tolist()),
            sync_time=tuple(sync.tolist()),
            step_time=tuple((compute + sync).tolist()),
            loss=tuple((self.dynamics.loss(number.astype(float)) * flicker).tolist()),
        )

    def _shards(self, config: ClusterConfig, number: RowIndices) -> RowIndices:
        if config.workers > 1 or config.global_batch < 2 or self.split_every == 0:
            return np.full(len(number), config.workers)
        return np.where(number % self.split_every == 0, 2, 1)

    def _norms(
        self, shards: RowIndices, global_batch: int, number: RowIndices, progress: Floats
    ) -> tuple[Floats, Floats]:
        """Draw ||g_k||² averaged over shards and ||ḡ||²; nan where nothing is measured.

        The variance of a sample's gradient stays, as φ, and the gradient shrinks as φ grows.
        """
        scale = self.truth.noise_scale
        if scale is None:
            unknown = np.full(len(number), np.nan)
            return unknown, unknown
        norm_sq = 1 / self.dynamics.noise_factor(number.astype(float), progress)
        several = np.maximum(shards, 2)
        if scale == 0:
            mean, within = norm_sq, np.zeros(len(number))
        else:
            directions = self.dynamics.directions
            each = scale / global_batch / directions
            mean = each * self.rng.noncentral_chisquare(directions, norm_sq / each)
            within = each * self.rng.chisquare(directions * (several - 1))
        is_measured = shards > 1
        return np.where(is_measured, mean + within, np.nan), np.where(is_measured, mean, np.nan)


def none_if_not_finite(values: Floats) -> tuple[float | None, ...]:
    """Return the values, None for those that are not finite."""
    return tuple(value if math.isfinite(value) else None for value in values.tolist())
