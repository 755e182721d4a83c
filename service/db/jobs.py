"""The jobs and outcomes tables: what was asked for, and what became of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Row,
    Select,
    false,
    insert,
    or_,
    select,
    tuple_,
    update,
)

from scavenger.cluster import ClusterConfig
from scavenger.job import JobSpec
from scavenger.submission import validate_job
from scavenger.view import Phase
from service.caller import EVERY_PROJECT, FIRST_PROJECT
from service.db.schema import jobs, leases, outcomes, vms

PREFIX = "job_"  # of every id; it may be left out where a job is looked for


@dataclass(frozen=True, slots=True)
class Job:
    """A job as stored: the wish and its outcome so far.

    Attributes:
        search: What the search does or did, in one sentence.
        chosen: The configuration to train on; None until decided.
        choice: Why it was chosen.
        advised: The configuration the job would do better with, while it is only advised.
        advice: Why.
        epochs_to_target: Reference epochs the target took, once reached.
        waiting: What keeps it from going on, and until when; None while nothing does.
        diverged: Whether its loss or its target's metric was not finite in the end.
    """

    id: str
    name: str
    spec: JobSpec
    created_at: datetime
    cancel_requested_at: datetime | None
    phase: Phase
    reason: str
    search: str
    chosen: ClusterConfig | None
    choice: str | None
    advised: ClusterConfig | None
    advice: str | None
    worker_exit_code: int | None
    epochs_to_target: float | None
    finished_at: datetime | None
    project: str = FIRST_PROJECT
    waiting: str | None = None
    diverged: bool = False


def create(
    connection: Connection,
    job: str,
    spec: JobSpec,
    now: datetime,
    project: str = FIRST_PROJECT,
) -> None:
    """Store a new job."""
    connection.execute(
        insert(jobs).values(
            id=job,
            project=project,
            name=spec.name,
            model_key=spec.model.key,
            spec=spec.document(),
            created_at=now,
        )
    )
    begun = {"phase": Phase.PENDING, "reason": "waiting to start", "search": "", "diverged": False}
    connection.execute(insert(outcomes).values(job=job, **begun))


def find(connection: Connection, job: str) -> Job | None:
    """Return one job, or None if there is none of that id."""
    row = connection.execute(joined().where(jobs.c.id == job)).first()
    return None if row is None else to_job(row)


def project_of(connection: Connection, job: str) -> str | None:
    """Return the project of a job, or None if there is none of that id."""
    return connection.execute(select(jobs.c.project).where(jobs.c.id == job)).scalar()


def newest(
    connection: Connection,
    before: tuple[datetime, str] | None,
    limit: int,
    project: str = EVERY_PROJECT,
    wanted: str | None = None,
) -> list[Job]:
    """Return jobs of a project newest first, from below a position.

    Args:
        connection: The database.
        before: Position of the last job that is not wanted any more.
        limit: The most jobs to return.
        project: Their project, or every one.
        wanted: What their id begins or ends with, or their name begins with; None for all.
    """
    query = joined().order_by(jobs.c.created_at.desc(), jobs.c.id.desc()).limit(limit)
    if project != EVERY_PROJECT:
        query = query.where(jobs.c.project == project)
    if wanted is not None:
        query = query.where(goes_by(wanted))
    if before is not None:
        query = query.where(tuple_(jobs.c.created_at, jobs.c.id) < before)
    return [to_job(row) for row in connection.execute(query)]


def goes_by(text: str) -> ColumnElement[bool]:
    """Tell of a job whether its id begins or ends with a text, or its name begins with it."""
    if not (text.isascii() and text.isprintable()):
        return false()  # no id and no name holds such a character, and Postgres not every one
    return or_(
        jobs.c.id.startswith(text, autoescape=True),
        jobs.c.id.startswith(f"{PREFIX}{text}", autoescape=True),
        jobs.c.id.endswith(text, autoescape=True),
        jobs.c.name.startswith(text, autoescape=True),
    )


def unfinished(connection: Connection, most: int) -> list[Job]:
    """Return the jobs that go on, newest first, and no more than so many."""
    final = [phase for phase in Phase if phase.is_final]
    query = joined().where(outcomes.c.phase.not_in(final))
    ordered = query.order_by(jobs.c.created_at.desc(), jobs.c.id.desc()).limit(most)
    return [to_job(row) for row in connection.execute(ordered)]


def needing_attention(connection: Connection) -> Sequence[str]:
    """Return the ids of jobs that are not final, or that still have a machine."""
    final = [phase for phase in Phase if phase.is_final]
    unfinished = select(outcomes.c.job).where(outcomes.c.phase.not_in(final))
    with_vms = select(vms.c.job).where(vms.c.state != "gone")
    return connection.execute(unfinished.union(with_vms)).scalars().all()


def hold(connection: Connection, job: str) -> None:
    """Let nobody act for a job, or begin to, before this transaction ends."""
    # The lease first: who acts holds it when writing rows that refer to the job.
    connection.execute(select(leases.c.job).where(leases.c.job == job).with_for_update())
    connection.execute(select(jobs.c.id).where(jobs.c.id == job).with_for_update())


def request_cancel(connection: Connection, job: str, now: datetime) -> None:
    """Wish a job to end; the reconciler does it."""
    connection.execute(
        update(jobs)
        .where(jobs.c.id == job, jobs.c.cancel_requested_at.is_(None))
        .values(cancel_requested_at=now)
    )


def change_outcome(connection: Connection, job: str, **values: object) -> None:
    """Write what became of a job."""
    for name in ("chosen", "advised"):
        config = values.get(name)
        if isinstance(config, ClusterConfig):
            values[name] = asdict(config)
    connection.execute(update(outcomes).where(outcomes.c.job == job).values(**values))


def joined() -> Select[Any]:
    """Select jobs with their outcomes."""
    return select(jobs, outcomes).join(outcomes, outcomes.c.job == jobs.c.id)


def to_job(row: Row[Any]) -> Job:
    """Turn a joined row into a Job."""
    return Job(
        id=row.id,
        name=row.name,
        spec=validate_job(row.spec),
        created_at=row.created_at,
        cancel_requested_at=row.cancel_requested_at,
        phase=Phase(row.phase),
        reason=row.reason,
        search=row.search,
        chosen=None if row.chosen is None else ClusterConfig(**row.chosen),
        choice=row.choice,
        advised=None if row.advised is None else ClusterConfig(**row.advised),
        advice=row.advice,
        worker_exit_code=row.worker_exit_code,
        epochs_to_target=row.epochs_to_target,
        finished_at=row.finished_at,
        project=row.project,
        waiting=row.waiting,
        diverged=row.diverged,
    )
