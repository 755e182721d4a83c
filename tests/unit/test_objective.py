from dataclasses import replace

import numpy as np
import pytest

from scavenger.cluster import ClusterConfig, config_columns
from scavenger.errors import NothingFeasible
from scavenger.planning.constrained_objective import (
    ConstrainedObjective,
    chance_below,
    format_precise_seconds,
)
from scavenger.planning.curve import PosteriorDraws, TradeoffCurve, TradeoffPoint
from scavenger.planning.knee import Knee, find_bends
from scavenger.planning.objectives import Cheapest, Fastest, Weighted
from scavenger.pricing import on_demand_price_model


def curve(*figures: tuple[float, float], basis="total") -> TradeoffCurve:
    points = tuple(
        TradeoffPoint(ClusterConfig(workers, 64), None, 1, 1, 0, 1, None, *pair)
        for workers, pair in enumerate(figures, start=1)
    )
    return TradeoffCurve(points, basis)


BENT = curve((100, 20), (104, 10), (150, 8), (300, 7), (600, 6.5), (700, 30))
CONCAVE = curve((1, 10), (5, 9), (9, 7), (10, 2))


def test_the_knee_of_a_bent_front_is_found_by_kneedle():
    choice = Knee().choose(BENT)
    assert find_bends(BENT.frontier())[0] == choice.point
    assert choice.point.config == ClusterConfig(3, 64)
    assert choice.why == "knee of 5 points: 50% slower than the fastest, 60% cheaper"
    assert choice.bends
    assert ConstrainedObjective(Knee(), max_cost=1e6, max_time=1e6).choose(BENT).bends


@pytest.mark.parametrize(
    ("front", "workers", "why"),
    [
        (curve((5, 5)), 1, "the only point of the front"),
        (curve((5, 5), (6, 6)), 1, "the only point of the front"),
        (curve((5, 5), (5, 5)), 1, "the only point of the front"),
        (curve((10, 4), (11, 2)), 2, "cheapest end, where time times cost is least"),
        (curve((10, 4), (30, 2)), 1, "fastest end, where time times cost is least"),
        (CONCAVE, 1, "no bend in 4 points, so the fastest end"),
    ],
)
def test_without_a_bend_the_knee_falls_back(front, workers, why):
    choice = Knee().choose(front)
    assert choice.point.config.workers == workers
    assert why in choice.why
    assert not choice.bends


def test_where_kneedle_finds_nothing_the_point_below_the_chord_is_taken():
    front = curve((0, 1), (0.5, 0.4999), (1, 0))
    assert find_bends(front.frontier()) == ()
    choice = Knee().choose(front)
    assert choice.point.config == ClusterConfig(2, 64)
    assert "farthest below their chord" in choice.why
    assert choice.bends


def test_fastest_and_cheapest_compare_with_each_other():
    assert Fastest().choose(BENT).why == (
        "fastest of 6 points: 83% faster than the cheapest, 208% dearer"
    )
    assert Cheapest().choose(BENT).why == (
        "cheapest of 6 points: 500% slower than the fastest, 68% cheaper"
    )


def test_limits_exclude_points_and_say_how_many_remain():
    choice = ConstrainedObjective(Fastest(), max_cost=9).choose(BENT)
    assert choice.point.config == ClusterConfig(3, 64)
    assert choice.why.endswith("3 of 6 configurations meet the limits")


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        (
            {"max_cost": 5},
            "no configuration meets the limits; the nearest, K=5 B=64, "
            "costs $6.50, 30.0% more than $5.00",
        ),
        (
            {"max_time": 90},
            "no configuration meets the limits; the nearest, K=1 B=64, "
            "takes 100 s, 11.1% more than 90 s",
        ),
        (
            {"max_cost": 7.5, "max_time": 149},
            "no configuration meets the limits; the nearest, K=3 B=64, "
            "costs $8.00, 6.7% more than $7.50 and takes 150 s, 0.7% more than 149 s",
        ),
    ],
)
def test_when_nothing_is_feasible_the_nearest_relaxation_is_named(limits, message):
    with pytest.raises(NothingFeasible) as failure:
        ConstrainedObjective(Knee(), **limits).choose(BENT)
    assert str(failure.value) == message


def test_a_relative_curve_keeps_every_point_and_says_so():
    relative = curve((1, 1), (0.5, 2), basis="relative")
    limited = ConstrainedObjective(Fastest(), max_cost=0.1, max_time=0.1)
    choice = limited.choose(relative)
    assert choice.point.config == ClusterConfig(2, 64)
    assert "the limits cannot be judged before the epochs to target are known" in choice.why
    assert limited.violations(relative.points[0], relative.basis) == ()


