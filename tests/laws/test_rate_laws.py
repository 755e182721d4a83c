"""Laws of rates: nobody gets more than their share, and nobody waits in vain."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from service.api.rates import MOST_BUCKETS, Rate, Rates

pauses = st.lists(st.floats(0, 5), max_size=200)
rates = st.builds(Rate, st.floats(0.5, 50), st.integers(1, 50))


@given(rates, pauses)
def test_nobody_gets_more_than_the_burst_and_what_time_refills(
    rate: Rate, waits: list[float]
) -> None:
    now = [0.0]
    counted, allowed = Rates(lambda: now[0]), 0
    for wait in waits:
        now[0] += wait
        allowed += counted.wait(rate, "me") == 0
        assert allowed <= rate.burst + now[0] * rate.per_second + 1e-6


@given(rates, pauses)
def test_whoever_waits_as_long_as_told_goes_on(rate: Rate, waits: list[float]) -> None:
    now = [0.0]
    counted = Rates(lambda: now[0])
    for wait in waits:
        now[0] += wait
        told = counted.wait(rate, "me")
        if told:
            now[0] += told + 1e-6
            assert counted.wait(rate, "me") == 0


def test_very_many_senders_take_bounded_memory_and_the_busy_one_is_still_counted() -> None:
    counted, rate = Rates(lambda: 0.0), Rate(1, 2)
    for number in range(2 * MOST_BUCKETS):
        counted.wait(rate, f"stranger {number}")
        busy = counted.wait(rate, "busy")
    assert busy > 0
    assert len(counted._buckets) <= MOST_BUCKETS
