"""Load the states of jobs from the database, with as many queries for many jobs as for one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal
from statistics import median

from sqlalchemy import Connection

from scavenger.job.planning import planning_state, signature_of
from scavenger.job.spec import JobSpec
from scavenger.measurement.profiling import PROBE_ITERATIONS, WARM_UP_ITERATIONS
from scavenger.measurement.stability import DRIFT_ROWS
from scavenger.measurement.steps import StepColumns
from scavenger.planning.state import PlanningState, ProbeOverhead
from scavenger.planning.transfer import StoredModel, find_lender
from scavenger.protocol import StopAtMetric
from scavenger.stack import StackCheck, refused_layouts
from service.db import (
    directives,
    jobs,
    layout_profiles,
    measurements,
    orders,
    stored_models,
    telemetry,
    vms,
    workers,
)
from service.db.jobs import StoredJob
from service.db.layout_profiles import StoredProfile
from service.db.measurements import SettledProbe
from service.state.job_state import JobState, running_machines
from service.state.orders import Standing, fold_orders

MAX_NOISE_REPORTS = 300
MAX_MODELS = 200
NO_PROFILE = StoredProfile(None)


def load_job_state(
    connection: Connection,
    machine_type: str,
    job_id: str,
    now: datetime,
    resize_seconds: Callable[[JobSpec], float] = lambda _: 0.0,
    *,
    reviews: bool = True,
    needs_fruitless: Callable[[JobState], bool] = lambda _: True,
) -> JobState:
    """Read everything a tick needs, once.

    Args:
        connection: Where from.
        machine_type: Kind of the machines it runs on.
        job_id: Which job.
        now: The moment.
        resize_seconds: Seconds a change of machines usually takes in the cloud of a job.
        reviews: Whether to check if the noise scale has drifted since the configuration was chosen.
        needs_fruitless: Whether it matters how many directives bore no iteration; reading that
            where it does not costs a query and changes nothing.
    """
    stored = jobs.find(connection, job_id)
    assert stored is not None
    (state,) = load_job_states(connection, machine_type, [stored], now)
    job = state.job
    state = replace(
        state,
        steps=steps_to_decide_by(connection, state, reviews=reviews),
        losses_before=losses_before_probe(connection, state),
    )
    # The job is searched, or may be planned anew.
    if job.chosen is None or len(state.steps) or state.standing.open:
        effort = probe_effort(connection, state, resize_seconds(job.spec))
        state = replace(state, knowledge=replace(state.knowledge, probe_overhead=effort))
    if state.refused_layouts:
        trained = directives.newest_trained_layout(connection, job_id)
        state = replace(state, trained_layout=trained)
    if job.phase.is_final or not needs_fruitless(state):
        return state
    return replace(
        state,
        published_without_iteration=directives.published_without_iterations(connection, job_id),
    )


def load_job_states(
    connection: Connection,
    machine_type: str,
    wanted: Sequence[StoredJob],
    now: datetime,
    *,
    has_outlook: bool = True,
) -> list[JobState]:
    """Read what is known of jobs, without the iterations measured, with as many queries as for one.

    Args:
        connection: Where from.
        machine_type: Kind of the machines they run on.
        wanted: The jobs.
        now: The moment.
        has_outlook: Whether what probes and earlier jobs tell matters; reading it takes longest.
    """
    ids = [job.id for job in wanted]
    given = orders.standing_orders_of(connection, ids)
    standing = {job: fold_orders(own) for job, own in given.items()}
    ordered = [replace(job, spec=standing[job.id].apply_to(job.spec)) for job in wanted]
    published = directives.newest_of(connection, ids)
    machines = vms.of_jobs(connection, ids)
    agents = workers.of_jobs(connection, ids)
    planned = [replace(job, spec=standing[job.id].prefer_in(job.spec)) for job in ordered]
    if has_outlook:
        probes = measurements.probes_of_jobs(connection, ids)
        drifted = measurements.newest_drifts(connection, ids)
        searched = [job.id for job in planned if job.spec.limits.layout_search is not None]
        with_stacks = [job.id for job in planned if len(job.spec.space.stacks) > 1]
        checked = [*with_stacks, *searched]
        checks = measurements.stack_checks_of_jobs(connection, checked) if checked else {}
        profiles = layout_profiles.of_jobs(connection, searched) if searched else {}
        known = load_knowledge(connection, machine_type, planned, probes, checks, profiles)
    else:
        probes, drifted = dict.fromkeys(ids, ()), {}
        checks, profiles = {}, {}
        known = {job.id: planning_state(job.spec, (), None) for job in planned}
    found = []
    for job in ordered:
        directive, published_at = published.get(job.id, (None, None))
        drift = drifted.get(job.id)
        scale = None if drift is None else drift.noise_scale
        workers_alive = sum(vm.role == "worker" for vm in running_machines(machines[job.id]))
        state = JobState(
            now=now,
            job=job,
            vms=machines[job.id],
            workers=agents[job.id],
            directive=directive,
            published_at=published_at,
            probes=probes[job.id],
            drifted=drift,
            steps=StepColumns(),
            standing=standing[job.id],
            refused_layouts=refused_layouts(checks[job.id]) if job.id in profiles else {},
            knowledge=replace(
                known[job.id], running_machines=workers_alive, drifted_noise_scale=scale
            ),
        )
        found.append(state)
    return found


@dataclass(frozen=True, slots=True)
class OrderedJob:
    """A job with its limits and objective as orders have changed them, and what stands for it.

    Attributes:
        submitted: The job as it was submitted.
    """

    job: StoredJob
    standing: Standing
    submitted: JobSpec

    @property
    def is_held(self) -> bool:
        """Whether no machine is launched for it: it has ended, is to end, or is paused."""
        return self.job.is_ended_or_ending or self.standing.is_paused

    def cap_at(self, moment: datetime) -> Decimal | None:
        """Return the most the job might spend as its orders were at a moment."""
        return self.standing.apply_to(self.submitted, moment).limits.max_cost


def load_ordered_job(connection: Connection, job_id: str) -> OrderedJob | None:
    """Return a job as its orders have changed it; None if there is none of that id."""
    found = jobs.find(connection, job_id)
    if found is None:
        return None
    standing = fold_orders(orders.standing_orders_of(connection, [job_id])[job_id])
    changed = replace(found, spec=standing.apply_to(found.spec))
    return OrderedJob(changed, standing, found.spec)


def steps_to_decide_by(connection: Connection, state: JobState, *, reviews: bool) -> StepColumns:
    """Return the measured iterations that a tick may decide by."""
    job, directive = state.job, state.directive
    if directive is None:
        return StepColumns()
    is_measured = job.chosen is None or state.standing.probe is not None
    if directive.purpose == "probe" and is_measured:
        return telemetry.steps_of(connection, job.id, directive.generation)
    if not reviews or not state.is_review_due or job.phase.is_final:
        return StepColumns()
    return telemetry.noise_steps_of(
        connection, job.id, directive.generation, MAX_NOISE_REPORTS, DRIFT_ROWS
    )


def losses_before_probe(connection: Connection, state: JobState) -> tuple[float | None, ...]:
    """Return the losses from before the newest generation, as long as noise has to settle."""
    job, directive = state.job, state.directive
    has_settled = any(probe.observation.has_settled_noise for probe in state.probes)
    if directive is None or directive.purpose != "probe" or job.chosen is not None or has_settled:
        return ()
    return telemetry.losses_before_generation(connection, job.id, directive.generation)


def probe_effort(connection: Connection, state: JobState, resize_seconds: float) -> ProbeOverhead:
    """Return what a probe takes besides training, as this job has seen it so far.

    Args:
        connection: Where from.
        state: The job.
        resize_seconds: Seconds a change of machines usually takes with the provider: start and
            resize.
    """
    pauses = directives.resize_pauses(connection, state.job.id)
    usual, boot = median(pauses) if pauses else resize_seconds, state.fastest_boot
    seconds = resize_seconds if boot is None else boot.total_seconds()
    return ProbeOverhead(PROBE_ITERATIONS + WARM_UP_ITERATIONS, usual, seconds)


def load_knowledge(
    connection: Connection,
    machine_type: str,
    wanted: Sequence[StoredJob],
    probes: Mapping[str, tuple[SettledProbe, ...]],
    checks: Mapping[str, tuple[StackCheck, ...]],
    profiles: Mapping[str, StoredProfile],
) -> Mapping[str, PlanningState]:
    """Return what probes and earlier jobs of its project tell about each job, by job."""
    signatures = {job.id: signature_of(job.spec, machine_type, job.framework) for job in wanted}
    stored: dict[str, Mapping[str, StoredModel]] = {}
    recent: dict[str, tuple[StoredModel, ...]] = {}
    for project in {job.project for job in wanted}:
        own = {signatures[job.id] for job in wanted if job.project == project}
        stored[project] = stored_models.known(connection, project, own)
        recent[project] = stored_models.recent(connection, project, MAX_MODELS)
    own_models = {job.id: stored[job.project].get(signatures[job.id]) for job in wanted}
    laid_out = dict(profiles)
    for job in wanted:
        if job.spec.limits.layout_search is None or job.id in laid_out:
            continue
        signature, run = signatures[job.id], job.spec.run
        newest = layout_profiles.newest(connection, job.project, signature, run)
        if newest is None:  # nothing can be chosen before its layouts are known
            own_models[job.id] = None
        else:
            laid_out[job.id] = newest
    lenders = {job.id: find_lender(signatures[job.id], recent[job.project]) for job in wanted}
    extrapolated = [
        job.id for job in wanted if is_extrapolated(job, own_models[job.id], lenders[job.id])
    ]
    history = measurements.readings_of_jobs(connection, extrapolated)
    return {
        job.id: planning_state(
            job.spec,
            observations=tuple(probe.observation for probe in probes[job.id]),
            stored=own_models[job.id],
            epochs_to_target=job.epochs_to_target,
            # Its own model is passed as `stored`; among the others it would count twice.
            other_models=tuple(m for m in recent[job.project] if m.signature != signatures[job.id]),
            lender=lenders[job.id],
            machine_type=machine_type,
            framework=job.framework,
            metric_history=history.get(job.id, ()),
            stack_checks=(*checks.get(job.id, ()), *laid_out.get(job.id, NO_PROFILE).refusals),
            profile=laid_out.get(job.id, NO_PROFILE).profile,
        )
        for job in wanted
    }


def is_extrapolated(job: StoredJob, *models: StoredModel | None) -> bool:
    """Tell whether only a job's own learning curve tells how long its target takes."""
    if job.epochs_to_target is not None or not isinstance(job.spec.stop_rule, StopAtMetric):
        return False
    target, batch = job.spec.target_text, job.spec.reference_batch
    return all(model is None or model.epochs_to(target, batch) is None for model in models)
