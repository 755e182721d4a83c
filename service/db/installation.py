"""The installations table: what tells one installation from all others; there is one row."""

from __future__ import annotations

from uuid import uuid4

from sqlalchemy import Column, Connection, select, update
from sqlalchemy.dialects.postgresql import insert

from service.db.schema import installations
from service.errors import AccountRefused, SecretRefused

REMEDY = (
    "on the same computer, name with --machines the directory whose file `account` says so, in "
    "the home of the first `machines`; if none of their machines runs any more, run: "
    "UPDATE installations SET account = NULL"
)


def identify(connection: Connection) -> str:
    """Return the id of this installation; the first controller makes it."""
    fresh = insert(installations).values(number=1, id=uuid4().hex)
    connection.execute(fresh.on_conflict_do_nothing())
    return str(connection.execute(select(installations.c.id)).scalar_one())


def agreed(connection: Connection, column: Column[str], own: str) -> str:
    """Return what the controllers of this database have in common; the first one says it."""
    identify(connection)
    connection.execute(update(installations).where(column.is_(None)).values({column.name: own}))
    return str(connection.execute(select(column)).scalar_one())


def admit(connection: Connection, fingerprint: str) -> None:
    """Let a controller act that has the secret of this installation; the first one brings it.

    Raises:
        SecretRefused: It has another one.
    """
    if agreed(connection, installations.c.fingerprint, fingerprint) != fingerprint:
        raise SecretRefused(
            "the controllers of this database have another secret, so machines of theirs would "
            "neither be let in nor known as ours: copy the file `secret` from the home of one of "
            "them, and name the copy with --secret-file; if there is no copy left, end their "
            "machines by hand and run: UPDATE installations SET fingerprint = NULL"
        )


def settle(connection: Connection, account: str) -> None:
    """Let a controller act whose machines are where those of the others are; the first one says it.

    Machines of another place would look gone to it, and it would start them again.

    Raises:
        AccountRefused: Its machines are elsewhere.
    """
    known = agreed(connection, installations.c.account, account)
    if known != account:
        raise AccountRefused(
            f"the controllers of this database have their machines in account {known}, and this "
            f"one in {account}, from where theirs look gone: {REMEDY}"
        )


def forget_account(connection: Connection) -> None:
    """Let the next controller say where machines are."""
    connection.execute(update(installations).values(account=None))
