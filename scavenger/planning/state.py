"""PlanningState: everything known about one job, and what follows from it before any search.

The reconciler, the API, the simulator and the command line build one and hand it to ``decide`` or
``preview_curve`` (``scavenger.planning.decision``), so that a page predicts what a decision would
rest on. What takes long to derive is derived when it is first asked for.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from scavenger.cluster import ConfigSpace
from scavenger.measurement.profiling import Observation
from scavenger.models.epochs import EpochsLaw, FinishedRun, Kappa, LawFamily, fit_epochs_law
from scavenger.models.forms import Topology
from scavenger.models.iteration_time_fitting import (
    with_expected_stacks,
    with_measured_stacks,
)
from scavenger.models.performance import PerformanceModel, fit_performance
from scavenger.planning.learning_curve import Extrapolation, extrapolate_learning_curve
from scavenger.planning.objective import Objective
from scavenger.planning.transfer import (
    DEFAULT_FRAMEWORK,
    StoredModel,
    average_models,
    learn_kappa_from_models,
    part_of_signature,
    transfer_model,
)
from scavenger.pricing import PriceModel
from scavenger.protocol import StopAtMetric

# Epochs to a metric differ by this much from run to run (SCIENCE §2).
RUN_TO_RUN_DEVIATION = 0.12
# A learning curve counts when at least this share of its likely continuations reach the goal,
MIN_CHANCE_TO_REACH = 0.5
# and do so within this many times what was seen.
MAX_FACTOR_AHEAD = 3.0


@dataclass(frozen=True, slots=True)
class ProbeOverhead:
    """What one probe takes besides training.

    Attributes:
        iterations: Iterations a probe of time runs.
        pause: Seconds of a resize, in which nothing is trained.
        boot: Seconds until an added machine can be used; it is paid, while training goes on.
    """

    iterations: int = 23
    pause: float = 5.0
    boot: float = 0.0


@dataclass(frozen=True)  # without slots, which cached properties need to do without
class PlanningState:
    """What is known about one job.

    Attributes:
        space: Configurations the job may use.
        objective: What the user wants, within the job's limits.
        observations: Settled probes of this job, in the order they were made.
        stored: Model of earlier jobs with the same signature; None if there is none.
        dataset_size: Samples of one epoch.
        reference_batch: Batch in samples the user's recipe was written for.
        epochs_at_reference: Epochs to target at ``reference_batch``; None while unknown.
        price: What workers cost.
        search: Name of the search strategy.
        target: The target in words, the key of ``StoredModel.epochs_by_target``.
        topology: How gradients travel.
        laws: Whether the data choose among forms of the laws, or the paper's are taken.
        other_models: Models of all other jobs, newest first.
        lender: Model of the same job with another framework or layout, which lends its noise and
            epochs; None if there is none.
        machine_type: Kind of the machines it runs on; empty where all jobs run on the same.
        exchange: How gradients travel as signatures name it; empty for all-reduce.
        framework: What trains as signatures name it; empty for PyTorch.
        layout: How processes share the model as signatures name it; empty where none do.
        lr_rule: The learning-rate rule: only jobs with the same one teach κ.
        kappa_prior: κ in B_crit = κ φ before any job taught it.
        is_synchronous: Whether the workers iterate together; where they do not, as in Downpour
            SGD, no law of iteration time applies.
        most_epochs: Reference epochs after which training stops anyway; None without a bound.
        probe_overhead: What one probe takes besides training.
        running_machines: Machines that run and could train at once; 0 before the first.
        drifted_noise_scale: φ in samples that the noise has drifted to since the choice; None while
            that of the probes holds.
        stop_at_metric: The metric to reach; None where the target is a number of epochs.
        metric_history: Reference epochs and value of that metric so far, ascending.
    """

    space: ConfigSpace
    objective: Objective
    observations: tuple[Observation, ...]
    stored: StoredModel | None
    dataset_size: int
    reference_batch: int
    epochs_at_reference: float | None
    price: PriceModel
    search: str = "auto"
    target: str | None = None
    topology: Topology = "all_reduce"
    laws: LawFamily = "measured"
    other_models: tuple[StoredModel, ...] = ()
    lender: StoredModel | None = None
    machine_type: str = ""
    exchange: str = ""
    framework: str = ""
    layout: str = ""
    lr_rule: str = "none"
    kappa_prior: Kappa = Kappa()  # noqa: RUF009
    is_synchronous: bool = True
    most_epochs: float | None = None
    probe_overhead: ProbeOverhead = ProbeOverhead()
    running_machines: int = 0
    drifted_noise_scale: float | None = None
    stop_at_metric: StopAtMetric | None = None
    metric_history: tuple[tuple[float, float], ...] = ()

    @property
    def has_settled_noise(self) -> bool:
        """Whether this job has measured its noise for as long as that takes to settle."""
        return any(observation.has_settled_noise for observation in self.observations)

    @property
    def lends_noise(self) -> bool:
        """Whether the noise of this job is that of the same job with another framework.

        The laws of the paper compare noise that each configuration measured itself (V-B).
        """
        if self.lender is None or self.has_settled_noise or self.laws == "paper":
            return False
        return any(observation.has_settled_noise for observation in self.lender.observations)

    @property
    def is_noise_known(self) -> bool:
        """Whether no probe has to measure the noise of this job."""
        return self.has_settled_noise or self.lends_noise

    def can_measure_noise(self, workers: int) -> bool:
        """Whether so many workers measure noise, as far as this job's probes tell.

        A single worker has no second gradient to compare with, unless its session splits the batch;
        a script under ``agent run`` does not. Nor does every way to average gradients show noise,
        so one worker and several are judged apart, and believed able before their first probe.
        """
        alike = [o.indicators for o in self.observations if (o.config.workers > 1) == (workers > 1)]
        return not alike or any(
            shown.noise is not None or shown.noise_scale is not None for shown in alike
        )

    @cached_property
    def kappa(self) -> Kappa:
        """κ in B_crit = κ φ, as far as finished jobs have taught it."""
        own = () if self.stored is None else (self.stored,)
        return learn_kappa_from_models(self.kappa_prior, (*own, *self.other_models), self.lr_rule)

    @cached_property
    def comparable_models(self) -> tuple[StoredModel, ...]:
        """Models of the other jobs whose iterations took place as this one's do."""
        return tuple(model for model in self.other_models if self._is_comparable(model))

    def _is_comparable(self, other: StoredModel) -> bool:
        machine, *means = (
            part_of_signature(other.signature, name)
            for name in ("machine", "exchange", "framework", "layout")
        )
        is_alike = means == [self.exchange, self.framework, self.layout]
        return is_alike and self.machine_type in ("", machine)

    @cached_property
    def extrapolated(self) -> Extrapolation | None:
        """When this run's own learning curve reaches the goal; None where something better tells.

        That is: a number of epochs the user named, or what an earlier job took.
        """
        if self.stop_at_metric is None or self.recorded_epochs is not None:
            return None
        return extrapolate_metric(self.metric_history, self.stop_at_metric)

    @property
    def recorded_epochs(self) -> float | None:
        """Epochs to target that the user named, or else that earlier jobs took."""
        if self.epochs_at_reference is not None:
            return self.epochs_at_reference
        known = (model.epochs_to(self.target, self.reference_batch) for model in self._same_jobs)
        return next((epochs for epochs in known if epochs is not None), None)

    @property
    def expected_epochs(self) -> float | None:
        """Epochs to target that are recorded, or else estimated from the learning curve."""
        if self.recorded_epochs is not None or self.extrapolated is None:
            return self.recorded_epochs
        return self.extrapolated.epochs

    @property
    def epochs_deviation(self) -> float:
        """Relative standard deviation of the known epochs; 0 for a number the user named."""
        if self.epochs_at_reference is not None:
            return 0.0
        return RUN_TO_RUN_DEVIATION if self.extrapolated is None else self.extrapolated.deviation

    @property
    def earlier_runs(self) -> tuple[FinishedRun, ...]:
        """What earlier runs to this target took, at their batches."""
        return tuple(
            run for model in self._same_jobs for run in model.runs.get(self.target or "", ())
        )

    @property
    def _same_jobs(self) -> tuple[StoredModel, ...]:
        """Models of this job, the one with another framework or layout last."""
        return tuple(model for model in (self.stored, self.lender) if model is not None)

    @property
    def lent(self) -> str:
        """What a model of another framework or layout lends, in words; empty for nothing."""
        if self.lender is None:
            return ""
        own = (
            None
            if self.stored is None
            else self.stored.epochs_to(self.target, self.reference_batch)
        )
        lends_epochs = self.epochs_at_reference is None and own is None
        lends_epochs = lends_epochs and self.recorded_epochs is not None
        parts = ["noise"] * self.lends_noise + ["epochs"] * lends_epochs
        if not parts:
            return ""
        framework = part_of_signature(self.lender.signature, "framework") or DEFAULT_FRAMEWORK
        layout = part_of_signature(self.lender.signature, "layout")
        means = " ".join(filter(None, (framework, layout)))
        return f"{' and '.join(parts)} of {format_job_count([self.lender])} with {means}"


