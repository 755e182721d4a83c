"""The paper's setting: three jobs of its size on e2-standard-4 machines (Section V).

Their laws are assumed, within what the paper tells: 20 iterations take 17 to 35 s, ResNet18 about
six hours at its knee, and noise settles after 2 000, 3 000 and 10 000 iterations (V-B).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from scavenger.cluster import ConfigSpace
from scavenger.models.epochs import EpochsLaw
from scavenger.models.iteration_time import StepTimeLaw
from scavenger.models.performance import PerformanceModel
from scavenger.offline.simulator.jobs import (
    ModelTruth,
    SyntheticJob,
    TimingJitter,
    TrainingDynamics,
)
from scavenger.offline.simulator.simulation import ResizeOverheads, SimulationOutcome, simulate
from scavenger.planning.objective import Objective
from scavenger.planning.objectives import Fastest
from scavenger.planning.state import PlanningState, ProbeOverhead
from scavenger.planning.transfer import StoredModel
from scavenger.pricing import on_demand_price_model

PRICE_PER_HOUR = 0.13402


@dataclass(frozen=True, slots=True)
class PaperJob:
    """A job as it is known to the simulation, and the choices it has.

    Attributes:
        name: Short name, as in tables.
        model: The laws, with critical batch and noise scale in their typical relation.
        space: Configurations to choose from.
        settles_after: Iterations after which early noise is gone.
        pause: Seconds of a resize.
    """

    name: str
    model: PerformanceModel
    space: ConfigSpace
    settles_after: int
    pause: float

    @property
    def overheads(self) -> ResizeOverheads:
        """What a change of configuration takes."""
        return ResizeOverheads(pause=self.pause)

    def planning_state(
        self,
        strategy: str,
        objective: Objective,
        *,
        stored: StoredModel | None = None,
        others: tuple[StoredModel, ...] = (),
    ) -> PlanningState:
        """Return what is known before the first iteration: a recipe at the smallest batch."""
        return PlanningState(
            space=self.space,
            search=strategy,
            objective=objective,
            observations=(),
            stored=stored,
            dataset_size=self.model.dataset_size,
            reference_batch=self.model.reference_batch,
            epochs_at_reference=self.model.epochs_at_reference,
            price=on_demand_price_model(PRICE_PER_HOUR),
            topology="parameter_server",
            other_models=others,
            probe_overhead=ProbeOverhead(pause=self.pause, boot=self.overheads.boot),
        )


@dataclass(frozen=True, slots=True)
class Perturbations:
    """How far the world is from its laws.

    Attributes:
        jitter: Relative spread of iteration time within one configuration.
        roughness: Relative spread of whole configurations around the law.
        stragglers: Probability that an iteration waits for a straggler.
        noise_growth: φ at the end of the run relative to its start.
        batch_spread: Relative spread of B_crit around what the prior expects of φ.
    """

    jitter: float = 0.05
    roughness: float = 0.03
    stragglers: float = 0.01
    noise_growth: float = 2.0
    batch_spread: float = 0.35


UNPERTURBED = Perturbations(
    jitter=0.0, roughness=0.0, stragglers=0.0, noise_growth=1.0, batch_spread=0.0
)


def start_job(
    job: PaperJob, perturbations: Perturbations, seed: int, rerun: int = 0
) -> SyntheticJob:
    """Return a fresh job.

    Args:
        job: What kind of job.
        perturbations: How far the world is from its laws.
        seed: Of the world: B_crit and roughness.
        rerun: Of the iterations, so that one world can be trained in several times.
    """
    law = job.model.statistical
    if law.critical_batch is not None:
        world = np.random.default_rng(seed)
        factor = math.exp(perturbations.batch_spread * float(world.standard_normal()))
        law = replace(law, critical_batch=law.critical_batch * factor)
    model = replace(job.model, statistical=law)
    return SyntheticJob(
        ModelTruth(model, perturbations.roughness, seed),
        np.random.default_rng([seed, rerun]),
        dynamics=TrainingDynamics(
            settles_after=job.settles_after, noise_growth=perturbations.noise_growth
        ),
        disturbance=TimingJitter(perturbations.jitter, perturbations.stragglers),
    )


def simulate_strategy(
    job: PaperJob,
    perturbations: Perturbations,
    strategy: str,
    objective: Objective,
    seed: int,
) -> SimulationOutcome:
    """Simulate one strategy in one world.

    The strategy ``none`` has the model of the same job, run with full search before; ``universal``
    has those of all others. The others know nothing.
    """
    stored = simulate_earlier_run(job, perturbations, seed) if strategy == "none" else None
    others = tuple(
        simulate_earlier_run(other, perturbations, seed)
        for other in PAPER_JOBS.values()
        if strategy == "universal" and other.name != job.name
    )
    state = job.planning_state(strategy, objective, stored=stored, others=others)
    return simulate(start_job(job, perturbations, seed), state, job.overheads)


def simulate_earlier_run(job: PaperJob, perturbations: Perturbations, seed: int) -> StoredModel:
    """Return what an earlier run of a job in this world taught, with full search.

    Raises:
        ValueError: The job is so short that it ended before it had chosen.
    """
    simulated = start_job(job, perturbations, seed, rerun=1)
    outcome = simulate(simulated, job.planning_state("full", Fastest()), job.overheads)
    if outcome.run is None:
        raise ValueError(f"{job.name} ended during its search: it taught nothing")
    return StoredModel(job.name, outcome.run.model, outcome.observations, {}, 1)


RESNET18 = PaperJob(
    name="resnet18",
    model=PerformanceModel(
        StepTimeLaw(0.15, 0.0095, 0.3, 0.0112),
        EpochsLaw(critical_batch=1500, noise_scale=1500),
        dataset_size=50_000,
        reference_batch=384,
        epochs_at_reference=240,
    ),
    space=ConfigSpace((8, 12, 16, 20), (384, 512, 768, 1024)),
    settles_after=2_000,
    pause=37,
)
RESNET50 = PaperJob(
    name="resnet50",
    model=PerformanceModel(
        StepTimeLaw(0.15, 0.008, 0.35, 0.016),
        EpochsLaw(critical_batch=2500, noise_scale=2500),
        dataset_size=50_000,
        reference_batch=384,
        epochs_at_reference=300,
    ),
    space=ConfigSpace((8, 12, 16, 20), (384, 512, 768, 1024)),
    settles_after=3_000,
    pause=40,
)
TRANSFORMER = PaperJob(
    name="transformer",
    model=PerformanceModel(
        StepTimeLaw(0.1, 0.0065, 0.3, 0.024),
        EpochsLaw(critical_batch=4000, noise_scale=4000),
        dataset_size=4_500_000,
        reference_batch=512,
        epochs_at_reference=4.5,
    ),
    space=ConfigSpace((8, 12, 16, 20), (512, 768, 1024, 1280)),
    settles_after=10_000,
    pause=127,
)
PAPER_JOBS = {job.name: job for job in (RESNET18, RESNET50, TRANSFORMER)}
