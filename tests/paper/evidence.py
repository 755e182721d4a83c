"""Evidence: what one workload's runs say about time, cost, noise and prediction.

True time to target is true seconds per iteration times the iterations that real training took,
stretched to the size of the paper's jobs. Ratios and errors do not depend on the stretch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median
from typing import Literal

import numpy as np
from kneed import KneeLocator

from scavenger.cluster import ClusterConfig, MemoryModel, config_columns
from scavenger.learning_rate import prior_kappa
from scavenger.measurement.noise import noise_at
from scavenger.measurement.profiling import Measurement, Observation
from scavenger.models.epochs import (
    FinishedRun,
    Kappa,
    LawFamily,
    RootNoiseLaw,
    fit_epochs_law,
    median_noise_scale,
)
from scavenger.offline.simulator.jobs import SyntheticJob, TimingJitter, TrainingDynamics
from scavenger.offline.simulator.paper import PRICE_PER_HOUR
from scavenger.offline.simulator.simulation import SimulationOutcome, simulate
from scavenger.planning.curve import TradeoffCurve, TradeoffPoint, pareto_front
from scavenger.planning.decision import decide
from scavenger.planning.knee import Knee, find_knee
from scavenger.planning.objectives import Fastest
from scavenger.planning.search.strategy import TrainOn
from scavenger.planning.state import PlanningState
from scavenger.planning.transfer import StoredModel
from scavenger.pricing import PriceModel, ResourcePrice
from tests.paper.measured_truth import MeasuredTruth
from tests.paper.runs import ACTUAL, EARLIER, SEARCHED, AllRuns, Runs
from tests.paper.workload import JITTER, WORKLOADS, Workload

SearchName = Literal["full", "partial", "universal"]
# Where the epochs by batch are known from: the very runs that are predicted, as the paper's seem to
# be; other seeds of the same job; or nothing but the recipe at the smallest batch.
Knowledge = Literal["same runs", "earlier runs", "recipe"]
KNOWN: dict[Knowledge, Sequence[int]] = {
    "same runs": EARLIER + ACTUAL,
    "earlier runs": EARLIER,
    "recipe": EARLIER + ACTUAL,
}
PREDICTED: dict[Knowledge, Sequence[int]] = {
    "same runs": EARLIER + ACTUAL,
    "earlier runs": ACTUAL,
    "recipe": EARLIER + ACTUAL,
}
TARGET = "target"
LARGEST_BATCH = 8192
# Paid by the GiB alone, at the price of an e2-standard-4, whose 16 GiB a local batch of 128 fills;
# and at Google's prices of vCPUs and GiB, which for that machine add up to its price.
MEMORY = MemoryModel(fixed_gib=2.0, gib_per_sample=14 / 128)
MEMORY_PRICE = PriceModel(ResourcePrice(0.0, PRICE_PER_HOUR / 16, 4, MEMORY))
RESOURCE_PRICE = PriceModel(ResourcePrice(0.02181159, 0.00292353, 4, MEMORY))


@dataclass(frozen=True, slots=True, eq=False)
class Evidence:
    """A workload with its runs."""

    workload: Workload
    runs: Runs

    @property
    def batches(self) -> tuple[int, ...]:
        """Global batches of the space."""
        return self.workload.space.global_batches

    @property
    def dataset_size(self) -> int:
        """Samples of an epoch, stretched."""
        return round(self.runs.dataset_size * self.workload.stretch)

    # ---- What is true

    def epochs(self, global_batch: int, seeds: Sequence[int] = EARLIER + ACTUAL) -> float:
        """Return epochs to target by the usual recipe."""
        usual, target = self.workload.recipes[0].name, self.workload.target
        epochs = self.runs.epochs(usual, global_batch, target, seeds)
        if epochs is None:
            raise ValueError(f"{self.workload.title} never reached {target} at B={global_batch}")
        return epochs

    def actual_curve(
        self, price: PriceModel | None = None, knowledge: Knowledge = "same runs"
    ) -> TradeoffCurve:
        """Return what each configuration really takes, by the runs that are to be predicted."""
        rate = self.workload.price if price is None else price
        seeds = PREDICTED[knowledge]
        points = [self.actual(config, rate, seeds) for config in self.workload.space]
        return TradeoffCurve(tuple(points), "total")

    def actual(
        self, config: ClusterConfig, price: PriceModel, seeds: Sequence[int]
    ) -> TradeoffPoint:
        """Return what one configuration really takes (Eqs. 3-5)."""
        seconds = self.workload.seconds
        compute, sync = seconds.compute_time(config), seconds.sync_time(config)
        epochs = self.epochs(config.global_batch, seeds)
        time = epochs * self.dataset_size / config.global_batch * (compute + sync)
        return TradeoffPoint(
            config=config,
            noise=None,
            epochs=epochs,
            compute_time=compute,
            sync_time=sync,
            step_time=compute + sync,
            measured_step_time=None,
            time=time,
            cost=float(price.per_hour(config_columns([config]))[0]) * time / 3600,
        )

    # ---- What is predicted

    def situation(
        self,
        strategy: SearchName,
        laws: LawFamily,
        knowledge: Knowledge,
        observations: tuple[Observation, ...] = (),
    ) -> PlanningState:
        """Return what a job knows before it chooses."""
        return PlanningState(
            space=self.workload.space,
            search=strategy,
            objective=Fastest(),
            observations=observations,
            stored=self.earlier_jobs(strategy, knowledge),
            dataset_size=self.dataset_size,
            reference_batch=self.batches[0],
            epochs_at_reference=self.epochs(self.batches[0], KNOWN[knowledge]),
            price=self.workload.price,
            target=TARGET,
            kappa_prior=Kappa(prior_kappa(self.workload.recipes[0].rule)),
            topology="parameter_server",
            laws=laws,
        )

    def earlier_jobs(self, strategy: SearchName, knowledge: Knowledge) -> StoredModel | None:
        """Return runs to the same target: at every batch for full search, else at the extremes."""
        if knowledge == "recipe" or strategy == "universal":
            return None
        batches = self.batches if strategy == "full" else (self.batches[0], self.batches[-1])
        runs = tuple(FinishedRun(batch, self.epochs(batch, KNOWN[knowledge])) for batch in batches)
        model = self.workload.setting.model
        return StoredModel(self.workload.title, model, (), {}, 1, {TARGET: runs})

    def searched(
        self, strategy: SearchName, laws: LawFamily, knowledge: Knowledge, seed: int
    ) -> TrainOn:
        """Return what a search decides."""
        seen = self.runs.search(strategy, seed)
        return run_of(self.situation(strategy, laws, knowledge, seen))

    def stored(self, laws: LawFamily, knowledge: Knowledge) -> StoredModel:
        """Return what an earlier job with full search leaves for others."""
        run = self.searched("full", laws, knowledge, SEARCHED[0])
        seen = self.runs.search("full", SEARCHED[0])
        return StoredModel(self.workload.title, run.model, seen, {}, 1)

    def predicted_curve(self, price: PriceModel | None = None) -> TradeoffCurve:
        """Return what full search predicts, as the dashed lines of the paper's figures."""
        situation = self.situation(
            "full", "measured", "same runs", self.runs.search("full", SEARCHED[0])
        )
        return run_of(situation if price is None else replace(situation, price=price)).curve

    def race(self, laws: LawFamily, seed: int) -> SimulationOutcome:
        """Race partial search against the oracle, both with the real epochs of this job."""
        seconds = self.workload.seconds
        true = {point.config: point for point in self.actual_curve().points}
        table = MeasuredTruth(
            {c: Measurement(c, p.step_time, seconds.compute_time(c)) for c, p in true.items()},
            {batch: self.epochs(batch) for batch in self.batches},
            self.dataset_size,
            self.noise_scale,
        )
        job = SyntheticJob(
            table,
            np.random.default_rng(seed),
            dynamics=TrainingDynamics(
                settles_after=self.workload.setting.settles_after, noise_growth=2.0
            ),
            disturbance=TimingJitter(JITTER),
        )
        situation = replace(self.situation("partial", laws, "same runs"), objective=Knee())
        return simulate(job, situation, self.workload.setting.overheads)

    # ---- Noise

    @property
    def noise_scale(self) -> float:
        """φ in samples that the first probe of a search measured, median over searches."""
        scales = [found.observations[0].indicators.noise_scale for found in self.runs.searches]
        return median(scale for scale in scales if scale is not None)

    def normalized_noise(self) -> dict[ClusterConfig, float]:
        """Return γ/K of every configuration, all with the same weights."""
        return {
            seen.config: (seen.indicators.noise or 0.0) / seen.config.workers
            for seen in self.runs.frozen
        }

    def noise_by_batch(self) -> dict[int, float]:
        """Return γ/K of every batch, mean over worker counts (III-C)."""
        noise = self.normalized_noise()
        return {
            batch: fmean(noise[ClusterConfig(k, batch)] for k in self.workload.space.workers)
            for batch in self.batches
        }

    def epochs_by_noise(self, goal: float) -> tuple[tuple[float, float], ...]:
        """Return γ/K and epochs to a level, by batch (Fig. 8)."""
        usual = self.workload.recipes[0].name
        return tuple(
            (noise, epochs)
            for batch, noise in self.noise_by_batch().items()
            if (epochs := self.runs.epochs(usual, batch, goal)) is not None
        )

    def root_law(self) -> RootNoiseLaw:
        """Fit the paper's law of noise to all configurations (Eq. 7)."""
        law = fit_epochs_law(self.runs.frozen, laws="paper").root_noise
        if law is None:
            raise ValueError(f"{self.workload.title} shows no noise")
        return law

    def noise_scale_of_weights(self) -> float:
        """Return φ of the same weights in samples (SCIENCE §1)."""
        scale = median_noise_scale(self.runs.frozen)
        if scale is None:
            raise ValueError(f"{self.workload.title} shows no noise scale")
        return scale

    def root_errors(self) -> tuple[float, ...]:
        """Relative errors of the paper's law of noise at every configuration (Eq. 7)."""
        law = self.root_law()
        return tuple(
            float(law.normalized(np.array([float(config.global_batch)]))[0]) / value - 1
            for config, value in self.normalized_noise().items()
        )

    def exact_errors(self) -> tuple[float, ...]:
        """Relative errors of the exact law of noise with one φ (SCIENCE §1)."""
        scale = self.noise_scale_of_weights()
        return tuple(
            noise_at(scale, config) / config.workers / value - 1
            for config, value in self.normalized_noise().items()
        )

    # ---- Throughput

    def throughput(self, global_batch: int, workers: int = 16) -> float:
        """Samples per second, without the roughness of single configurations."""
        law = self.workload.setting.model.parallel
        return global_batch / law.step_time(ClusterConfig(workers, global_batch))


