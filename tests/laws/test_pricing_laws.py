import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scavenger.cluster import ClusterConfig, MemoryModel, config_columns
from scavenger.pricing import (
    Interruptions,
    MachinePrice,
    PriceModel,
    ResourcePrice,
    ServerPrice,
    on_demand_price_model,
)

unhurried = settings(max_examples=50)

GRID = config_columns(
    ClusterConfig(workers, workers * local, shared, kind)
    for workers in (1, 5, 16)
    for local in (1, 48)
    for shared in (1, 4)
    for kind in ("a", "b@there")
)
figures = st.just(0.0) | st.floats(1e-12, 1e6)
memories = st.builds(MemoryModel, figures, figures)
rates = st.builds(
    MachinePrice, figures, st.dictionaries(st.sampled_from(("a", "b@there")), figures)
)
rates |= st.builds(ResourcePrice, figures, figures, figures, memories)
prices = st.builds(
    PriceModel,
    rates,
    st.sampled_from((0.0, 1.0, 60.0, 3600.0)) | st.floats(0, 1e6),
    st.none() | st.builds(ServerPrice, st.integers(0, 100), figures),
    st.none() | st.builds(Interruptions, figures, figures),
)
times = st.lists(st.just(0.0) | st.floats(1e-30, 1e15), min_size=len(GRID), max_size=len(GRID)).map(
    np.array
)


@unhurried
@given(prices, times)
def test_no_price_makes_time_or_cost_infinite_or_negative(price, seconds):
    elapsed = price.expected_wall_time(GRID, seconds)
    for column in (elapsed, price.per_hour(GRID), price.costs(GRID, elapsed)):
        assert np.isfinite(column).all()
        assert (column >= 0).all()


@unhurried
@given(prices, times, st.floats(5e-324, 1e-100))
def test_a_quantum_too_short_to_notice_bills_exactly(price, seconds, quantum):
    exact = replace(price, quantum=0.0)
    assert replace(price, quantum=quantum).costs(GRID, seconds) == pytest.approx(
        exact.costs(GRID, seconds)
    )


@unhurried
@given(times, st.floats(1e-3, 1e5))
def test_a_quantum_rounds_up_by_less_than_one_and_never_bills_less(seconds, quantum):
    per_second = PriceModel(MachinePrice(3600.0), quantum)
    alone = config_columns([ClusterConfig(1, 1)] * len(seconds))
    billed = per_second.costs(alone, seconds)
    assert (billed >= seconds * (1 - 1e-15)).all()
    assert (billed <= (seconds + quantum) * (1 + 1e-12)).all()
    whole = billed / quantum
    assert np.abs(whole - np.round(whole)) == pytest.approx(0, abs=1e-9 * (1 + whole.max()))


@unhurried
@given(prices, times, times)
def test_longer_never_costs_less(price, seconds, more):
    costs, later = price.costs(GRID, seconds), price.costs(GRID, seconds + more)
    assert (later >= costs * (1 - 1e-12)).all()


@unhurried
@given(prices, times)
def test_interruptions_never_shorten_and_hit_large_clusters_at_least_as_much(price, seconds):
    stretched = price.expected_wall_time(GRID, seconds)
    assert (stretched >= seconds).all()
    if price.interruptions is None:
        assert stretched is seconds
        return
    ones = price.expected_wall_time(GRID, np.ones(len(GRID)))
    order = np.argsort(GRID.machines)
    assert (np.diff(ones[order]) >= 0).all()


@unhurried
@given(prices, st.integers(0, 50), figures)
def test_servers_add_exactly_their_price(price, count, per_hour):
    bare = replace(price, servers=None)
    served = replace(price, servers=ServerPrice(count, per_hour))
    added = served.per_hour(GRID) - bare.per_hour(GRID)
    largest = served.per_hour(GRID).max()
    assert added == pytest.approx(count * per_hour, rel=1e-9, abs=1e-12 * (1 + largest))


@unhurried
@given(figures, st.floats(0, 1e5))
def test_the_plainest_price_is_machines_times_hours_times_price(per_hour, seconds):
    costs = on_demand_price_model(per_hour).costs(GRID, np.full(len(GRID), seconds))
    expected = [GRID.config(r).machines * seconds / 3600 * per_hour for r in range(len(GRID))]
    assert costs == pytest.approx(expected)


@unhurried
@given(figures, st.dictionaries(st.sampled_from(("a", "b@there")), figures))
def test_each_machine_type_has_its_own_price_or_the_common_one(common, by_type):
    rate = MachinePrice(common, by_type)
    for row, per_hour in enumerate(rate.per_hour(GRID)):
        config = GRID.config(row)
        own = by_type.get(config.machine_type, common)
        assert per_hour == pytest.approx(own * config.machines)


@unhurried
@given(figures, figures, figures, memories)
def test_machines_of_custom_size_pay_for_the_memory_their_batch_needs(vcpu, gib, vcpus, memory):
    rate = ResourcePrice(vcpu, gib, vcpus, memory)
    for row, per_hour in enumerate(rate.per_hour(GRID)):
        config = GRID.config(row)
        worker = vcpu * vcpus + gib * memory.needed(config.local_batch)
        assert per_hour == pytest.approx(config.workers * worker)


@unhurried
@given(st.floats(1e-6, 1e6), memories)
def test_a_larger_batch_never_pays_for_less_memory(gib, memory):
    rate = ResourcePrice(0.0, gib, 1.0, memory)
    small, large = rate.per_hour(config_columns([ClusterConfig(4, 64), ClusterConfig(4, 256)]))
    more_samples = 4 * gib * memory.gib_per_sample * (64 - 16)
    assert large - small == pytest.approx(more_samples, rel=1e-6, abs=1e-9 * large)


@unhurried
@given(prices, times, st.sampled_from((0.01, 100.0, 7.3)))
def test_the_unit_of_money_does_not_matter(price, seconds, unit):
    assert in_unit(price, unit).costs(GRID, seconds) == pytest.approx(
        price.costs(GRID, seconds) * unit
    )


def in_unit(price: PriceModel, unit: float) -> PriceModel:
    servers = price.servers
    if servers is not None:
        servers = replace(servers, price_per_hour=servers.price_per_hour * unit)
    match price.rate:
        case MachinePrice(common, by_type):
            rate = MachinePrice(common * unit, {kind: own * unit for kind, own in by_type.items()})
        case ResourcePrice(vcpu, gib, vcpus, memory):
            rate = ResourcePrice(vcpu * unit, gib * unit, vcpus, memory)
    return replace(price, rate=rate, servers=servers)


@pytest.mark.parametrize("wrong", [-1.0, math.nan, math.inf])
def test_prices_are_finite_and_not_negative(wrong):
    for build in (
        lambda: MachinePrice(wrong),
        lambda: MachinePrice(1.0, {"a": wrong}),
        lambda: ResourcePrice(1.0, wrong, 1.0, MemoryModel(1, 1)),
        lambda: PriceModel(MachinePrice(1.0), quantum=wrong),
        lambda: ServerPrice(1, wrong),
        lambda: Interruptions(wrong, 1.0),
    ):
        with pytest.raises(ValueError, match="finite and not negative"):
            build()
