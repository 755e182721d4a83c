"""Prices that AWS tells, of machines on demand and on spot."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal

import pytest

from service.clouds.aws import AwsProvider
from service.clouds.aws_prices import on_demand_prices
from service.errors import CredentialsRefused, ProviderUnavailable, Throttled
from service.prices import judge_update
from tests.conformance.aws.rental import SUBNETS, TYPE, ZONE
from tests.fakecloud.aws_region import EPOCH
from tests.fakecloud.ec2_door import AwsDoor


def test_spot_prices_are_every_change_since_a_moment(door: AwsDoor, aws: AwsProvider) -> None:
    door.cloud.clock.advance(4000.0)
    (everything, since) = (aws.spot_prices(ZONE, TYPE, EPOCH), 1500.0)
    seen = aws.spot_prices(ZONE, TYPE, EPOCH + timedelta(seconds=since))
    shares = list(door.cloud.settings.spot.changes(f"{TYPE}@{ZONE}+spot", since, 4000.0))
    assert len(seen) == len(shares) < len(everything)
    assert [each.since for each in seen] == sorted(each.since for each in seen)
    for each, (_, share) in zip(seen, shares, strict=True):
        assert float(each.price_per_hour) == pytest.approx(0.2 * float(share), abs=1e-6)


def test_prices_are_those_of_the_dearest_zone_on_spot_and_of_the_list_on_demand(
    door: AwsDoor, aws: AwsProvider
) -> None:
    door.cloud.clock.advance(5000.0)
    now = EPOCH + timedelta(seconds=5000)
    found = {(one.item, one.market): one for one in aws.fetch_prices([TYPE, "m9.none"], now)}
    assert set(found) == {(TYPE, "on_demand"), (TYPE, "spot")}
    listed = found[TYPE, "on_demand"]
    assert (listed.price, listed.vcpus, listed.memory_gib) == (Decimal("0.2"), 2, 4)
    moment = door.cloud.clock.now()
    shares = [door.cloud.settings.spot.share(f"{TYPE}@{zone}+spot", moment) for zone in SUBNETS]
    assert found[TYPE, "spot"].price == round(Decimal(0.2 * float(max(shares))), 6)
    assert {one.as_of for one in found.values()} == {now}
    assert {(one.provider, one.region) for one in found.values()} == {("aws", "eu-central-1")}
    assert judge_update(found.values(), {}, now).refused == ()


def test_prices_on_spot_are_kept_where_the_list_may_not_be_read(
    door: AwsDoor, aws: AwsProvider
) -> None:
    door.denied.add("GetProducts")
    told = aws.fetch_prices([TYPE], EPOCH)
    assert next(told).market == "spot"
    with pytest.raises(CredentialsRefused, match="GetProducts"):
        next(told)


@pytest.mark.parametrize("code", ["RequestLimitExceeded", "InternalError"])
def test_a_cloud_that_does_not_tell_prices_now_is_asked_again_later(
    door: AwsDoor, aws: AwsProvider, code: str
) -> None:
    for action in ("DescribeSpotPriceHistory", "GetProducts"):
        door.refuse_next(action, code)
        with pytest.raises((Throttled, ProviderUnavailable)):
            list(aws.fetch_prices([TYPE], EPOCH))


@pytest.mark.parametrize(
    "product", ["{", "[]", "{}", '{"product": {"attributes": {"vcpu": "x", "memory": "1"}}}']
)
def test_a_price_list_that_cannot_be_read_tells_no_price(product: str) -> None:
    with pytest.raises(ProviderUnavailable, match="cannot be read"):
        list(on_demand_prices("eu-central-1", TYPE, [product], EPOCH))
