import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from scavenger.cluster import ClusterConfig, ConfigSpace, space_columns
from scavenger.errors import NothingFeasible
from scavenger.measurement.profiling import Measurement, Observation, ScalingIndicators
from scavenger.models.epochs import EpochsLaw
from scavenger.models.forms import PAPER_FORM
from scavenger.models.iteration_time import StepTimeLaw, Uncertainty
from scavenger.models.iteration_time_fitting import fit_step_time
from scavenger.models.performance import PerformanceModel, fit_performance
from scavenger.planning.constrained_objective import (
    REQUIRED_CHANCE,
    ConstrainedObjective,
    chance_below,
)
from scavenger.planning.curve import (
    Forecast,
    TradeoffCurve,
    TradeoffPoint,
    curve_from_forecast,
    forecast_space,
    log_normal_interval,
    predict_curve,
)
from scavenger.planning.knee import Knee
from scavenger.planning.objectives import Cheapest, Fastest, Weighted
from scavenger.pricing import (
    Interruptions,
    MachinePrice,
    PriceModel,
    ServerPrice,
    on_demand_price_model,
)

SPACE = ConfigSpace((1, 4, 16), (16, 64, 512))
GRID = space_columns(SPACE)
# kneed is imported by the first example that needs it, which takes longer than a deadline.
unhurried = settings(max_examples=40)

objectives = st.sampled_from((Fastest(), Cheapest(), Knee(), Weighted(0.3)))
times = st.just(0.0) | st.floats(1e-9, 1e6)
observations = st.lists(
    st.builds(
        Observation,
        st.sampled_from(list(SPACE)),
        st.builds(ScalingIndicators, st.none(), st.none() | st.floats(0, 1e7), times, times),
        st.integers(0, 100),
    ),
    min_size=1,
    max_size=5,
)
money = st.just(0.0) | st.floats(1e-9, 1e6)
prices = st.builds(
    PriceModel,
    st.builds(MachinePrice, money),
    st.sampled_from((0.0, 1e-9, 1.0, 3600.0, 1e9)),
    st.none() | st.builds(ServerPrice, st.integers(0, 4), money),
    st.none() | st.builds(Interruptions, st.floats(0, 1e3), st.floats(0, 1e5)),
)


def is_ordered(point: TradeoffPoint) -> bool:
    pairs = ((point.time, point.time_range), (point.cost, point.cost_range))
    return all(0 <= low <= median <= high and math.isfinite(high) for median, (low, high) in pairs)


@unhurried
@given(st.just(0.0) | st.floats(5e-324, 1e308), st.just(0.0) | st.floats(0, 1e308))
def test_every_interval_is_finite_and_holds_its_median(median, deviation):
    low, high = log_normal_interval(median, deviation)
    assert 0 <= low <= median <= high < math.inf


@unhurried
@given(
    observations,
    prices,
    st.integers(1, 10**9),
    st.integers(1, 10**5),
    st.none() | st.floats(1e-3, 1e5),
    st.sampled_from(("measured", "paper")),
    objectives,
)
def test_nothing_that_was_measured_leads_to_a_figure_that_is_not_finite(
    seen, price, dataset_size, reference, epochs, laws, objective
):
    model = fit_performance(seen, dataset_size, reference, epochs, laws=laws)
    curve = predict_curve(SPACE, model, price, seen)
    assert all(is_ordered(point) for point in curve.points)
    assert all(math.isfinite(point.deviation) and point.deviation >= 0 for point in curve.points)
    for redrawn in curve.draws.values():
        assert np.isfinite(redrawn.factors).all()
        assert (redrawn.factors > 0).all()
    choice = objective.choose(curve)
    assert choice.point in curve.frontier()
    assert choice.support is None or 0 <= choice.support <= 1


laws = st.builds(
    StepTimeLaw, st.floats(0.2, 2), st.floats(0.005, 0.05), st.floats(0.1, 1), st.floats(0.02, 1)
)


@settings(max_examples=15)
@given(laws, st.permutations(list(SPACE)), st.integers(1, 8))
def test_more_of_a_noiseless_truth_never_widens_any_interval(truth, order, count):
    measured = [Measurement(c, truth.step_time(c), truth.compute_time(c)) for c in order]
    corners = [m for m in measured if m.config in SPACE.corners()]
    few = dict.fromkeys([*corners, *measured[:count]])
    more = dict.fromkeys([*few, *measured[: count + 1]])
    narrow, wide = (fit_step_time(list(seen), forms=(PAPER_FORM,)) for seen in (more, few))
    # Knowing how synchronisation grows moves the shares of what is uncertain a little.
    assert (narrow.deviations(GRID) <= wide.deviations(GRID) * 1.01).all()


@settings(max_examples=15)
@given(laws, st.integers(0, 8))
def test_a_measured_configuration_is_never_less_sure_than_a_predicted_one(truth, row):
    configs = list(SPACE)
    seen = [
        Observation(c, ScalingIndicators(None, 90.0, truth.compute_time(c), truth.sync_time(c)), 20)
        for c in SPACE.corners()
    ]
    model = fit_performance(seen, 50_000, 64, 30.0)
    grid = GRID
    known = np.arange(len(configs)) == row % len(configs)
    less, more = model.deviations(grid, known), model.deviations(grid, ~known | known)
    assert (more <= less * (1 + 1e-12)).all()


@st.composite
def uncertain_curves(draw):
    """Points of any time, cost and deviation; some equal in one figure, some certain."""
    figures = st.integers(1, 12).map(float) | st.floats(1, 1e4)
    deviations = st.sampled_from((0.0, 0.05, 0.3)) | st.floats(1e-6, 2)  # less is lost in rounding
    drawn = draw(st.lists(st.tuples(figures, figures, deviations), min_size=1, max_size=15))
    points = tuple(
        TradeoffPoint(ClusterConfig(1, row), None, 1, 1, 0, 1, None, *figures)
        for row, figures in enumerate(drawn, start=1)
    )
    return TradeoffCurve(points, "total")


