"""Sweeps: what each run of the garbage collector found, and what became of it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Literal

from pydantic import TypeAdapter
from sqlalchemy import Connection, delete, func, insert, select, text, update

from scavenger.schemas.machines import OrphanView, SweepView
from service.db.schema import sweeps

SWEEPS_KEPT = 1000
SWEEP_LOCK = 0x5CA75EE9  # any number that no other lock has
MAX_CLOCK_SKEW = timedelta(minutes=1)

# What becomes of a machine, as OrphanView explains.
Fate = Literal["end", "wait", "hold", "keep", "spare"]


ORPHANS = TypeAdapter(tuple[OrphanView, ...])


def begin(connection: Connection, cloud: str, now: datetime, pause: timedelta) -> int | None:
    """Announce a sweep of a cloud, its only one for so long; None soon after the last one."""
    _lock(connection)
    # One far ahead was announced before a clock was set back: it must not stop all that follow.
    recent = (sweeps.c.at > now - pause) & (sweeps.c.at < now + MAX_CLOCK_SKEW)
    of_cloud = select(sweeps.c.number).where(sweeps.c.cloud == cloud)
    if connection.execute(of_cloud.where(recent).limit(1)).first() is not None:
        return None
    kept = of_cloud.order_by(sweeps.c.number.desc()).offset(SWEEPS_KEPT - 1).limit(1)
    old = (
        sweeps.c.cloud == cloud,
        sweeps.c.number <= kept.scalar_subquery(),
        sweeps.c.confirmed_at.is_(None),
    )
    connection.execute(delete(sweeps).where(*old))
    query = insert(sweeps).values(cloud=cloud, at=now, ended=0).returning(sweeps.c.number)
    return int(connection.execute(query).scalar_one())


def record(
    connection: Connection,
    number: int,
    *,
    shown: int,
    suspects: tuple[OrphanView, ...],
    tripped: str | None,
) -> bool:
    """Store what a sweep found; False when another of its cloud began since: it must not act."""
    _lock(connection)
    cloud = select(sweeps.c.cloud).where(sweeps.c.number == number).scalar_subquery()
    of_cloud = sweeps.alias()
    newest = select(func.max(of_cloud.c.number)).where(of_cloud.c.cloud == cloud).scalar_subquery()
    content = ORPHANS.dump_python(suspects, mode="json")
    query = update(sweeps).where(sweeps.c.number == number, sweeps.c.number == newest)
    found = query.values(shown=shown, suspects=content, tripped=tripped)
    return connection.execute(found).rowcount == 1


def record_ended(connection: Connection, number: int, ended: int) -> None:
    """Note how many machines' end the cloud accepted."""
    connection.execute(update(sweeps).where(sweeps.c.number == number).values(ended=ended))


def newest(
    connection: Connection, limit: int, before: int | None = None, cloud: str | None = None
) -> list[SweepView]:
    """Return finished sweeps, of one cloud or of all, newest first, from below a number."""
    query = select(sweeps).where(sweeps.c.shown.is_not(None))
    if cloud is not None:
        query = query.where(sweeps.c.cloud == cloud)
    if before is not None:
        query = query.where(sweeps.c.number < before)
    rows = connection.execute(query.order_by(sweeps.c.number.desc()).limit(limit))
    return [SweepView.model_validate(row) for row in rows]


def find(connection: Connection, number: int) -> SweepView | None:
    """Return a finished sweep, and hold its row."""
    query = select(sweeps).where(sweeps.c.number == number, sweeps.c.shown.is_not(None))
    row = connection.execute(query.with_for_update()).first()
    return None if row is None else SweepView.model_validate(row)


def confirm(connection: Connection, number: int, now: datetime) -> None:
    """Let what a sweep held be ended by the next ones, as far as it still should be."""
    query = update(sweeps).where(sweeps.c.number == number, sweeps.c.confirmed_at.is_(None))
    connection.execute(query.values(confirmed_at=now))


def confirmed_orphans(connection: Connection, cloud: str) -> Mapping[str, str]:
    """Return the machines of a cloud that a person confirmed, with their fate at that time."""
    is_confirmed = sweeps.c.confirmed_at.is_not(None)
    query = select(sweeps.c.suspects).where(sweeps.c.cloud == cloud, is_confirmed)
    rows = connection.execute(query.order_by(sweeps.c.number)).scalars()
    orphans = (orphan for row in rows for orphan in ORPHANS.validate_python(row))
    return {one.machine: one.fate for one in orphans if one.fate in ("hold", "keep")}


def _lock(connection: Connection) -> None:
    connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": SWEEP_LOCK})
