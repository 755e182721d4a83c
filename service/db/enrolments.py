"""The enrolments table: which process each machine's token was given to, once."""

from __future__ import annotations

from datetime import datetime
from hashlib import sha256

from sqlalchemy import Connection, select
from sqlalchemy.dialects.postgresql import insert

from service.db.schema import enrolments


def enrol(connection: Connection, worker: str, nonce: str, now: datetime) -> bool:
    """Let a machine in by its word; False when another word was given for it before."""
    digest = sha256(nonce.encode()).hexdigest()
    row = {"worker": worker, "nonce_digest": digest, "at": now}
    connection.execute(insert(enrolments).values(row).on_conflict_do_nothing())
    query = select(enrolments.c.nonce_digest).where(enrolments.c.worker == worker)
    return bool(connection.execute(query).scalar_one() == digest)
