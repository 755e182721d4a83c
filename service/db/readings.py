"""The readings table: what the target's metric was at which progress, as a thin learning curve."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from sqlalchemy import Connection, delete, insert, select

from scavenger.protocol import Directive, Progress, StopAtMetric
from service.db import directives
from service.db.grouping import by_job
from service.db.schema import readings
from service.db.vms import lock_job

# Either is enough for a new reading: a share of the longest run, or of what was trained so far.
SHARE_OF_ALL = 0.01
SHARE_OF_PAST = 0.05


def note(connection: Connection, job: str, directive: Directive, progress: Progress) -> None:
    """Store the target's metric where it is new and training has moved on since the last reading.

    A report repeats the last value until the script logs another, so an equal one is no news.

    Args:
        connection: Where to.
        job: Whose.
        directive: What its workers were told last: the metric, and how long a run may get.
        progress: Where the leader stands.
    """
    stop = directive.stop
    if not isinstance(stop, StopAtMetric) or is_outdated(directive, progress):
        return
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
    if directive.is_provisional and not is_newest(connection, job, directive):
        return
    connection.execute(insert(readings).values(job=job, epochs=progress.epochs, value=value))


def is_outdated(directive: Directive, progress: Progress) -> bool:
    """Whether progress may still be counted by noise that had not settled (decision 27)."""
    return directive.correction != 1 and progress.generation < directive.generation


def is_newest(connection: Connection, job: str, directive: Directive) -> bool:
    """Whether a job was told nothing else since; nothing else can be until the transaction ends."""
    lock_job(connection, job)
    told = directives.newest(connection, job)
    return told is None or told[0].generation == directive.generation


def rescale(connection: Connection, job: str, factor: float) -> None:
    """Count the progress of all readings anew, in the transaction that tells the workers to."""
    lock_job(connection, job)
    rows = connection.execute(
        delete(readings).where(readings.c.job == job).returning(readings.c.epochs, readings.c.value)
    ).all()  # not an update: a new figure may be an old one of another row
    if rows:
        scaled = [{"job": job, "epochs": row.epochs * factor, "value": row.value} for row in rows]
        connection.execute(insert(readings), scaled)


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
