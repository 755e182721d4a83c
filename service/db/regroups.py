"""The regroups table: how long each change of generation took."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Connection, select
from sqlalchemy.dialects.postgresql import insert

from scavenger.protocol import Regrouped
from service.db.schema import regroups


def pauses_of(connection: Connection, job: str) -> tuple[float, ...]:
    """Return the seconds that each change of generation took, without the job's first start."""
    query = select(regroups.c.pause).where(regroups.c.job == job, regroups.c.generation > 1)
    return tuple(connection.execute(query).scalars())


def note(connection: Connection, job: str, regrouped: Regrouped, now: datetime) -> bool:
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
