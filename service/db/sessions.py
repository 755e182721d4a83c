"""Sessions of browsers, and the codes that begin them. Both are read with the token they stand for.

A session is looked up at every request, so signing out, or the end of its token, counts at once and
for every controller.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime

from sqlalchemy import Connection, delete, insert, or_, select, update

from service.auth.permissions import UserPrincipal
from service.auth.sessions import CODE_LIFETIME, SESSION_LIFETIME, SESSION_SILENCE, session_end
from service.db import access
from service.db.access import LAST_USE_RESOLUTION, StoredToken
from service.db.schema import sessions, sign_in_codes


@dataclass(frozen=True, slots=True)
class StoredSession:
    """The session of a browser, and the token that it began with."""

    digest: str
    token: StoredToken
    created_at: datetime
    last_used_at: datetime

    @property
    def holder(self) -> UserPrincipal:
        return replace(self.token.holder, session=self.digest)

    @property
    def ends_at(self) -> datetime:
        """When it ends unless it is used before."""
        return session_end(self.created_at, self.last_used_at, self.token.expires_at)

    def invalid_reason(self, now: datetime) -> str | None:
        """Say why the session is not valid any more; None while it is."""
        if reason := self.token.invalid_reason(now):
            return reason
        return "this session has ended" if self.ends_at <= now else None


def store_session(connection: Connection, digest: str, token: str, now: datetime) -> None:
    """Store a new session."""
    row = {"digest": digest, "token": token, "created_at": now, "last_used_at": now}
    connection.execute(insert(sessions).values(row))


def find_session(connection: Connection, digest: str) -> StoredSession | None:
    """Return a session with its token, one that has ended too; None if there is none."""
    row = connection.execute(select(sessions).where(sessions.c.digest == digest)).first()
    token = None if row is None else access.token_by_id(connection, row.token)
    if row is None or token is None:
        return None
    return StoredSession(digest, token, row.created_at, row.last_used_at)


def record_session_use(connection: Connection, session: StoredSession, now: datetime) -> None:
    """Write down that a session was used, and its token with it, once a minute at most."""
    access.record_token_use(connection, session.token, now)
    if session.last_used_at <= now - LAST_USE_RESOLUTION:
        query = update(sessions).where(sessions.c.digest == session.digest)
        connection.execute(query.values(last_used_at=now))


def end_session(connection: Connection, digest: str) -> None:
    """End a session; ending it again changes nothing."""
    connection.execute(delete(sessions).where(sessions.c.digest == digest))


def store_code(connection: Connection, digest: str, token: str, now: datetime) -> datetime:
    """Store a code that stands for a token, and return when it ends."""
    expires_at = now + CODE_LIFETIME
    row = {"digest": digest, "token": token, "expires_at": expires_at}
    connection.execute(insert(sign_in_codes).values(row))
    return expires_at


def redeem_code(connection: Connection, digest: str, now: datetime) -> StoredToken | None:
    """Return the token that a code stands for, once; None if the code is unknown or too old."""
    # One statement: of two browsers with the same code only one finds the row.
    query = delete(sign_in_codes).where(sign_in_codes.c.digest == digest)
    row = connection.execute(query.returning(sign_in_codes)).first()
    if row is None or row.expires_at <= now:
        return None
    return access.token_by_id(connection, row.token)


def delete_ended(connection: Connection, now: datetime) -> int:
    """Forget sessions and codes that are over, and return how many sessions there were."""
    connection.execute(delete(sign_in_codes).where(sign_in_codes.c.expires_at <= now))
    is_over = or_(
        sessions.c.created_at <= now - SESSION_LIFETIME,
        sessions.c.last_used_at <= now - SESSION_SILENCE,
    )
    return connection.execute(delete(sessions).where(is_over)).rowcount