@dataclass(frozen=True, slots=True)
class FittedModel:
    """The laws a decision rests on.

    Attributes:
        model: The laws.
        observations: What they were fitted to.
        source: Where they come from, for people.
    """

    model: PerformanceModel
    observations: tuple[Observation, ...]
    source: str


def fit_probes(state: PlanningState) -> FittedModel:
    """Fit this job's own probes, and what earlier runs to its target took.

    Raises:
        NotEnoughData: The job has no probe yet.
    """
    model = fit_performance(
        state.observations,
        state.dataset_size,
        state.reference_batch,
        state.expected_epochs,
        kappa=state.kappa,
        runs=state.earlier_runs,
        topology=state.topology,
        laws=state.laws,
        epochs_deviation=state.epochs_deviation,
    )
    law = lent_epochs_law(state)
    model = model if law is None else replace(model, statistical=law)
    own = tuple(observation.measurement for observation in state.observations)
    parallel = with_expected_stacks(model.parallel, state.space.expected_stacks, own)
    model = replace(model, parallel=parallel)
    return FittedModel(model, state.observations, describe_probes(state))


def lent_epochs_law(state: PlanningState) -> EpochsLaw | None:
    """Return the law by the noise of the same job with another framework; None without need."""
    if state.lender is None or not state.lends_noise:
        return None
    return fit_epochs_law(state.lender.observations, state.kappa, state.earlier_runs)


