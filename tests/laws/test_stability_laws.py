import math
from dataclasses import fields

from hypothesis import given
from hypothesis import strategies as st

from scavenger.cluster import ClusterConfig
from scavenger.measurement.profiling import ProbeComplete, ProbeIncomplete, evaluate_probe
from scavenger.measurement.stability import assess_stability
from scavenger.measurement.steps import StepColumns

norms = st.floats(0, allow_nan=False, allow_infinity=False) | st.floats(0, 10)
losses = st.floats(allow_nan=False, allow_infinity=False) | st.floats(0, 3)
times = st.floats(0, 1e6)
rows = st.tuples(st.just(0), st.sampled_from([1, 4]), norms, norms, times, times, times, losses)


def repeat(chunk: list[tuple[float, ...]], count: int) -> StepColumns:
    """Rows enough to be judged, from a few drawn ones."""
    drawn = [chunk[index % len(chunk)] for index in range(count)]
    return StepColumns(*(tuple(column) for column in zip(*drawn, strict=True)))


def test_the_drawn_rows_have_a_value_for_every_column():
    names = [field.name for field in fields(StepColumns)]
    assert names[0] == "iteration"
    assert names[7:] == ["loss", "mean_compute_time", "fastest_compute_time"]


@given(st.lists(rows, min_size=1, max_size=12), st.integers(1, 200), st.booleans())
def test_no_finite_rows_give_a_figure_that_is_not_finite(chunk, count, has_losses):
    columns = repeat(chunk, count)
    if not has_losses:
        columns = repeat([(*row[:-1], None) for row in chunk], count)
    stability = assess_stability(columns, 64)
    figures = (stability.drift, stability.drift_half_width, stability.loss_drop)
    assert all(value is None or math.isfinite(value) for value in figures)
    assert stability.why
    if stability.is_stable:
        assert stability.noise.noise_scale > 0


@given(
    st.lists(rows, min_size=1, max_size=12),
    st.integers(1, 60),
    st.sampled_from(("time", "noise")),
)
def test_every_probe_settles_or_says_what_it_waits_for(chunk, count, measures):
    answer = evaluate_probe(
        repeat(chunk, count), ClusterConfig(4, 64), measures=measures, max_noise_rows=30
    )
    match answer:
        case ProbeComplete(observation, why):
            assert observation.iterations >= 20
            assert why
        case ProbeIncomplete(why):
            assert why
