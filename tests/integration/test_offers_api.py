"""Offers through the API: what is offered, at which price, and what a filter leaves."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import Engine

from scavenger.schemas.prices import OfferList, OfferView, PriceRow
from service.api.dependencies import AppState
from service.app import build_app
from service.auth.tokens import ControllerKeys
from service.clouds.clouds import Clouds
from service.clouds.local import LocalProvider
from service.clouds.provider import CloudTraits
from service.clouds.storage import CheckpointStorage
from service.db import clock, prices
from service.db.shortages import Shortage, record_shortage
from service.prices import PricedRegion, to_price

KEYS = ControllerKeys(home_token="scv_token", secret="s" * 48)


class OfferingProvider(LocalProvider):
    """A cloud that rents machines of a region out, and is not asked here."""

    def __init__(self, name: str, zones: tuple[str, ...], priced: PricedRegion) -> None:
        super().__init__(Path("/nowhere"), "python", name=name)
        self.traits = CloudTraits(zones=zones, machine_type="m7i.large", priced=priced)


AWS = OfferingProvider(
    "aws-frankfurt",
    ("eu-central-1a", "eu-central-1b"),
    PricedRegion("aws", "eu-central-1", "gp3", 73, has_public_address=True),
)
GOOGLE = OfferingProvider("google-iowa", ("us-central1-a",), PricedRegion("google", "us-central1"))
UNPRICED = OfferingProvider("elsewhere", ("x",), PricedRegion("aws", "eu-central-1", "io9", 8))
CLOUDS = Clouds([AWS, GOOGLE, UNPRICED])

AWS_ROW: dict[str, Any] = {"provider": "aws", "region": "eu-central-1"}
GOOGLE_ROW: dict[str, Any] = {"provider": "google", "region": "us-central1"}
L4: dict[str, Any] = {"accelerator": "nvidia-l4", "accelerators": 1}
ROWS: tuple[dict[str, Any], ...] = (
    {**AWS_ROW, "item": "gp3", "unit": "disk_gib_month", "price": "0.10"},
    {**AWS_ROW, "item": "public-ipv4", "unit": "address_hour", "price": "0.005"},
    {**AWS_ROW, "item": "m7i.large", "price": "0.12", "vcpus": 2, "memory_gib": 8},
    {**AWS_ROW, "item": "m7i.xlarge", "price": "0.24", "vcpus": 4, "memory_gib": 16},
    {**AWS_ROW, "item": "m7i.xlarge", "price": "0.07", "market": "spot"},
    {**AWS_ROW, "item": "g6.xlarge", "price": "1.0", "vcpus": 4, "memory_gib": 16, **L4},
    {**GOOGLE_ROW, "item": "g2-standard-4", "price": "0.7", "vcpus": 4, "memory_gib": 16, **L4},
    {**GOOGLE_ROW, "item": "unsized", "price": "0.5"},
    {**GOOGLE_ROW, "item": "only-on-spot", "price": "0.01", "market": "spot"},
)


@pytest.fixture
def empty(engine: Engine) -> Iterator[TestClient]:
    """A controller to which no price was ever told."""
    app = build_app(AppState(engine, CLOUDS, CheckpointStorage(Path("/srv/scavenger"))), KEYS)
    headers = {"Authorization": f"Bearer {KEYS.home_token}"}
    with TestClient(app, headers=headers, raise_server_exceptions=False) as client:
        yield client


@pytest.fixture
def client(empty: TestClient, engine: Engine) -> TestClient:
    with engine.begin() as connection:
        now = clock.read(connection)
        rows = [to_price(PriceRow.model_validate(row), "imported", now) for row in ROWS]
        assert prices.store_prices(connection, rows, now).refused == ()
    return empty


def offered(client: TestClient, **query: Any) -> list[OfferView]:
    answer = client.get("/v1/offers", params={"limit": 200, **query})
    assert answer.status_code == 200, answer.text
    return OfferList.model_validate_json(answer.text).offers


def test_every_type_with_a_price_is_offered_in_each_zone_and_market_cheapest_first(
    client: TestClient,
) -> None:
    found = offered(client)
    assert len(found) == 3 * 2 * 2 + 2 * 2
    amounts = [each.price_per_hour.amount for each in found]
    assert all(one <= other for one, other in pairwise(amounts))
    spot = found[0]
    assert (spot.machine_type, spot.market, spot.is_upper_bound) == ("m7i.xlarge", "spot", False)
    # Beside the machine 73 GiB at 0.10 USD a month of 730 hours, and an address.
    assert spot.price_per_hour.amount == Decimal("0.07") + Decimal("0.01") + Decimal("0.005")
    assert {each.cloud for each in found} == {"aws-frankfurt", "google-iowa"}
    bounded = [each for each in found if each.is_upper_bound]
    assert {each.market for each in bounded} == {"spot"}
    assert "m7i.xlarge" not in {each.machine_type for each in bounded}


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({"cloud": "google-iowa"}, {"g2-standard-4", "unsized"}),
        ({"cloud": "elsewhere"}, set()),
        ({"vcpus": 4}, {"m7i.xlarge", "g6.xlarge", "g2-standard-4"}),
        ({"memory": 16.5}, set()),
        ({"memory": 8, "accelerator": "NVIDIA-L4"}, {"g6.xlarge", "g2-standard-4"}),
        ({"accelerators": 1, "cloud": "aws-frankfurt"}, {"g6.xlarge"}),
        ({"accelerators": 2}, set()),
        ({"accelerator": "nvidia-t4"}, set()),
    ],
)
def test_a_filter_leaves_what_meets_it(
    client: TestClient, query: dict[str, Any], expected: set[str]
) -> None:
    assert {each.machine_type for each in offered(client, **query)} == expected
    for market in ("on_demand", "spot"):
        found = offered(client, market=market, **query)
        assert {each.machine_type for each in found} == expected
        assert {each.market for each in found} <= {market}


@pytest.mark.parametrize("limit", [1, 3, 5, 200])
def test_pages_hold_each_offer_once_and_in_order(client: TestClient, limit: int) -> None:
    found: list[OfferView] = []
    cursor: str | None = None
    while True:
        query = {"limit": limit} | ({} if cursor is None else {"cursor": cursor})
        page = OfferList.model_validate_json(client.get("/v1/offers", params=query).text)
        found += page.offers
        cursor = page.next_cursor
        if cursor is None:
            break
    assert found == offered(client)


def test_a_shortage_stands_beside_the_offers_it_covers(client: TestClient, engine: Engine) -> None:
    with engine.begin() as connection:
        until = clock.read(connection) + timedelta(minutes=3)
        place = ("aws-frankfurt", "eu-central-1a", "", "spot")
        record_shortage(connection, Shortage(*place, "capacity", "sold out", until))
        past = until - timedelta(days=1)
        place = ("google-iowa", "", "", "")
        record_shortage(connection, Shortage(*place, "capacity", "long ago", past))
    for each in offered(client):
        is_short = (each.zone, each.market) == ("eu-central-1a", "spot")
        assert each.shortage == ("sold out" if is_short else None)
        assert each.shortage_until == (until if is_short else None)


def test_a_controller_whose_prices_are_not_known_offers_nothing(empty: TestClient) -> None:
    assert offered(empty) == []
