"""Series of charts: every extreme stays in its bucket, gaps stay gaps, and time runs forward."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scavenger.measurement.noise import estimate_noise
from scavenger.measurement.steps import COLUMN_KINDS, StepColumns
from service.db.step_arrays import StepArrays, pack, to_arrays, unpack, unpack_columns
from service.state.series import (
    MeasuredSeries,
    bucket_series,
    rolling_noise,
    row_times,
    usual_gap,
)

VALUES = st.floats(-1e80, 1e80) | st.just(float("nan"))
PAUSES = st.floats(0.001, 1.0) | st.floats(60.0, 1000.0)


@st.composite
def measured(draw: st.DrawFn) -> MeasuredSeries:
    count = draw(st.integers(0, 300))
    pauses = draw(st.lists(PAUSES, min_size=count, max_size=count))
    values = np.array(draw(st.lists(VALUES, min_size=count, max_size=count)), np.float64)
    return MeasuredSeries(np.cumsum(pauses), values, int(np.isnan(values).sum()), 30.0)


@given(measured(), st.integers(10, 400))
def test_a_bucket_has_the_least_and_the_largest_of_its_values_and_none_spans_a_gap(
    series: MeasuredSeries, most: int
) -> None:
    found = bucket_series(series, most)
    assert len(found.at) == len(found.low) == len(found.high) <= most
    assert (np.diff(found.at) > 0).all()
    gaps = (np.flatnonzero(np.diff(series.at) > series.gap) + 1).tolist()
    shown = gaps if len(gaps) < most // 4 else None
    between = (
        set()
        if shown is None
        else {(series.at[place - 1] + series.at[place]) / 2 for place in shown}
    )
    kept = [place for place, at in enumerate(found.at) if at not in between]
    if shown is not None:
        assert len(kept) == len(found.at) - len(shown)
        assert all(np.isnan(found.low[place]) for place in set(range(len(found.at))) - set(kept))
        begins = [*found.at[kept], np.inf]
        for number, place in enumerate(kept):
            own = (series.at >= begins[number]) & (series.at < begins[number + 1])
            values, at = series.values[own], series.at[own]
            assert (np.diff(at) <= series.gap).all()
            finite = values[np.isfinite(values)]
            if len(finite):
                assert (found.low[place], found.high[place]) == (finite.min(), finite.max())
            else:
                assert np.isnan(found.low[place])
                assert np.isnan(found.high[place])
    finite = series.values[np.isfinite(series.values)]
    if len(finite):
        assert np.nanmin(found.low) == finite.min()
        assert np.nanmax(found.high) == finite.max()
    is_shown_one_by_one = shown is not None and len(series.at) + len(gaps) <= most // 2
    if is_shown_one_by_one:
        assert len(kept) == len(series.at)


@given(
    st.lists(st.lists(st.floats(0.001, 2.0), min_size=1, max_size=20), min_size=1, max_size=20),
    st.data(),
)
def test_iterations_follow_each_other_and_end_before_their_report_arrives(
    reports: list[list[float]], data: st.DataObject
) -> None:
    """Pauses lie between reports, and some are held up and arrive at once."""
    true, clock, arrivals, counts = list[float](), 0.0, list[float](), list[int]()
    for steps in reports:
        clock += data.draw(st.sampled_from([0.0, 0.0, 100.0]))
        for step in steps:
            clock += step
            true.append(clock)
        arrivals.append(clock)
        counts.append(len(steps))
    held_from = data.draw(st.integers(0, len(arrivals)))
    if not any(pause > 50 for pause in np.diff([0.0, *arrivals])[held_from:]):
        arrivals[held_from:] = [arrivals[-1]] * len(arrivals[held_from:])
    steps = np.array([step for one in reports for step in one])
    found = row_times(np.array(arrivals), np.array(counts), steps)
    assert np.allclose(found, true)


@given(st.lists(st.floats(0.001, 9.0), min_size=2, max_size=50))
def test_a_usual_pause_is_no_gap(pauses: list[float]) -> None:
    at = np.cumsum(pauses)
    assert usual_gap(at) >= max(float(np.median(np.diff(at))), 5.0)


@st.composite
def steps(draw: st.DrawFn) -> StepArrays:
    count = draw(st.integers(1, 30))
    column = {
        "count": st.integers(1, 1000),
        "norm": st.none() | st.floats(0, 1e30),
        "seconds": st.floats(0, 1e3),
        "loss": st.none() | st.floats(-1e30, 1e30),
    }
    drawn = {
        name: tuple(draw(st.lists(column[kind], min_size=count, max_size=count)))
        for name, kind in COLUMN_KINDS.items()
    }
    return to_arrays(StepColumns(**drawn))


@given(steps(), st.sets(st.sampled_from(sorted(COLUMN_KINDS)), min_size=1))
def test_some_columns_of_a_chunk_are_those_of_the_whole(rows: StepArrays, names: set[str]) -> None:
    content = pack(rows)
    whole, some = unpack(content), unpack_columns(content, names)
    assert some.keys() == names
    for name, column in some.items():
        assert np.array_equal(column, whole[name], equal_nan=True)


@pytest.mark.parametrize("name", ["mean_compute_time", "fastest_compute_time"])
def test_a_column_that_an_older_chunk_lacks_is_the_one_that_stands_in(name: str) -> None:
    counts, times = (1, 2, 3), (0.1, 0.2, 0.3)
    columns = StepColumns(counts, counts, times, times, times, times, times, times)
    content = pack(to_arrays(columns))
    older = content[: -2 * (1 + 3 * 4)]
    assert np.array_equal(unpack(older)[name], unpack_columns(older, {name})[name])


@given(st.integers(1, 50), st.integers(2, 8), st.integers(1, 64), st.data())
def test_noise_of_up_to_fifty_iterations_is_what_a_probe_would_estimate(
    count: int, shards: int, local_batch: int, data: st.DataObject
) -> None:
    norms = st.lists(st.floats(0.01, 100.0), min_size=count, max_size=count)
    mean, more = (np.array(data.draw(norms)) for _ in range(2))
    local, batch = mean + more, float(shards * local_batch)
    noise, scale = rolling_noise(local, mean, np.full(count, float(shards)), np.full(count, batch))
    ones = (1.0,) * count
    columns = StepColumns(
        tuple(range(count)), (shards,) * count, tuple(local), tuple(mean), ones, ones, ones, ones
    )
    expected = estimate_noise(columns, int(batch))
    assert expected is not None
    assert noise[-1] == pytest.approx(expected.noise)
    if expected.noise_scale is None:
        assert np.isnan(scale[-1]) or scale[-1] > 1e9
    elif expected.noise_scale < 1e6:
        assert scale[-1] == pytest.approx(expected.noise_scale, rel=1e-3)
