"""Knowledge: what probes and earlier jobs tell about a job, and the laws that follow.

Both the reconciler and the API ask the same questions of it, so that a page never shows another
curve than the one the decision was made from.
"""

from __future__ import annotations

from dataclasses import dataclass

from scavenger.cluster import ClusterConfig
from scavenger.decision import (
    Probe,
    Run,
    Situation,
    adapt,
    decide,
    fit_searched,
    known_epochs,
    run_searched,
)
from scavenger.indicators import Observation
from scavenger.job import JobSpec
from scavenger.lr_scaling import learning_rate_factor, prior_kappa
from scavenger.models.epochs import Kappa, fit_statistical
from scavenger.models.performance import PerformanceModel
from scavenger.models.statistical import StatisticalModel
from scavenger.objective import Cheapest, Fastest, Knee, Objective, Within
from scavenger.pricing import on_demand
from scavenger.prior import StoredModel, signature
from scavenger.protocol import StopAtProgress
from scavenger.tradeoff import TradeoffCurve, trace_curve


@dataclass(frozen=True, slots=True)
class Sketch:
    """The curve as it can be drawn now, from however little is known.

    Attributes:
        observations: What the model was fitted to.
        source: Where the model comes from, for people.
    """

    curve: TradeoffCurve
    model: PerformanceModel
    observations: tuple[Observation, ...]
    source: str


@dataclass(frozen=True, slots=True)
class Knowledge:
    """What is known about one job.

    Attributes:
        observations: Its own settled probes, in order.
        stored: The model of earlier jobs with its signature.
        epochs_to_target: Reference epochs its own run to the target took, once it has ended.
    """

    spec: JobSpec
    observations: tuple[Observation, ...]
    stored: StoredModel | None
    epochs_to_target: float | None = None

    def situation(self) -> Situation:
        """Return what a decision rests on."""
        stop = self.spec.stop_rule
        known = stop.max_progress if isinstance(stop, StopAtProgress) else self.epochs_to_target
        return Situation(
            space=self.spec.space,
            strategy_name=self.spec.search,
            objective=objective_of(self.spec),
            observations=self.observations,
            stored=self.stored,
            dataset_size=self.spec.model.dataset_size,
            reference_batch=self.spec.reference_batch,
            epochs_at_reference=known,
            price=on_demand(float(self.spec.price)),
            target=self.spec.target_in_words,
            kappa=Kappa(prior_kappa(self.spec.lr_scaling)),
        )

    def decide(self) -> Probe | Run:
        """Return the next probe, or the configuration to train on; raises NothingFeasible."""
        return decide(self.situation())

    def choose_now(self) -> Run:
        """Return the configuration to train on by the probes there are; raises NothingFeasible."""
        return run_searched(self.situation())

    def sketch(self) -> Sketch | None:
        """Draw the curve from own probes, or else from earlier jobs; None without either."""
        situation = self.situation()
        own = self.observations
        if own:
            model = fit_searched(situation)
            source, observations = f"{len(own)} probes of this job", own
        elif self.stored is not None:
            model = adapt(self.stored.model, situation)
            source, observations = f"{self.stored.jobs} earlier jobs", self.stored.observations
        else:
            return None
        curve = trace_curve(situation.space, model, situation.price, observations)
        return Sketch(curve, model, observations, source)

    def progress_per_iteration(self, config: ClusterConfig) -> float:
        """Reference epochs one iteration is worth, by the best law known so far (SCIENCE §2)."""
        spec = self.spec
        return self._statistical().progress(
            config.global_batch, spec.reference_batch, spec.model.dataset_size
        )

    def learning_rate_factor(self, config: ClusterConfig) -> float:
        """What the script's learning rate is multiplied with at this batch."""
        spec = self.spec
        return learning_rate_factor(spec.lr_scaling, config.global_batch, spec.reference_batch)

    def expected_epochs(self) -> float | None:
        """Reference epochs the target will take, if anything tells."""
        return known_epochs(self.situation())

    def _statistical(self) -> StatisticalModel:
        """Own φ before the stored one; before either, epochs do not depend on the batch."""
        fitted = fit_statistical(self.observations, Kappa(prior_kappa(self.spec.lr_scaling)))
        if fitted.noise_scale is None and self.stored is not None:
            return self.stored.model.statistical
        return fitted


def objective_of(spec: JobSpec) -> Within:
    """Build the objective a job asks for, within its limits."""
    objectives: dict[str, Objective] = {
        "knee": Knee(),
        "fastest": Fastest(),
        "cheapest": Cheapest(),
    }
    limits = spec.limits
    max_cost = None if limits.max_cost is None else float(limits.max_cost)
    return Within(objectives[spec.objective], max_cost=max_cost, max_time=limits.max_time)


def signature_of(spec: JobSpec, machine: str) -> str:
    """Name the stored model this job reads and writes."""
    return signature(spec.model.key, spec.model.dataset_size, spec.lr_scaling, machine)