def test_no_limits_change_nothing():
    assert ConstrainedObjective(Knee()).choose(BENT) == Knee().choose(BENT)
    assert ConstrainedObjective(Knee()).name == "knee"


@pytest.mark.parametrize("limit", [0, -1])
def test_a_limit_must_be_positive(limit):
    with pytest.raises(ValueError, match="must be positive"):
        ConstrainedObjective(Knee(), max_cost=limit)


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.5, "0.5 s"), (100, "100 s"), (600, "10.0 min"), (9000, "2.50 h")]
)
def test_durations_are_written_for_people(seconds, text):
    assert format_precise_seconds(seconds) == text


def test_cost_is_workers_times_hours_times_price():
    grid = config_columns([ClusterConfig(4, 64)])
    assert on_demand_price_model(0.5).costs(grid, np.array([1800.0])) == 1.0


def unsure(*figures: tuple[float, float, float]) -> TradeoffCurve:
    certain = curve(*((time, cost) for time, cost, _ in figures))
    points = zip(certain.points, figures, strict=True)
    return replace(certain, points=tuple(replace(p, deviation=f[2]) for p, f in points))


def test_a_limit_keeps_a_margin_for_what_is_uncertain():
    near = unsure((100, 9.9, 0.1), (200, 8.0, 0.1), (300, 7.0, 0.1))
    choice = ConstrainedObjective(Fastest(), max_cost=10).choose(near)
    assert choice.point.config == ClusterConfig(2, 64)
    assert choice.why.endswith(
        "2 of 3 configurations meet the limits; K=1 B=64 would be better but has only a "
        "54% chance of meeting them"
    )


def test_where_nothing_is_sure_enough_the_surest_is_taken_though_another_dominates_it():
    near = unsure((100, 9.0, 0.2), (101, 9.1, 0.09))
    choice = ConstrainedObjective(Fastest(), max_cost=10).choose(near)
    assert choice.point.config == ClusterConfig(2, 64)
    assert choice.why.startswith("the surest to meet the limits, though with a chance of only 85%")


@pytest.mark.parametrize(
    ("median", "deviation", "limit", "chance"),
    [
        (8, 0, 8, 1.0),
        (8, 0, 7.9, 0.0),
        (8, 0.1, 8, 0.5),
        (8, 0.1, 8 * 1.1367, 0.9),
        (0, 0.1, 1, 1.0),
        (1e300, 0.1, 1e-300, 0.0),
        (1e-300, 0.1, 1e300, 1.0),
    ],
)
def test_a_chance_follows_from_median_and_deviation(median, deviation, limit, chance):
    assert chance_below(median, deviation, limit) == pytest.approx(chance, abs=1e-4)


def test_what_costs_nothing_beats_what_costs_less_than_a_dollar():
    mixed = curve((100, 0.0), (99.9, 0.5))
    for weight in (0.0, 0.5, 0.9):
        assert Weighted(weight).choose(mixed).point.config == ClusterConfig(1, 64)
    assert Weighted(1.0).choose(mixed).point.config == ClusterConfig(2, 64)


@pytest.mark.parametrize("weight", [-0.1, 1.1, float("nan")])
def test_a_weight_is_a_share(weight):
    with pytest.raises(ValueError, match="from 0 to 1"):
        Weighted(weight)


def test_equal_points_do_not_take_each_others_support():
    listed = ("us-west", "us-east")
    points = tuple(
        TradeoffPoint(ClusterConfig(1, 64, 1, kind), None, 1, 1, 0, 1, None, 5.0, 5.0)
        for kind in listed
    )
    draws = {p.config: PosteriorDraws((0.9, 1.1), (1.0, 1.0)) for p in points}
    choice = Knee().choose(TradeoffCurve(points, "total", draws))
    assert (choice.point.config.machine_type, choice.support) == ("us-east", 1.0)
    assert choice.runner_up is None


def test_a_knee_says_how_sure_it_is_and_which_one_it_might_be():
    draws = {p.config: PosteriorDraws((1.0,) * 4, (1.0,) * 4) for p in BENT.points}
    # In one of four worlds the second point is so much dearer that it is no bend any more.
    draws[ClusterConfig(2, 64)] = PosteriorDraws((1.0, 1.0, 1.0, 40.0), (1.0,) * 4)
    draws[ClusterConfig(3, 64)] = PosteriorDraws((1.0, 1.0, 1.0, 30.0), (1.0,) * 4)
    choice = Knee().choose(replace(BENT, draws=draws))
    assert choice.point.config == ClusterConfig(3, 64)
    assert choice.support == 0.75
    assert choice.runner_up.config in {ClusterConfig(1, 64), ClusterConfig(4, 64)}
    assert "75% of the posterior samples agree" in choice.why
