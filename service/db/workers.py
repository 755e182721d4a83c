"""Workers as they last reported themselves, and which process each machine's token was given to."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import sha256
from typing import Any

from pydantic import TypeAdapter
from sqlalchemy import Connection, Row, case, func, select, update
from sqlalchemy.dialects.postgresql import insert

from scavenger.protocol import Hello, NotFinite
from service.db.jobs import group_by_job
from service.db.schema import FINAL_PHASES, enrolments, outcomes, workers

NOT_FINITE_VALUES = TypeAdapter(dict[str, NotFinite])
FRESH_PROCESS = {"generation": 0, "broken": None, "refused": None, "finished": None}


@dataclass(frozen=True, slots=True)
class WorkerRow:
    """Where one worker stands, as it last said itself.

    Attributes:
        broken: Generation whose collective failed for it; None while all is well.
        refused: Generation it could not prepare as leader.
        finished: Why its training ended; None while it runs.
        not_finite: What it logged that was NaN or infinite.
        framework: What trains, as it said; empty while it has not.
    """

    worker: str
    job: str
    address: str
    generation: int
    iteration: int
    samples: int
    epochs: float
    metrics: dict[str, float]
    broken: int | None
    refused: int | None
    finished: str | None
    next_sequence: int
    hello_at: datetime
    seen_at: datetime
    dropped: int = 0
    rejected: int = 0
    not_finite: dict[str, NotFinite] = field(default_factory=dict)
    framework: str = ""

    @property
    def is_up(self) -> bool:
        """Whether its process runs, as far as known: one that starts again has no address yet."""
        return self.address != ""


def last_reports(connection: Connection) -> Mapping[str, datetime]:
    """Return when a worker of each unfinished job reported last; jobs without any are left out."""
    is_unfinished = outcomes.c.phase.not_in(FINAL_PHASES)
    query = (
        select(workers.c.job, func.max(workers.c.seen_at))
        .join(outcomes, outcomes.c.job == workers.c.job)
        .where(is_unfinished)
        .group_by(workers.c.job)
    )
    return {str(job): seen_at for job, seen_at in connection.execute(query)}


def of_job(connection: Connection, job: str) -> tuple[WorkerRow, ...]:
    """Return the workers of a job in the order they said hello."""
    return of_jobs(connection, [job])[job]


def of_jobs(connection: Connection, wanted: Collection[str]) -> Mapping[str, tuple[WorkerRow, ...]]:
    """Return the workers of these jobs, by job, in the order they said hello."""
    query = select(workers).where(workers.c.job.in_(wanted))
    ordered = query.order_by(workers.c.hello_at, workers.c.worker)
    return group_by_job(wanted, map(worker_of_row, connection.execute(ordered)))


def worker_of_row(row: Row[Any]) -> WorkerRow:
    """Turn a row into a Worker."""
    facts = dict(row._mapping)
    if facts["not_finite"]:
        facts["not_finite"] = NOT_FINITE_VALUES.validate_python(facts["not_finite"])
    return WorkerRow(**facts)


def lock(connection: Connection, worker: str) -> WorkerRow | None:
    """Return a worker, and hold its row until the transaction ends; None before its hello."""
    query = select(workers).where(workers.c.worker == worker).with_for_update()
    row = connection.execute(query).one_or_none()
    return None if row is None else worker_of_row(row)


def address_of(connection: Connection, worker: str) -> str | None:
    """Return the address a worker or server said last; None before its hello."""
    query = select(workers.c.address).where(workers.c.worker == worker)
    return connection.execute(query).scalar()


def record_hello(connection: Connection, job: str, hello: Hello, now: datetime) -> int:
    """Note a worker that is up; returns the sequence expected from it next.

    One that comes with another address is a new process, which has nothing of the state before.
    """
    nothing = {"generation": 0, "iteration": 0, "samples": 0, "epochs": 0.0}
    row: dict[str, Any] = {
        "worker": hello.worker,
        "job": job,
        "address": hello.address,
        "next_sequence": 0,
        "dropped": 0,
        "rejected": 0,
        "framework": hello.framework,
        "hello_at": now,
        "seen_at": now,
        "metrics": {},
        "not_finite": {},
        **nothing,
    }
    # The next sequence stays as it is: the spool outlives a process, and so do its numbers.
    is_same = workers.c.address == hello.address
    anew = {"hello_at": now, **FRESH_PROCESS}
    again: dict[str, Any] = {"address": hello.address, "seen_at": now}
    if hello.framework:  # the supervisor, which sends the rows of a dead process, knows none
        again["framework"] = hello.framework
    for name, value in anew.items():
        again[name] = case((is_same, workers.c[name]), else_=value)
    query = insert(workers).values(row).on_conflict_do_update(index_elements=["worker"], set_=again)
    return int(connection.execute(query.returning(workers.c.next_sequence)).scalar_one())


def record_restart(connection: Connection, worker: str, now: datetime) -> None:
    """Note that a worker's process is gone and a new one will say hello, unless it has by now."""
    query = update(workers).where(workers.c.worker == worker, workers.c.hello_at <= now)
    connection.execute(query.values(address="", seen_at=now, **FRESH_PROCESS))


def record_enrolment(connection: Connection, worker: str, nonce: str, now: datetime) -> bool:
    """Store the nonce a machine enrolled with; False if another nonce is stored already."""
    digest = sha256(nonce.encode()).hexdigest()
    row = {"worker": worker, "nonce_digest": digest, "at": now}
    connection.execute(insert(enrolments).values(row).on_conflict_do_nothing())
    query = select(enrolments.c.nonce_digest).where(enrolments.c.worker == worker)
    return bool(connection.execute(query).scalar_one() == digest)
