"""Telemetry of workers: each row is stored once, with everything that follows from it.

A report moves its worker's cursor, updates the worker's row, adds a chunk and notes where its
generation began, all in one statement: one round trip that happens completely or not at all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime

import numpy as np
from sqlalchemy import ColumnElement, Connection, bindparam, select, text, tuple_
from sqlalchemy.dialects.postgresql import JSONB

from scavenger.measurement.steps import StepColumns
from scavenger.protocol import Directive, StepReport
from service.db.directives import DIRECTIVE_ADAPTER
from service.db.schema import chunks, measured_generations
from service.db.step_arrays import BoolArray, StepArrays, pack, to_step_columns, unpack
from service.db.workers import NOT_FINITE_VALUES, WorkerRow


def first_iterations(connection: Connection, job: str) -> dict[int, int]:
    """Return the first measured iteration of each generation that measured any."""
    query = select(measured_generations).where(measured_generations.c.job == job)
    return {row.generation: row.first_iteration for row in connection.execute(query)}


# Postgres runs all parts of one statement on the same snapshot: a report whose cursor does not move
# writes nothing at all. The last part updates a row only for an earlier iteration, so a report in
# order, as nearly all are, leaves it alone.
STORE_ROWS = text("""
WITH moved AS (
    UPDATE workers SET
        next_sequence = :next_sequence,
        dropped = dropped + :dropped,
        rejected = rejected + :rejected,
        generation = :entered,
        iteration = :iteration,
        samples = :samples,
        epochs = :epochs,
        metrics = :metrics,
        not_finite = :not_finite,
        broken = :broken,
        refused = :refused,
        finished = coalesce(:finished, finished),
        seen_at = :now
    WHERE worker = :worker AND next_sequence = :expected
    RETURNING worker, job, rejected
), chunk AS (
    INSERT INTO chunks (worker, sequence, job, generation, rows, columns)
    SELECT worker, :sequence, job, :generation, :rows, :columns FROM moved WHERE :rows > 0
), generation AS (
    INSERT INTO measured_generations AS known (job, generation, first_iteration)
    SELECT job, :generation, :first_iteration FROM moved WHERE :rows > 0
    ON CONFLICT (job, generation) DO UPDATE SET first_iteration = excluded.first_iteration
    WHERE excluded.first_iteration < known.first_iteration
)
SELECT moved.job, moved.rejected, vms.state <> 'gone' AS exists, newest.directive
FROM moved JOIN vms ON vms.id = moved.worker LEFT JOIN LATERAL (
    SELECT directive FROM directives WHERE directives.job = moved.job
    ORDER BY generation DESC LIMIT 1) AS newest ON true
""").bindparams(bindparam("metrics", type_=JSONB), bindparam("not_finite", type_=JSONB))


@dataclass(frozen=True, slots=True)
class NewRows:
    """What is new in a report.

    Attributes:
        expected: Number of the row that follows those stored; any other has been stored, or lost.
        sequence: Number of its first row.
        next_sequence: Number of the row after its last, stored or not.
        generation: Of its rows.
        rejected: Rows of it that cannot be used.
        rows: The others.
        position: Says where the worker is after it.
        dropped: Rows before it that the worker gave up.
    """

    expected: int
    sequence: int
    next_sequence: int
    generation: int
    rejected: int
    rows: StepArrays
    position: StepReport | WorkerRow
    dropped: int = 0


@dataclass(frozen=True, slots=True)
class StoredRows:
    """What the database says once the new rows are stored.

    Attributes:
        job: Whose it is.
        rejected: Rows of the worker that could not be used, so far.
        exists: Whether its machine may still exist.
        directive: The newest Directive of the job; None before the first.
    """

    job: str
    rejected: int
    exists: bool
    directive: Directive | None


def store_rows(connection: Connection, new_rows: NewRows, now: datetime) -> StoredRows | None:
    """Store what is new of a worker; None, and nothing changed, where another row is expected."""
    position = new_rows.position
    progress = position.progress if isinstance(position, StepReport) else position
    row = connection.execute(
        STORE_ROWS,
        {
            "expected": new_rows.expected,
            "worker": position.worker,
            "generation": new_rows.generation,
            "sequence": new_rows.sequence,
            "next_sequence": new_rows.next_sequence,
            "dropped": new_rows.dropped,
            "rejected": new_rows.rejected,
            "rows": len(new_rows.rows),
            "columns": pack(new_rows.rows),
            "entered": progress.generation,
            "iteration": progress.iteration,
            "samples": progress.samples,
            "epochs": progress.epochs,
            "metrics": progress.metrics,
            "not_finite": NOT_FINITE_VALUES.dump_python(progress.not_finite, mode="json"),
            "broken": position.broken,
            "refused": position.refused,
            "finished": position.finished,
            "now": now,
            "first_iteration": int(min(new_rows.rows["iteration"], default=0)),
        },
    ).one_or_none()
    if row is None:
        return None
    directive = None if row.directive is None else DIRECTIVE_ADAPTER.validate_python(row.directive)
    return StoredRows(row.job, row.rejected, row.exists, directive)


REPORTS_PER_PAGE = 16

# A chunk can only be unpacked whole: read the newest ones until there are :enough rows.
NEWEST_CHUNKS = text("""
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
    return _read_steps(connection, chunks.c.job == job, chunks.c.generation == generation)


