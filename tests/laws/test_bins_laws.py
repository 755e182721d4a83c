"""Values counted at once are counted as one after the other."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram, generate_latest

from service.observability.metrics import BulkHistogram

BOUNDS = (0.001, 0.01, 0.1, 1.0)
NAME, TEXT = "seconds", "Seconds."
values = st.one_of(st.sampled_from(BOUNDS), st.floats(0, 10))


@given(st.lists(st.tuples(st.sampled_from("ab"), st.lists(values, max_size=20)), max_size=6))
def test_they_make_the_same_histogram(batches: list[tuple[str, list[float]]]) -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    bins = BulkHistogram(NAME, TEXT, "part", BOUNDS)
    ours.register(bins)
    one_by_one = Histogram(NAME, TEXT, ("part",), registry=theirs, buckets=BOUNDS)
    for part, batch in batches:
        bins.observe({part: np.array([*batch, np.nan, np.inf], np.float64)})
        for value in batch:
            one_by_one.labels(part).observe(value)
        one_by_one.labels(part)
    assert samples(ours) == samples(theirs)


def samples(registry: CollectorRegistry) -> dict[str, float]:
    """What is shown, sums rounded: they depend on the order."""
    lines = generate_latest(registry).decode().splitlines()
    told = (line.rpartition(" ") for line in lines if not line.startswith("#"))
    return {name: round(float(value), 9) for name, _, value in told if "_created" not in name}
