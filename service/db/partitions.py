"""Partitions of the chunks table: one per day, made ahead and dropped when old.

None of this blocks a report: a partition is built on its own and then attached, which stops no
insert, and a lock that is not free at once is tried again in the next run.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta

from sqlalchemy import Connection, func, select, text

DAYS_AHEAD = 7  # days that stay covered while no controller runs
PARTITION_PREFIX = "chunks_"
PARTITION_LOCK = 0x5CA7DA75  # any number that no other lock has

FIND_PARTITIONS = text(
    "SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = 'chunks'::regclass"
)


def today(connection: Connection) -> date:
    """Return the day it is in UTC, by the clock that stamps what is received."""
    moment: datetime = connection.execute(select(func.now())).scalar_one()
    return moment.astimezone(UTC).date()


def partitioned_days(connection: Connection) -> set[date]:
    """Return the days that have a partition."""
    names = connection.execute(FIND_PARTITIONS).scalars()
    return {
        datetime.strptime(name, f"{PARTITION_PREFIX}%Y%m%d").replace(tzinfo=UTC).date()
        for name in names
    }


def kept_from(connection: Connection) -> datetime | None:
    """Return the moment since which what is received is kept; None before the first partition."""
    days = partitioned_days(connection)
    return datetime.combine(min(days), time(), UTC) if days else None


def create_ahead(connection: Connection) -> None:
    """Make the partitions of today and the days ahead."""
    lock_partitions(connection, timedelta(seconds=10))
    first = today(connection)
    wanted = {first + timedelta(days=number) for number in range(DAYS_AHEAD + 1)}
    for day in sorted(wanted - partitioned_days(connection)):
        name, end = f"{PARTITION_PREFIX}{day:%Y%m%d}", day + timedelta(days=1)
        connection.execute(text(f"CREATE TABLE {name} (LIKE chunks INCLUDING ALL)"))
        bounds = f"FROM ('{day} 00:00+00') TO ('{end} 00:00+00')"
        connection.execute(text(f"ALTER TABLE chunks ATTACH PARTITION {name} FOR VALUES {bounds}"))


def drop_older_than(connection: Connection, keep: timedelta) -> list[date]:
    """Drop the days that ended longer ago than that; returns them."""
    lock_partitions(connection, timedelta(seconds=0.2))
    first = today(connection) - keep
    past = sorted(day for day in partitioned_days(connection) if day < first)
    for day in past:
        connection.execute(text(f"DROP TABLE {PARTITION_PREFIX}{day:%Y%m%d}"))
    return past


def lock_partitions(connection: Connection, timeout: timedelta) -> None:
    """Let one controller at a time change partitions, and give up waiting for locks soon."""
    connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": PARTITION_LOCK})
    milliseconds = int(timeout.total_seconds() * 1000)
    connection.execute(text(f"SET LOCAL lock_timeout = {milliseconds}"))