def losses_before_generation(
    connection: Connection, job: str, generation: int
) -> tuple[float | None, ...]:
    """Return the losses of all measured iterations before a generation, in order."""
    return _read_steps(connection, chunks.c.job == job, chunks.c.generation < generation).loss


def _read_steps(connection: Connection, *wanted: ColumnElement[bool]) -> StepColumns:
    place = (chunks.c.generation, chunks.c.received_at, chunks.c.sequence)
    found = connection.execute(select(chunks.c.columns).where(*wanted).order_by(*place)).scalars()
    return StepColumns.concat([to_step_columns(unpack(content)) for content in found])


def newest_steps_of(
    connection: Connection, generations: Mapping[str, int], most: int, enough: int
) -> Mapping[str, StepColumns]:
    """Return the newest measured iterations of a generation of each job, in order.

    Args:
        connection: Where from.
        generations: Which, by job.
        most: Reports that are read at most, of each job.
        enough: Rows after which no older report is read, and the most of a report.
    """
    asked = {"jobs": list(generations), "generations": list(generations.values())}
    found: dict[str, list[StepColumns]] = {job: [] for job in generations}
    for row in connection.execute(NEWEST_CHUNKS, {**asked, "most": most, "enough": enough}):
        found[row.job].append(to_step_columns(unpack(row.columns).newest(enough)))
    return {job: StepColumns.concat(reports) for job, reports in found.items()}


def noise_steps_of(
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
    found: list[StepArrays] = []
    for rows in newest_reports(connection, job, generation, most):
        found.append(rows.where(has_noise(rows)))
        if sum(map(len, found)) >= enough:
            break
    return StepColumns.concat([to_step_columns(rows) for rows in reversed(found)])


def newest_reports(
    connection: Connection, job: str, generation: int, most: int
) -> Iterator[StepArrays]:
    """Yield the newest reports of a generation, read page by page as they are wanted."""
    place = (chunks.c.received_at, chunks.c.sequence)
    query = (
        select(*place, chunks.c.columns)
        .where(chunks.c.job == job, chunks.c.generation == generation)
        .order_by(*(column.desc() for column in place))
    )
    older = query
    for start in range(0, most, REPORTS_PER_PAGE):
        page = connection.execute(older.limit(min(REPORTS_PER_PAGE, most - start))).all()
        yield from (unpack(row.columns) for row in page)
        if len(page) < REPORTS_PER_PAGE:
            return
        # By position: with an offset, reports that arrive meanwhile would be read twice.
        older = query.where(tuple_(*place) < (page[-1].received_at, page[-1].sequence))


def has_noise(rows: StepArrays) -> BoolArray:
    """Mark the rows with norms over more than one shard."""
    is_finite = np.isfinite(rows["local_norm_sq"]) & np.isfinite(rows["mean_norm_sq"])
    return (rows["shards"] > 1) & is_finite
