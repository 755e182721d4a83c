"""Directives: what the workers of a job were told, by generation, and how long each change took."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime

from pydantic import TypeAdapter
from sqlalchemy import Connection, func, select
from sqlalchemy.dialects.postgresql import distinct_on, insert

from scavenger.layout import Layout
from scavenger.protocol import Directive, Regrouped
from service.db.schema import directives, measured_generations, regroups

DIRECTIVE_ADAPTER = TypeAdapter(Directive)
SAME_GENERATION = (measured_generations.c.job == directives.c.job) & (
    measured_generations.c.generation == directives.c.generation
)


@dataclass(frozen=True, slots=True)
class PublishedDirective:
    """A Directive, and how its leader entered it.

    Attributes:
        pause: Seconds without training; None until the leader reports.
        iterations_lost: Applied iterations the new generation does not contain.
    """

    directive: Directive
    published_at: datetime
    pause: float | None
    iterations_lost: int | None


def publish(connection: Connection, job: str, directive: Directive, now: datetime) -> None:
    """Store a Directive; the workers learn it from the answers to their reports."""
    content = DIRECTIVE_ADAPTER.dump_python(directive, mode="json")
    row = {"job": job, "generation": directive.generation, "directive": content}
    connection.execute(insert(directives).values(**row, published_at=now))


def newest(connection: Connection, job: str) -> tuple[Directive, datetime] | None:
    """Return the newest Directive of a job and when it was published."""
    return newest_of(connection, [job]).get(job)


def newest_of(
    connection: Connection, wanted: Collection[str]
) -> Mapping[str, tuple[Directive, datetime]]:
    """Return the newest Directive of each of these jobs that has any, and its moment, by job."""
    query = (
        select(directives)
        .ext(distinct_on(directives.c.job))
        .where(directives.c.job.in_(wanted))
        .order_by(directives.c.job, directives.c.generation.desc())
    )
    rows = connection.execute(query)
    return {
        row.job: (DIRECTIVE_ADAPTER.validate_python(row.directive), row.published_at)
        for row in rows
    }


def published_without_iterations(connection: Connection, job: str) -> tuple[datetime, ...]:
    """Return when the newest Directives were published that bore no iteration, oldest first."""
    bearing = select(func.max(measured_generations.c.generation)).where(
        measured_generations.c.job == job
    )
    newer = directives.c.generation > func.coalesce(bearing.scalar_subquery(), 0)
    query = select(directives.c.published_at).where(directives.c.job == job, newer)
    return tuple(connection.execute(query.order_by(directives.c.generation)).scalars())


def has_trained_in(connection: Connection, job: str, layout: Layout) -> bool:
    """Whether a generation of a job that had a layout bore an iteration."""
    query = (
        select(directives.c.generation)
        .join(measured_generations, SAME_GENERATION)
        .where(directives.c.job == job, directives.c.directive["layout"].astext == str(layout))
        .limit(1)
    )
    return connection.execute(query).first() is not None


def newest_trained_layout(connection: Connection, job: str) -> str:
    """Return the layout of the newest generation of a job that bore an iteration; empty without."""
    query = (
        select(directives.c.directive["layout"].astext)
        .join(measured_generations, SAME_GENERATION)
        .where(directives.c.job == job)
        .order_by(directives.c.generation.desc())
        .limit(1)
    )
    return connection.execute(query).scalar() or ""


def history(connection: Connection, job: str) -> list[PublishedDirective]:
    """Return every Directive with what became of it, oldest first."""
    same = (regroups.c.job == directives.c.job) & (regroups.c.generation == directives.c.generation)
    query = (
        select(directives, regroups.c.pause, regroups.c.iterations_lost)
        .join(regroups, same, isouter=True)
        .where(directives.c.job == job)
        .order_by(directives.c.generation)
    )
    return [
        PublishedDirective(
            DIRECTIVE_ADAPTER.validate_python(row.directive),
            row.published_at,
            row.pause,
            row.iterations_lost,
        )
        for row in connection.execute(query)
    ]


def resize_pauses(connection: Connection, job: str) -> tuple[float, ...]:
    """Return the seconds that each change of generation took, without the job's first start."""
    query = select(regroups.c.pause).where(regroups.c.job == job, regroups.c.generation > 1)
    return tuple(connection.execute(query).scalars())


def record_regroup(connection: Connection, job: str, regrouped: Regrouped, now: datetime) -> bool:
    """Store how long a change took; False when it is known already."""
    row = {
        "job": job,
        "generation": regrouped.generation,
        "pause": regrouped.pause,
        "iterations_lost": regrouped.iterations_lost,
        "at": now,
    }
    query = insert(regroups).values(row).on_conflict_do_nothing().returning(regroups.c.job)
    return connection.execute(query).first() is not None
