"""The directives table: everything the workers of a job were told, by generation."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime

from pydantic import TypeAdapter
from sqlalchemy import Connection, func, insert, select
from sqlalchemy.dialects.postgresql import distinct_on

from scavenger.protocol import Directive
from service.db.schema import directives, regroups, statistics

DIRECTIVE = TypeAdapter(Directive)


@dataclass(frozen=True, slots=True)
class Resize:
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
    content = DIRECTIVE.dump_python(directive, mode="json")
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
    return {row.job: (DIRECTIVE.validate_python(row.directive), row.published_at) for row in rows}


def fruitless(connection: Connection, job: str) -> tuple[datetime, ...]:
    """Return when the newest Directives were published that bore no iteration, oldest first."""
    bearing = select(func.max(statistics.c.generation)).where(statistics.c.job == job)
    newer = directives.c.generation > func.coalesce(bearing.scalar_subquery(), 0)
    query = select(directives.c.published_at).where(directives.c.job == job, newer)
    return tuple(connection.execute(query.order_by(directives.c.generation)).scalars())


def history(connection: Connection, job: str) -> list[Resize]:
    """Return every Directive with what became of it, oldest first."""
    same = (regroups.c.job == directives.c.job) & (regroups.c.generation == directives.c.generation)
    query = (
        select(directives, regroups.c.pause, regroups.c.iterations_lost)
        .join(regroups, same, isouter=True)
        .where(directives.c.job == job)
        .order_by(directives.c.generation)
    )
    return [
        Resize(
            DIRECTIVE.validate_python(row.directive),
            row.published_at,
            row.pause,
            row.iterations_lost,
        )
        for row in connection.execute(query)
    ]
