"""Workload: which small real task stands for which model of the paper, and its calibrated clock.

Gradients, noise and epochs are real. Seconds are not: they come from laws that give what the paper
tells of its own machines, with a roughness of each configuration and a jitter of each iteration.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from scavenger.cluster import ClusterConfig, ConfigSpace
from scavenger.learning_rate import LearningRateRule
from scavenger.offline.simulator.jobs import ModelTruth
from scavenger.offline.simulator.paper import (
    PRICE_PER_HOUR,
    RESNET18,
    RESNET50,
    TRANSFORMER,
    PaperJob,
)
from scavenger.pricing import PriceModel, on_demand_price_model
from tests.paper.tasks import Task, characters, digits_cnn, digits_mlp
from tests.paper.virtual import SimulatedClock, TimeModel

JITTER = 0.03
ROUGHNESS = 0.03
ROUGHNESS_SEED = 18
PROBED_ITERATIONS = 20
# Learning rates from the best one at the paper's batches upwards, and the batches they suit.
HOT_RATES = (0.2, 0.4, 0.8)
HOT_BATCHES = (64, 128, 192, 256, 384, 512, 768)


@dataclass(frozen=True, slots=True)
class Recipe:
    """A learning-rate rule, and the learning rate it starts from.

    Attributes:
        name: Word for it, as on the page.
        rule: How the learning rate follows the batch.
        rate: Learning rate at ``at_batch``.
        at_batch: Global batch in samples that the learning rate was chosen for.
        most_epochs: Epochs after which a run counts as failed.
        batches: Global batches to train with; those of the workload's space for the usual recipe.
    """

    name: str
    rule: LearningRateRule
    rate: float
    at_batch: int
    most_epochs: float
    batches: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Drop:
    """Seconds that drop from a number of workers on, as the paper saw for its Transformer (V-A).

    Attributes:
        law: Seconds without the drop.
        from_workers: Fewest workers that are fast.
        factor: How much longer the compute of fewer workers takes.
    """

    law: TimeModel
    from_workers: int
    factor: float

    def compute_time(self, config: ClusterConfig) -> float:
        """Seconds of an iteration that are not synchronisation."""
        factor = 1.0 if config.workers >= self.from_workers else self.factor
        return factor * self.law.compute_time(config)

    def sync_time(self, config: ClusterConfig) -> float:
        """Exposed seconds of synchronisation."""
        return self.law.sync_time(config)


@dataclass(frozen=True, slots=True)
class Workload:
    """One model of the paper and what stands for it.

    Attributes:
        title: The paper's model.
        setting: Its configurations, iteration time and pauses as the simulator assumes them.
        build: The small task with real gradients.
        levels: Values of the task's metric to be reached, the last one the target.
        recipes: Learning rates to train with, the first one the usual.
        stretch: Iterations of the paper's job that one of ours stands for.
        followed: Iterations of the runs whose noise is followed.
        repeated: Whether one run is repeated with every worker count.
        drop: Drop of iteration time beyond the laws; None without one.
    """

    title: str
    setting: PaperJob
    build: Callable[[], Task]
    levels: tuple[float, ...]
    recipes: tuple[Recipe, ...]
    stretch: float
    followed: int
    repeated: bool = False
    drop: tuple[int, float] | None = None

    @property
    def space(self) -> ConfigSpace:
        """The paper's configurations."""
        return self.setting.space

    @property
    def target(self) -> float:
        """Value of the metric at which training is finished."""
        return self.levels[-1]

    @property
    def price(self) -> PriceModel:
        """The paper's price of a worker."""
        return on_demand_price_model(PRICE_PER_HOUR)

    @property
    def seconds(self) -> TimeModel:
        """True mean seconds of an iteration, as rough as real clusters."""
        rough = ModelTruth(self.setting.model, ROUGHNESS, ROUGHNESS_SEED)
        return rough if self.drop is None else Drop(rough, *self.drop)

    @property
    def clock(self) -> SimulatedClock:
        """What a clock would show of single iterations."""
        return SimulatedClock(self.seconds, jitter=JITTER)

    def step_time(self, config: ClusterConfig) -> float:
        """True mean seconds of an iteration."""
        return self.seconds.compute_time(config) + self.seconds.sync_time(config)

    def recipe(self, name: str) -> Recipe:
        """Return a recipe by its name."""
        return next(recipe for recipe in self.recipes if recipe.name == name)

    def task(self, recipe: Recipe) -> Task:
        """Return the task with the learning rate of a recipe."""
        return replace(self.build(), learning_rate=recipe.rate, reference_batch=recipe.at_batch)


WORKLOADS = (
    Workload(
        title="ResNet18",
        setting=RESNET18,
        build=digits_cnn,
        levels=(0.85, 0.9, 0.95),
        recipes=(
            Recipe("scaled", "linear", 0.06, 384, most_epochs=60),
            Recipe("fixed", "none", 0.06, 384, most_epochs=90, batches=(1024,)),
        ),
        stretch=80,
        followed=600,
        repeated=True,
    ),
    Workload(
        title="ResNet50",
        setting=RESNET50,
        build=digits_mlp,
        levels=(0.85, 0.9, 0.94),
        recipes=(
            Recipe("scaled", "linear", 0.0375, 384, most_epochs=60),
            Recipe("fixed", "none", 0.0375, 384, most_epochs=120, batches=(1024,)),
            *(Recipe(f"hot {rate}", "none", rate, 384, 12, HOT_BATCHES) for rate in HOT_RATES),
        ),
        stretch=100,
        followed=1000,
        repeated=True,
    ),
    Workload(
        title="Transformer",
        setting=TRANSFORMER,
        build=characters,
        levels=(2.6, 2.4, 2.25),
        recipes=(
            Recipe("scaled", "linear", 0.004, 512, most_epochs=30),
            Recipe("fixed", "none", 0.004, 512, most_epochs=40, batches=(1280,)),
        ),
        stretch=150,
        followed=600,
        drop=(16, 1.15),
    ),
)
