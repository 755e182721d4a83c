"""Answers kept for idempotency keys.

A request with an idempotency key and its answer are written in one transaction; a request in
progress has no row yet and holds an advisory lock, which ends with its transaction.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from hashlib import sha256

from sqlalchemy import Connection, delete, func, select, tuple_
from sqlalchemy.dialects.postgresql import insert

from service.db.schema import requests

ANSWERS_KEPT = timedelta(hours=24)
MAX_ANSWERS_DELETED = 100


@dataclass(frozen=True, slots=True)
class IdempotencyKey:
    """An Idempotency-Key and the caller that sent it; equal keys of two callers are independent."""

    caller: str
    value: str


@dataclass(frozen=True, slots=True)
class StoredAnswer:
    """What is sent back: status, headers of its own, and JSON."""

    status: int
    content: str
    headers: Mapping[str, str]


def lock_key(connection: Connection, key: IdempotencyKey) -> bool:
    """Lock a key until this transaction ends; False while another request holds it."""
    digest = sha256(f"{key.caller}\n{key.value}".encode()).digest()
    # Two keys with the same 64 bits would only wait for each other.
    lock = int.from_bytes(digest[:8], signed=True)
    return bool(connection.execute(select(func.pg_try_advisory_xact_lock(lock))).scalar())


def find_answer(
    connection: Connection, key: IdempotencyKey, now: datetime
) -> tuple[str, StoredAnswer] | None:
    """Return a request's fingerprint and what was answered; None for a key not yet used."""
    is_it = (requests.c.caller == key.caller, requests.c.key == key.value)
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
    query = insert(requests).values(caller=key.caller, key=key.value, **facts)
    connection.execute(query.on_conflict_do_update(index_elements=["caller", "key"], set_=facts))
    _delete_old_answers(connection, now - ANSWERS_KEPT)


def _delete_old_answers(connection: Connection, before: datetime) -> None:
    """Delete a few old rows; two who do so at once take different ones."""
    names = (requests.c.caller, requests.c.key)
    old = select(*names).where(requests.c.at <= before).limit(MAX_ANSWERS_DELETED)
    # Postgres runs a plain subquery again for each row if it plans so, and then deletes more.
    free = old.with_for_update(skip_locked=True).cte("old_answers")
    wanted = select(free.c.caller, free.c.key)
    connection.execute(delete(requests).where(tuple_(*names).in_(wanted)))
