"""Reading: everything one tick or one page needs to know, read once from the database."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from statistics import median

from sqlalchemy import Connection

from scavenger.decision import ProbeEffort
from scavenger.prior import StoredModel
from scavenger.profiling import PROBE_ITERATIONS, WARM_UP
from scavenger.protocol import StepColumns
from scavenger.stability import DRIFT_ROWS
from service.db import (
    chunks,
    directives,
    drifts,
    jobs,
    models,
    observations,
    readings,
    regroups,
    vms,
    workers,
)
from service.db.jobs import Job
from service.db.observations import Probe
from service.knowledge import Knowledge, signature_of
from service.reconciler.deadline import is_doubtful
from service.reconciler.drift import is_due
from service.reconciler.snapshot import Snapshot, running

RECENT_REPORTS = 300
MOST_MODELS = 200


def read(
    connection: Connection,
    machine: str,
    job_id: str,
    now: datetime,
    pause: float = 0.0,
    *,
    reviews: bool = True,
) -> Snapshot:
    """Read everything a tick needs, once.

    Args:
        connection: Where from.
        machine: Kind of the machines it runs on.
        job_id: Which job.
        now: The moment.
        pause: Seconds a change of machines usually takes with the provider.
        reviews: Whether the plan of a job that trains is held against its newest iterations.
    """
    job = jobs.find(connection, job_id)
    assert job is not None
    (snapshot,) = read_all(connection, machine, [job], now)
    snapshot = replace(
        snapshot,
        steps=steps_for(connection, snapshot, reviews=reviews),
        losses_before=losses_for(connection, snapshot),
    )
    if job.chosen is None or len(snapshot.steps):  # the job is searched, or may be planned anew
        effort = effort_of(connection, snapshot, pause)
        snapshot = replace(snapshot, knowledge=replace(snapshot.knowledge, effort=effort))
    if job.phase.is_final or not is_doubtful(snapshot):
        return snapshot
    return replace(snapshot, fruitless=directives.fruitless(connection, job_id))


def read_all(
    connection: Connection,
    machine: str,
    wanted: Sequence[Job],
    now: datetime,
) -> list[Snapshot]:
    """Read what is known of jobs, without the iterations measured, with as many queries as for one.

    Args:
        connection: Where from.
        machine: Kind of the machines they run on.
        wanted: The jobs.
        now: The moment.
    """
    ids = [job.id for job in wanted]
    told = directives.newest_of(connection, ids)
    probes = observations.of_jobs(connection, ids)
    drifted = drifts.newest_of(connection, ids)
    machines = vms.of_jobs(connection, ids)
    agents = workers.of_jobs(connection, ids)
    known = recall(connection, machine, wanted, probes)
    found = []
    for job in wanted:
        directive, published_at = told.get(job.id, (None, None))
        drift = drifted.get(job.id)
        scale = None if drift is None else drift.noise_scale
        workers_alive = sum(vm.role == "worker" for vm in running(machines[job.id]))
        snapshot = Snapshot(
            now=now,
            job=job,
            vms=machines[job.id],
            workers=agents[job.id],
            directive=directive,
            published_at=published_at,
            probes=probes[job.id],
            drifted=drift,
            steps=StepColumns(),
            knowledge=replace(known[job.id], machines=workers_alive, noise_scale=scale),
        )
        found.append(snapshot)
    return found


def steps_for(connection: Connection, snapshot: Snapshot, *, reviews: bool) -> StepColumns:
    """Return the measured iterations that a tick may decide by."""
    job, directive = snapshot.job, snapshot.directive
    if directive is None:
        return StepColumns()
    if directive.purpose == "probe" and job.chosen is None:
        return chunks.steps_of(connection, job.id, directive.generation)
    is_old = is_due(snapshot.now, snapshot.published_at, snapshot.drifted)
    if not reviews or not is_old or job.phase.is_final:
        return StepColumns()
    return chunks.noise_of(connection, job.id, directive.generation, RECENT_REPORTS, DRIFT_ROWS)


def losses_for(connection: Connection, snapshot: Snapshot) -> tuple[float | None, ...]:
    """Return the losses from before the newest generation, as long as noise has to settle."""
    job, directive = snapshot.job, snapshot.directive
    has_settled = any(probe.observation.has_settled_noise for probe in snapshot.probes)
    if directive is None or directive.purpose != "probe" or job.chosen is not None or has_settled:
        return ()
    return chunks.losses_before(connection, job.id, directive.generation)


def effort_of(connection: Connection, snapshot: Snapshot, pause: float) -> ProbeEffort:
    """Return what a probe takes besides training, as this job has seen it so far.

    Args:
        connection: Where from.
        snapshot: The job.
        pause: Seconds a change of machines usually takes with the provider, start and resize.
    """
    pauses = regroups.pauses_of(connection, snapshot.job.id)
    usual, boot = median(pauses) if pauses else pause, snapshot.boot_seen
    seconds = pause if boot is None else boot.total_seconds()
    return ProbeEffort(PROBE_ITERATIONS + WARM_UP, usual, seconds)


def recall(
    connection: Connection,
    machine: str,
    wanted: Sequence[Job],
    probes: Mapping[str, tuple[Probe, ...]],
) -> Mapping[str, Knowledge]:
    """Return what probes and earlier jobs of its project tell about each job, by job."""
    signatures = {job.id: signature_of(job.spec, machine) for job in wanted}
    history = readings.of_jobs(connection, list(signatures))
    stored: dict[str, Mapping[str, StoredModel]] = {}
    recent: dict[str, tuple[StoredModel, ...]] = {}
    for project in {job.project for job in wanted}:
        own = {signatures[job.id] for job in wanted if job.project == project}
        stored[project] = models.known(connection, project, own)
        recent[project] = models.recent(connection, project, MOST_MODELS)
    return {
        job.id: Knowledge(
            spec=job.spec,
            observations=tuple(probe.observation for probe in probes[job.id]),
            stored=stored[job.project].get(signatures[job.id]),
            epochs_to_target=job.epochs_to_target,
            models=tuple(m for m in recent[job.project] if m.signature != signatures[job.id]),
            machine=machine,
            history=history[job.id],
        )
        for job in wanted
    }
