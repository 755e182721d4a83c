"""The readings table: what the target's metric was at which progress, as a thin learning curve."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from sqlalchemy import Connection, insert, select

from scavenger.protocol import Progress, StopAtMetric
from service.db.grouping import by_job
from service.db.schema import readings

# Either is enough for a new reading: a share of the longest run, or of what was trained so far.
SHARE_OF_ALL = 0.01
SHARE_OF_PAST = 0.05


def note(connection: Connection, job: str, stop: StopAtMetric, progress: Progress) -> None:
    """Store the target's metric where it is new and training has moved on since the last reading.

    A report repeats the last value until the script logs another, so an equal one is no news.

    Args:
        connection: Where to.
        job: Whose.
        stop: Which metric, and how long a run may get.
        progress: Where the leader stands.
    """
    value, odd = progress.metrics.get(stop.metric), progress.not_finite.get(stop.metric)
    is_past = odd is not None and odd.since is not None  # a later one was NaN
    if value is None or is_past or progress.epochs <= 0:
        return
    query = select(readings.c.epochs, readings.c.value).where(readings.c.job == job)
    last = connection.execute(query.order_by(readings.c.epochs.desc()).limit(1)).first()
    if last is not None:
        step = min(SHARE_OF_ALL * stop.max_progress, SHARE_OF_PAST * last.epochs)
        if value == last.value or progress.epochs < last.epochs + step:
            return
    connection.execute(insert(readings).values(job=job, epochs=progress.epochs, value=value))


def of_job(connection: Connection, job: str) -> tuple[tuple[float, float], ...]:
    """Return reference epochs and value of every reading of a job, ascending."""
    return of_jobs(connection, [job])[job]


def of_jobs(
    connection: Connection, wanted: Collection[str]
) -> Mapping[str, tuple[tuple[float, float], ...]]:
    """Return reference epochs and value of every reading of these jobs, by job, ascending."""
    query = select(readings).where(readings.c.job.in_(wanted)).order_by(readings.c.epochs)
    rows = by_job(wanted, connection.execute(query))
    return {job: tuple((row.epochs, row.value) for row in own) for job, own in rows.items()}
