"""The tokens table: who may come in, asked at every request, so that revoking counts at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, Row, select, update
from sqlalchemy.dialects.postgresql import insert

from scavenger.view import PersonRole
from service.caller import EVERY_PROJECT, Person
from service.credential import Credential
from service.db.schema import tokens

SEEN_EVERY = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class Token:
    """A token of a person, as far as it is kept.

    Attributes:
        created_by: Id of the token it was made with, or who else made it.
    """

    id: str
    name: str
    project: str
    role: PersonRole
    created_at: datetime
    created_by: str
    expires_at: datetime | None = None
    revoked_at: datetime | None = None
    last_used_at: datetime | None = None

    @property
    def holder(self) -> Person:
        """Whoever shows it."""
        return Person(self.id, self.project, self.role)

    def objection(self, now: datetime) -> str | None:
        """Say why it opens nothing any more; None while it does."""
        if self.revoked_at is not None:
            return "this token was revoked"
        if self.expires_at is not None and self.expires_at <= now:
            return "this token has expired"
        return None


def store(connection: Connection, credential: Credential, token: Token) -> None:
    """Let a token open what its role opens; one that is stored already stays as it is."""
    row = {field.name: getattr(token, field.name) for field in fields(Token)}
    query = insert(tokens).values(**row, digest=credential.digest)
    connection.execute(query.on_conflict_do_nothing())


def find(connection: Connection, credential: Credential) -> Token | None:
    """Return the token somebody shows, whether it still opens anything or not."""
    row = connection.execute(select(tokens).where(tokens.c.id == credential.id)).first()
    return to_token(row) if row is not None and credential.is_of(row.digest) else None


def note_use(connection: Connection, token: Token, now: datetime) -> None:
    """Write down that a token was used, once a minute at most."""
    if token.last_used_at is None or token.last_used_at <= now - SEEN_EVERY:
        query = update(tokens).where(tokens.c.id == token.id)
        connection.execute(query.values(last_used_at=now))


def of_project(connection: Connection, project: str) -> Sequence[Token]:
    """Return the tokens of a project, newest first."""
    query = select(tokens).order_by(tokens.c.created_at.desc(), tokens.c.id)
    if project != EVERY_PROJECT:
        query = query.where(tokens.c.project == project)
    return [to_token(row) for row in connection.execute(query)]


def revoke(connection: Connection, token: str, now: datetime) -> None:
    """Let a token open nothing any more; the first moment counts."""
    query = update(tokens).where(tokens.c.id == token, tokens.c.revoked_at.is_(None))
    connection.execute(query.values(revoked_at=now))


def by_id(connection: Connection, token: str) -> Token | None:
    """Return a token by its id."""
    row = connection.execute(select(tokens).where(tokens.c.id == token)).first()
    return None if row is None else to_token(row)


def to_token(row: Row[Any]) -> Token:
    """Turn a row into a Token."""
    facts = {field.name: getattr(row, field.name) for field in fields(Token)}
    return Token(**(facts | {"role": PersonRole(row.role)}))
