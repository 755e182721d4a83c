"""What the commands of machines printed: the newest lines of each job.

Numbers grow in the order in which lines become visible: lines of one job are stored one batch after
the other. A reader that has seen a number has missed none below it.
"""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import ColumnElement, Connection, delete, func, select
from sqlalchemy.dialects.postgresql import insert

from scavenger.protocol import LogBatch
from scavenger.schemas.telemetry import LogLineView
from service.db.schema import FINAL_PHASES, log_counts, log_lines, outcomes, vms

MAX_LINES_KEPT = 20_000  # of a job
LINES_BETWEEN_CUTS = 1000  # of a machine, since finding what is too old takes a while
LOG_LOCK = 0x10C5


def store_lines(connection: Connection, job: str, batch: LogBatch) -> None:
    """Store lines of a machine, each once, and drop the oldest of its job if there are too many."""
    # Until the transaction ends: numbers are drawn as rows are inserted, not as they are committed.
    key = func.hashtextextended(job, LOG_LOCK)
    connection.execute(select(func.pg_advisory_xact_lock(key)))
    if batch.lines:
        rows = [
            {
                "job": job,
                "worker": batch.worker,
                "line": each.number,
                "at": each.at,
                "text": each.text,
            }
            for each in batch.lines
        ]
        connection.execute(insert(log_lines).values(rows).on_conflict_do_nothing())
    counted = insert(log_counts).values(worker=batch.worker, job=job, printed=batch.printed)
    most = func.greatest(log_counts.c.printed, counted.excluded.printed)
    connection.execute(
        counted.on_conflict_do_update(index_elements=["worker"], set_={"printed": most})
    )
    numbers = {each.number // LINES_BETWEEN_CUTS for each in batch.lines}
    if len(numbers) > 1:
        drop_oldest(connection, job, MAX_LINES_KEPT)


def drop_oldest(connection: Connection, job: str, most: int) -> None:
    """Drop the oldest lines of a job beyond so many."""
    first = number_before_tail(connection, job, most)
    own = (log_lines.c.job == job, log_lines.c.number <= first)
    connection.execute(delete(log_lines).where(*own))


def number_before_tail(
    connection: Connection, job: str, tail: int, machine: str | None = None
) -> int:
    """Return the number of the line before the last so many; 0 where there are no more."""
    query = (
        select(log_lines.c.number)
        .where(*lines_of(job, machine))
        .order_by(log_lines.c.number.desc())
        .offset(tail)
    )
    return connection.execute(query.limit(1)).scalar() or 0


def lines_after(
    connection: Connection, job: str, after: int, limit: int, machine: str | None = None
) -> list[LogLineView]:
    """Return lines of a job after a number, oldest first."""
    query = (
        select(
            log_lines.c.number,
            log_lines.c.worker.label("machine"),
            vms.c.role,
            log_lines.c.at,
            log_lines.c.text,
        )
        .join(vms, vms.c.id == log_lines.c.worker)
        .where(*lines_of(job, machine), log_lines.c.number > after)
        .order_by(log_lines.c.number)
    )
    return [LogLineView.model_validate(row) for row in connection.execute(query.limit(limit))]


def count_dropped(connection: Connection, job: str, machine: str | None = None) -> int:
    """Return how many lines were printed that are not kept here."""
    counts = select(func.coalesce(func.sum(log_counts.c.printed), 0)).where(log_counts.c.job == job)
    if machine is not None:
        counts = counts.where(log_counts.c.worker == machine)
    kept = select(func.count()).select_from(log_lines).where(*lines_of(job, machine))
    printed = int(connection.execute(counts).scalar_one())
    return max(printed - connection.execute(kept).scalar_one(), 0)


def lines_of(job: str, machine: str | None) -> list[ColumnElement[bool]]:
    """Return what holds of the lines of a job, or of one machine of it."""
    own = [log_lines.c.job == job]
    return own if machine is None else [*own, log_lines.c.worker == machine]


def delete_of_ended_jobs(connection: Connection, before: datetime) -> int:
    """Drop the lines of jobs that ended before a moment; returns how many."""
    ended = select(outcomes.c.job).where(
        outcomes.c.phase.in_(FINAL_PHASES), outcomes.c.finished_at < before
    )
    return connection.execute(delete(log_lines).where(log_lines.c.job.in_(ended))).rowcount
