"""PlanningState: everything known about one job, and the laws and curve that follow from it.

Reconciler and API ask the same state, so that a page predicts what a decision would rest on. The
curve of a choice that was made is stored with it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TypeVar

from scavenger.cluster import ClusterConfig
from scavenger.errors import NothingFeasible
from scavenger.job.spec import JobSpec, WeightedObjective
from scavenger.job.training import DownpourSpec
from scavenger.learning_rate import prior_kappa
from scavenger.measurement.profiling import Observation
from scavenger.models.epochs import Kappa, StatisticalModel
from scavenger.models.performance import PerformanceModel
from scavenger.planning.curve import TradeoffCurve, predict_curve
from scavenger.planning.decision import (
    PlanningInput,
    Probe,
    ProbeOverhead,
    Run,
    adapt_model,
    choose_by_probes,
    decide,
    decide_within,
    find_similar_job,
    fit_probes,
    known_epochs,
    recall_model,
    recorded_epochs,
    universal_model,
)
from scavenger.planning.extrapolation import Extrapolation, extrapolate_curve
from scavenger.planning.objectives import Cheapest, Fastest, Knee, Objective, Weighted, Within
from scavenger.planning.transfer import (
    StoredModel,
    exchange_in_signature,
    learn_kappa_from_models,
    machine_in_signature,
    make_signature,
    transfer_model,
)
from scavenger.protocol import StopAtMetric, StopAtProgress

T = TypeVar("T")

UNKNOWN_EPOCHS_LAW = StatisticalModel(critical_batch=None, noise_scale=None)
# A learning curve counts when at least this share of its likely continuations reach the goal,
LEAST_CHANCE_TO_REACH = 0.5
# and do so within this many times what was seen.
MAX_FACTOR_AHEAD = 3.0


@dataclass(frozen=True, slots=True)
class FittedModel:
    """The laws a decision would rest on now.

    Attributes:
        observations: What they were fitted to.
        source: Where they come from, for people.
    """

    model: PerformanceModel
    observations: tuple[Observation, ...]
    source: str


@dataclass(frozen=True, slots=True)
class CurvePreview:
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
class PlanningState:
    """What is known about one job.

    Attributes:
        observations: Its own settled probes, in order.
        stored: The model of earlier jobs with its signature.
        epochs_to_target: Reference epochs its own run to the target took, once it has ended.
        models: Models of all other jobs, newest first.
        machine: Kind of the machines it runs on; jobs on others do not compare.
        effort: What one probe takes besides training.
        machines: Machines of its workers that may run.
        noise_scale: φ in samples that its probes' had drifted to; None while theirs holds.
        history: Reference epochs and value of the target's metric so far, ascending.
    """

    spec: JobSpec
    observations: tuple[Observation, ...]
    stored: StoredModel | None
    epochs_to_target: float | None = None
    models: tuple[StoredModel, ...] = ()
    machine: str = ""
    effort: ProbeOverhead = ProbeOverhead()  # noqa: RUF009
    machines: int = 0
    noise_scale: float | None = None
    history: tuple[tuple[float, float], ...] = ()

    def situation(self) -> PlanningInput:
        """Return what a decision rests on."""
        rule = self.spec.learning_rate.rule
        own = () if self.stored is None else (self.stored,)
        return replace(
            self._without_others(),
            kappa=learn_kappa_from_models(Kappa(prior_kappa(rule)), (*own, *self.models), rule),
            others=tuple(m for m in self.models if self.compares(m)),
        )

    def _without_others(self) -> PlanningInput:
        """Return what a decision rests on, but for what all other jobs taught: that takes long."""
        spec, stop = self.spec, self.spec.stop_rule
        known = stop.max_progress if isinstance(stop, StopAtProgress) else self.epochs_to_target
        situation = PlanningInput(
            space=spec.space,
            search_name=spec.search,
            objective=objective_within_limits(spec),
            observations=self.observations,
            stored=self.stored,
            dataset_size=spec.model.dataset_size,
            reference_batch=spec.reference_batch,
            epochs_at_reference=known,
            price=spec.price_model,
            target=spec.target_text,
            topology="parameter_server" if spec.strategy.servers else "all_reduce",
            laws=spec.laws,
            most_epochs=stop.max_progress,
            effort=self.effort,
            machines=self.machines,
        )
        if recorded_epochs(situation) is not None or not isinstance(stop, StopAtMetric):
            return situation
        return replace(situation, extrapolated=extrapolate_metric(self.history, stop))

    @property
    def has_settled_noise(self) -> bool:
        """Whether the noise of this job is known."""
        return any(observation.has_settled_noise for observation in self.observations)

    def compares(self, other: StoredModel) -> bool:
        """Tell whether iterations of another job took place as this one's do."""
        is_alike = machine_in_signature(other.signature) == self.machine
        return is_alike and exchange_in_signature(other.signature) == exchange_key(self.spec)

    def decide(self) -> Probe | Run:
        """Return the next probe, or the configuration to train on; raises NothingFeasible."""
        return choose_ignoring_extrapolation(decide, self.situation())

    def decide_within(self, most_workers: int) -> Probe | Run:
        """Return where the noise settles, or the choice, among at most so many workers."""
        return decide_within(self.situation(), most_workers)

    def choose_now(self) -> Run:
        """Return the configuration to train on by the probes there are; raises NothingFeasible."""
        return choose_ignoring_extrapolation(choose_by_probes, self.situation())

    def fitted_model(self) -> FittedModel | None:
        """Return the laws as they are known now; None while nothing tells, as for Downpour."""
        if isinstance(self.spec.strategy, DownpourSpec):
            return None
        return self._fitted_model_in(self.situation())

    def _fitted_model_in(self, situation: PlanningInput) -> FittedModel | None:
        found = fit_current_model(situation)
        if found is None:
            return None
        model, source = found.model, found.source
        if self.noise_scale is not None:
            law = model.statistical.at_noise_scale(self.noise_scale)
            model, source = replace(model, statistical=law), f"{source}, and a noise that drifted"
        if situation.extrapolated is not None:
            source = f"{source}, {self.foreseen(situation.extrapolated)}"
        return FittedModel(model, found.observations, source)

    def foreseen(self, extrapolated: Extrapolation) -> str:
        """Say until when the target's metric is expected to reach its goal."""
        stop = self.spec.stop_rule
        name = stop.metric if isinstance(stop, StopAtMetric) else "progress"
        low, high = extrapolated.low, extrapolated.high
        span = f"{low:.3g} to {high:.3g}" if math.isfinite(high) else f"{low:.3g} or more"
        return f"epochs extrapolated from the {name} so far: {extrapolated.progress:.3g} ({span})"

    def preview(self) -> CurvePreview | None:
        """Draw the curve of the whole job from the laws as they are known; None without any."""
        fitted_model = self.fitted_model()
        if fitted_model is None:
            return None
        spec, model, observations = self.spec, fitted_model.model, fitted_model.observations
        curve = predict_curve(spec.space, model, spec.price_model, observations)
        return CurvePreview(curve, model, observations, fitted_model.source)

    def preview_of(self, run: Run) -> CurvePreview:
        """Return the curve that a choice was made from, and where its laws come from.

        That may be less than all that is known: an estimate that would leave no configuration, or
        the model of a job that measures alike when a search has to end before its time.
        """
        situation = self.situation()
        less = [replace(situation, extrapolated=None), replace(situation, others=())]
        tried = (situation, *less, replace(less[0], others=()))
        fitted_models = (
            fitted_model
            for each in tried
            if (fitted_model := self._fitted_model_in(each)) is not None
        )
        own = FittedModel(run.model, self.observations, count_probes(self.observations))
        fitted_model = next(
            (fitted_model for fitted_model in fitted_models if fitted_model.model == run.model), own
        )
        return CurvePreview(run.curve, run.model, fitted_model.observations, fitted_model.source)

    def progress_per_iteration(self, config: ClusterConfig) -> float:
        """Reference epochs one iteration is worth, by the best law known so far (SCIENCE §2).

        Before anything is known, epochs do not depend on the batch.
        """
        fitted_model, spec = self.fitted_model(), self.spec
        law = UNKNOWN_EPOCHS_LAW if fitted_model is None else fitted_model.model.statistical
        return law.progress(config.global_batch, spec.reference_batch, spec.model.dataset_size)

    def expected_epochs(self) -> float | None:
        """Reference epochs the target will take, if anything tells."""
        return known_epochs(self._without_others())


