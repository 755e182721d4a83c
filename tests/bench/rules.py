"""Training digits under each learning-rate rule, and the law of epochs that comes out of it.

Factors come from ``LearningRateScaling`` and act through the agent's ``LearningRateScaler``. Now
and then a batch is taken in two halves, as one worker alone would, so that its noise is known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from statistics import fmean, median

from scavenger.cluster import ClusterConfig
from scavenger.learning_rate import LearningRateRule, LearningRateScaling, prior_kappa
from scavenger.measurement.noise import ShardNorms, SmoothedNoise, pool_noise
from scavenger.measurement.profiling import Observation, ScalingIndicators
from scavenger.models.epochs import (
    EpochsLaw,
    FinishedRun,
    Kappa,
    average_runs,
    explain_contradiction,
    fit_epochs_law,
    learn_kappa,
)
from tests.paper.tasks import Task, digits_mlp
from tests.paper.virtual import SampleOrder
from worker_agent.pytorch.optimizer_hooks import LearningRateScaler

SMALL, LARGE = 32, 256
RATE = 0.02  # in the middle of the rates that are good for the small batch
EPOCHS = 20
GOAL = 0.94
LOOKS = 4  # in an epoch
BATCHES = (SMALL, 128, 512, 2048)
MOST_EPOCHS = 250
LAW_SEEDS = range(3)
HALVES, SPLIT_EVERY = 2, 5
NEAR = 0.15  # mean error of a fitted law that still meets what was seen


@dataclass(frozen=True, slots=True)
class Recipe:
    """One way to train.

    Attributes:
        scaling: How the learning rate follows the batch.
        global_batch: Samples per iteration.
        rate: Learning rate as the script writes it, for the small batch.
    """

    scaling: LearningRateScaling
    global_batch: int = LARGE
    rate: float = RATE


PLAIN = Recipe(LearningRateScaling(), SMALL)


def scaled(rule: LearningRateRule, warm_up: float = 0.0, global_batch: int = LARGE) -> Recipe:
    """Return the recipe of a rule; at the small batch they are all the same."""
    if global_batch == SMALL:
        return PLAIN
    return Recipe(LearningRateScaling(rule, SMALL, warm_up), global_batch)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a training ended.

    Attributes:
        accuracy: Share of the held-out images recognised in the end.
        epochs_to_goal: Epochs until the goal was first seen reached; None if it never was.
        noise_scale: φ of all its iterations, in samples.
    """

    accuracy: float
    epochs_to_goal: float | None
    noise_scale: float | None


class Training:
    """One training, iteration by iteration."""

    def __init__(self, recipe: Recipe, seed: int) -> None:
        self.recipe, self.task = recipe, task()
        self.trainee = self.task.trainee(seed)
        self.steps = LearningRateScaler(self.trainee.optimizer)
        self.order = SampleOrder(len(self.task.examples), seed)
        self.noise = SmoothedNoise()
        self.rows: list[ShardNorms] = []
        self.iterations = 0

    @property
    def epochs(self) -> float:
        """Passes over the data so far."""
        return self.iterations * self.recipe.global_batch / len(self.task.examples)

    def advance(self) -> float:
        """Train until it is time to look again; returns the accuracy."""
        due = int(self.epochs * LOOKS + 1) / LOOKS
        while self.epochs < due:
            self.iterate()
        return self.task.evaluate(self.trainee)

    def iterate(self) -> None:
        """Take one step, with the factor that is due."""
        batch, scaling = self.recipe.global_batch, self.recipe.scaling
        shards = HALVES if self.iterations % SPLIT_EVERY == 0 else 1
        found = self.trainee.gradients(self.order.take(batch), shards)
        if shards == HALVES:
            self.rows.append(ShardNorms(HALVES, found.local_norm_sq, found.mean_norm_sq))
            self.noise = self.noise.with_row(self.rows[-1], batch)
        due = scaling.factor(batch, self.noise.noise_scale)
        self.steps.factor = scaling.warm_up_factor(1.0, due, self.epochs)
        self.trainee.learn(found.mean, self.recipe.rate)
        self.iterations += 1

    def finish(self, reached: float | None) -> Outcome:
        """Say how it ended."""
        found = pool_noise(self.rows, self.recipe.global_batch)
        accuracy = self.task.evaluate(self.trainee)
        return Outcome(accuracy, reached, None if found is None else found.noise_scale)


