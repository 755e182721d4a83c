"""Offers of the clouds of a controller: each type whose price is known, in each zone and market.

They are joined in the database, since a controller of several regions has thousands.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Numeric,
    Row,
    Select,
    Text,
    and_,
    case,
    cast,
    column,
    func,
    select,
    true,
    tuple_,
    values,
)
from sqlalchemy.sql.base import ReadOnlyColumnCollection

from scavenger.schemas.base import MoneyView
from scavenger.schemas.prices import OfferView, PriceMarket
from service.db.schema import prices
from service.db.shortages import Shortage, active_shortages
from service.offers import BillingTerms, Offer
from service.prices import PricedRegion

OfferPosition = tuple[str, str, str, str, str]
POSITION_COLUMNS = ("total", "cloud", "zone", "item", "market")


@dataclass(frozen=True, slots=True)
class PricedZone:
    """A zone of a cloud, and where its prices are found.

    Attributes:
        cloud: Name of the entry in the clouds file.
        beside: Dollars per hour of a machine's disk and public address.
    """

    cloud: str
    zone: str
    priced: PricedRegion
    beside: Decimal


@dataclass(frozen=True, slots=True)
class OfferFilter:
    """What offers are asked for; None leaves all.

    Attributes:
        vcpus: The fewest.
        memory: The fewest GiB.
        accelerator: The cloud's word, in any case of its letters.
        accelerators: The fewest.
    """

    cloud: str | None = None
    market: PriceMarket | None = None
    vcpus: float | None = None
    memory: float | None = None
    accelerator: str | None = None
    accelerators: int | None = None


def cheapest_offers(
    connection: Connection,
    zones: Collection[PricedZone],
    wanted: OfferFilter,
    after: OfferPosition | None,
    limit: int,
    now: datetime,
) -> tuple[OfferView, ...]:
    """Return offers by price, from behind a position on.

    A spot machine whose price is not known is offered at the price on demand, which is the most it
    may cost.
    """
    if not zones:
        return ()
    all_offers = select_offers(zones).subquery("offers").c
    position = [all_offers[name] for name in POSITION_COLUMNS]
    query = select(*all_offers).where(*conditions(all_offers, wanted)).order_by(*position)
    if after is not None:
        price, *rest = after
        query = query.where(tuple_(*position) > tuple_(cast(Decimal(price), Numeric), *rest))
    lacking = active_shortages(connection, {each.cloud for each in zones}, now)
    return tuple(to_view(row, lacking) for row in connection.execute(query.limit(limit)))


def conditions(
    offers: ReadOnlyColumnCollection[str, Any], wanted: OfferFilter
) -> Iterator[ColumnElement[bool]]:
    """Yield what offers must meet; a machine whose size is not known meets no size."""
    if wanted.cloud is not None:
        yield offers.cloud == wanted.cloud
    if wanted.market is not None:
        yield offers.market == wanted.market
    if wanted.vcpus is not None:
        yield offers.vcpus >= wanted.vcpus
    if wanted.memory is not None:
        yield offers.memory_gib >= wanted.memory
    if wanted.accelerator is not None:
        yield func.lower(offers.accelerator) == wanted.accelerator.lower()
    if wanted.accelerators is not None:
        yield offers.accelerators >= wanted.accelerators


def select_offers(zones: Collection[PricedZone]) -> Select[Any]:
    """Select each type with a price on demand in each of these zones, once for each market."""
    places = values(
        *(column(name, Text) for name in ("cloud", "zone", "provider", "region")),
        column("beside", Numeric),
        name="places",
    ).data(
        [
            (each.cloud, each.zone, each.priced.provider, each.priced.region, each.beside)
            for each in zones
        ]
    )
    markets = values(column("market", Text), name="markets").data([("on_demand",), ("spot",)])
    machines = select_machines().cte("machines").prefix_with("MATERIALIZED")
    is_spot = markets.c.market == "spot"
    is_known = and_(is_spot, machines.c.spot_price.is_not(None))
    price = case((is_known, machines.c.spot_price), else_=machines.c.price)
    return (
        select(
            places.c.cloud,
            places.c.zone,
            machines.c.item,
            markets.c.market,
            (price + places.c.beside).label("total"),
            and_(is_spot, machines.c.spot_price.is_(None)).label("is_upper_bound"),
            case((is_known, machines.c.spot_as_of), else_=machines.c.as_of).label("as_of"),
            case((is_known, machines.c.spot_source), else_=machines.c.source).label("source"),
            machines.c.vcpus,
            machines.c.memory_gib,
            machines.c.accelerator,
            machines.c.accelerators,
        )
        .select_from(places)
        .join(
            machines,
            and_(machines.c.provider == places.c.provider, machines.c.region == places.c.region),
        )
        .join(markets, true())
    )


def select_machines() -> Select[Any]:
    """Select machine types with their prices on demand, and on spot where that is known.

    Once for all zones, or the database would look the same price up for each of them.
    """
    listed, spot = prices.alias("listed"), prices.alias("spot")
    same = [listed.c[name] == spot.c[name] for name in ("provider", "region", "item", "unit")]
    return (
        select(
            listed,
            spot.c.price.label("spot_price"),
            spot.c.as_of.label("spot_as_of"),
            spot.c.source.label("spot_source"),
        )
        .join(spot, and_(*same, spot.c.market == "spot"), isouter=True)
        .where(listed.c.unit == "machine_hour", listed.c.market == "on_demand")
    )


def to_view(row: Row[Any], lacking: Sequence[Shortage]) -> OfferView:
    """Return an offer as the API shows it, with the shortage at its place."""
    offer = Offer(row.cloud, row.zone, row.item, row.market, "", BillingTerms(row.total))
    short = next((each for each in lacking if each.covers(offer)), None)
    return OfferView(
        cloud=row.cloud,
        zone=row.zone,
        machine_type=row.item,
        market=row.market,
        price_per_hour=MoneyView(amount=row.total),
        is_upper_bound=row.is_upper_bound,
        as_of=row.as_of,
        source=row.source,
        vcpus=row.vcpus,
        memory_gib=row.memory_gib,
        accelerator=row.accelerator,
        accelerators=row.accelerators,
        shortage=None if short is None else short.why,
        shortage_until=None if short is None else short.until,
    )


def position_of(offer: OfferView) -> OfferPosition:
    """Return what follows an offer in the order of the list."""
    price = str(offer.price_per_hour.amount)
    return price, offer.cloud, offer.zone, offer.machine_type, offer.market
