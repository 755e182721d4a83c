"""API tokens, the audit trail, and answers kept for idempotency keys.

Tokens are read at every request, so that a revocation counts at once. A request with an idempotency
key and its answer are written in one transaction; a request in progress has no row yet and holds an
advisory lock, which ends with its transaction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from hashlib import sha256

from sqlalchemy import Connection, delete, func, select, tuple_, update
from sqlalchemy.dialects.postgresql import insert

from scavenger.schemas import AuditEntryView, TokenView
from service.auth.permissions import EVERY_PROJECT, UserPrincipal
from service.auth.tokens import ApiToken
from service.db.schema import audit, requests, tokens

LAST_USE_RESOLUTION = timedelta(minutes=1)


class StoredToken(TokenView):
    """A token of a person as it is kept, which is as it is shown, and what it opens."""

    expires_at: datetime | None = None
    revoked_at: datetime | None = None
    last_used_at: datetime | None = None

    @property
    def holder(self) -> UserPrincipal:
        return UserPrincipal(self.id, self.project, self.role)

    def objection(self, now: datetime) -> str | None:
        """Say why it opens nothing any more; None while it does."""
        if self.revoked_at is not None:
            return "this token was revoked"
        if self.expires_at is not None and self.expires_at <= now:
            return "this token has expired"
        return None


def store_token(connection: Connection, credential: ApiToken, token: StoredToken) -> None:
    """Let a token open what its role opens; one that is stored already stays as it is."""
    query = insert(tokens).values(**token.model_dump(), digest=credential.digest)
    connection.execute(query.on_conflict_do_nothing())


def find_token(connection: Connection, credential: ApiToken) -> StoredToken | None:
    """Return the stored token of a credential, expired and revoked ones too."""
    row = connection.execute(select(tokens).where(tokens.c.id == credential.id)).first()
    if row is None or not credential.is_of(row.digest):
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
    """Let a token open nothing any more; the first moment counts."""
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


ANSWERS_KEPT = timedelta(hours=24)
MAX_ANSWERS_DELETED = 100


@dataclass(frozen=True, slots=True)
class IdempotencyKey:
    """The word by which a caller knows one of its requests; other callers may use it, too."""

    caller: str
    word: str


@dataclass(frozen=True, slots=True)
class StoredAnswer:
    """What is sent back: status, headers of its own, and JSON."""

    status: int
    content: str
    headers: Mapping[str, str]


def lock_key(connection: Connection, key: IdempotencyKey) -> bool:
    """Lock a key until this transaction ends; False while another request holds it."""
    digest = sha256(f"{key.caller}\n{key.word}".encode()).digest()
    # Two keys with the same 64 bits would only wait for each other.
    lock = int.from_bytes(digest[:8], signed=True)
    return bool(connection.execute(select(func.pg_try_advisory_xact_lock(lock))).scalar())


def find_answer(
    connection: Connection, key: IdempotencyKey, now: datetime
) -> tuple[str, StoredAnswer] | None:
    """Return a request's fingerprint and what was answered; None for a key not yet used."""
    is_it = (requests.c.caller == key.caller, requests.c.key == key.word)
    query = select(requests).where(*is_it, requests.c.at > now - ANSWERS_KEPT)
    row = connection.execute(query).first()
    return (
        None
        if row is None
        else (row.fingerprint, StoredAnswer(row.status, row.content, row.headers))
    )


def store_answer(
    connection: Connection,
    key: IdempotencyKey,
    fingerprint: str,
    answer: StoredAnswer,
    now: datetime,
) -> None:
    """Keep what was answered for a day, and forget some of what was kept that long."""
    facts = {
        "fingerprint": fingerprint,
        "status": answer.status,
        "headers": dict(answer.headers),
        "content": answer.content,
        "at": now,
    }
    query = insert(requests).values(caller=key.caller, key=key.word, **facts)
    connection.execute(query.on_conflict_do_update(index_elements=["caller", "key"], set_=facts))
    _delete_old_answers(connection, now - ANSWERS_KEPT)


def _delete_old_answers(connection: Connection, before: datetime) -> None:
    """Delete a few old rows; two who do so at once take different ones."""
    names = (requests.c.caller, requests.c.key)
    old = select(*names).where(requests.c.at <= before).limit(MAX_ANSWERS_DELETED)
    free = old.with_for_update(skip_locked=True)
    connection.execute(delete(requests).where(tuple_(*names).in_(free)))
