"""The chunks table: measured iterations, packed, as they came."""

from __future__ import annotations

from sqlalchemy import Connection, select

from scavenger.profiling import joined
from scavenger.protocol import StepColumns
from service.db.batch import columns_of
from service.db.packing import unpack
from service.db.schema import chunks


def steps_of(
    connection: Connection, job: str, generation: int, most: int | None = None
) -> StepColumns:
    """Return the newest measured iterations of a generation, of so many reports, in order."""
    query = (
        select(chunks.c.columns)
        .where(chunks.c.job == job, chunks.c.generation == generation)
        .order_by(chunks.c.received_at.desc(), chunks.c.sequence.desc())
        .limit(most)
    )
    found = connection.execute(query).scalars().all()
    return joined([columns_of(unpack(content)) for content in reversed(found)])
