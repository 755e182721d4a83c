"""The chunks table: measured iterations, packed, as they came."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from sqlalchemy import Connection, select, text, tuple_

from scavenger.profiling import joined
from scavenger.protocol import StepColumns
from service.db.batch import NAMES, Batch, Mask, columns_of
from service.db.packing import unpack
from service.db.schema import chunks

PAGE = 16
NORMS = [NAMES.index(name) for name in ("local_norm_sq", "mean_norm_sq")]

# Of a report only as much is read as is needed, and of a packed one that is all or nothing.
NEWEST = text("""
SELECT asked.job, found.columns
FROM unnest(CAST(:jobs AS text[]), CAST(:generations AS bigint[])) AS asked (job, generation),
LATERAL (
    SELECT columns, received_at, sequence,
        sum(rows) OVER (ORDER BY received_at DESC, sequence DESC) - rows AS newer
    FROM (
        SELECT columns, rows, received_at, sequence FROM chunks
        WHERE chunks.job = asked.job AND chunks.generation = asked.generation
        ORDER BY received_at DESC, sequence DESC LIMIT :most) AS newest
) AS found
WHERE found.newer < :enough
ORDER BY asked.job, found.received_at, found.sequence
""")


def steps_of(connection: Connection, job: str, generation: int) -> StepColumns:
    """Return the measured iterations of a generation, in order."""
    query = (
        select(chunks.c.columns)
        .where(chunks.c.job == job, chunks.c.generation == generation)
        .order_by(chunks.c.received_at, chunks.c.sequence)
    )
    found = connection.execute(query).scalars()
    return joined([columns_of(unpack(content)) for content in found])


def losses_before(connection: Connection, job: str, generation: int) -> tuple[float | None, ...]:
    """Return the losses of all measured iterations before a generation, in order."""
    query = (
        select(chunks.c.columns)
        .where(chunks.c.job == job, chunks.c.generation < generation)
        .order_by(chunks.c.generation, chunks.c.received_at, chunks.c.sequence)
    )
    found = connection.execute(query).scalars()
    return joined([columns_of(unpack(content)) for content in found]).loss


def newest_of(
    connection: Connection, generations: Mapping[str, int], most: int, enough: int
) -> Mapping[str, StepColumns]:
    """Return the newest measured iterations of a generation of each job, in order.

    Args:
        connection: Where from.
        generations: Which, by job.
        most: Reports that are read at most, of each job.
        enough: Rows after which no older report is read.
    """
    asked = {"jobs": list(generations), "generations": list(generations.values())}
    found: dict[str, list[StepColumns]] = {job: [] for job in generations}
    for row in connection.execute(NEWEST, {**asked, "most": most, "enough": enough}):
        found[row.job].append(columns_of(unpack(row.columns)))
    return {job: joined(reports) for job, reports in found.items()}


def noise_of(
    connection: Connection, job: str, generation: int, most: int, enough: int
) -> StepColumns:
    """Return the newest iterations of a generation that tell its noise, in order.

    Args:
        connection: Where from.
        job: Whose.
        generation: Which.
        most: Reports that are read at most.
        enough: Rows with noise after which no older report is read.
    """
    found: list[Batch] = []
    for batch in newest_first(connection, job, generation, most):
        found.append(batch.where(carries_noise(batch)))
        if sum(map(len, found)) >= enough:
            break
    return joined([columns_of(batch) for batch in reversed(found)])


def newest_first(connection: Connection, job: str, generation: int, most: int) -> Iterator[Batch]:
    """Yield the newest reports of a generation, read page by page as they are wanted."""
    place = (chunks.c.received_at, chunks.c.sequence)
    query = (
        select(*place, chunks.c.columns)
        .where(chunks.c.job == job, chunks.c.generation == generation)
        .order_by(*(column.desc() for column in place))
    )
    older = query
    for start in range(0, most, PAGE):
        page = connection.execute(older.limit(min(PAGE, most - start))).all()
        yield from (unpack(row.columns) for row in page)
        if len(page) < PAGE:
            return
        older = query.where(tuple_(*place) < (page[-1].received_at, page[-1].sequence))


def carries_noise(batch: Batch) -> Mask:
    """Mark the rows with norms over more than one shard."""
    return (batch.shards > 1) & np.isfinite(batch.series[NORMS]).all(axis=0)
