"""The fake cloud's markets, zonal tokens, extra prices, and hooks at a machine's begin and end."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fakecloud.bill import Tariff
from tests.fakecloud.clock import VirtualClock
from tests.fakecloud.cloud import FakeCloud
from tests.fakecloud.faults import Interrupted, LateRequest
from tests.fakecloud.hooks import Hooks
from tests.fakecloud.machine import Market, Reason, Request
from tests.fakecloud.refusal import ConnectionLost, Refusal
from tests.fakecloud.settings import Settings
from tests.fakecloud.spot import SpotPrices

BOOT, ENDING = 30.0, 10.0


def make(**manners: Any) -> FakeCloud:
    return FakeCloud(VirtualClock(), Settings(**manners))


def start(cloud: FakeCloud, token: str = "token", zone: str = "a", **facts: Any) -> str:
    (machine,) = cloud.launch(token, Request("small", zone, **facts))
    return machine.id


def refusal_of(cloud: FakeCloud, token: str, **facts: Any) -> str:
    with pytest.raises(Refusal) as caught:
        start(cloud, token, **facts)
    return caught.value.code


# Tokens by zone


def test_a_zonal_token_makes_one_machine_in_each_zone() -> None:
    cloud = make(has_zonal_tokens=True)
    first, second = start(cloud), start(cloud, zone="b")
    assert first != second
    assert (start(cloud), start(cloud, zone="b")) == (first, second)
    assert refusal_of(cloud, "token", labels={"a": "b"}) == "IdempotentParameterMismatch"
    cloud.terminate(first)
    assert refusal_of(cloud, "token") == "IdempotentInstanceTerminated"
    assert start(cloud, zone="b") == second


def test_a_token_that_is_not_zonal_is_a_mismatch_in_another_zone() -> None:
    cloud = make()
    start(cloud)
    assert refusal_of(cloud, "token", zone="b") == "IdempotentParameterMismatch"


# Markets


@pytest.mark.parametrize(
    ("market", "other", "code"),
    [
        ("on_demand", "spot", "VcpuLimitExceeded"),
        ("spot", "on_demand", "MaxSpotInstanceCountExceeded"),
    ],
)
def test_each_market_has_a_quota_and_machines_of_its_own(
    market: Market, other: Market, code: str
) -> None:
    cloud = make(quotas={market: 1})
    machine = start(cloud, "first", market=market)
    assert refusal_of(cloud, "second", market=market) == code
    start(cloud, "other", market=other)
    cloud.stock("small@b" + ("+spot" if market == "spot" else ""), 0)
    cloud.terminate(machine)
    cloud.clock.advance(ENDING)
    sold_out = "InsufficientInstanceCapacity"
    assert refusal_of(cloud, "third", market=market, zone="b") == sold_out
    start(cloud, "fourth", market=market)


@given(
    prices=st.builds(SpotPrices, seed=st.integers(0, 99), period=st.sampled_from([1.0, 7.5, 600])),
    start_at=st.floats(0.0, 10**5),
    length=st.fractions(0, 5000, max_denominator=1000),
)
def test_spot_seconds_add_up_and_stay_between_the_lowest_and_the_highest_share(
    prices: SpotPrices, start_at: float, length: Fraction
) -> None:
    paid = prices.seconds("small@a+spot", start_at, length)
    assert Fraction("0.3") * length <= paid <= Fraction("0.7") * length
    first = prices.seconds("small@a+spot", start_at, length / 2)
    middle = float(Fraction(start_at) + length / 2)
    rest = prices.seconds("small@a+spot", middle, length / 2)
    assert float(first + rest) == pytest.approx(float(paid), abs=1e-6)


def test_the_spot_price_moves_and_differs_by_place_and_by_seed() -> None:
    prices = SpotPrices(period=10.0)
    shares = [share for _, share in prices.changes("small@a+spot", 5.0, 95.0)]
    assert len(shares) == len(set(shares)) == 10
    assert [since for since, _ in prices.changes("small@a+spot", 25.0, 39.0)] == [20.0, 30.0]
    assert prices.share("small@b+spot", 5.0) != shares[0]
    assert SpotPrices(seed=1, period=10.0).share("small@a+spot", 5.0) != shares[0]


# The bill


def test_a_spot_machine_is_billed_at_the_price_of_each_moment() -> None:
    spot = SpotPrices(period=50.0)
    cloud = make(tariffs={"small": Tariff(3600.0)}, spot=spot)
    start(cloud, market="spot")
    start(cloud, "dear")
    cloud.clock.advance(100.0)
    before, after = spot.share("small@a+spot", 0.0), spot.share("small@a+spot", 50.0)
    assert before != after
    assert [line.dollars for line in cloud.bill().lines] == [float(50 * (before + after)), 100.0]


@pytest.mark.parametrize("market", ["on_demand", "spot"])
def test_a_short_life_is_billed_for_the_minimum_with_its_address(market: Market) -> None:
    spot = SpotPrices(low=0.5, high=0.5)
    tariff = Tariff(3600.0, minimum=60.0, address_per_hour=36.0)
    cloud = make(tariffs={"small": tariff}, ending=0.0, spot=spot)
    cloud.terminate(start(cloud, market=market, has_public_address=True))
    cloud.clock.advance(1.0)
    assert cloud.bill().total == (30.6 if market == "spot" else 60.6)


# Ends that the cloud explains


def test_a_machine_may_end_as_it_begins_and_the_cloud_says_why() -> None:
    cloud = make()
    cloud.faults.next("launch", Interrupted(after=0.0, reason=Reason.SOLD_OUT))
    assert cloud.describe(start(cloud)).reason is Reason.SOLD_OUT


# Hooks


def watch(cloud: FakeCloud) -> list[str]:
    heard: list[str] = []
    cloud.hooks = Hooks(
        lambda machine: heard.append(f"{machine.token} began"),
        lambda machine: heard.append(f"{machine.token} ended"),
    )
    return heard


def test_hooks_hear_of_each_begin_and_each_end_once_in_order() -> None:
    cloud = make()
    heard = watch(cloud)
    first = start(cloud, "first")
    start(cloud, "second")
    start(cloud, "first")
    assert heard == ["first began", "second began"]
    cloud.terminate(first)
    cloud.terminate(first)
    assert heard == ["first began", "second began", "first ended"]


def test_hooks_hear_of_what_came_by_itself_when_the_cloud_settles() -> None:
    cloud = make()
    heard = watch(cloud)
    cloud.faults.next("launch", LateRequest(20.0))
    with pytest.raises(ConnectionLost):
        start(cloud, longest_run=100.0)
    cloud.clock.advance(20.0)
    cloud.settle()
    assert heard == ["token began"]
    cloud.clock.advance(BOOT + 130.0)
    cloud.settle()
    assert heard == ["token began", "token ended"]


def test_a_hook_may_ask_the_cloud() -> None:
    cloud = make()
    heard: list[str] = []

    def end_it(machine: Any) -> None:
        cloud.terminate(machine.id)
        heard.append("terminated")

    cloud.hooks = Hooks(end_it, lambda machine: heard.append("ended"))
    start(cloud)
    assert heard == ["terminated", "ended"]