def run_of(situation: PlanningState) -> TrainOn:
    """Return the decision of a situation that needs no further probe."""
    match decide(situation):
        case TrainOn() as run:
            return run
        case probe:
            raise ValueError(f"the search is not over: {probe.why}")


def time_errors(
    evidences: Sequence[Evidence],
    of: Evidence,
    strategy: SearchName,
    laws: LawFamily,
    knowledge: Knowledge = "same runs",
) -> tuple[float, ...]:
    """Relative errors of predicted time to target, over configurations and searches (Fig. 11).

    The universal model averages over all workloads, the predicted one among them, as in the paper.
    """
    true = {point.config: point.time for point in of.actual_curve(None, knowledge).points}
    if strategy == "universal":
        others = tuple(evidence.stored(laws, knowledge) for evidence in evidences)
        situation = of.situation("universal", laws, knowledge)
        runs = [run_of(replace(situation, other_models=others))]
    else:
        runs = [of.searched(strategy, laws, knowledge, seed) for seed in SEARCHED]
    return tuple(point.time / true[point.config] - 1 for run in runs for point in run.curve.points)


def knees(curve: TradeoffCurve, global_batch: int) -> tuple[TradeoffPoint, ...]:
    """Return the knees of the front of one batch, the deepest first; none where an end is best."""
    front = pareto_front(p for p in curve.points if p.config.global_batch == global_batch)
    choice = find_knee(front)
    found = (choice.point, *choice.other_knees)
    return tuple(point for point in found if point not in (front[0], front[-1]))


