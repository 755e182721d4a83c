"""Chunks of measured iterations of a whole job, for its charts."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, select

from service.db.schema import chunks


@dataclass(frozen=True, slots=True)
class StoredChunk:
    """A report of measured iterations, packed.

    Attributes:
        received: When it arrived, in seconds since 1970.
        rows: How many iterations it has.
        columns: As `service.db.step_arrays` packs them.
    """

    worker: str
    generation: int
    received: float
    rows: int
    columns: bytes


def newest_chunks(
    connection: Connection, job: str, since: datetime, until: datetime, most: int
) -> list[StoredChunk]:
    """Return the reports of a job that arrived in a span, by worker and in the order of sending.

    Args:
        connection: Where from.
        job: Whose.
        since: The earliest.
        until: The latest.
        most: Iterations; of more, those that arrived first are left out.
    """
    listed = select(chunks.c.received_at, chunks.c.rows).where(
        chunks.c.job == job, chunks.c.received_at.between(since, until)
    )
    total = 0
    for received_at, rows in connection.execute(listed.order_by(chunks.c.received_at.desc())):
        total += rows
        if total > most:
            since = received_at
            break
    query = select(
        chunks.c.worker,
        chunks.c.generation,
        chunks.c.received_at,
        chunks.c.rows,
        chunks.c.columns,
    ).where(chunks.c.job == job, chunks.c.received_at.between(since, until))
    ordered = query.order_by(chunks.c.worker, chunks.c.sequence)
    return [
        StoredChunk(worker, generation, received_at.timestamp(), rows, columns)
        for worker, generation, received_at, rows, columns in connection.execute(ordered)
    ]
