"""What a job document asks of the planner: its objective, its planning state, its signature."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from scavenger.cluster import ConfigSpace
from scavenger.job.spec import JobSpec, WeightedObjective
from scavenger.learning_rate import prior_kappa
from scavenger.measurement.layout_profile import LayoutProfile
from scavenger.measurement.profiling import Observation
from scavenger.models.epochs import Kappa
from scavenger.planning.constrained_objective import ConstrainedObjective
from scavenger.planning.layout_search import (
    FoundLayouts,
    LayoutSearch,
    PipelineSearch,
    find_layouts,
    find_pipeline,
)
from scavenger.planning.layouts import PipelineForecast
from scavenger.planning.objective import Objective
from scavenger.planning.objectives import make_objective
from scavenger.planning.state import PlanningState, ProbeOverhead
from scavenger.planning.transfer import DEFAULT_FRAMEWORK, StoredModel, make_signature
from scavenger.protocol import StopAtMetric, StopAtProgress
from scavenger.stack import StackCheck, StackOption, measured_option, refused_layouts


def planning_state(
    spec: JobSpec,
    observations: Sequence[Observation],
    stored: StoredModel | None,
    *,
    epochs_to_target: float | None = None,
    other_models: tuple[StoredModel, ...] = (),
    lender: StoredModel | None = None,
    machine_type: str = "",
    framework: str = "",
    probe_overhead: ProbeOverhead | None = None,
    running_machines: int = 0,
    drifted_noise_scale: float | None = None,
    metric_history: tuple[tuple[float, float], ...] = (),
    stack_checks: Sequence[StackCheck] = (),
    profile: LayoutProfile | None = None,
) -> PlanningState:
    """Put what a job document says beside what is known of the job.

    Args:
        spec: The job.
        observations: Its own settled probes, in order.
        stored: The model of earlier jobs with its signature.
        epochs_to_target: Reference epochs its own run to the target took, once it has ended.
        other_models: Models of all other jobs, newest first.
        lender: The model of the same job with another framework or layout.
        machine_type: Kind of the machines it runs on, where it names none; jobs on others do not
            compare.
        framework: What its workers train with, as they said; empty while none has.
        probe_overhead: What one probe takes besides training.
        running_machines: Machines of its workers that may run.
        drifted_noise_scale: φ in samples that its probes' had drifted to; None while theirs holds.
        metric_history: Reference epochs and value of the target's metric so far, ascending.
        stack_checks: What its workers found out about stacks.
        profile: Profile of its model; None where no layouts are searched, or as long as no machine
            has made one.
    """
    stop, rule = spec.stop_rule, spec.learning_rate_scaling.rule
    is_counted = isinstance(stop, StopAtProgress)
    return PlanningState(
        space=usable_space(spec, stack_checks, observations, profile),
        objective=objective_within_limits(spec),
        observations=tuple(observations),
        stored=stored,
        dataset_size=spec.model.dataset_size,
        reference_batch=spec.reference_batch,
        epochs_at_reference=stop.max_progress if is_counted else epochs_to_target,
        price=spec.price_model,
        search=spec.search,
        target=spec.target_text,
        topology="parameter_server" if spec.strategy.servers else "all_reduce",
        laws=spec.laws,
        other_models=other_models,
        lender=lender,
        machine_type=spec.machine_type or machine_type,
        exchange=exchange_of(spec),
        framework=framework_of(spec, framework),
        layout=layout_of(spec),
        lr_rule=rule,
        kappa_prior=Kappa(prior_kappa(rule)),
        is_synchronous=spec.strategy.is_searched,
        most_epochs=stop.max_progress,
        probe_overhead=probe_overhead or ProbeOverhead(),
        running_machines=running_machines,
        drifted_noise_scale=drifted_noise_scale,
        stop_at_metric=stop if isinstance(stop, StopAtMetric) else None,
        metric_history=metric_history,
    )


def objective_of(spec: JobSpec) -> Objective:
    """Build the objective a job asks for, without its limits."""
    if isinstance(spec.objective, WeightedObjective):
        return make_objective("weighted", time_weight=spec.objective.time_weight)
    return make_objective(spec.objective)


def objective_within_limits(spec: JobSpec) -> ConstrainedObjective:
    """Build the objective a job asks for, within its limits."""
    limits = spec.limits
    max_cost = None if limits.max_cost is None else float(limits.max_cost)
    return ConstrainedObjective(objective_of(spec), max_cost=max_cost, max_time=limits.max_time)


def signature_of(spec: JobSpec, machine_type: str, framework: str = "") -> str:
    """Name the stored model this job reads and writes.

    Args:
        spec: The job.
        machine_type: Kind of the machines of jobs that name none.
        framework: What its workers train with, as they said; empty while none has.
    """
    rule, exchange = spec.learning_rate_scaling.rule, exchange_of(spec)
    machine = spec.machine_type or machine_type
    trains = framework_of(spec, framework)
    return make_signature(
        spec.model.key, spec.model.dataset_size, rule, machine, exchange, trains, layout_of(spec)
    )


def exchange_of(spec: JobSpec) -> str:
    """Say how gradients travel where that changes how long an iteration takes."""
    name, servers = spec.strategy.name, spec.strategy.servers
    return f"{name} {servers}" if servers else ""


def layout_of(spec: JobSpec) -> str:
    """Say how processes share the model, as signatures name it: empty where none do."""
    if spec.pipeline_search is not None:
        return spec.strategy.name  # of its jobs nothing but the profile is stored
    return "" if spec.layout.is_plain else str(spec.layout).replace("=", "")  # which they quote


def layouts_of(spec: JobSpec, profile: LayoutProfile) -> FoundLayouts | None:
    """Return the layouts that a job's search looks at; None where it searches none."""
    search, space = spec.limits.layout_search, spec.space
    if search is None:
        return None
    parts = {
        -(-batch // workers)
        for workers in space.workers
        for batch in space.global_batches
        if batch >= workers
    }
    return _find_layouts(profile, search, tuple(sorted(parts)))


def usable_layouts(
    spec: JobSpec, checks: Sequence[StackCheck], profile: LayoutProfile
) -> tuple[StackOption, ...]:
    """Return the layouts that a job's search looks at and no worker failed in, the best first.

    There are none where it searches none.
    """
    found, refused = layouts_of(spec, profile), refused_layouts(checks)
    if found is None:
        return ()
    return tuple(option for option in found.options if option.layout not in refused)


@lru_cache(maxsize=1024)  # every tick and every page asks for every job
def _find_layouts(
    profile: LayoutProfile, search: LayoutSearch, local_batches: tuple[int, ...]
) -> FoundLayouts:
    return find_layouts(profile, search, local_batches)


def pipeline_of(spec: JobSpec, profile: LayoutProfile) -> PipelineForecast | str | None:
    """Return the asynchronous pipeline that a job is to train in, or why there is none.

    It follows from the arguments alone, so all machines of a job get the same one.

    Returns:
        None where the document does not leave the stages to a profile.
    """
    search = spec.pipeline_search
    return None if search is None else _find_pipeline(profile, search)


@lru_cache(maxsize=1024)  # each machine of a job asks again
def _find_pipeline(profile: LayoutProfile, search: PipelineSearch) -> PipelineForecast | str:
    return find_pipeline(profile, search)


def framework_of(spec: JobSpec, told: str = "") -> str:
    """Say what trains, as signatures name it: empty for PyTorch.

    Args:
        spec: The job; what its document says counts until a worker has said it.
        told: What its workers train with, as they said; empty while none has.
    """
    framework = told or spec.framework or DEFAULT_FRAMEWORK
    return "" if framework == DEFAULT_FRAMEWORK else framework


def usable_space(
    spec: JobSpec,
    checks: Sequence[StackCheck],
    observations: Sequence[Observation],
    profile: LayoutProfile | None = None,
) -> ConfigSpace:
    """Return the grid with the stacks that no worker refused, within what their rounding allows.

    Where layouts are searched they are the stacks, those that the model's profile speaks for.
    """
    layouts = () if profile is None else usable_layouts(spec, checks, profile)
    if layouts:
        return replace(spec.space, stacks=layouts)
    if not checks:
        return spec.space
    settled = [o.indicators.noise_scale for o in observations if o.has_settled_noise]
    scale = next((found for found in reversed(settled) if found is not None), None)
    first, *others = spec.space.stacks
    known = [
        measured_option(each.name, [check for check in checks if check.stack == each.name], scale)
        for each in others
    ]
    usable = (option for option in known if option is not None)
    return replace(spec.space, stacks=(first, *usable))
