"""The events table: one sentence about each thing that happened to a job.

Numbers grow in the order in which events become visible, over all jobs: triggers draw them at the
commit (ADR 31). A reader that has seen a number has missed none below it. Within its own
transaction an event has no number yet, and no page shows it.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from sqlalchemy import Connection, insert, select

from scavenger.view import EventView
from service.db.schema import events


def say(
    connection: Connection,
    job: str,
    now: datetime,
    kind: str,
    message: str,
    data: Mapping[str, object] | None = None,
) -> None:
    """Record a sentence, in the transaction of what it tells about."""
    row = {"job": job, "at": now, "kind": kind, "message": message, "data": dict(data or {})}
    connection.execute(insert(events).values(row))


def page(connection: Connection, job: str, after: int, limit: int) -> list[EventView]:
    """Return events after a sequence number, oldest first."""
    query = (
        select(events)
        .where(events.c.job == job, events.c.sequence > after)
        .order_by(events.c.sequence)
        .limit(limit)
    )
    return [EventView.model_validate(dict(row)) for row in connection.execute(query).mappings()]
