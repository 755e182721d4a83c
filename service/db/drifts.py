"""The drifts table: noise scales that had drifted, from which plans were made anew."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, insert, select
from sqlalchemy.dialects.postgresql import distinct_on

from service.db.schema import drifts


@dataclass(frozen=True, slots=True)
class Drifted:
    """The noise scale of a job had drifted.

    Attributes:
        at: When the plan was made anew.
        noise_scale: φ in samples as it was then.
    """

    at: datetime
    noise_scale: float


def record(connection: Connection, job: str, drifted: Drifted) -> None:
    """Store that a plan was made anew."""
    row = {"job": job, "at": drifted.at, "noise_scale": drifted.noise_scale}
    connection.execute(insert(drifts).values(row))


def newest(connection: Connection, job: str) -> Drifted | None:
    """Return the newest drift of a job; None while its first plan holds."""
    return newest_of(connection, [job]).get(job)


def newest_of(connection: Connection, wanted: Collection[str]) -> Mapping[str, Drifted]:
    """Return the newest drift of each of these jobs that has any, by job."""
    query = (
        select(drifts)
        .ext(distinct_on(drifts.c.job))
        .where(drifts.c.job.in_(wanted))
        .order_by(drifts.c.job, drifts.c.at.desc())
    )
    return {row.job: Drifted(row.at, row.noise_scale) for row in connection.execute(query)}
