"""The audit table: which person's request would have changed what, and how it was answered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime

from sqlalchemy import Connection, insert, select

from scavenger.view import AuditEntryView
from service.caller import EVERY_PROJECT
from service.db.schema import audit


@dataclass(frozen=True, slots=True)
class Entry:
    """One request that would change something.

    Attributes:
        who: Id of the token.
        project: The token's.
        route: Path of the route, its variable parts by name.
        target: The job or the token it was about.
        status: HTTP status of the answer.
    """

    at: datetime
    who: str
    project: str
    method: str
    route: str
    target: str | None
    status: int
    request_id: str


def write(connection: Connection, entry: Entry) -> None:
    """Write a request down, for ever."""
    connection.execute(insert(audit).values(asdict(entry)))


def page(
    connection: Connection, project: str, before: int | None, limit: int
) -> Sequence[AuditEntryView]:
    """Return the requests of a project's tokens below a number, newest first."""
    query = select(audit).order_by(audit.c.number.desc()).limit(limit)
    if project != EVERY_PROJECT:
        query = query.where(audit.c.project == project)
    if before is not None:
        query = query.where(audit.c.number < before)
    rows = connection.execute(query).mappings()
    return [AuditEntryView.model_validate(dict(row)) for row in rows]
