"""The price book: the price that holds for each item, with its age and source."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import get_args

from sqlalchemy import ColumnElement, Connection, func, select, text, tuple_
from sqlalchemy.dialects.postgresql import insert as upsert

from scavenger.schemas.prices import PriceUnit, PriceView
from service.db.schema import FINAL_PHASES, jobs, outcomes, prices, vms
from service.prices import PriceBook, PriceKey, PriceUpdate, judge_update, newest_prices

KEY_COLUMNS = tuple(prices.primary_key.columns)
# Two writers would each judge by what the other is about to replace.
LOCK_PRICES = text("SELECT pg_advisory_xact_lock(hashtext('scavenger prices'))")


def page_of_prices(
    connection: Connection, after: PriceKey | None, limit: int
) -> tuple[PriceView, ...]:
    """Return prices in the order of their keys, from behind a key on."""
    query = select(prices).order_by(*KEY_COLUMNS).limit(limit)
    if after is not None:
        query = query.where(tuple_(*KEY_COLUMNS) > after)
    return tuple(PriceView.model_validate(row) for row in connection.execute(query))


def read_price_book(
    connection: Connection,
    regions: Collection[tuple[str, str]],
    units: Collection[PriceUnit] = get_args(PriceUnit),
) -> PriceBook:
    """Return the prices of some units in these regions, each with its provider."""
    query = select(prices).where(
        tuple_(prices.c.provider, prices.c.region).in_(regions), prices.c.unit.in_(units)
    )
    found = (PriceView.model_validate(row) for row in connection.execute(query))
    return PriceBook(newest_prices(found))


def store_prices(connection: Connection, told: Sequence[PriceView], now: datetime) -> PriceUpdate:
    """Store the prices that are believed and newer than what is known; return what became of all.

    Args:
        connection: The database.
        told: Prices from one source.
        now: The present moment.
    """
    connection.execute(LOCK_PRICES)
    regions = {(price.provider, price.region) for price in told}
    update = judge_update(told, read_price_book(connection, regions).prices, now)
    if update.accepted:
        rows = [price.model_dump() for price in update.accepted]
        query = upsert(prices)
        changes: dict[str, ColumnElement[object]] = {
            column.name: query.excluded[column.name]
            for column in prices.columns
            if not column.primary_key
        }
        # A cloud's own price list does not say how large its machines are.
        for name in ("vcpus", "memory_gib"):
            changes[name] = func.coalesce(query.excluded[name], prices.c[name])
        connection.execute(
            query.on_conflict_do_update(constraint=prices.primary_key, set_=changes), rows
        )
    return update


def types_in_use(connection: Connection, cloud: str) -> set[str]:
    """Return the machine types of a cloud that jobs which go on name, or rent."""
    machine = jobs.c.spec["machine"]
    named = (
        select(machine["type"].astext)
        .join(outcomes, outcomes.c.job == jobs.c.id)
        .where(
            outcomes.c.phase.not_in(FINAL_PHASES),
            machine["cloud"].astext == cloud,
            machine["type"].astext.is_not(None),
        )
    )
    rented = select(vms.c.machine_type).where(vms.c.state != "gone", vms.c.cloud == cloud)
    return set(connection.execute(named.union(rented)).scalars())
