"""Checkpoints in buckets: what machines send, which are complete, and which may be deleted.

A row exists before the first of its objects and is dropped after the last. A checkpoint is offered
once all of it is in the bucket, and never while it is being deleted::

    unfinished ──▶ complete ──▶ doomed ──▶ (dropped)
         └─────────────────────────▲
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from pydantic import TypeAdapter
from sqlalchemy import (
    Connection,
    Row,
    and_,
    delete,
    func,
    insert,
    or_,
    select,
    text,
    tuple_,
    update,
)

from scavenger.checkpoints import CheckpointPart, CheckpointUpload, object_names
from service.db.schema import checkpoints

# How long a machine may send, and fetch, one with the requests that were signed for it.
TRANSFER_SPAN = timedelta(seconds=4500)
# How long the bucket may still be at a request of a worker that says that it sends no more.
CONNECTION_SPAN = timedelta(seconds=60)
# Uploads of a job that were begun and have neither been finished nor deleted: a worker that dies
# again and again must not fill the bucket.
MAX_UNFINISHED = 16
DELETE_BATCH = 100

_PARTS: TypeAdapter[tuple[CheckpointPart, ...]] = TypeAdapter(tuple[CheckpointPart, ...])
_LOCK_JOB = text("SELECT pg_advisory_xact_lock(hashtext('checkpoints'), hashtext(:job))")
_AGE = (checkpoints.c.generation, checkpoints.c.iteration, checkpoints.c.id)


@dataclass(frozen=True, slots=True)
class KeptCheckpoint:
    """One checkpoint of a job.

    Attributes:
        cloud: Entry of the clouds file that names the bucket.
        bucket: URL of the bucket's prefix; an entry may name another one later.
        is_complete: Whether all of it is in the bucket.
        is_doomed: Whether it is being deleted.
    """

    job: str
    id: str
    cloud: str
    bucket: str
    generation: int
    iteration: int
    parts: tuple[CheckpointPart, ...]
    is_complete: bool
    is_doomed: bool

    @property
    def names(self) -> tuple[str, ...]:
        """Names of its objects in the bucket."""
        return tuple(f"{self.job}/{self.id}/{name}" for name in object_names(self.parts))


def begin_upload(
    connection: Connection,
    job: str,
    worker: str,
    upload: CheckpointUpload,
    place: tuple[str, str],
    now: datetime,
) -> KeptCheckpoint | None:
    """Record that a worker sends a checkpoint to a cloud's bucket, or return what is known of it.

    A worker sends one at a time: what it began before and did not finish is given up. None is
    returned if too many uploads of the job have not ended.
    """
    connection.execute(_LOCK_JOB, {"job": job})
    of_job, is_it = checkpoints.c.job == job, checkpoints.c.id == upload.id
    is_open = and_(of_job, checkpoints.c.state == "unfinished")
    connection.execute(
        update(checkpoints)
        .where(is_open, ~is_it, checkpoints.c.worker == worker)
        .values(state="doomed", keep_until=now + CONNECTION_SPAN)
    )
    if find_checkpoint(connection, job, upload.id) is None:
        left = select(func.count()).where(
            of_job, checkpoints.c.state != "complete", checkpoints.c.keep_until > now
        )
        if connection.execute(left).scalar_one() >= MAX_UNFINISHED:
            return None
        cloud, bucket = place
        row = {
            "job": job,
            "id": upload.id,
            "cloud": cloud,
            "bucket": bucket,
            "generation": upload.generation,
            "iteration": upload.iteration,
            "parts": _PARTS.dump_python(upload.parts),
            "state": "unfinished",
            "worker": worker,
            "created_at": now,
            "keep_until": now,
        }
        connection.execute(insert(checkpoints).values(row))
    # Requests that are signed now may be under way for so long.
    connection.execute(
        update(checkpoints)
        .where(is_open, is_it)
        .values(keep_until=now + TRANSFER_SPAN, worker=worker)
    )
    return find_checkpoint(connection, job, upload.id)


def find_checkpoint(connection: Connection, job: str, checkpoint: str) -> KeptCheckpoint | None:
    """Return a checkpoint of a job; None if there is none of that name."""
    mine = (checkpoints.c.job == job, checkpoints.c.id == checkpoint)
    row = connection.execute(select(checkpoints).where(*mine)).first()
    return None if row is None else _kept(row)


def finish_upload(
    connection: Connection, job: str, checkpoint: str, keep: int, now: datetime
) -> bool:
    """Record that all of a checkpoint is in the bucket, and give up all but the newest ``keep``.

    Tells whether it is kept: not if it was given up meanwhile, or if newer ones are there.
    """
    connection.execute(_LOCK_JOB, {"job": job})
    mine = (checkpoints.c.job == job, checkpoints.c.id == checkpoint)
    finished = connection.execute(
        update(checkpoints)
        .where(*mine, checkpoints.c.state == "unfinished")
        .values(state="complete", keep_until=now)
    )
    if finished.rowcount:
        newest = (
            select(checkpoints.c.id)
            .where(checkpoints.c.job == job, checkpoints.c.state == "complete")
            .order_by(*(column.desc() for column in _AGE))
            .limit(keep)
        )
        connection.execute(
            update(checkpoints)
            .where(
                checkpoints.c.job == job,
                checkpoints.c.state == "complete",
                checkpoints.c.id.not_in(newest),
            )
            .values(state="doomed")
        )
    found = find_checkpoint(connection, job, checkpoint)
    return found is not None and found.is_complete


def newest_complete(
    connection: Connection, job: str, bucket: str, older_than: str | None, now: datetime
) -> KeptCheckpoint | None:
    """Return the newest complete checkpoint in a bucket, and keep it while it may be read.

    With ``older_than``, the newest one before that, which could not be used.
    """
    connection.execute(_LOCK_JOB, {"job": job})
    query = select(checkpoints).where(
        checkpoints.c.job == job,
        checkpoints.c.bucket == bucket,
        checkpoints.c.state == "complete",
    )
    if older_than is not None:
        generation, iteration, _ = older_than.split("-", 2)
        query = query.where(tuple_(*_AGE) < (int(generation), int(iteration), older_than))
    query = query.order_by(*(column.desc() for column in _AGE)).limit(1)
    row = connection.execute(query).first()
    if row is None:
        return None
    mine = and_(checkpoints.c.job == job, checkpoints.c.id == row.id)
    connection.execute(update(checkpoints).where(mine).values(keep_until=now + TRANSFER_SPAN))
    return _kept(row)


def count_complete(connection: Connection, job: str) -> int:
    """Return how many complete checkpoints of a job are kept."""
    mine = (checkpoints.c.job == job, checkpoints.c.state == "complete")
    return int(connection.execute(select(func.count()).where(*mine)).scalar_one())


def claim_deletable(
    connection: Connection, cloud: str, bucket: str, now: datetime
) -> tuple[KeptCheckpoint, ...]:
    """Return checkpoints whose objects may be deleted now: from here on they are never offered."""
    chosen = (
        select(checkpoints.c.job, checkpoints.c.id)
        .where(
            checkpoints.c.state != "complete",
            checkpoints.c.keep_until <= now,
            checkpoints.c.cloud == cloud,
            checkpoints.c.bucket == bucket,
        )
        .order_by(checkpoints.c.keep_until)
        .limit(DELETE_BATCH)
        .with_for_update(skip_locked=True)
    )
    claimed = connection.execute(
        update(checkpoints)
        .where(tuple_(checkpoints.c.job, checkpoints.c.id).in_(chosen))
        .values(state="doomed")
        .returning(*checkpoints.c)
    )
    return tuple(map(_kept, claimed))


def drop_deleted(connection: Connection, deleted: Sequence[KeptCheckpoint]) -> None:
    """Drop checkpoints of which the bucket has nothing any more."""
    gone = [and_(checkpoints.c.job == one.job, checkpoints.c.id == one.id) for one in deleted]
    if gone:
        connection.execute(delete(checkpoints).where(or_(*gone), checkpoints.c.state == "doomed"))


def _kept(row: Row[tuple[object, ...]]) -> KeptCheckpoint:
    return KeptCheckpoint(
        job=row.job,
        id=row.id,
        cloud=row.cloud,
        bucket=row.bucket,
        generation=row.generation,
        iteration=row.iteration,
        parts=_PARTS.validate_python(row.parts),
        is_complete=row.state == "complete",
        is_doomed=row.state == "doomed",
    )
