"""Training the small tasks for real: epochs to the target, noise, and what searches measure.

The expensive part of ``make paper``. What comes out are the few figures of ``runs.Runs``.
"""

from __future__ import annotations

import math
import time
from dataclasses import replace
from typing import Literal

import numpy as np
import torch

from scavenger.cluster import ClusterConfig
from scavenger.measurement.noise import estimate_noise, shard_norms
from scavenger.measurement.profiling import (
    PROBE_ITERATIONS,
    WARM_UP_ITERATIONS,
    MeasuredQuantity,
    Observation,
    ProbeComplete,
    ScalingIndicators,
    evaluate_probe,
)
from scavenger.measurement.steps import StepColumns
from scavenger.planning.decision import decide
from scavenger.planning.knee import Knee
from scavenger.planning.search.strategy import Probe
from scavenger.planning.state import PlanningState
from tests.paper.runs import ACTUAL, EARLIER, SEARCHED, Level, Runs, Search, Training, Trajectory
from tests.paper.tasks import Task
from tests.paper.virtual import VirtualJob, measure_noise
from tests.paper.workload import Recipe, Workload

STRATEGIES: tuple[Literal["full", "partial"], ...] = ("full", "partial")
LOOK = 10
SMOOTHING = 0.98
POINTS = 60
FROZEN_ITERATIONS = 60
# A first probe is looked at again after a twentieth more rows.
LOOKS = 20


def run_all(workload: Workload) -> Runs:
    """Train everything that is needed of one workload; minutes of one core."""
    began = time.process_time()
    torch.set_num_threads(1)
    usual = workload.recipes[0]
    workers, batches = workload.space.workers, workload.space.global_batches
    trainings = [
        train(workload, usual, batch, seed) for batch in batches for seed in EARLIER + ACTUAL
    ] + [
        train(workload, recipe, batch, seed)
        for recipe in workload.recipes[1:]
        for batch in recipe.batches
        for seed in EARLIER
    ]
    one = batches[1]
    return Runs(
        dataset_size=len(workload.build().examples),
        trainings=tuple(trainings),
        same_samples={
            count: train(workload, usual, one, 0, workers=count).levels[-1].iterations
            for count in workers
            if workload.repeated
        },
        trajectories=tuple(
            follow_noise(workload, usual, ClusterConfig(count, batches[0])) for count in workers
        ),
        searches=tuple(
            search(workload, strategy, seed) for strategy in STRATEGIES for seed in SEARCHED
        ),
        frozen=freeze(workload, usual),
        minutes=(time.process_time() - began) / 60,
    )


def train(
    workload: Workload, recipe: Recipe, global_batch: int, seed: int, workers: int = 8
) -> Training:
    """Train from the first iteration to the target, and note when each level was reached."""
    task = workload.task(recipe)
    job = VirtualJob(task, workload.clock, rule=recipe.rule, seed=seed)
    config = ClusterConfig(workers, global_batch)
    levels = []
    for goal in workload.levels:
        if not reach(job, replace(task, goal=goal), config, recipe.most_epochs):
            break
        levels.append(Level(goal, job.epochs, job.iterations))
    return Training(recipe.name, global_batch, seed, tuple(levels))


def reach(job: VirtualJob, task: Task, config: ClusterConfig, most_epochs: float) -> bool:
    """Train until a task's goal is reached; tell whether it was."""
    job.task = task
    while not job.is_finished and job.epochs < most_epochs:
        rows = job.advance(config, LOOK)
        if rows.loss[-1] is None:
            return False
    return job.is_finished


def freeze(workload: Workload, recipe: Recipe) -> tuple[Observation, ...]:
    """Measure the noise of every configuration with the same weights, those of a middle level."""
    task = workload.task(recipe)
    job = VirtualJob(task, workload.clock, rule=recipe.rule, seed=0)
    halfway = replace(task, goal=workload.levels[1])
    reach(job, halfway, workload.space.start, recipe.most_epochs)
    rng = np.random.default_rng(0)
    observations = []
    for config in workload.space:
        rows = measure_noise(job, config, FROZEN_ITERATIONS, rng)
        found = estimate_noise(rows, config.global_batch)
        if found is None:
            raise ValueError(f"{config} shows no noise: its gradients are not finite")
        seen = ScalingIndicators(found.noise, found.noise_scale, 0.0, 0.0)
        observations.append(Observation(config, seen, FROZEN_ITERATIONS))
    return tuple(observations)


def follow_noise(workload: Workload, recipe: Recipe, config: ClusterConfig) -> Trajectory:
    """Train past every target and follow the smoothed noise γ (Fig. 6)."""
    task = replace(workload.task(recipe), evaluate_every=2**31)
    job = VirtualJob(task, workload.clock, rule=recipe.rule, seed=0)
    rows = job.advance(config, workload.followed)
    return Trajectory(
        config.workers,
        config.global_batch,
        settled_after(rows, config),
        *smoothed(rows),
    )


def settled_after(rows: StepColumns, config: ClusterConfig) -> int | None:
    """Return the iteration at which a job's first probe would have settled; None if never."""
    for count in range(PROBE_ITERATIONS + WARM_UP_ITERATIONS, len(rows), LOOK):
        first = rows[:count]
        if isinstance(evaluate_probe(first, config, measures="noise"), ProbeComplete):
            return count
    return None


def smoothed(rows: StepColumns) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """Return iterations and γ, both norms averaged apart with exponential forgetting."""
    local = mean = 0.0
    kept = set(np.unique(np.geomspace(5, len(rows), POINTS).astype(int)).tolist())
    iterations, noise = [], []
    for number, row in enumerate(shard_norms(rows), start=1):
        local = SMOOTHING * local + (1 - SMOOTHING) * row.local_norm_sq
        mean = SMOOTHING * mean + (1 - SMOOTHING) * row.mean_norm_sq
        if number in kept:
            iterations.append(number)
            noise.append(local / mean)
    return tuple(iterations), tuple(noise)


def search(workload: Workload, strategy: Literal["full", "partial"], seed: int) -> Search:
    """Probe as the paper does, noise first, with ``decide`` and ``evaluate_probe``."""
    recipe = workload.recipes[0]
    task = replace(workload.task(recipe), goal=math.inf if is_rising(workload) else -math.inf)
    job = VirtualJob(task, workload.clock, rule=recipe.rule, seed=seed)
    situation = PlanningState(
        space=workload.space,
        search=strategy,
        objective=Knee(),
        observations=(),
        stored=None,
        dataset_size=job.dataset_size,
        reference_batch=workload.space.global_batches[0],
        epochs_at_reference=1.0,
        price=workload.price,
        topology="parameter_server",
        laws="paper",
    )
    while isinstance(decision := decide(situation), Probe):
        seen = probe(job, decision.config, decision.measures)
        situation = replace(situation, observations=(*situation.observations, seen))
    return Search(strategy, seed, situation.observations)


def is_rising(workload: Workload) -> bool:
    """Tell whether the metric grows as training goes on."""
    return workload.levels[-1] > workload.levels[0]


def probe(job: VirtualJob, config: ClusterConfig, measures: MeasuredQuantity) -> Observation:
    """Train one configuration until its figures settle."""
    rows = job.advance(config, PROBE_ITERATIONS + WARM_UP_ITERATIONS)
    while not isinstance(settled := evaluate_probe(rows, config, measures=measures), ProbeComplete):
        rows = StepColumns.concat((rows, job.advance(config, max(LOOK, len(rows) // LOOKS))))
    return settled.observation
