"""The workers, steps and regroups tables: what the agents say about themselves."""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any

from pydantic import TypeAdapter
from sqlalchemy import Connection, func, select, update
from sqlalchemy.dialects.postgresql import insert

from scavenger.protocol import Hello, Regrouped, StepColumns, StepReport
from service.db.schema import regroups, steps, workers

COLUMNS = TypeAdapter(StepColumns)


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


def of_job(connection: Connection, job: str) -> tuple[Worker, ...]:
    """Return the workers of a job in the order they said hello."""
    query = select(workers).where(workers.c.job == job).order_by(workers.c.hello_at)
    return tuple(Worker(**row) for row in connection.execute(query).mappings())


def greet(connection: Connection, job: str, hello: Hello, now: datetime) -> int:
    """Note a worker that is up; returns the sequence expected from it next."""
    nothing = {"generation": 0, "iteration": 0, "samples": 0, "epochs": 0.0, "metrics": {}}
    row: dict[str, Any] = {
        "worker": hello.worker,
        "job": job,
        "address": hello.address,
        "next_sequence": 0,
        "hello_at": now,
        "seen_at": now,
        **nothing,
    }
    again = {"address": hello.address, "seen_at": now}
    query = insert(workers).values(row).on_conflict_do_update(index_elements=["worker"], set_=again)
    return int(connection.execute(query.returning(workers.c.next_sequence)).scalar_one())


def expected(connection: Connection, worker: str) -> int | None:
    """Return the sequence expected next, and hold the worker's row; None before its hello."""
    query = select(workers.c.next_sequence).where(workers.c.worker == worker).with_for_update()
    return connection.execute(query).scalar()


def note(connection: Connection, report: StepReport, next_sequence: int, now: datetime) -> None:
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
            next_sequence=next_sequence,
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
