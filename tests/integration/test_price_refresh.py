"""Once an hour each cloud is asked what it wants for the machines in use."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pytest
from sqlalchemy import Engine

from scavenger.schemas.prices import PriceMarket, PriceRow, PriceView
from service.background import Maintenance
from service.clouds.clouds import Clouds
from service.clouds.local import LocalProvider
from service.clouds.metered import MeteredProvider
from service.clouds.provider import CloudTraits
from service.db import clock, jobs, prices, vms
from service.errors import CredentialsRefused
from service.prices import PricedRegion, to_price
from tests.builders import offer, spec

ANSWERS: dict[PriceMarket, str] = {"spot": "0.05", "on_demand": "0.1"}


class TellingProvider(LocalProvider):
    """A cloud that tells prices, some of them before it refuses.

    Attributes:
        asked: The types of each question.
        answers: Price by market, in the order in which they are told.
        is_refusing: Whether it refuses after the first price.
    """

    def __init__(self, root: Path) -> None:
        super().__init__(root, sys.executable, name="aws-frankfurt")
        priced = PricedRegion("aws", "eu-central-1")
        self.traits = CloudTraits(machine_type="m7i.large", priced=priced)
        self.asked: list[set[str]] = []
        self.answers = dict(ANSWERS)
        self.is_refusing = False

    def fetch_prices(self, types: Collection[str], now: datetime) -> Iterator[PriceView]:
        self.asked.append(set(types))
        for market, amount in self.answers.items():
            for item in types:
                place = {"provider": "aws", "region": "eu-central-1", "item": item}
                told = {**place, "market": market, "price": Decimal(amount)}
                yield to_price(PriceRow.model_validate(told), "cloud", now)
            if self.is_refusing:
                raise CredentialsRefused("no right to read price lists")


@pytest.fixture
def telling(tmp_path: Path) -> TellingProvider:
    return TellingProvider(tmp_path)


@pytest.fixture
def maintenance(engine: Engine, telling: TellingProvider, tmp_path: Path) -> Maintenance:
    silent = LocalProvider(tmp_path / "other", sys.executable)
    clouds = Clouds([MeteredProvider(silent), MeteredProvider(telling)])
    return Maintenance(engine, timedelta(days=1), clouds)


def held(engine: Engine) -> dict[tuple[str, str], Decimal]:
    with engine.connect() as connection:
        found = prices.page_of_prices(connection, None, 100)
    return {(each.item, each.market): each.price for each in found}


def test_the_types_in_use_are_asked_for_and_what_is_told_holds(
    engine: Engine, telling: TellingProvider, maintenance: Maintenance
) -> None:
    with engine.begin() as connection:
        now = clock.read(connection)
        for name, machine_type in (("job_1", "m7i.xlarge"), ("job_2", "c7i.xlarge")):
            on_it = spec().on_machine("aws-frankfurt", machine_type)
            jobs.create(connection, name, on_it, now)
        jobs.change_outcome(connection, "job_2", phase="cancelled")
        jobs.create(connection, "job_3", spec().on_machine("local", "local"), now)
        where = offer(cloud="aws-frankfurt", machine_type="g6.xlarge")
        vms.record_intent(connection, "job_2", 1, where, now, timedelta(minutes=1))
    maintenance.run_once()
    assert telling.asked == [{"m7i.large", "m7i.xlarge", "g6.xlarge"}]
    assert held(engine) == {
        (item, market): Decimal(amount)
        for item in telling.asked[0]
        for market, amount in ANSWERS.items()
    }


def test_what_is_not_believed_leaves_the_old_price(
    engine: Engine, telling: TellingProvider, maintenance: Maintenance
) -> None:
    maintenance.run_once()
    telling.answers = {"spot": "0.04", "on_demand": "100"}
    maintenance.run_once()
    assert held(engine) == {
        ("m7i.large", "spot"): Decimal("0.04"),
        ("m7i.large", "on_demand"): Decimal("0.1"),
    }


def test_what_was_told_before_an_error_holds(
    engine: Engine, telling: TellingProvider, maintenance: Maintenance
) -> None:
    telling.is_refusing = True
    maintenance.run_once()
    assert held(engine) == {("m7i.large", "spot"): Decimal("0.05")}
