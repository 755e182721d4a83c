"""VirtualJob: one process computes the real gradients of K workers; only time is modelled.

Noise and epochs to the target are those of a real network, for more workers than there are
cores; seconds come from a time model measured elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Protocol

import numpy as np

from scavenger.cluster import ClusterConfig
from scavenger.learning_rate import LearningRateRule, LearningRateScaling
from scavenger.measurement.noise import ShardNorms, SmoothedNoise
from scavenger.measurement.steps import StepColumns
from tests.paper.networks import Gradients, Indices
from tests.paper.tasks import Task

CHUNK = 50


class TimeModel(Protocol):
    """Seconds an iteration takes; ``StepTimeLaw`` is one."""

    def compute_time(self, config: ClusterConfig) -> float:
        """Seconds of an iteration that are not synchronisation."""

    def sync_time(self, config: ClusterConfig) -> float:
        """Exposed seconds of synchronisation."""


@dataclass(frozen=True, slots=True)
class Seconds:
    """What one iteration took."""

    compute: float
    sync: float


@dataclass(frozen=True, slots=True)
class SimulatedClock:
    """What a clock would have shown.

    Attributes:
        model: Mean seconds.
        jitter: Standard deviation of the logarithm of measured seconds, about their relative
            spread.
    """

    model: TimeModel
    jitter: float = 0.0

    def read(self, config: ClusterConfig, rng: np.random.Generator) -> Seconds:
        """Draw the seconds of one iteration, log-normal around their means."""
        compute, sync = np.exp(rng.normal(-(self.jitter**2) / 2, self.jitter, size=2)).tolist()
        return Seconds(
            compute * self.model.compute_time(config), sync * self.model.sync_time(config)
        )


class VirtualJob:
    """A job, like ``SyntheticJob``, that trains a real network.

    Args:
        task: What to train; its learning rate belongs to its reference batch.
        clock: What iterations take.
        rule: How the learning rate follows the global batch; ``adascale`` follows the noise of the
            iterations before as well.
        seed: Seed of the initial weights, the order of samples and the jitter of time.
        split_every: With one worker, split one of this many iterations in two shards so that
            noise can be measured; 0 never splits.
    """

    def __init__(
        self,
        task: Task,
        clock: SimulatedClock,
        *,
        rule: LearningRateRule,
        seed: int,
        split_every: int = 5,
    ) -> None:
        self.task, self.clock, self.rule, self.split_every = task, clock, rule, split_every
        self.trainee = task.trainee(seed)
        self.order = SampleOrder(len(task.examples), seed)
        self.rng = np.random.default_rng([seed, 1])
        self.iterations = 0
        self.samples = 0
        self.evaluated = 0
        self.metric: float | None = None
        self.noise = SmoothedNoise()

    @property
    def dataset_size(self) -> int:
        """Samples of one epoch."""
        return len(self.task.examples)

    @property
    def epochs(self) -> float:
        """Passes over the data so far."""
        return self.samples / self.dataset_size

    @property
    def is_finished(self) -> bool:
        """Tell whether the target is reached, as of the last look at the metric."""
        return self.metric is not None and self.task.is_reached(self.metric)

    def advance(self, config: ClusterConfig, iterations: int) -> StepColumns:
        """Train this many iterations, fewer if the target is reached on the way."""
        rows: list[StepRow] = []
        while len(rows) < iterations and not self.is_finished:
            rows.append(self._iteration(config))
        return columns(rows)

    def _iteration(self, config: ClusterConfig) -> StepRow:
        indices = self.order.take(config.global_batch)
        gradients = self.trainee.gradients(indices, self._shards(config))
        self.trainee.learn(gradients.mean, self._learning_rate(config))
        self._follow_noise(gradients, config.global_batch)
        self.iterations += 1
        row = StepRow.of(self.iterations, config, gradients, self.clock.read(config, self.rng))
        self.samples += config.global_batch
        self._look()
        return row

    def _shards(self, config: ClusterConfig) -> int:
        every = self.split_every
        is_alone = config.workers == 1 and config.global_batch > 1
        return 2 if is_alone and every > 0 and self.iterations % every == 0 else config.workers

    def _learning_rate(self, config: ClusterConfig) -> float:
        task = self.task
        batch, noise_scale = config.global_batch, self.noise.noise_scale
        factor = LearningRateScaling(self.rule, task.reference_batch).factor(batch, noise_scale)
        return task.learning_rate * factor

    def _follow_noise(self, gradients: Gradients, global_batch: int) -> None:
        """Smooth what an iteration says about noise; one shard says nothing."""
        shards, norms = len(gradients.losses), (gradients.local_norm_sq, gradients.mean_norm_sq)
        if shards > 1 and all(map(math.isfinite, norms)):
            self.noise = self.noise.with_row(ShardNorms(shards, *norms), global_batch)

    def _look(self) -> None:
        if self.samples - self.evaluated >= self.task.evaluate_every:
            self.metric, self.evaluated = self.task.evaluate(self.trainee), self.samples


@dataclass(frozen=True, slots=True)
class FinishedVirtualRun:
    """How a run ended.

    Attributes:
        iterations: Iterations trained.
        epochs: Passes over the data.
        reached: Whether the target was reached, rather than the cap or a loss beyond repair.
        rows: What workers would have reported.
    """

    iterations: int
    epochs: float
    reached: bool
    rows: StepColumns


def run_to_target(
    task: Task,
    config: ClusterConfig,
    *,
    clock: SimulatedClock,
    rule: LearningRateRule,
    seed: int,
    max_epochs: float,
) -> FinishedVirtualRun:
    """Train from the first iteration to the target in one configuration.

    A loss that is no longer finite ends the run, since it never comes back.
    """
    job = VirtualJob(task, clock, rule=rule, seed=seed)
    rows: list[StepColumns] = []
    while not job.is_finished and job.epochs < max_epochs:
        left = math.ceil((max_epochs - job.epochs) * job.dataset_size / config.global_batch)
        rows.append(job.advance(config, min(CHUNK, left)))
        if rows[-1].loss[-1] is None:
            break
    return FinishedVirtualRun(job.iterations, job.epochs, job.is_finished, StepColumns.concat(rows))


def measure_noise(
    job: VirtualJob, config: ClusterConfig, iterations: int, rng: np.random.Generator
) -> StepColumns:
    """Measure the noise of the job's weights as they stand; the job does not notice.

    Every row draws its own global batch, without repeats in it: |G|² then comes out smaller by
    tr Σ / D in every configuration alike, as it does in training, and the law between them holds.
    One worker's batch is split in two shards. Rows are numbered from 1.
    """
    rows = []
    shards = 2 if config.workers == 1 else config.workers
    for iteration in range(iterations):
        indices = rng.choice(job.dataset_size, config.global_batch, replace=False)
        gradients = job.trainee.gradients(indices, shards)
        rows.append(StepRow.of(iteration + 1, config, gradients, job.clock.read(config, rng)))
    return columns(rows)


@dataclass(frozen=True, slots=True)
class StepRow:
    """One row of ``StepColumns``."""

    iteration: int
    shards: int
    local_norm_sq: float | None
    mean_norm_sq: float | None
    compute_time: float
    sync_time: float
    step_time: float
    loss: float | None

    @classmethod
    def of(
        cls, iteration: int, config: ClusterConfig, gradients: Gradients, seconds: Seconds
    ) -> StepRow:
        """Write down what one iteration measured; one shard says nothing about noise."""
        shards = len(gradients.losses)
        is_noisy = shards > 1
        return cls(
            iteration=iteration,
            shards=shards,
            local_norm_sq=finite(gradients.local_norm_sq) if is_noisy else None,
            mean_norm_sq=finite(gradients.mean_norm_sq) if is_noisy else None,
            compute_time=seconds.compute,
            sync_time=seconds.sync,
            step_time=seconds.compute + seconds.sync,
            loss=finite(gradients.loss if config.workers == 1 else float(gradients.losses[0])),
        )


def finite(value: float) -> float | None:
    """Return the value, or None when it is not finite."""
    return value if math.isfinite(value) else None


def columns(rows: Sequence[StepRow]) -> StepColumns:
    """Turn rows into columns."""
    names = [field.name for field in fields(StepRow)]
    return StepColumns(**{name: tuple(getattr(row, name) for row in rows) for name in names})


class SampleOrder:
    """An endless stream of shuffled epochs: every epoch holds every sample exactly once."""

    def __init__(self, dataset_size: int, seed: int) -> None:
        self.rng = np.random.default_rng([seed, 0])
        self.dataset_size = dataset_size
        self.left = self.rng.permutation(dataset_size)

    def take(self, count: int) -> Indices:
        """Return the next indices; what an epoch lacks comes from the next one."""
        while len(self.left) < count:
            self.left = np.concatenate([self.left, self.rng.permutation(self.dataset_size)])
        taken, self.left = self.left[:count], self.left[count:]
        return taken
