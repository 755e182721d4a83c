"""API tokens and the audit trail. Tokens are read at every request: a revocation counts at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta

from sqlalchemy import Connection, select, update
from sqlalchemy.dialects.postgresql import insert

from scavenger.schemas.access import AuditEntryView, TokenView
from service.auth.permissions import EVERY_PROJECT, UserPrincipal
from service.auth.tokens import TokenDigest
from service.db.schema import audit, tokens

LAST_USE_RESOLUTION = timedelta(minutes=1)


class StoredToken(TokenView):
    """An API token as stored: the fields of TokenView, and the principal that it stands for."""

    expires_at: datetime | None = None
    revoked_at: datetime | None = None
    last_used_at: datetime | None = None

    @property
    def holder(self) -> UserPrincipal:
        return UserPrincipal(self.id, self.project, self.role)

    def invalid_reason(self, now: datetime) -> str | None:
        """Say why the token is not valid any more; None while it is."""
        if self.revoked_at is not None:
            return "this token was revoked"
        if self.expires_at is not None and self.expires_at <= now:
            return "this token has expired"
        return None


def store_token(connection: Connection, credential: TokenDigest, token: StoredToken) -> None:
    """Store a token; one that is stored already stays as it is."""
    query = insert(tokens).values(**token.model_dump(), digest=credential.digest)
    connection.execute(query.on_conflict_do_nothing())


def find_token(connection: Connection, credential: TokenDigest) -> StoredToken | None:
    """Return the stored token of a credential, expired and revoked ones too."""
    row = connection.execute(select(tokens).where(tokens.c.id == credential.id)).first()
    if row is None or not credential.matches(row.digest):
        return None
    return StoredToken.model_validate(row)


def record_token_use(connection: Connection, token: StoredToken, now: datetime) -> None:
    """Write down that a token was used, once a minute at most."""
    if token.last_used_at is None or token.last_used_at <= now - LAST_USE_RESOLUTION:
        query = update(tokens).where(tokens.c.id == token.id)
        connection.execute(query.values(last_used_at=now))


def tokens_of_project(connection: Connection, project: str) -> Sequence[StoredToken]:
    """Return the tokens of a project, newest first."""
    query = select(tokens).order_by(tokens.c.created_at.desc(), tokens.c.id)
    if project != EVERY_PROJECT:
        query = query.where(tokens.c.project == project)
    return [StoredToken.model_validate(row) for row in connection.execute(query)]


def revoke_token(connection: Connection, token: str, now: datetime) -> None:
    """Revoke a token; the first moment counts."""
    query = update(tokens).where(tokens.c.id == token, tokens.c.revoked_at.is_(None))
    connection.execute(query.values(revoked_at=now))


def token_by_id(connection: Connection, token: str) -> StoredToken | None:
    """Return a token by its id."""
    row = connection.execute(select(tokens).where(tokens.c.id == token)).first()
    return None if row is None else StoredToken.model_validate(row)


@dataclass(frozen=True, slots=True)
class AuditEntry:
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


def write_audit_entry(connection: Connection, entry: AuditEntry) -> None:
    """Write a request down, for ever."""
    connection.execute(insert(audit).values(asdict(entry)))


def audit_entries_before(
    connection: Connection, project: str, before: int | None, limit: int
) -> Sequence[AuditEntryView]:
    """Return the requests of a project's tokens below a number, newest first."""
    query = select(audit).order_by(audit.c.number.desc()).limit(limit)
    if project != EVERY_PROJECT:
        query = query.where(audit.c.project == project)
    if before is not None:
        query = query.where(audit.c.number < before)
    return [AuditEntryView.model_validate(row) for row in connection.execute(query)]
