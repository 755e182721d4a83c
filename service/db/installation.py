"""The installations table: what tells one installation from all others; there is one row."""

from __future__ import annotations

from uuid import uuid4

from sqlalchemy import Connection, select, update
from sqlalchemy.dialects.postgresql import insert

from service.db.schema import installations
from service.errors import SecretRefused


def identify(connection: Connection) -> str:
    """Return the id of this installation; the first controller makes it."""
    fresh = insert(installations).values(number=1, id=uuid4().hex)
    connection.execute(fresh.on_conflict_do_nothing())
    return str(connection.execute(select(installations.c.id)).scalar_one())


def admit(connection: Connection, fingerprint: str) -> None:
    """Let a controller act that has the secret of this installation; the first one brings it.

    Raises:
        SecretRefused: It has another one.
    """
    identify(connection)
    is_first = installations.c.fingerprint.is_(None)
    connection.execute(update(installations).where(is_first).values(fingerprint=fingerprint))
    if connection.execute(select(installations.c.fingerprint)).scalar_one() != fingerprint:
        raise SecretRefused(
            "the controllers of this database have another secret, so machines of theirs would "
            "neither be let in nor known as ours: copy the file `secret` from the home of one of "
            "them, and name the copy with --secret-file; if there is no copy left, end their "
            "machines by hand and run: UPDATE installations SET fingerprint = NULL"
        )
