import math
from dataclasses import replace

import kneed
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from scavenger.cluster import ClusterConfig, ConfigSpace
from scavenger.measurement.profiling import Observation, ScalingIndicators
from scavenger.models.epochs import EpochsLaw
from scavenger.models.iteration_time import StepTimeLaw
from scavenger.models.performance import PerformanceModel
from scavenger.planning.constrained_objective import ConstrainedObjective
from scavenger.planning.curve import (
    PosteriorDraws,
    TradeoffCurve,
    TradeoffPoint,
    pareto_front,
    predict_curve,
)
from scavenger.planning.knee import Knee, find_knee, knee_row
from scavenger.planning.objectives import Cheapest, Fastest, Weighted
from scavenger.pricing import on_demand_price_model

OBJECTIVES = (
    Fastest(),
    Cheapest(),
    Weighted(0.4),
    Knee(),
    ConstrainedObjective(Knee(), max_cost=1e12, max_time=1e12),
)


def point(index: int, time: float, cost: float) -> TradeoffPoint:
    return TradeoffPoint(ClusterConfig(1, index), None, 1, 1, 0, 1, None, time, cost)


figures = st.integers(0, 20).map(float) | st.floats(0, 1e9)
curves = st.lists(st.tuples(figures, figures), min_size=1, max_size=25).map(
    lambda pairs: TradeoffCurve(
        tuple(point(index, *pair) for index, pair in enumerate(pairs, start=1)), "total"
    )
)


def dominates(one: TradeoffPoint, other: TradeoffPoint) -> bool:
    no_worse = one.time <= other.time and one.cost <= other.cost
    return no_worse and (one.time, one.cost) != (other.time, other.cost)


@given(curves)
def test_the_front_is_exactly_the_non_dominated_points(curve):
    expected = {p for p in curve.points if not any(dominates(other, p) for other in curve.points)}
    front = curve.frontier()
    assert set(front) == expected
    assert len(front) == len(expected)
    assert [p.time for p in front] == sorted(p.time for p in front)


@given(curves)
def test_every_objective_chooses_from_the_front(curve):
    for objective in OBJECTIVES:
        assert objective.choose(curve).point in curve.frontier()


@given(curves)
def test_a_dominated_point_changes_no_choice(curve):
    worst_time = max(p.time for p in curve.points) + 1
    worst_cost = max(p.cost for p in curve.points) + 1
    worse = point(len(curve.points) + 1, worst_time, worst_cost)
    larger = TradeoffCurve((worse, *curve.points), "total")
    for objective in OBJECTIVES:
        assert objective.choose(larger).point == objective.choose(curve).point


@given(curves, st.randoms(use_true_random=False))
def test_the_order_of_points_changes_no_choice(curve, shuffle):
    points = list(curve.points)
    shuffle.shuffle(points)
    shuffled = TradeoffCurve(tuple(points), "total")
    for objective in OBJECTIVES:
        assert objective.choose(shuffled) == objective.choose(curve)


factors = st.lists(st.sampled_from((0.5, 0.8, 1.0, 1.3)), min_size=5, max_size=5).map(tuple)


@st.composite
def uncertain_curves(draw):
    """A curve in five other worlds."""
    curve = draw(curves)
    draws = {p.config: PosteriorDraws(draw(factors), draw(factors)) for p in curve.points}
    return TradeoffCurve(curve.points, "total", draws)


@settings(max_examples=40)
@given(uncertain_curves(), st.integers(0, 24), st.floats(0.01, 10), st.floats(0, 10))
def test_a_point_dominated_in_every_world_changes_no_support(curve, row, slower, dearer):
    assume(len(curve.points) > 1)
    better = curve.points[row % len(curve.points)]
    # A multiple would be rounded to the same for figures next to 0.
    worse = point(
        len(curve.points) + 1, better.time * (1 + slower) + 1, better.cost * (1 + dearer) + 1
    )
    draws = {**curve.draws, worse.config: curve.draws[better.config]}
    larger = TradeoffCurve((worse, *curve.points), "total", draws)
    for objective in OBJECTIVES:
        one, other = objective.choose(curve), objective.choose(larger)
        assert (other.point, other.support, other.runner_up, other.other_knees) == (
            one.point,
            one.support,
            one.runner_up,
            one.other_knees,
        )


@settings(max_examples=40)
@given(uncertain_curves(), st.randoms(use_true_random=False))
def test_the_order_of_points_changes_no_support(curve, shuffle):
    points = list(curve.points)
    shuffle.shuffle(points)
    shuffled = TradeoffCurve(tuple(points), "total", curve.draws)
    one, other = Knee().choose(curve), Knee().choose(shuffled)
    assert (other.point, other.support) == (one.point, one.support)
    assert other.support is None or 0 <= other.support <= 1


@st.composite
def fronts(draw):
    """A front of many points: time grows and cost falls by steps of any size."""
    step = st.integers(1, 9).map(float) | st.floats(1e-6, 1e6)
    steps = draw(st.lists(st.tuples(step, step), min_size=1, max_size=40))
    times = np.cumsum([time for time, _ in steps])
    costs = np.cumsum([cost for _, cost in steps])[::-1]
    assume((np.diff(times) > 0).all() and (np.diff(costs) < 0).all())
    pairs = zip(times.tolist(), costs.tolist(), strict=True)
    return tuple(point(index, *pair) for index, pair in enumerate(pairs, start=1))


