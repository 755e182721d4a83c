"""Shortages: places at which a cloud has just refused a machine, or taken one back.

A place that refused is not asked at once, one that lost a machine is asked last. All jobs and
controllers share them: without that, each would ask each place anew.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Literal

from sqlalchemy import Connection, delete, select
from sqlalchemy.dialects.postgresql import insert as upsert

from service.db.schema import shortages
from service.offers import Offer

SHORTAGE_SPAN = timedelta(minutes=3)
UNSOLD_SPAN = timedelta(days=1)  # a type that a zone does not have seldom comes there

ShortageKind = Literal["capacity", "quota", "credentials", "taken"]


@dataclass(frozen=True, slots=True)
class Shortage:
    """A place that gives no machine for a while.

    Attributes:
        cloud: Name of the entry in the clouds file.
        zone: The cloud's word; empty for all zones.
        machine_type: The cloud's word; empty for all types.
        market: Which market; empty for both.
        kind: What it lacks, or that a machine was taken back there.
        why: What the cloud said.
        until: When it may be asked again.
    """

    cloud: str
    zone: str
    machine_type: str
    market: str
    kind: ShortageKind
    why: str
    until: datetime

    @property
    def is_refusal(self) -> bool:
        """Whether its place gives none; where a machine was taken back it may give another."""
        return self.kind != "taken"

    def covers(self, offer: Offer) -> bool:
        """Whether an offer is at this place."""
        return self.cloud == offer.cloud and all(
            mine in ("", theirs)
            for mine, theirs in (
                (self.zone, offer.zone),
                (self.machine_type, offer.machine_type),
                (self.market, offer.market),
            )
        )


def record_shortage(connection: Connection, shortage: Shortage) -> None:
    """Store a shortage, in place of an older one of the same place."""
    row = asdict(shortage)
    query = upsert(shortages).values(row)
    changes = {name: row[name] for name in ("kind", "why", "until")}
    connection.execute(query.on_conflict_do_update(constraint=shortages.primary_key, set_=changes))


def record_taken(connection: Connection, offer: Offer, why: str, now: datetime) -> None:
    """Note that a cloud takes a machine back at a place; a refusal there says more, and stays."""
    drop_past(connection, now)
    place = (offer.cloud, offer.zone, offer.machine_type, offer.market)
    row = asdict(Shortage(*place, "taken", why, now + SHORTAGE_SPAN))
    connection.execute(upsert(shortages).values(row).on_conflict_do_nothing())


def active_shortages(
    connection: Connection, clouds: Collection[str], now: datetime
) -> tuple[Shortage, ...]:
    """Return the shortages of some clouds that have not passed."""
    query = select(shortages).where(shortages.c.cloud.in_(clouds), shortages.c.until > now)
    rows = connection.execute(query.order_by(shortages.c.until)).mappings()
    return tuple(Shortage(**row) for row in rows)


def drop_past(connection: Connection, now: datetime) -> None:
    """Delete shortages that have passed."""
    connection.execute(delete(shortages).where(shortages.c.until <= now))
