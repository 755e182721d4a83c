"""Reading: everything one tick or one page needs to know, read once from the database."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime

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
    vms,
    workers,
)
from service.db.jobs import Job
from service.db.observations import Probe
from service.knowledge import Knowledge, signature_of
from service.reconciler.deadline import is_doubtful
from service.reconciler.drift import is_due
from service.reconciler.snapshot import Snapshot

RECENT_REPORTS = 300
MOST_MODELS = 200


def read(
    connection: Connection, machine: str, job_id: str, now: datetime, pause: float = 0.0
) -> Snapshot:
    """Read everything a tick needs, once; who only shows a job needs no pause."""
    job = jobs.find(connection, job_id)
    assert job is not None
    (snapshot,) = read_all(connection, machine, [job], now, pause)
    snapshot = replace(snapshot, steps=steps_for(connection, snapshot))
    if job.phase.is_final or not is_doubtful(snapshot):
        return snapshot
    return replace(snapshot, fruitless=directives.fruitless(connection, job_id))


def read_all(
    connection: Connection,
    machine: str,
    wanted: Sequence[Job],
    now: datetime,
    pause: float = 0.0,
) -> list[Snapshot]:
    """Read what is known of jobs, without the iterations measured, with as many queries as for one.

    Args:
        connection: Where from.
        machine: Kind of the machines they run on.
        wanted: The jobs.
        now: The moment.
        pause: Seconds a change of machines takes.
    """
    ids = [job.id for job in wanted]
    told = directives.newest_of(connection, ids)
    probes = observations.of_jobs(connection, ids)
    drifted = drifts.newest_of(connection, ids)
    machines = vms.of_jobs(connection, ids)
    agents = workers.of_jobs(connection, ids)
    known = recall(connection, machine, wanted, probes)
    effort = ProbeEffort(PROBE_ITERATIONS + WARM_UP, pause)
    found = []
    for job in wanted:
        directive, published_at = told.get(job.id, (None, None))
        drift = drifted.get(job.id)
        scale = None if drift is None else drift.noise_scale
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
            knowledge=replace(known[job.id], effort=effort, noise_scale=scale),
        )
        found.append(snapshot)
    return found


def steps_for(connection: Connection, snapshot: Snapshot) -> StepColumns:
    """Return the measured iterations that a tick may decide by."""
    job, directive = snapshot.job, snapshot.directive
    if directive is None:
        return StepColumns()
    if directive.purpose == "probe" and job.chosen is None:
        return chunks.steps_of(connection, job.id, directive.generation)
    is_old = is_due(snapshot.now, snapshot.published_at, snapshot.drifted)
    if not is_old or job.phase.is_final:
        return StepColumns()
    return chunks.noise_of(connection, job.id, directive.generation, RECENT_REPORTS, DRIFT_ROWS)


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
