"""The divergences table: where the loss or the target's metric was first NaN or infinite."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Connection
from sqlalchemy.dialects.postgresql import insert

from scavenger.protocol import NotFinite
from service.db.schema import divergences


def note(
    connection: Connection, job: str, worker: str, series: str, found: NotFinite, now: datetime
) -> bool:
    """Store that a series of a job was not finite; False when that is known already."""
    row = {"job": job, "series": series, "worker": worker, "at": now}
    told = {"value": found.value, "iteration": found.first}
    query = insert(divergences).values({**row, **told}).on_conflict_do_nothing()
    return connection.execute(query.returning(divergences.c.job)).first() is not None
