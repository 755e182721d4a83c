"""Streams: the rows of each worker in order, each stored once with all that follows from it.

What a worker sent moves its cursor, says where it stands, adds a chunk and is merged into the
statistics, in a single statement: it happens altogether or not at all, in one round trip.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, bindparam, select, text
from sqlalchemy.dialects.postgresql import JSONB

from scavenger.protocol import Directive, Finished, Progress, StepReport
from service.db.batch import Batch
from service.db.directives import DIRECTIVE
from service.db.packing import pack
from service.db.schema import workers
from service.db.statistics import summarise
from service.db.workers import NOT_FINITE

# Its parameters from ``series`` on are what ``summarise`` returns. Postgres refuses a product that
# is too small for its type, so what is next to nothing counts as nothing there.
STORE = text("""
WITH moved AS (
    UPDATE workers SET
        next_sequence = :following,
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
), batch AS (
    SELECT * FROM unnest(
        CAST(:series AS text[]), CAST(:counts AS bigint[]), CAST(:means AS float8[]),
        CAST(:distances AS float8[]), CAST(:fadings AS float8[]), CAST(:lowests AS float8[]),
        CAST(:highests AS float8[]))
), statistic AS (
    INSERT INTO statistics AS known
        (job, generation, series, count, mean, distance, fading, lowest, highest)
    SELECT moved.job, :generation, batch.* FROM moved, batch
    ON CONFLICT (job, generation, series) DO UPDATE SET
        count = known.count + excluded.count,
        (mean, distance) = (
            SELECT known.mean + apart * excluded.count / (known.count + excluded.count),
                known.distance + excluded.distance
                + apart * apart * known.count * excluded.count / (known.count + excluded.count)
            FROM (SELECT CASE WHEN abs(excluded.mean - known.mean) < 1e-100 THEN 0
                ELSE excluded.mean - known.mean END AS apart) AS difference),
        fading = CASE WHEN abs(known.fading) < 1e-100 THEN 0 ELSE known.fading END
            * power(CAST(:fade AS float8), least(excluded.count, :longest_fade)) + excluded.fading,
        lowest = least(known.lowest, excluded.lowest),
        highest = greatest(known.highest, excluded.highest)
)
SELECT moved.job, moved.rejected, vms.state <> 'gone' AS exists, told.directive
FROM moved JOIN vms ON vms.id = moved.worker LEFT JOIN LATERAL (
    SELECT directive FROM directives WHERE directives.job = moved.job
    ORDER BY generation DESC LIMIT 1) AS told ON true
""").bindparams(bindparam("metrics", type_=JSONB), bindparam("not_finite", type_=JSONB))


@dataclass(frozen=True, slots=True)
class Condition:
    """Where a worker stands, as it says itself.

    Attributes:
        broken: Generation whose collective failed for it; None while all is well.
        refused: Generation it could not prepare as leader.
        finished: Why its training ended; None while it runs, and ended training stays so.
    """

    progress: Progress
    broken: int | None
    refused: int | None
    finished: Finished | None

    @classmethod
    def of(cls, report: StepReport) -> Condition:
        """Return where a worker stood when it reported."""
        return cls(report.progress, report.broken, report.refused, report.finished)


@dataclass(frozen=True, slots=True)
class Stream:
    """How far the rows of a worker are known.

    Attributes:
        job: Whose worker it is.
        next_sequence: Number of the row expected next.
        dropped: Gaps so far, in rows, of which the worker said that it gave them up.
        condition: Where it stood last.
    """

    job: str
    next_sequence: int
    dropped: int
    condition: Condition


@dataclass(frozen=True, slots=True)
class Piece:
    """What is new in a report.

    Attributes:
        generation: Of its rows.
        sequence: Number of its first row.
        following: Number of the row after its last, stored or not.
        dropped: Rows before it that the worker gave up.
        rejected: Rows of it that cannot be used.
        batch: The others.
        condition: Where the worker stands after it.
    """

    worker: str
    generation: int
    sequence: int
    following: int
    dropped: int
    rejected: int
    batch: Batch
    condition: Condition


@dataclass(frozen=True, slots=True)
class Stored:
    """What the database says once a piece is stored.

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


def store(connection: Connection, expected: int, piece: Piece, now: datetime) -> Stored | None:
    """Store what is new of a stream; None, and nothing changed, unless this row is expected."""
    condition, progress = piece.condition, piece.condition.progress
    row = connection.execute(
        STORE,
        {
            "expected": expected,
            "worker": piece.worker,
            "generation": piece.generation,
            "sequence": piece.sequence,
            "following": piece.following,
            "dropped": piece.dropped,
            "rejected": piece.rejected,
            "rows": len(piece.batch),
            "columns": pack(piece.batch),
            "entered": progress.generation,
            "iteration": progress.iteration,
            "samples": progress.samples,
            "epochs": progress.epochs,
            "metrics": progress.metrics,
            "not_finite": NOT_FINITE.dump_python(progress.not_finite, mode="json"),
            "broken": condition.broken,
            "refused": condition.refused,
            "finished": condition.finished,
            "now": now,
            **summarise(piece.batch),
        },
    ).one_or_none()
    if row is None:
        return None
    told = None if row.directive is None else DIRECTIVE.validate_python(row.directive)
    return Stored(row.job, row.rejected, row.exists, told)


def hold(connection: Connection, worker: str) -> Stream | None:
    """Return how far a worker's rows are known, and hold its row; None before its hello."""
    query = select(workers).where(workers.c.worker == worker).with_for_update()
    row = connection.execute(query).one_or_none()
    if row is None:
        return None
    odd = NOT_FINITE.validate_python(row.not_finite)
    progress = Progress(row.generation, row.iteration, row.samples, row.epochs, row.metrics, odd)
    condition = Condition(progress, row.broken, row.refused, row.finished)
    return Stream(row.job, row.next_sequence, row.dropped, condition)