@cache
def task() -> Task:
    """Return the digits with a perceptron; its learning rate is the recipe's affair."""
    return replace(digits_mlp(), goal=GOAL)


@cache
def train(recipe: Recipe, seed: int) -> Outcome:
    """Train the fixed number of epochs."""
    training, reached = Training(recipe, seed), None
    while training.epochs < EPOCHS:
        if training.advance() >= GOAL and reached is None:
            reached = training.epochs
    return training.finish(reached)


@cache
def reach(recipe: Recipe, seed: int) -> Outcome:
    """Train to the goal, however many epochs that takes."""
    training = Training(recipe, seed)
    while training.epochs < MOST_EPOCHS:
        if training.advance() >= GOAL:
            return training.finish(training.epochs)
    return training.finish(None)


def losses_of(recipe: Recipe, seeds: Sequence[int]) -> list[float]:
    """Accuracy lost against the small batch with the same rate, seed by seed."""
    plain = replace(PLAIN, rate=recipe.rate)
    return [train(plain, seed).accuracy - train(recipe, seed).accuracy for seed in seeds]


@dataclass(frozen=True, slots=True)
class Law:
    """What one rule needed at several batches, and what the service makes of it.

    Attributes:
        runs: Epochs to the goal of every training that got there.
        noise_scale: φ of the small batch, in samples.
        assumed: Law of epochs before any run.
        fitted: Law of epochs after them.
        kappa: κ for the next job, corrected by the runs.
    """

    runs: tuple[FinishedRun, ...]
    noise_scale: float
    assumed: EpochsLaw
    fitted: EpochsLaw
    kappa: Kappa

    @property
    def epochs(self) -> Mapping[int, float]:
        """Epochs by batch."""
        return {run.global_batch: run.epochs for run in average_runs(self.runs)}

    def seen(self, global_batch: int) -> float:
        """Epochs at a batch per epoch at the small one."""
        return self.epochs[global_batch] / self.epochs[SMALL]

    @property
    def error(self) -> float:
        """Mean relative error of the fitted law at the batches it was fitted to."""
        return fmean(
            abs(self.fitted.relative_epochs(batch, SMALL) / self.seen(batch) - 1)
            for batch in self.epochs
            if batch != SMALL
        )

    @property
    def is_met(self) -> bool:
        """Whether runs do not contradict the arm that was assumed, and the fitted one is near."""
        return explain_contradiction(self.assumed, self.runs) is None and self.error <= NEAR


def find_law(rule: LearningRateRule, batches: Sequence[int] = BATCHES) -> Law:
    """Train one rule to the goal at several batches and let the service fit its law.

    Without warm-up, whose epochs are a cost of the change and not of the batch.
    """
    reached = [
        (batch, reach(scaled(rule, global_batch=batch), seed))
        for batch in batches
        for seed in LAW_SEEDS
    ]
    runs = tuple(
        FinishedRun(batch, outcome.epochs_to_goal)
        for batch, outcome in reached
        if outcome.epochs_to_goal is not None
    )
    scale = median(outcome.noise_scale or 0.0 for batch, outcome in reached if batch == SMALL)
    prior = Kappa(prior_kappa(rule))
    probe = Observation(ClusterConfig(HALVES, SMALL), ScalingIndicators(None, scale, 0.0, 0.0), 1)
    return Law(
        runs,
        scale,
        assumed=fit_epochs_law([probe], prior),
        fitted=fit_epochs_law([probe], prior, runs),
        kappa=learn_kappa(runs, scale, prior),
    )
