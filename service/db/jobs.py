"""Jobs: what was asked for, what became of it, and its events.

Triggers number events at the commit (ADR 31), over all jobs, in the order in which they become
visible: a reader that has seen a number has missed none below it.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import datetime
from functools import lru_cache
from itertools import chain
from typing import Any, Protocol, TypeVar

from sqlalchemy import (
    ColumnElement,
    Connection,
    Row,
    Select,
    false,
    func,
    insert,
    null,
    or_,
    select,
    tuple_,
    update,
)

from scavenger.cluster import ClusterConfig
from scavenger.job.spec import JobSpec
from scavenger.job.validation import validate_job
from scavenger.schemas.events import EventView
from scavenger.schemas.jobs import JobPhase
from service.auth.permissions import EVERY_PROJECT, FIRST_PROJECT
from service.db.schema import FINAL_PHASES, events, jobs, leases, outcomes, vms


class JobRow(Protocol):
    """A row that belongs to a job."""

    @property
    def job(self) -> str:
        """Its job."""


JobRowT = TypeVar("JobRowT", bound=JobRow)


def group_by_job(
    wanted: Collection[str], rows: Iterable[JobRowT]
) -> Mapping[str, tuple[JobRowT, ...]]:
    """Return rows by their job, in their order; jobs without any are there, too."""
    found: dict[str, list[JobRowT]] = {job: [] for job in wanted}
    for row in rows:
        found[row.job].append(row)
    return {job: tuple(own) for job, own in found.items()}


JOB_ID_PREFIX = "job_"  # of every id; it may be left out where a job is looked for


@dataclass(frozen=True, slots=True)
class StoredJob:
    """A job as stored: what was submitted, and its outcome so far.

    Attributes:
        search: What the search does or did, in one sentence.
        chosen: The configuration to train on; None until decided.
        choice: Why it was chosen.
        advised: The configuration the job would do better with, while it is only advised.
        advice: Why.
        epochs_to_target: Reference epochs the target took, once reached.
        waiting: What keeps it from going on, and until when; None while nothing does.
        diverged: Whether its loss or its target's metric was not finite in the end.
        budget_told: Percent of its cap that its events say is spent.
        framework: What its workers train with, as they said; empty while none has.
    """

    id: str
    name: str
    spec: JobSpec
    created_at: datetime
    cancel_requested_at: datetime | None
    phase: JobPhase
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
    budget_told: int = 0
    framework: str = ""

    @property
    def is_ended_or_ending(self) -> bool:
        """Whether it has ended or is being cancelled: no further machine is started or paid."""
        return self.phase.is_final or self.cancel_requested_at is not None


JOB_CHANGES_CHANNEL = "scavenger_news"
EVENTS_CHANNEL = "scavenger_events"  # on which a trigger announces each commit with events


def notify_job_changed(connection: Connection, job: str) -> None:
    """Notify every controller that a job changed, as soon as this transaction is committed.

    The database delivers what was committed, and nothing else: a controller that is killed between
    its commit and a message of its own would leave the job at rest.
    """
    connection.execute(select(func.pg_notify(JOB_CHANGES_CHANNEL, job)))


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
    begun = {
        "phase": JobPhase.PENDING,
        "reason": "waiting to start",
        "search": "",
        "diverged": False,
        "budget_told": 0,
    }
    connection.execute(insert(outcomes).values(job=job, **begun))
    notify_job_changed(connection, job)


def find(connection: Connection, job: str) -> StoredJob | None:
    """Return one job, or None if there is none of that id."""
    row = connection.execute(select_jobs().where(jobs.c.id == job)).first()
    return None if row is None else job_of_row(row)


def has_ended(connection: Connection, job: str) -> bool:
    """Tell whether a job has ended, or is not there."""
    query = select(outcomes.c.phase).where(outcomes.c.job == job)
    phase = connection.execute(query).scalar()
    return phase is None or JobPhase(phase).is_final


def project_of(connection: Connection, job: str) -> str | None:
    """Return the project of a job, or None if there is none of that id."""
    return connection.execute(select(jobs.c.project).where(jobs.c.id == job)).scalar()


@dataclass(frozen=True, slots=True)
class JobFilter:
    """Which jobs a list shows; what is None or empty leaves out none.

    Attributes:
        text: What their id begins or ends with, or their name begins with.
        phases: Their phases.
        model: The key of their model.
        project: Their project, where the reader sees several.
        since: When they were submitted at the earliest.
    """

    text: str | None = None
    phases: tuple[JobPhase, ...] = ()
    model: str | None = None
    project: str | None = None
    since: datetime | None = None

    def conditions(self) -> Iterator[ColumnElement[bool]]:
        """Yield what must hold of a job."""
        if self.text is not None:
            yield matches_text(self.text)
        if self.phases:
            yield outcomes.c.phase.in_(self.phases)
        if self.since is not None:
            yield jobs.c.created_at >= self.since
        for column, wanted in ((jobs.c.model_key, self.model), (jobs.c.project, self.project)):
            if wanted is not None:
                yield column == wanted if "\0" not in wanted else false()


ALL_JOBS = JobFilter()


def newest(
    connection: Connection,
    before: tuple[datetime, str] | None,
    limit: int,
    project: str = EVERY_PROJECT,
    wanted: JobFilter = ALL_JOBS,
) -> list[StoredJob]:
    """Return jobs of a project newest first, from below a position.

    Args:
        connection: The database.
        before: Position of the last job that is not wanted any more.
        limit: The most jobs to return.
        project: The project of the reader, or every one.
        wanted: Which of them.
    """
    query = select_jobs().order_by(jobs.c.created_at.desc(), jobs.c.id.desc()).limit(limit)
    query = query.where(*wanted.conditions())
    if project != EVERY_PROJECT:
        query = query.where(jobs.c.project == project)
    if before is not None:
        # As one row value, which the index answers however deep the page lies.
        query = query.where(tuple_(jobs.c.created_at, jobs.c.id) < before)
    return [job_of_row(row) for row in connection.execute(query)]


def matches_text(text: str) -> ColumnElement[bool]:
    """Tell of a job whether its id begins or ends with a text, or its name begins with it."""
    if not (text.isascii() and text.isprintable()):
        return false()  # no id and no name holds such a character, and Postgres not every one
    return or_(
        jobs.c.id.startswith(text, autoescape=True),
        jobs.c.id.startswith(f"{JOB_ID_PREFIX}{text}", autoescape=True),
        jobs.c.id.endswith(text, autoescape=True),
        jobs.c.name.startswith(text, autoescape=True),
    )


def unfinished(connection: Connection, most: int) -> list[StoredJob]:
    """Return the jobs that go on, newest first, and no more than so many."""
    query = select_jobs().where(outcomes.c.phase.not_in(FINAL_PHASES))
    ordered = query.order_by(jobs.c.created_at.desc(), jobs.c.id.desc()).limit(most)
    return [job_of_row(row) for row in connection.execute(ordered)]


def has_unfinished_without_cloud(connection: Connection) -> bool:
    """Whether a job that names no cloud is unfinished: it was submitted for this computer only."""
    query = (
        select(jobs.c.id)
        .join(outcomes, outcomes.c.job == jobs.c.id)
        .where(outcomes.c.phase.not_in(FINAL_PHASES), jobs.c.spec["machine"].is_(None))
    )
    return connection.execute(query.limit(1)).first() is not None


def to_reconcile(connection: Connection) -> Sequence[str]:
    """Return the ids of jobs that still have a machine, which costs, then of others not final."""
    with_vms = select(vms.c.job).where(vms.c.state != "gone")
    unfinished = select(outcomes.c.job).where(outcomes.c.phase.not_in(FINAL_PHASES))
    found = (connection.execute(query).scalars() for query in (with_vms, unfinished))
    return list(dict.fromkeys(chain.from_iterable(found)))


def lock_for_change(connection: Connection, job: str) -> None:
    """Keep every controller from acting for a job until this transaction ends."""
    # The lease first: who acts holds it when writing rows that refer to the job.
    connection.execute(select(leases.c.job).where(leases.c.job == job).with_for_update())
    connection.execute(select(jobs.c.id).where(jobs.c.id == job).with_for_update())


def request_cancel(connection: Connection, job: str, now: datetime) -> None:
    """Request that a job ends; the reconciler ends it."""
    connection.execute(
        update(jobs)
        .where(jobs.c.id == job, jobs.c.cancel_requested_at.is_(None))
        .values(cancel_requested_at=now)
    )
    notify_job_changed(connection, job)


def change_outcome(connection: Connection, job: str, **values: object) -> None:
    """Write what became of a job."""
    for name in ("chosen", "advised"):
        config = values.get(name)
        if isinstance(config, ClusterConfig):
            values[name] = asdict(config)
        elif name in values:
            values[name] = null()  # None alone would be stored as JSON's null
    connection.execute(update(outcomes).where(outcomes.c.job == job).values(**values))


def select_jobs() -> Select[Any]:
    """Select jobs with their outcomes."""
    return select(jobs, outcomes).join(outcomes, outcomes.c.job == jobs.c.id)


def job_of_row(row: Row[Any]) -> StoredJob:
    """Turn a joined row into a Job."""
    stored = {field.name: getattr(row, field.name) for field in fields(StoredJob)}
    for name in ("chosen", "advised"):
        if stored[name] is not None:
            stored[name] = ClusterConfig(**stored[name])
    return StoredJob(
        **stored | {"spec": stored_spec(json.dumps(row.spec)), "phase": JobPhase(row.phase)}
    )


@lru_cache(maxsize=4096)  # every tick and page reads it, and it never changes once it is stored
def stored_spec(document: str) -> JobSpec:
    """Return the job of a document that was accepted when it was submitted."""
    return validate_job(json.loads(document))


def record_event(
    connection: Connection,
    job: str,
    now: datetime,
    kind: str,
    message: str,
    data: Mapping[str, object] | None = None,
) -> None:
    """Record a sentence, in the transaction of what it tells about."""
    row = {"job": job, "at": now, "kind": kind, "message": message, "data": dict(data or {})}
    connection.execute(insert(events).values(row))


def events_after(
    connection: Connection,
    job: str | None,
    after: int,
    limit: int,
    *,
    project: str = EVERY_PROJECT,
    kinds: Collection[str] = (),
    is_newest: bool = False,
) -> list[EventView]:
    """Return events after a sequence number, oldest first.

    Args:
        connection: The database.
        job: Whose events; None for those of all jobs.
        after: The number, not below 0: what has no number yet is below.
        limit: The most events to return.
        project: Of which project, or every one.
        kinds: Of which kinds; empty for all.
        is_newest: Whether the last of them are meant, and not the first.
    """
    order = events.c.sequence.desc() if is_newest else events.c.sequence
    query = select(events).where(events.c.sequence > after).order_by(order)
    if job is not None:
        query = query.where(events.c.job == job)
    if project != EVERY_PROJECT:
        query = query.join(jobs, jobs.c.id == events.c.job).where(jobs.c.project == project)
    if kinds:
        query = query.where(events.c.kind.in_(kinds))
    found = [EventView.model_validate(row) for row in connection.execute(query.limit(limit))]
    return found[::-1] if is_newest else found


@dataclass(frozen=True, slots=True)
class ToldEvent:
    """An event, and the project that may know of it."""

    view: EventView
    project: str


def told_after(connection: Connection, after: int, limit: int) -> list[ToldEvent]:
    """Return the events of all projects after a sequence number, oldest first."""
    query = select(events, jobs.c.project).join(jobs, jobs.c.id == events.c.job)
    ordered = query.where(events.c.sequence > after).order_by(events.c.sequence).limit(limit)
    return [
        ToldEvent(EventView.model_validate(row), row.project) for row in connection.execute(ordered)
    ]


def newest_event_number(connection: Connection) -> int:
    """Return the number of the last event, 0 before the first; all below it are visible, too."""
    found = connection.execute(select(func.max(events.c.sequence))).scalar()
    return max(found or 0, 0)