def bulges(curve: TradeoffCurve, global_batch: int) -> tuple[TradeoffPoint, ...]:
    """Return the points of one batch that lie beyond the line between their neighbours.

    A curve that bulges has two inflections: it bends one way before such a point, and the other
    way there.
    """
    points = sorted(
        (p for p in curve.points if p.config.global_batch == global_batch),
        key=lambda point: -point.config.workers,
    )
    return tuple(
        here
        for before, here, after in zip(points, points[1:], points[2:], strict=False)
        if here.cost > along(before, after, here.time)
    )


def along(one: TradeoffPoint, other: TradeoffPoint, time: float) -> float:
    """Cost at a time on the line through two points."""
    share = (time - one.time) / (other.time - one.time)
    return one.cost + share * (other.cost - one.cost)


def throughput_knee(evidence: Evidence) -> int:
    """Return the batch at which throughput bends (Fig. 5)."""
    batches = np.linspace(64, LARGEST_BATCH, 200)
    rates = [evidence.throughput(round(batch)) for batch in batches]
    located = KneeLocator(batches, rates, curve="concave", direction="increasing")
    return round(float(located.knee))


@dataclass(frozen=True, slots=True)
class Line:
    """A straight line through points, and how much of their spread it explains.

    Attributes:
        intercept: Value at 0.
        slope: Rise per unit.
        explained: R², 1 where all points lie on the line.
    """

    intercept: float
    slope: float
    explained: float


def draw_line(x: Sequence[float], y: Sequence[float]) -> Line:
    """Fit a line by ordinary least squares; any sign."""
    slope, intercept = np.polyfit(x, y, 1)
    explained = float(np.corrcoef(x, y)[0, 1] ** 2)
    return Line(float(intercept), float(slope), explained)


def gather(all_runs: AllRuns) -> tuple[Evidence, ...]:
    """Put every workload and its runs together."""
    return tuple(Evidence(workload, all_runs[workload.setting.name]) for workload in WORKLOADS)