limits = st.none() | st.integers(1, 12).map(float) | st.floats(1, 1e4)


@unhurried
@given(uncertain_curves(), objectives, limits, limits)
def test_limits_are_met_with_90_percent_or_as_surely_as_possible(curve, objective, cost, time):
    assume(cost is not None or time is not None)
    within = ConstrainedObjective(objective, cost, time)

    def meets(point, at):
        pairs = ((point.cost, cost), (point.time, time))
        factor = math.exp(at * point.deviation)
        return all(limit is None or value * factor <= limit for value, limit in pairs)

    # Not closer to the border than rounding.
    sure = [point for point in curve.points if meets(point, 1.2815515655446 + 1e-9)]
    expected = [point for point in curve.points if meets(point, 0.0)]
    if not expected:
        with pytest.raises(NothingFeasible, match="the nearest"):
            within.choose(curve)
        return
    chosen = within.choose(curve).point
    if sure:
        assert meets(chosen, 1.2815515655446 - 1e-9)
        assert within.chance(chosen) >= REQUIRED_CHANCE
        feasible = tuple(p for p in curve.points if within.chance(p) >= REQUIRED_CHANCE)
        assert chosen == objective.choose(TradeoffCurve(feasible, "total")).point
    elif within.chance(chosen) < REQUIRED_CHANCE:
        assert within.chance(chosen) == max(map(within.chance, curve.points))
        assert "the surest" in within.choose(curve).why


@unhurried
@given(
    st.floats(1e-300, 1e300),
    st.just(0.0) | st.floats(5e-324, 100),
    st.floats(1e-300, 1e300),
    st.floats(1, 1e10),
)
def test_a_chance_is_a_probability_that_grows_with_the_limit(median, deviation, limit, wider):
    chance = chance_below(median, deviation, limit)
    assert 0 <= chance <= 1
    assert chance_below(median, deviation, limit * wider) >= chance
    if median / limit != pytest.approx(1):
        assert (chance >= 0.5) is (median < limit)


@unhurried
@given(uncertain_curves(), limits, limits)
def test_a_point_breaks_no_limit_exactly_when_it_is_sure_to_meet_all(curve, cost, time):
    within = ConstrainedObjective(Fastest(), cost, time)
    for point in curve.points:
        assert (not within.violations(point)) is (within.chance(point) >= REQUIRED_CHANCE)


TYPELESS = StepTimeLaw(1.0, 0.1, 0.1, 0.1)


@st.composite
def forecasts(draw):
    """A whole space with any time, cost and deviation."""
    grid = space_columns(ConfigSpace(tuple(range(1, draw(st.integers(2, 7)))), (8, 16, 32)))
    epochs = draw(st.sampled_from((30.0, 30.0, 30.0, None)))
    model = PerformanceModel(TYPELESS, EpochsLaw(100.0, 100.0), 1000, 64, epochs)
    column = st.lists(
        st.integers(1, 8).map(float) | st.floats(1, 100), min_size=len(grid), max_size=len(grid)
    ).map(np.array)
    sureness = st.sampled_from((0.0, 0.02, 0.1, 0.5)) | st.floats(0, 1)
    deviation = st.lists(sureness, min_size=len(grid), max_size=len(grid)).map(np.array)
    nothing = np.full(len(grid), np.nan)
    steps = np.ones(len(grid))
    time, cost = draw(column), draw(column)
    return Forecast(grid, model, steps, nothing, time, cost, draw(deviation))


def answer(within: ConstrainedObjective, forecast: Forecast) -> ClusterConfig | None:
    try:
        return within.choose(curve_from_forecast(forecast)).point.config
    except NothingFeasible:
        return None


@settings(max_examples=80)
@given(forecasts(), objectives, limits, limits)
def test_a_shortlist_never_changes_the_choice(forecast, objective, cost, time):
    within = ConstrainedObjective(objective, cost, time)
    rows = within.shortlist(forecast)
    assert rows[0] == 0
    assert answer(within, forecast.select(rows)) == answer(within, forecast)


@settings(max_examples=20)
@given(laws, st.floats(0.01, 1), st.floats(0.5, 2), st.floats(0.5, 2), objectives)
def test_a_shortlist_of_a_fitted_forecast_never_changes_the_choice(
    truth, spread, cost, time, objective
):
    uncertain = StepTimeLaw(
        *truth.coefficients, uncertainty=Uncertainty(spread, identity(len(truth.coefficients)))
    )
    statistical = EpochsLaw(300.0, 300.0, critical_deviation=0.7)
    model = PerformanceModel(uncertain, statistical, 50_000, 64, 30.0)
    seen = [
        Observation(c, ScalingIndicators(None, 90.0, truth.compute_time(c), 0.1), 20)
        for c in SPACE.corners()
    ]
    space = ConfigSpace(tuple(range(1, 12)), (16, 32, 64, 128, 256, 512))
    forecast = forecast_space(space, model, on_demand_price_model(0.3), seen)
    middle = int(np.argsort(forecast.cost)[len(forecast) // 3])
    within = ConstrainedObjective(
        objective, forecast.cost[middle] * cost, forecast.time[middle] * time
    )
    rows = within.shortlist(forecast)
    assert answer(within, forecast.select(rows)) == answer(within, forecast)


def identity(size: int) -> tuple[tuple[float, ...], ...]:
    return tuple(tuple(map(float, row)) for row in np.eye(size))