def adapt_stored_model(state: PlanningState, stored: StoredModel) -> FittedModel:
    """Return a stored model as this job uses it: runs at several batches tell its epochs."""
    model = adapt_model(stored.model, state)
    measured = stored.observations + state.observations
    own = tuple(observation.measurement for observation in state.observations)
    expected = with_expected_stacks(model.parallel, state.space.expected_stacks, ())
    model = replace(model, parallel=with_measured_stacks(expected, own))
    runs = state.earlier_runs
    if len({run.global_batch for run in runs}) > 1 and state.laws != "paper":
        model = replace(model, statistical=fit_epochs_law(measured, state.kappa, runs))
    return FittedModel(model, measured, format_job_count([stored]))


def adapt_model(model: PerformanceModel, state: PlanningState) -> PerformanceModel:
    """Give another job's model this job's data set, reference batch and epochs."""
    return replace(
        model,
        dataset_size=state.dataset_size,
        reference_batch=state.reference_batch,
        epochs_at_reference=state.expected_epochs,
        epochs_deviation=state.epochs_deviation,
    )


def average_other_models(state: PlanningState) -> FittedModel | None:
    """Average all comparable models, at this job's own speed once any of it was measured.

    Returns:
        The paper's universal model (III-B, V-C); None without models.
    """
    models = state.comparable_models
    average = average_models(models, state.space, state.topology, state.laws)
    if average is None:
        return None
    own = adapt_model(average, state)
    model = transfer_model(own, state.observations) if state.observations else own
    return FittedModel(model, state.observations, f"the average over {format_job_count(models)}")


def describe_probes(state: PlanningState) -> str:
    """Say how many probes a job made itself; one configuration may have been measured twice."""
    return f"{format_probe_count(state)} of this job{f', {state.lent}' if state.lent else ''}"


def format_probe_count(state: PlanningState) -> str:
    """Count the probes of a job, in words."""
    count = len(state.observations)
    return f"{count} probe{'' if count == 1 else 's'}"


def format_job_count(models: tuple[StoredModel, ...] | list[StoredModel]) -> str:
    """Say how many jobs models were learned from."""
    jobs = sum(stored.jobs for stored in models)
    return f"{jobs} earlier job{'' if jobs == 1 else 's'}"


@lru_cache(maxsize=1024)  # every tick asks for every job, and it changes with a new value only
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
    found = extrapolate_learning_curve(progress, values, stop.goal, stop.direction)
    if found is None or found.chance < MIN_CHANCE_TO_REACH:
        return None
    seen = progress[-1]
    farthest = min(MAX_FACTOR_AHEAD * seen, stop.max_progress)
    is_near = seen < found.high and found.epochs <= farthest
    return replace(found, epochs=max(found.epochs, seen)) if is_near else None


def describe_source(state: PlanningState, source: str) -> str:
    """Add to the source of a model what the learning curve told, if it did."""
    estimate = state.extrapolated
    if estimate is None:
        return source
    name = "progress" if state.stop_at_metric is None else state.stop_at_metric.metric
    is_bounded = math.isfinite(estimate.high)
    span = f"{estimate.low:.3g} {f'to {estimate.high:.3g}' if is_bounded else 'or more'}"
    return f"{source}, epochs extrapolated from the {name} so far: {estimate.epochs:.3g} ({span})"
