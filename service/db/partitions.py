"""Partitions of the chunks table: one per day, made ahead, thinned when old, dropped in the end.

Nothing here keeps anybody waiting: a partition is made on its own and then attached, which stops no
insert, and a lock that is not had at once is tried for in the next round.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta

import numpy as np
from sqlalchemy import Connection, delete, func, insert, select, text

from service.db.batch import Batch
from service.db.packing import pack, unpack
from service.db.schema import chunks

AHEAD = 7  # days for which partitions are there, should nobody make more
EVERY = 10  # rows of which one is kept in the end
MOST_CHUNKS = 500  # that are thinned into one
PREFIX = "chunks_"
LOCK = 0x5CA7DA75  # any number, as long as nobody else takes it

FOUND = text(
    "SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = 'chunks'::regclass"
)


def today(connection: Connection) -> date:
    """Return the day it is in UTC, by the clock that stamps what is received."""
    moment: datetime = connection.execute(select(func.now())).scalar_one()
    return moment.astimezone(UTC).date()


def days(connection: Connection) -> set[date]:
    """Return the days that have a partition."""
    names = connection.execute(FOUND).scalars()
    return {datetime.strptime(name, f"{PREFIX}%Y%m%d").replace(tzinfo=UTC).date() for name in names}


def prepare(connection: Connection) -> None:
    """Make the partitions of today and the days ahead."""
    take_turns(connection, timedelta(seconds=10))
    first = today(connection)
    wanted = {first + timedelta(days=number) for number in range(AHEAD + 1)}
    for day in sorted(wanted - days(connection)):
        name, end = f"{PREFIX}{day:%Y%m%d}", day + timedelta(days=1)
        connection.execute(text(f"CREATE TABLE {name} (LIKE chunks INCLUDING ALL)"))
        bounds = f"FROM ('{day} 00:00+00') TO ('{end} 00:00+00')"
        connection.execute(text(f"ALTER TABLE chunks ATTACH PARTITION {name} FOR VALUES {bounds}"))


def drop(connection: Connection, keep: timedelta) -> list[date]:
    """Drop the days that ended longer ago than that; returns them."""
    take_turns(connection, timedelta(seconds=0.2))
    first = today(connection) - keep
    past = sorted(day for day in days(connection) if day < first)
    for day in past:
        connection.execute(text(f"DROP TABLE {PREFIX}{day:%Y%m%d}"))
    return past


def take_turns(connection: Connection, patience: timedelta) -> None:
    """Let one controller at a time change partitions, and give up waiting for locks soon."""
    connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": LOCK})
    milliseconds = int(patience.total_seconds() * 1000)
    connection.execute(text(f"SET LOCAL lock_timeout = {milliseconds}"))


def thin(connection: Connection, keep: timedelta) -> bool:
    """Keep one of ten rows of chunks that follow one another; False when none is old enough.

    Whatever becomes of the chunks, the statistics hold all rows there ever were.

    Args:
        connection: Where to.
        keep: How long every row is kept.
    """
    c = chunks.c
    before = datetime.combine(today(connection) - keep, datetime.min.time(), UTC)
    is_due = (c.received_at < before) & (c.every == 1)
    query = select(c.worker, c.generation, c.received_at).where(is_due).order_by(c.received_at)
    first = connection.execute(query.limit(1)).one_or_none()
    if first is None:
        return False
    midnight = datetime.combine(first.received_at.astimezone(UTC), datetime.min.time(), UTC)
    is_same = (
        (c.worker == first.worker)
        & (c.generation == first.generation)
        & (c.received_at >= midnight)
        & (c.received_at < midnight + timedelta(days=1))
    )
    query = select(chunks).where(is_due & is_same).order_by(c.sequence)
    found = connection.execute(query.limit(MOST_CHUNKS).with_for_update(skip_locked=True)).all()
    if not found:
        return False
    kept = sample([unpack(row.columns) for row in found])
    for row in found:
        is_it = (c.worker == row.worker) & (c.sequence == row.sequence)
        connection.execute(delete(chunks).where(is_it, c.received_at == row.received_at))
    content = {"rows": len(kept), "every": EVERY, "columns": pack(kept)}
    connection.execute(insert(chunks).values({**found[0]._asdict(), **content}))
    return True


def sample(batches: list[Batch]) -> Batch:
    """Return every tenth row of chunks that follow one another."""
    return Batch(
        np.concatenate([batch.offset for batch in batches])[::EVERY],
        np.concatenate([batch.iteration for batch in batches])[::EVERY],
        np.concatenate([batch.shards for batch in batches])[::EVERY],
        np.concatenate([batch.series for batch in batches], axis=1)[:, ::EVERY],
    )
