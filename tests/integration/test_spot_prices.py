"""The controller looks up what spot machines cost, and books them at that."""

from __future__ import annotations

from datetime import datetime, timedelta
from decimal import Decimal

from sqlalchemy import Engine

from service import ledger
from service.background import SpotPriceWatch
from service.clouds.clouds import Clouds
from service.db import clock, jobs, vms
from service.errors import ProviderUnavailable
from service.offers import BillingTerms, SeenPrice
from tests.builders import NOW, offer, spec
from tests.fakecloud.provider import FakeCloudProvider

HOUR = timedelta(hours=1)
TERMS = BillingTerms(Decimal("3.6"), extras_per_hour=Decimal("0.6"))


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
    watch = SpotPriceWatch(engine, Clouds([cloud]))
    with engine.begin() as connection:
        now = clock.read(connection)
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
    assert [str(each.price_per_hour) for each in spot.prices] == ["2.6", "1.6", "1.6"]
    # Half an hour at 2.6, half an hour at 1.6 dollars, each with 0.6 for disk and address.
    assert abs(spot.cost(now) - Decimal("2.1")) < Decimal("0.001")
    assert on_demand.cost(now) == Decimal("3.6")
    assert full - ledger.committed(rows()) > Decimal("1.49"), "a look frees what was reserved"

    watch.look()
    assert cloud.asked[2] == spot.prices[-1].since
    with engine.begin() as connection:
        vms.record_gone(connection, spot.id, clock.read(connection))
    watch.look()
    before = len(cloud.asked)
    watch.look()
    assert len(cloud.asked) == before + 1, "only the one that never answered is asked for again"
