"""Laws of rates: no caller gets more than its share, and none waits in vain."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from service.auth.rate_limit import MAX_BUCKETS, RateLimit, RateLimiter

pauses = st.lists(st.floats(0, 5), max_size=200)
rates = st.builds(RateLimit, st.floats(0.5, 50), st.integers(1, 50))


@given(rates, pauses)
def test_no_caller_gets_more_than_the_burst_and_what_time_refills(
    rate: RateLimit, waits: list[float]
) -> None:
    now = [0.0]
    counted, allowed = RateLimiter(lambda: now[0]), 0
    for wait in waits:
        now[0] += wait
        allowed += counted.wait(rate, "me") == 0
        assert allowed <= rate.burst + now[0] * rate.per_second + 1e-6


@given(rates, pauses)
def test_a_caller_that_waits_as_long_as_told_goes_on(rate: RateLimit, waits: list[float]) -> None:
    now = [0.0]
    counted = RateLimiter(lambda: now[0])
    for wait in waits:
        now[0] += wait
        told = counted.wait(rate, "me")
        if told:
            now[0] += told + 1e-6
            assert counted.wait(rate, "me") == 0


def test_very_many_senders_take_bounded_memory_and_the_busy_one_is_still_counted() -> None:
    counted, rate = RateLimiter(lambda: 0.0), RateLimit(1, 2)
    for number in range(2 * MAX_BUCKETS):
        counted.wait(rate, f"stranger {number}")
        busy = counted.wait(rate, "busy")
    assert busy > 0
    assert len(counted._buckets) <= MAX_BUCKETS