def choose_ignoring_extrapolation(
    choose: Callable[[PlanningInput], T], situation: PlanningInput
) -> T:
    """Choose; what is only extrapolated ends no job, since its limits stop it when they are met.

    Raises:
        NothingFeasible: No configuration meets the limits by what is known.
    """
    try:
        return choose(situation)
    except NothingFeasible:
        if situation.extrapolated is None:
            raise
        return choose(replace(situation, extrapolated=None))


def fit_current_model(situation: PlanningInput) -> FittedModel | None:
    """Return the laws that ``decide`` would choose with now; None while nothing tells."""
    own, stored, strategy = situation.observations, situation.stored, situation.search_name
    average = universal_model(situation) if strategy == "universal" else None
    if average is not None:
        return FittedModel(average, own, f"the average over {count_earlier_jobs(situation.others)}")
    if stored is not None and (strategy == "none" or not own):
        measured = stored.observations + own
        return FittedModel(recall_model(situation, stored), measured, count_earlier_jobs([stored]))
    if not own:
        return None
    source = count_probes(own)
    alike = find_similar_job(situation) if strategy == "auto" else None
    if alike is not None:
        model = transfer_model(adapt_model(alike.model, situation), own)
        return FittedModel(
            model, own, f"{source}, and {count_earlier_jobs([alike])} that measured alike"
        )
    return FittedModel(fit_probes(situation), own, source)


