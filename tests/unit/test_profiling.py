from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scavenger.cluster import ClusterConfig
from scavenger.measurement.profiling import ProbeComplete, ProbeIncomplete, evaluate_probe
from scavenger.measurement.steps import StepColumns

CONFIG = ClusterConfig(4, 64)


def steady(rows: int, losses: tuple[float | None, ...] | None = None) -> StepColumns:
    return StepColumns(
        iteration=tuple(range(rows)),
        shards=(4,) * rows,
        local_norm_sq=(6.0,) * rows,
        mean_norm_sq=(3.0,) * rows,
        compute_time=(1.0,) * rows,
        sync_time=(0.25,) * rows,
        step_time=(1.5,) * rows,
        loss=losses if losses is not None else (None,) * rows,
    )


def falling(rows: int) -> tuple[float, ...]:
    return tuple(2 / (1 + row / 10) for row in range(rows))


@given(st.lists(st.integers(0, 30), min_size=1, max_size=4))
def test_rows_put_together_follow_one_another(lengths):
    parts = [steady(length, falling(length)) for length in lengths]
    whole = StepColumns.concat(parts)
    assert whole[len(whole) - lengths[-1] :] == parts[-1]
    assert whole.loss == tuple(loss for part in parts for loss in part.loss)
    assert StepColumns.concat((StepColumns.concat(parts[:-1]), parts[-1])) == whole


@pytest.mark.parametrize(
    ("columns", "measures", "why"),
    [
        (StepColumns(), "noise", "0 of 20 iterations timed"),
        (steady(22), "time", "19 of 20 iterations timed"),
        (steady(100, (2.0,) * 100), "noise", "the loss fell 0% so far"),
        (steady(30, falling(30)), "noise", "more noise rows are needed"),
        (steady(100), "noise", "no loss is logged"),
        (steady(60, (None,) * 57 + (2.0, 2.0, 2.0)), "noise", "too few losses are logged yet"),
    ],
)
def test_a_probe_waits_and_says_for_what(columns, measures, why):
    answer = evaluate_probe(columns, CONFIG, measures=measures)
    assert isinstance(answer, ProbeIncomplete)
    assert why in answer.why


def test_a_probe_of_time_settles_on_time_alone():
    answer = evaluate_probe(steady(23), CONFIG, measures="time")
    assert isinstance(answer, ProbeComplete)
    indicators = answer.observation.indicators
    assert (answer.observation.config, answer.observation.iterations) == (CONFIG, 20)
    assert (indicators.noise, indicators.noise_scale) == (2.0, 32.0)
    assert (indicators.compute_time, indicators.sync_time) == (1.25, 0.25)


def test_a_probe_of_noise_settles_once_the_loss_falls_and_the_noise_is_steady():
    answer = evaluate_probe(steady(100, falling(100)), CONFIG, measures="noise")
    assert isinstance(answer, ProbeComplete)
    assert "settled" in answer.why
    assert answer.observation.indicators.noise_scale == 32.0


def test_compute_is_never_less_than_was_measured():
    columns = replace(steady(23), step_time=(0.5,) * 23)
    answer = evaluate_probe(columns, CONFIG, measures="time")
    assert answer.observation.indicators.compute_time == 1.0


def test_warm_up_rows_do_not_count():
    columns = replace(steady(23), step_time=(99.0,) * 3 + (1.5,) * 20, shards=(4,) * 23)
    cold = replace(columns, local_norm_sq=(900.0,) * 3 + (6.0,) * 20)
    assert evaluate_probe(cold, CONFIG, measures="time") == evaluate_probe(
        columns, CONFIG, measures="time"
    )


def test_a_lone_worker_is_timed_on_unsplit_rows_and_its_noise_comes_from_split_ones():
    columns = replace(
        steady(43),
        shards=(1, 2) * 21 + (1,),
        step_time=(1.5, 9.0) * 21 + (1.5,),
        sync_time=(0.0,) * 43,
    )
    answer = evaluate_probe(columns, ClusterConfig(1, 64), measures="time")
    indicators = answer.observation.indicators
    assert (indicators.compute_time, indicators.sync_time) == (1.5, 0)
    assert indicators.noise == 2.0


def test_a_lone_worker_that_never_splits_has_no_noise():
    columns = replace(steady(23), shards=(1,) * 23)
    indicators = evaluate_probe(
        columns, ClusterConfig(1, 64), measures="time"
    ).observation.indicators
    assert (indicators.noise, indicators.noise_scale) == (None, None)


def test_patience_ends_with_a_sentence_that_says_so():
    columns = steady(60, (2.0,) * 60)
    answer = evaluate_probe(columns, CONFIG, measures="noise", max_noise_rows=60)
    assert isinstance(answer, ProbeComplete)
    assert answer.why.startswith("noise did not settle in 60 iterations and is used as it is")


@pytest.mark.parametrize(
    ("rows", "patience", "ends"), [(159, 4000, False), (160, 4000, True), (23, 0, True)]
)
@pytest.mark.parametrize("workers", [4, 1])
def test_a_probe_waits_for_no_noise_where_no_iteration_shows_any(workers, rows, patience, ends):
    columns = replace(steady(rows), shards=(workers,) * rows, local_norm_sq=(None,) * rows)
    config = ClusterConfig(workers, 64)
    answer = evaluate_probe(columns, config, measures="noise", max_noise_rows=patience)
    assert isinstance(answer, ProbeComplete) == ends
    if ends:
        assert answer.observation.indicators.noise is None
        assert answer.why == f"none of {rows} iterations measured noise, so none is waited for"
