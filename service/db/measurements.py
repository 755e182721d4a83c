"""What a job has measured: settled probes, metric readings, noise drifts, values not finite."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, fields
from datetime import datetime
from decimal import Decimal
from typing import Any
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, Engine, Row, delete, func, select
from sqlalchemy.dialects.postgresql import distinct_on, insert

from scavenger.cluster import ClusterConfig
from scavenger.layout import Layout
from scavenger.measurement.profiling import Observation, ScalingIndicators
from scavenger.protocol import Directive, NotFinite, Progress, StopAtMetric
from scavenger.stack import MAX_REFUSAL_LENGTH, Stack, StackCheck
from service.db import directives
from service.db.jobs import group_by_job
from service.db.schema import divergences, drifts, observations, readings, stack_checks
from service.db.vms import lock_job


@dataclass(frozen=True, slots=True)
class SettledProbe:
    """A settled probe and its price.

    Attributes:
        seconds: Time spent on this configuration to learn it.
        cost: Dollars spent meanwhile.
    """

    observation: Observation
    seconds: float
    cost: Decimal
    settled_at: datetime


def record_probe(connection: Connection, job: str, probe: SettledProbe) -> None:
    """Store a settled probe; the first of its kind of a configuration counts."""
    config, indicators = probe.observation.config, probe.observation.indicators
    row = {
        "job": job,
        "workers": config.workers,
        "global_batch": config.global_batch,
        "stack": config.stack,
        "has_settled_noise": probe.observation.has_settled_noise,
        "noise": indicators.noise,
        "noise_scale": indicators.noise_scale,
        "compute_time": indicators.compute_time,
        "sync_time": indicators.sync_time,
        "iterations": probe.observation.iterations,
        "seconds": probe.seconds,
        "cost": probe.cost,
        "settled_at": probe.settled_at,
    }
    connection.execute(insert(observations).values(row).on_conflict_do_nothing())


def probes_of_jobs(
    connection: Connection, wanted: Collection[str]
) -> Mapping[str, tuple[SettledProbe, ...]]:
    """Return the probes of these jobs, by job, in the order they settled."""
    query = select(observations).where(observations.c.job.in_(wanted))
    rows = group_by_job(wanted, connection.execute(query.order_by(observations.c.settled_at)))
    return {job: tuple(map(probe_of_row, own)) for job, own in rows.items()}


def probe_of_row(row: Row[Any]) -> SettledProbe:
    """Turn a row into a Probe."""
    return SettledProbe(
        Observation(
            ClusterConfig(row.workers, row.global_batch, stack=row.stack),
            ScalingIndicators(row.noise, row.noise_scale, row.compute_time, row.sync_time),
            row.iterations,
            row.has_settled_noise,
        ),
        row.seconds,
        row.cost,
        row.settled_at,
    )


# Either is enough for a new reading: a share of the longest run, or of what was trained so far.
MIN_STEP_OF_LONGEST_RUN = 0.01
MIN_STEP_OF_PAST = 0.05


def record_reading(
    connection: Connection, job: str, directive: Directive, progress: Progress
) -> None:
    """Store the target's metric where it is new and training has moved on since the last reading.

    A report repeats the last value until the script logs another, so an equal one is no news.

    Args:
        connection: Where to.
        job: Whose.
        directive: What its workers were told last: the metric, and how long a run may get.
        progress: Where the leader stands.
    """
    stop = directive.stop
    if not isinstance(stop, StopAtMetric) or is_progress_outdated(directive, progress):
        return
    value, odd = progress.metrics.get(stop.metric), progress.not_finite.get(stop.metric)
    is_past = odd is not None and odd.since is not None  # a later one was NaN
    if value is None or is_past or progress.epochs <= 0:
        return
    query = select(readings.c.epochs, readings.c.value).where(readings.c.job == job)
    last = connection.execute(query.order_by(readings.c.epochs.desc()).limit(1)).first()
    if last is not None:
        step = min(MIN_STEP_OF_LONGEST_RUN * stop.max_progress, MIN_STEP_OF_PAST * last.epochs)
        if value == last.value or progress.epochs < last.epochs + step:
            return
    if directive.is_provisional and not is_newest_directive(connection, job, directive):
        return
    connection.execute(insert(readings).values(job=job, epochs=progress.epochs, value=value))


def is_progress_outdated(directive: Directive, progress: Progress) -> bool:
    """Whether progress may still be counted by noise that had not settled (decision 27)."""
    return directive.correction != 1 and progress.generation < directive.generation


def is_newest_directive(connection: Connection, job: str, directive: Directive) -> bool:
    """Whether a job was told nothing else since; nothing else can be until the transaction ends."""
    lock_job(connection, job)
    published = directives.newest(connection, job)
    return published is None or published[0].generation == directive.generation


def rescale_readings(connection: Connection, job: str, factor: float) -> None:
    """Count the progress of all readings anew, in the transaction that tells the workers to."""
    lock_job(connection, job)
    rows = connection.execute(
        delete(readings).where(readings.c.job == job).returning(readings)
    ).all()  # not an update: a new figure may be an old one of another row
    if rows:
        scaled = [{**row._mapping, "epochs": row.epochs * factor} for row in rows]
        connection.execute(insert(readings), scaled)


Readings = tuple[tuple[float, float], ...]  # reference epochs and value, ascending
ReadingsVersion = tuple[int, float, float]  # how many, and the sums of epochs and of values
MAX_HISTORIES_CACHED = 2000

# Every tick and every page of jobs asks, and most jobs have no new reading since.
READINGS_CACHE: WeakKeyDictionary[Engine, dict[str, tuple[ReadingsVersion, Readings]]] = (
    WeakKeyDictionary()
)


def readings_of_jobs(connection: Connection, wanted: Collection[str]) -> Mapping[str, Readings]:
    """Return every reading of these jobs that have any; only what has changed is read again."""
    if not wanted:
        return {}
    sums = (func.count(), func.sum(readings.c.epochs), func.sum(readings.c.value))
    query = select(readings.c.job, *sums).where(readings.c.job.in_(wanted))
    rows = connection.execute(query.group_by(readings.c.job))
    versions = {job: (count, epochs, value) for job, count, epochs, value in rows}
    kept = READINGS_CACHE.get(connection.engine, {})
    known = {job: kept[job] for job, version in versions.items() if is_kept(kept, job, version)}
    unread = versions.keys() - known.keys()
    if unread:
        fresh = {
            job: (versions[job], own) for job, own in read_readings(connection, unread).items()
        }
        known |= fresh
        old = kept if len(kept) < MAX_HISTORIES_CACHED else {}
        READINGS_CACHE[connection.engine] = {**old, **fresh}
    return {job: own for job, (_, own) in known.items()}


def is_kept(
    kept: Mapping[str, tuple[ReadingsVersion, Readings]], job: str, version: ReadingsVersion
) -> bool:
    """Tell whether the newest readings of a job are among those that are kept."""
    return job in kept and kept[job][0] == version


def read_readings(connection: Connection, wanted: Collection[str]) -> Mapping[str, Readings]:
    """Read every reading of these jobs, ascending."""
    query = select(readings).where(readings.c.job.in_(wanted)).order_by(readings.c.epochs)
    rows = group_by_job(wanted, connection.execute(query))
    return {job: tuple((row.epochs, row.value) for row in own) for job, own in rows.items()}


def dated_readings(connection: Connection, job: str) -> tuple[tuple[datetime, float], ...]:
    """Return when each reading of a job was made and its value; older ones have no date."""
    query = select(readings.c.at, readings.c.value).where(readings.c.job == job)
    dated = query.where(readings.c.at.is_not(None)).order_by(readings.c.at)
    return tuple((row.at, row.value) for row in connection.execute(dated))


@dataclass(frozen=True, slots=True)
class RecordedDrift:
    """The noise scale of a job had drifted.

    Attributes:
        at: When the plan was made anew.
        noise_scale: φ in samples as it was then.
    """

    at: datetime
    noise_scale: float


def record_drift(connection: Connection, job: str, drifted: RecordedDrift) -> None:
    """Store that a plan was made anew."""
    row = {"job": job, "at": drifted.at, "noise_scale": drifted.noise_scale}
    connection.execute(insert(drifts).values(row))


def newest_drifts(connection: Connection, wanted: Collection[str]) -> Mapping[str, RecordedDrift]:
    """Return the newest drift of each of these jobs that has any, by job."""
    query = (
        select(drifts)
        .ext(distinct_on(drifts.c.job))
        .where(drifts.c.job.in_(wanted))
        .order_by(drifts.c.job, drifts.c.at.desc())
    )
    return {row.job: RecordedDrift(row.at, row.noise_scale) for row in connection.execute(query)}


def record_divergence(
    connection: Connection, job: str, worker: str, series: str, found: NotFinite, now: datetime
) -> bool:
    """Store that a series of a job was not finite; False when that is known already."""
    row = {"job": job, "series": series, "worker": worker, "at": now}
    facts = {"value": found.value, "iteration": found.first}
    query = insert(divergences).values({**row, **facts}).on_conflict_do_nothing()
    return connection.execute(query.returning(divergences.c.job)).first() is not None


def record_stack_check(
    connection: Connection, job: str, worker: str, check: StackCheck, now: datetime
) -> bool:
    """Store what a worker found out about a stack; False when that is known already."""
    row = {"job": job, "worker": worker, "at": now, **asdict(check)}
    query = insert(stack_checks).values(row).on_conflict_do_nothing()
    return connection.execute(query.returning(stack_checks.c.job)).first() is not None


def refuse_layout(
    connection: Connection, job: str, worker: str, layout: Layout, why: str, now: datetime
) -> bool:
    """Store that a job does without a layout; False when that is known already."""
    stack = str(Stack(layout=layout))
    check = StackCheck(stack, 0, 0.0, 0.0, refusal=why[:MAX_REFUSAL_LENGTH])
    return record_stack_check(connection, job, worker, check, now)


def stack_checks_of_jobs(
    connection: Connection, wanted: Collection[str]
) -> Mapping[str, tuple[StackCheck, ...]]:
    """Return what was found out about stacks, by job, in the order it was."""
    query = select(stack_checks).where(stack_checks.c.job.in_(wanted)).order_by(stack_checks.c.at)
    rows = group_by_job(wanted, connection.execute(query))
    names = [field.name for field in fields(StackCheck)]
    return {
        job: tuple(StackCheck(**{name: getattr(row, name) for name in names}) for row in own)
        for job, own in rows.items()
    }
