"""The workers, steps and regroups tables: what the agents say about themselves."""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any

from pydantic import TypeAdapter
from sqlalchemy import Connection, case, func, select, update
from sqlalchemy.dialects.postgresql import insert

from scavenger.protocol import Hello, Regrouped, StepColumns, StepReport
from service.db.schema import regroups, steps, workers

COLUMNS = TypeAdapter(StepColumns)
STATELESS = {"generation": 0, "broken": None, "refused": None, "finished": None}


@dataclass(frozen=True, slots=True)
class Worker:
    """Where one worker stands, as it last said itself.

    Attributes:
        broken: Generation whose collective failed for it; None while all is well.
        refused: Generation it could not prepare as leader.
        finished: Why its training ended; None while it runs.
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

    @property
    def is_up(self) -> bool:
        """Whether its process runs, as far as known: one that starts again has no address yet."""
        return self.address != ""


@dataclass(frozen=True, slots=True)
class Stream:
    """How far the rows of a worker are known.

    Attributes:
        next_sequence: Number of the row expected next.
        dropped: Gaps so far, in rows, of which the worker said that it gave them up.
    """

    next_sequence: int
    dropped: int


def of_job(connection: Connection, job: str) -> tuple[Worker, ...]:
    """Return the workers of a job in the order they said hello."""
    query = select(workers).where(workers.c.job == job).order_by(workers.c.hello_at)
    return tuple(Worker(**row) for row in connection.execute(query).mappings())


def address_of(connection: Connection, worker: str) -> str | None:
    """Return the address a worker or server said last; None before its hello."""
    query = select(workers.c.address).where(workers.c.worker == worker)
    return connection.execute(query).scalar()


def greet(connection: Connection, job: str, hello: Hello, now: datetime) -> int:
    """Note a worker that is up; returns the sequence expected from it next.

    One that comes with another address is a new process, which has nothing of the state before.
    """
    nothing = {"generation": 0, "iteration": 0, "samples": 0, "epochs": 0.0, "metrics": {}}
    row: dict[str, Any] = {
        "worker": hello.worker,
        "job": job,
        "address": hello.address,
        "next_sequence": 0,
        "dropped": 0,
        "hello_at": now,
        "seen_at": now,
        **nothing,
    }
    is_same = workers.c.address == hello.address
    anew = {"hello_at": now, **STATELESS}
    again: dict[str, Any] = {"address": hello.address, "seen_at": now}
    for name, value in anew.items():
        again[name] = case((is_same, workers.c[name]), else_=value)
    query = insert(workers).values(row).on_conflict_do_update(index_elements=["worker"], set_=again)
    return int(connection.execute(query.returning(workers.c.next_sequence)).scalar_one())


def note_restart(connection: Connection, worker: str, now: datetime) -> None:
    """Note that a worker's process is gone and a new one will say hello, unless it has by now."""
    query = update(workers).where(workers.c.worker == worker, workers.c.hello_at <= now)
    connection.execute(query.values(address="", seen_at=now, **STATELESS))


def stream(connection: Connection, worker: str) -> Stream | None:
    """Return how far a worker's rows are known, and hold its row; None before its hello."""
    query = select(workers.c.next_sequence, workers.c.dropped).where(workers.c.worker == worker)
    row = connection.execute(query.with_for_update()).one_or_none()
    return None if row is None else Stream(*row)


def advance(connection: Connection, worker: str, known: Stream) -> None:
    """Write down how far a worker's rows are known."""
    connection.execute(
        update(workers)
        .where(workers.c.worker == worker)
        .values(next_sequence=known.next_sequence, dropped=known.dropped)
    )


def note(connection: Connection, report: StepReport, now: datetime) -> None:
    """Write down where a worker stands."""
    progress = report.progress
    connection.execute(
        update(workers)
        .where(workers.c.worker == report.worker)
        .values(
            generation=progress.generation,
            iteration=progress.iteration,
            samples=progress.samples,
            epochs=progress.epochs,
            metrics=progress.metrics,
            broken=report.broken,
            refused=report.refused,
            finished=report.finished,
            seen_at=now,
        )
    )


def store_steps(
    connection: Connection, job: str, sequence: int, report: StepReport, columns: StepColumns
) -> None:
    """Store measured iterations, the first of which has this sequence."""
    row = {
        "worker": report.worker,
        "sequence": sequence,
        "job": job,
        "generation": report.progress.generation,
        "columns": COLUMNS.dump_python(columns, mode="json"),
    }
    connection.execute(insert(steps).values(row).on_conflict_do_nothing())


def steps_of(
    connection: Connection, job: str, generation: int, batches: int = 100_000
) -> StepColumns:
    """Return the newest measured iterations of a generation, in order."""
    query = (
        select(steps.c.columns)
        .where(steps.c.job == job, steps.c.generation == generation)
        .order_by(steps.c.sequence.desc())
        .limit(batches)
    )
    found = [COLUMNS.validate_python(row) for row in connection.execute(query).scalars()][::-1]
    names = [field.name for field in fields(StepColumns)]
    return StepColumns(*(tuple(v for part in found for v in getattr(part, n)) for n in names))


def first_iterations(connection: Connection, job: str) -> dict[int, int]:
    """Return the first measured iteration of each generation that measured any."""
    first = func.min(steps.c.columns["iteration"][0].as_integer())
    query = select(steps.c.generation, first).where(steps.c.job == job)
    rows = connection.execute(query.group_by(steps.c.generation))
    return {generation: number for generation, number in rows if number is not None}


def note_regroup(connection: Connection, job: str, regrouped: Regrouped, now: datetime) -> bool:
    """Store how long a change took; False when it is known already."""
    row = {
        "job": job,
        "generation": regrouped.generation,
        "pause": regrouped.pause,
        "iterations_lost": regrouped.iterations_lost,
        "at": now,
    }
    query = insert(regroups).values(row).on_conflict_do_nothing()
    return connection.execute(query).rowcount == 1
