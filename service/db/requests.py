"""The requests table: what was answered to requests that carry a key, so that none acts twice.

The effect of a request and its row are written in one transaction. One that is being worked on has
no row yet: it holds a lock of the database, which goes with its transaction, however that ends.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from hashlib import sha256

from sqlalchemy import Connection, delete, func, select, tuple_
from sqlalchemy.dialects.postgresql import insert

from service.db.schema import requests

KEPT = timedelta(hours=24)
MOST_FORGOTTEN = 100


@dataclass(frozen=True, slots=True)
class Key:
    """The word by which a caller knows one of its requests; other callers may use it, too."""

    caller: str
    word: str


@dataclass(frozen=True, slots=True)
class Answer:
    """What is sent back: status, headers of its own, and JSON."""

    status: int
    content: str
    headers: Mapping[str, str]


def hold(connection: Connection, key: Key) -> bool:
    """Let nobody else work on a key before this transaction ends; False while somebody does."""
    digest = sha256(f"{key.caller}\n{key.word}".encode()).digest()
    lock = int.from_bytes(digest[:8], signed=True)
    return bool(connection.execute(select(func.pg_try_advisory_xact_lock(lock))).scalar())


def find(connection: Connection, key: Key, now: datetime) -> tuple[str, Answer] | None:
    """Return a request's fingerprint and what was answered; None for a key not yet used."""
    is_it = (requests.c.caller == key.caller, requests.c.key == key.word)
    query = select(requests).where(*is_it, requests.c.at > now - KEPT)
    row = connection.execute(query).first()
    return None if row is None else (row.fingerprint, Answer(row.status, row.content, row.headers))


def store(
    connection: Connection, key: Key, fingerprint: str, answer: Answer, now: datetime
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
    _forget(connection, now - KEPT)


def _forget(connection: Connection, before: datetime) -> None:
    """Delete a few old rows; two who do so at once take different ones."""
    names = (requests.c.caller, requests.c.key)
    old = select(*names).where(requests.c.at <= before).limit(MOST_FORGOTTEN)
    free = old.with_for_update(skip_locked=True)
    connection.execute(delete(requests).where(tuple_(*names).in_(free)))
