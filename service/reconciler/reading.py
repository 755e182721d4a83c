"""Reading: everything one tick needs to know, read once from the database."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from sqlalchemy import Connection

from scavenger.decision import ProbeEffort
from scavenger.profiling import PROBE_ITERATIONS, WARM_UP
from scavenger.protocol import StepColumns
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
    told = directives.newest(connection, job_id)
    directive, published_at = told if told is not None else (None, None)
    probes = observations.of_job(connection, job_id)
    drifted = drifts.newest(connection, job_id)
    steps = StepColumns()
    if directive is not None and directive.purpose == "probe" and job.chosen is None:
        steps = chunks.steps_of(connection, job_id, directive.generation)
    elif directive is not None and is_due(now, published_at, drifted) and not job.phase.is_final:
        steps = chunks.steps_of(connection, job_id, directive.generation, RECENT_REPORTS)
    knowledge = recall(connection, machine, job, probes)
    snapshot = Snapshot(
        now=now,
        job=job,
        vms=vms.of_job(connection, job_id),
        workers=workers.of_job(connection, job_id),
        directive=directive,
        published_at=published_at,
        probes=probes,
        drifted=drifted,
        steps=steps,
        knowledge=replace(
            knowledge,
            effort=ProbeEffort(PROBE_ITERATIONS + WARM_UP, pause),
            noise_scale=None if drifted is None else drifted.noise_scale,
        ),
    )
    if job.phase.is_final or not is_doubtful(snapshot):
        return snapshot
    return replace(snapshot, fruitless=directives.fruitless(connection, job_id))


def recall(connection: Connection, machine: str, job: Job, probes: tuple[Probe, ...]) -> Knowledge:
    """Return what probes and earlier jobs of its project tell about a job."""
    signature = signature_of(job.spec, machine)
    known = models.recent(connection, job.project, MOST_MODELS)
    return Knowledge(
        spec=job.spec,
        observations=tuple(probe.observation for probe in probes),
        stored=models.find(connection, job.project, signature),
        epochs_to_target=job.epochs_to_target,
        models=tuple(stored for stored in known if stored.signature != signature),
        machine=machine,
        history=readings.of_job(connection, job.id),
    )
