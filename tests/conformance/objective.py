"""What every objective promises: inherit ``ObjectiveConformance`` and build the objective."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scavenger.cluster import ClusterConfig
from scavenger.errors import NothingFeasible
from scavenger.planning.constrained_objective import ConstrainedObjective
from scavenger.planning.curve import TradeoffCurve, TradeoffPoint
from scavenger.planning.objective import Objective
from scavenger.planning.objectives import OBJECTIVES, plain_objectives
from tests.builders import spec

figures = st.floats(0.1, 1000.0)


def point(number: int, time: float, cost: float) -> TradeoffPoint:
    config = ClusterConfig(number + 1, 64 * (number + 1))
    return TradeoffPoint(config, None, 1.0, 0.1, 0.1, 0.2, None, time, cost)


@st.composite
def curves(draw: st.DrawFn) -> TradeoffCurve:
    drawn = draw(st.lists(st.tuples(figures, figures), min_size=1, max_size=12))
    return TradeoffCurve(tuple(point(n, *each) for n, each in enumerate(drawn)), "total")


class ObjectiveConformance:
    """Return the objective from ``make``."""

    def make(self) -> Objective:
        raise NotImplementedError

    def test_it_is_registered_under_its_name(self) -> None:
        objective = self.make()
        assert OBJECTIVES[objective.name] is type(objective)

    def test_a_job_document_can_name_it(self) -> None:
        name = self.make().name
        if name in plain_objectives():
            assert spec(objective=name).objective == name

    def test_its_weight_of_time_is_a_share(self) -> None:
        assert 0 <= self.make().time_weight <= 1

    @given(curves())
    def test_no_point_is_cheaper_and_faster_than_its_choice(self, curve: TradeoffCurve) -> None:
        choice = self.make().choose(curve)
        assert choice.point in curve.points
        assert choice.why
        for other in curve.points:
            assert not (other.time < choice.point.time and other.cost < choice.point.cost)

    @given(curves(), st.randoms(use_true_random=False))
    def test_the_order_of_points_does_not_matter(
        self, curve: TradeoffCurve, order: random.Random
    ) -> None:
        shuffled = list(curve.points)
        order.shuffle(shuffled)
        again = self.make().choose(replace(curve, points=tuple(shuffled)))
        assert again.point == self.make().choose(curve).point

    @given(curves(), figures)
    def test_within_limits_it_keeps_them_or_says_what_to_relax(
        self, curve: TradeoffCurve, limit: float
    ) -> None:
        limited = ConstrainedObjective(self.make(), max_cost=limit)
        if any(each.cost <= limit for each in curve.points):
            assert limited.choose(curve).point.cost <= limit
        else:
            with pytest.raises(NothingFeasible, match="the nearest"):
                limited.choose(curve)