@lru_cache(maxsize=1024)  # all jobs ask at every tick, and it changes with a new value only
def extrapolate_metric(
    history: tuple[tuple[float, float], ...], stop: StopAtMetric
) -> Extrapolation | None:
    """Return when a metric reaches its goal, as far as its values so far can be trusted with that.

    They are when most likely curves get there, before training gives up, and not much later than
    what was seen. What was not reached yet takes at least as long as was seen.

    Args:
        history: Reference epochs and value, ascending.
        stop: The goal.
    """
    progress, values = [epochs for epochs, _ in history], [value for _, value in history]
    found = extrapolate_curve(progress, values, stop.goal, stop.direction)
    if found is None or found.chance < LEAST_CHANCE_TO_REACH:
        return None
    seen = progress[-1]
    is_near = seen < found.high and found.progress <= min(
        MAX_FACTOR_AHEAD * seen, stop.max_progress
    )
    return replace(found, progress=max(found.progress, seen)) if is_near else None


def count_probes(observations: tuple[Observation, ...]) -> str:
    """Say how many configurations a job probed itself; one may have been measured twice."""
    count = len({observation.config for observation in observations})
    return f"{count} probe{'' if count == 1 else 's'} of this job"


def count_earlier_jobs(models: tuple[StoredModel, ...] | list[StoredModel]) -> str:
    """Say how many jobs models were learned from."""
    jobs = sum(stored.jobs for stored in models)
    return f"{jobs} earlier job{'' if jobs == 1 else 's'}"


def objective_within_limits(spec: JobSpec) -> Within:
    """Build the objective a job asks for, within its limits."""
    limits = spec.limits
    max_cost = None if limits.max_cost is None else float(limits.max_cost)
    return Within(base_objective(spec), max_cost=max_cost, max_time=limits.max_time)


def base_objective(spec: JobSpec) -> Objective:
    """Build the objective a job asks for, without its limits."""
    match spec.objective:
        case "knee":
            return Knee()
        case "fastest":
            return Fastest()
        case "cheapest":
            return Cheapest()
        case WeightedObjective(time_weight=weight):
            return Weighted(weight)


def signature_of(spec: JobSpec, machine: str) -> str:
    """Name the stored model this job reads and writes."""
    rule, exchange = spec.learning_rate.rule, exchange_key(spec)
    return make_signature(spec.model.key, spec.model.dataset_size, rule, machine, exchange)


def exchange_key(spec: JobSpec) -> str:
    """Say how gradients travel where that changes how long an iteration takes."""
    name, servers = spec.strategy.name, spec.strategy.servers
    return f"{name} {servers}" if servers else ""
