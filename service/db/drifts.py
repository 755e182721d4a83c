"""The drifts table: noise scales that had drifted, from which plans were made anew."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, insert, select

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
    query = select(drifts.c.at, drifts.c.noise_scale).where(drifts.c.job == job)
    row = connection.execute(query.order_by(drifts.c.at.desc()).limit(1)).first()
    return None if row is None else Drifted(row.at, row.noise_scale)
