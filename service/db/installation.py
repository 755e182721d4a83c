"""The installations table: what tells one installation from all others; there is one row."""

from __future__ import annotations

from uuid import uuid4

from sqlalchemy import Connection, select
from sqlalchemy.dialects.postgresql import insert

from service.db.schema import installations


def identify(connection: Connection) -> str:
    """Return the id of this installation; the first controller makes it."""
    fresh = insert(installations).values(number=1, id=uuid4().hex)
    connection.execute(fresh.on_conflict_do_nothing())
    return str(connection.execute(select(installations.c.id)).scalar_one())
