"""The data order under any plan of workers and batches."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from worker_agent.sampler import SampleOrder, SampleRange

plans = st.lists(
    st.tuples(st.integers(1, 7), st.integers(1, 60), st.integers(1, 6)), min_size=1, max_size=8
)


@given(st.integers(1, 90), st.integers(0, 5), plans)
@settings(max_examples=60)
def test_every_epoch_holds_every_sample_once_under_every_plan(
    dataset_size: int, seed: int, plan: list[tuple[int, int, int]]
) -> None:
    order = SampleOrder(dataset_size, seed)
    position, stream = 0, []
    for workers, extra, iterations in plan:
        for _ in range(iterations):
            whole = SampleRange(position, workers + extra)
            for share in whole.split(workers):
                stream += order.indices(share).tolist()
            position += whole.count
    for start in range(0, len(stream) - dataset_size + 1, dataset_size):
        assert Counter(stream[start : start + dataset_size]) == Counter(range(dataset_size))


@given(st.integers(0, 1000), st.integers(0, 500), st.integers(1, 40))
def test_parts_differ_by_at_most_one_and_add_up(start: int, count: int, parts: int) -> None:
    shares = SampleRange(start, count).split(parts)
    sizes = [share.count for share in shares]
    assert sum(sizes) == count
    assert max(sizes) - min(sizes) <= 1
    assert [share.start for share in shares] == [start + sum(sizes[:n]) for n in range(parts)]


def test_epochs_are_shuffled_differently_and_always_the_same() -> None:
    first, second = (SampleOrder(50, 1).indices(SampleRange(at, 50)).tolist() for at in (0, 50))
    assert first != second
    assert first == SampleOrder(50, 1).indices(SampleRange(0, 50)).tolist()
