import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scavenger.planning.learning_curve import extrapolate_learning_curve

CURVES = 40


def learning_curves(share):
    """Power laws with noise, seen up to a share of the way, and where each reaches its goal."""
    rng = np.random.default_rng(1)
    for _ in range(CURVES):
        exponent, end, height = rng.uniform(0.3, 1.5), rng.uniform(0.1, 1), rng.uniform(0.5, 3)
        start, truth = rng.uniform(0.2, 1), rng.uniform(20, 60)
        progress = np.linspace(0.1, truth * share, 300)
        noise = rng.normal(0, 0.03 * height * truth**-exponent + 0.002, 300)
        values = end + height * (progress + start) ** -exponent
        goal = end + height * (truth + start) ** -exponent
        yield progress, values + noise, goal, truth


@pytest.mark.parametrize(("share", "error"), [(0.4, 0.3), (0.8, 0.12)])
def test_the_interval_holds_the_truth_as_often_as_it_says(share, error):
    found = [
        (extrapolate_learning_curve(x.tolist(), v.tolist(), goal, "at_most"), truth)
        for x, v, goal, truth in learning_curves(share)
    ]
    known = [(e, truth) for e, truth in found if e is not None]
    assert len(known) >= 0.9 * CURVES
    assert 0.65 <= np.mean([e.low <= truth <= e.high for e, truth in known]) <= 0.97
    assert np.median([abs(e.epochs / truth - 1) for e, truth in known]) <= error


@given(st.floats(0.01, 100), st.floats(0.1, 10), st.sampled_from(("at_most", "at_least")))
@settings(max_examples=10)
def test_neither_units_nor_direction_matter(metric_unit, epoch_unit, direction):
    x, v, goal, _ = next(learning_curves(0.6))
    sign = 1 if direction == "at_most" else -1
    plain = extrapolate_learning_curve(x.tolist(), v.tolist(), goal, "at_most")
    other = extrapolate_learning_curve(
        (x * epoch_unit).tolist(),
        (sign * v * metric_unit).tolist(),
        sign * goal * metric_unit,
        direction,
    )
    assert other.epochs == pytest.approx(plain.epochs * epoch_unit, rel=1e-3)
    assert other.low == pytest.approx(plain.low * epoch_unit, rel=1e-3)


@given(
    st.lists(st.tuples(st.floats(0, 1e6), st.floats(-1e6, 1e6)), max_size=40),
    st.floats(-1e6, 1e6),
)
@settings(max_examples=40)
def test_for_any_log_the_answer_is_ordered_or_none(pairs, goal):
    ordered = sorted(pairs)
    found = extrapolate_learning_curve(
        [x for x, _ in ordered], [v for _, v in ordered], goal, "at_most"
    )
    if found is not None:
        assert 0 < found.low <= found.epochs <= found.high
        assert math.isfinite(found.epochs)
        assert found.deviation >= 0
        assert 0.5 <= found.chance <= 1


def test_a_curve_that_levels_off_above_its_goal_is_not_promised_to_reach_it():
    progress = np.linspace(0.1, 30, 200)
    values = 0.5 + 2 * (progress + 0.3) ** -1.2
    assert extrapolate_learning_curve(progress.tolist(), values.tolist(), 0.3, "at_most") is None


def test_few_values_tell_nothing():
    assert extrapolate_learning_curve([1.0, 2.0, 3.0], [3.0, 2.0, 1.5], 1.0, "at_most") is None
