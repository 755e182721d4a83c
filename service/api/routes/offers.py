"""Offers: which machines the clouds of this controller rent out, where, and for how much."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import TypeAdapter

from scavenger.schemas.prices import OfferList, PriceMarket
from service.api.dependencies import AppState, State
from service.api.openapi import page_responses
from service.api.pagination import Page
from service.api.security import VIEWER, GuardedRoute
from service.db.offers import (
    OfferFilter,
    OfferPosition,
    PricedZone,
    cheapest_offers,
    position_of,
)
from service.db.prices import read_price_book
from service.errors import UnknownPrice
from service.prices import UNITS_BESIDE, PriceBook

router = APIRouter(prefix="/v1/offers", tags=["prices"], route_class=GuardedRoute)

OFFER_POSITION: TypeAdapter[OfferPosition] = TypeAdapter(OfferPosition)
NEEDS = ("cloud", "market", "vcpus", "memory", "accelerator", "accelerators")

CloudName = Annotated[
    str | None,
    Query(description="Only of this entry of the clouds file", pattern="^[a-z][a-z0-9-]{0,40}$"),
]
MarketName = Annotated[PriceMarket | None, Query(description="Only of this market")]
LeastVcpus = Annotated[
    float | None,
    Query(description="At least so many vCPUs", ge=0, le=100_000, allow_inf_nan=False),
]
LeastMemory = Annotated[
    float | None,
    Query(description="At least so many GiB", ge=0, le=1_000_000, allow_inf_nan=False),
]
AcceleratorName = Annotated[
    str | None,
    Query(description="With this accelerator, such as nvidia-l4", pattern="^[A-Za-z0-9._-]{1,62}$"),
]
LeastAccelerators = Annotated[
    int | None, Query(description="At least so many accelerators", ge=0, le=1024)
]


@router.get(
    "",
    responses=page_responses("list_offers", **{name: f"$request.query.{name}" for name in NEEDS}),
    dependencies=[VIEWER],
)
def list_offers(
    app_state: State,
    page: Page,
    cloud: CloudName = None,
    market: MarketName = None,
    vcpus: LeastVcpus = None,
    memory: LeastMemory = None,
    accelerator: AcceleratorName = None,
    accelerators: LeastAccelerators = None,
) -> OfferList:
    """List the machine types with a known price, in each zone and market, cheapest first."""
    after = page.position("offers", OFFER_POSITION)
    wanted = OfferFilter(cloud, market, vcpus, memory, accelerator, accelerators)
    now = app_state.now()
    with app_state.engine.connect() as connection:
        # Not those of machines: every page would read thousands of prices, and show 200.
        book = read_price_book(connection, app_state.clouds.priced_regions, UNITS_BESIDE)
        zones = priced_zones(app_state, book)
        found = cheapest_offers(connection, zones, wanted, after, page.limit + 1, now)
    shown, following = page.split("offers", found, position_of)
    return OfferList(offers=list(shown), next_cursor=following)


def priced_zones(app_state: AppState, book: PriceBook) -> list[PricedZone]:
    """Return the zones of all clouds whose disks and addresses have known prices."""
    found: list[PricedZone] = []
    for provider in app_state.clouds:
        priced = provider.traits.priced
        try:
            beside = book.price_beside(priced)
        except UnknownPrice:
            continue  # no price of a machine there is whole, so no job is accepted by it
        found += [PricedZone(provider.name, zone, priced, beside) for zone in provider.traits.zones]
    return found
