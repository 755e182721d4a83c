"""The controller looks up what spot machines cost, and books them at that."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from decimal import Decimal

from sqlalchemy import Engine

from service import ledger
from service.background import PRICE_DELAY, SpotPriceWatch
from service.clouds.clouds import Clouds
from service.db import clock, jobs, prices, vms
from service.errors import ProviderUnavailable
from service.offers import BillingTerms, SeenPrice
from service.prices import PricedRegion, shipped_prices
from tests.builders import NOW, offer, spec
from tests.fakecloud.provider import FakeCloudProvider

HOUR = timedelta(hours=1)
TERMS = BillingTerms(Decimal("3.6"))


class Market(FakeCloudProvider):
    """A cloud whose spot price fell half an hour ago."""

    asked: list[datetime]

    def spot_prices(self, zone: str, machine_type: str, since: datetime) -> tuple[SeenPrice, ...]:
        """Tell the price at a moment, and the one that followed."""
        self.asked.append(since)
        if zone == "b":
            raise ProviderUnavailable("no answer")
        now = clock.now(self.engine)
        before, after = SeenPrice(NOW - 9 * HOUR, Decimal(2)), SeenPrice(now - HOUR / 2, Decimal(1))
        return (after,) if since > after.since else (before, after)

    engine: Engine


def test_each_look_goes_on_from_the_last_until_the_machine_has_ended(engine: Engine) -> None:
    cloud = Market("http://nowhere", "account", zone="ab")
    cloud.asked, cloud.engine = [], engine
    # A public address in this region costs 0.005 dollars per hour.
    priced = PricedRegion("aws", "eu-central-1", has_public_address=True)
    cloud.traits = replace(cloud.traits, priced=priced)
    watch = SpotPriceWatch(engine, Clouds([cloud]))
    with engine.begin() as connection:
        now = clock.read(connection)
        prices.store_prices(connection, shipped_prices(), now)
        jobs.create(connection, "job_1", spec(), now)
        for number, (zone, market) in enumerate(
            [("a", "spot"), ("b", "spot"), ("a", "on_demand")], 1
        ):
            place = offer(cloud="fake", zone=zone, market=market, terms=TERMS)
            vms.record_intent(connection, "job_1", number, place, now - HOUR, HOUR)
            name = f"job_1-w{number}"
            vms.record_attempt(connection, name, now - HOUR, now + HOUR, "a-1")
            vms.record_launch(connection, name, f"i-{number}")

    def rows() -> tuple[vms.Vm, ...]:
        with engine.connect() as connection:
            return vms.of_job(connection, "job_1")

    full = ledger.committed(rows())
    watch.look()
    spot, unseen, on_demand = rows()
    assert (unseen.prices, on_demand.prices) == ((), ())
    assert [f"{each.price_per_hour.normalize():f}" for each in spot.prices] == [
        "2.005",
        "1.005",
        "1.005",
    ]
    # Half an hour at 2 dollars, half an hour at 1, and the address.
    assert abs(spot.cost(now) - Decimal("1.505")) < Decimal("0.001")
    assert on_demand.cost(now) == Decimal("3.6")
    assert full - ledger.committed(rows()) > Decimal("1.87"), "a look frees what was reserved"
    assert spot.prices[-1].since <= now - PRICE_DELAY / 2, "a later change may still be told"

    watch.look()
    assert cloud.asked[2] == spot.prices[-1].since
    with engine.begin() as connection:
        vms.record_gone(connection, spot.id, clock.read(connection) - 2 * PRICE_DELAY)
    watch.look()
    before = len(cloud.asked)
    watch.look()
    assert len(cloud.asked) == before + 1, "only the one that never answered is asked for again"