@settings(max_examples=500)
@given(fronts())
def test_a_knee_of_columns_is_the_knee_that_kneed_finds(front):
    row = knee_row(np.array([p.time for p in front]), np.array([p.cost for p in front]))
    assert front[row] == find_knee(front).point


@settings(max_examples=40)
@given(uncertain_curves())
def test_the_support_of_a_knee_is_its_share_of_worlds_by_kneed(curve):
    choice = Knee().choose(curve)
    assume(choice.support is not None)
    worlds = np.array([curve.draws[p.config].factors for p in curve.points]).T.tolist()
    knees = [find_knee(pareto_front(moved(curve.points, world))).point.config for world in worlds]
    assert choice.support == knees.count(choice.point.config) / len(worlds)


def moved(points, world):
    return [
        replace(p, time=p.time * factor, cost=p.cost * factor)
        for p, factor in zip(points, world, strict=True)
    ]


def test_kneed_is_not_asked_for_every_other_world(monkeypatch):
    asked = []

    class Counted(kneed.KneeLocator):
        def __init__(self, *arguments, **words):
            asked.append(1)
            super().__init__(*arguments, **words)

    monkeypatch.setattr(kneed, "KneeLocator", Counted)
    points = tuple(point(k, float(k), 1e4 / k) for k in range(1, 200))
    ones = (1.0,) * 64
    curve = TradeoffCurve(points, "total", {p.config: PosteriorDraws(ones, ones) for p in points})
    assert ConstrainedObjective(Knee(), max_cost=1e12).choose(curve).support == 1
    # For the knee, and for the one that might have missed the limits.
    assert len(asked) <= 2


@settings(max_examples=40)
@given(curves, st.sampled_from((0.125, 64.0)), st.sampled_from((0.25, 1024.0)))
def test_the_units_of_the_figures_change_no_choice(curve, of_time, of_money):
    assume(all(value == 0 or value > 1e-9 for p in curve.points for value in (p.time, p.cost)))
    scaled = TradeoffCurve(
        tuple(
            point(p.config.global_batch, p.time * of_time, p.cost * of_money) for p in curve.points
        ),
        "total",
    )
    for objective in OBJECTIVES[:-1]:
        one, other = objective.choose(curve), objective.choose(scaled)
        assert other.point.config == one.point.config


@given(curves)
def test_all_weight_on_one_figure_is_the_objective_of_that_figure(curve):
    assert Weighted(1.0).choose(curve).point == Fastest().choose(curve).point
    assert Weighted(0.0).choose(curve).point == Cheapest().choose(curve).point


seconds = st.floats(0, 1e3)
models = st.builds(
    PerformanceModel,
    st.builds(StepTimeLaw, seconds, seconds, seconds, seconds),
    st.builds(EpochsLaw, st.floats(0, 1e9) | st.none(), st.none()),
    st.integers(1, 10**9),
    st.integers(1, 10**5),
    st.none() | st.floats(1e-3, 1e4),
)
prices = st.builds(on_demand_price_model, st.floats(0, 1e3))
SPACE = ConfigSpace((1, 4, 16), (8, 64, 512))


@given(models, prices)
def test_every_configuration_has_a_finite_point(model, price):
    curve = predict_curve(SPACE, model, price, ())
    assert [p.config for p in curve.points] == list(SPACE)
    assert all(math.isfinite(p.time) and math.isfinite(p.cost) for p in curve.points)


@given(models, st.floats(1e-3, 1e3))
def test_a_relative_curve_has_the_shape_of_the_total_one(model, price_per_hour):
    price = on_demand_price_model(price_per_hour)
    unknown = PerformanceModel(model.parallel, model.statistical, 50_000, 64, None)
    known = PerformanceModel(model.parallel, model.statistical, 50_000, 64, 90)
    relative, total = (predict_curve(SPACE, m, price, ()) for m in (unknown, known))
    assert (relative.basis, total.basis) == ("relative", "total")
    start = total.points[0]
    for ours, theirs in zip(relative.points, total.points, strict=True):
        if start.time > 1e-300:
            assert ours.time == pytest.approx(theirs.time / start.time)
            assert ours.cost == pytest.approx(theirs.cost / start.cost)


def test_a_measured_configuration_uses_its_measured_step_time():
    parallel, statistical = StepTimeLaw(1, 0, 0, 0), EpochsLaw(None, None)
    model = PerformanceModel(parallel, statistical, 64, 64, 10)
    config = ClusterConfig(4, 64)
    measured = [
        Observation(config, ScalingIndicators(None, None, compute, 0.5), 20)
        for compute in (9.0, 2.5)
    ]
    curve = predict_curve(ConfigSpace((4, 8), (64,)), model, on_demand_price_model(3.6), measured)
    first, second = curve.points
    assert (first.step_time, first.measured_step_time, first.time) == (1, 3.0, 30)
    assert first.cost == pytest.approx(4 * 30 * 0.001)
    assert (second.measured_step_time, second.time) == (None, 10)
