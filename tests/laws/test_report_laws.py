"""What the API shows of any curve: its front, its marks and what is said of each point."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from random import Random
from typing import NoReturn

from hypothesis import given
from hypothesis import strategies as st

from scavenger.cluster import ClusterConfig
from scavenger.models.performance import fit_performance
from scavenger.planning.constrained_objective import ConstrainedObjective
from scavenger.planning.curve import TradeoffCurve, TradeoffPoint
from scavenger.planning.decision import CurvePreview
from scavenger.planning.knee import Knee
from scavenger.planning.state import FittedModel
from scavenger.report import CurveReport, ReportedPoint
from scavenger.schemas.curves import CurveView
from service.state.curves import curve_view
from tests.builders import NOW, observation, spec

CORNERS = ((1, 32), (1, 128), (2, 128), (2, 32))
SEEN = tuple(observation(*corner) for corner in CORNERS)
FITTED = FittedModel(fit_performance(SEEN, 1437, 32, 10.0), SEEN, "4 probes of this job")
WISH = spec()


def point(index: int, time: float, cost: float, deviation: float) -> TradeoffPoint:
    timed = 0.2 if index % 3 == 0 else None
    config = ClusterConfig(1 + index % 4, 32 * index)
    return TradeoffPoint(config, None, 9.0, 0.1, 0.1, 0.2, timed, time, cost, deviation)


figures = st.integers(0, 20).map(float) | st.floats(1e-6, 1e9)
deviations = st.just(0.0) | st.floats(0, 0.5)
rows = st.lists(st.tuples(figures, figures, deviations), min_size=1, max_size=20)
limits = st.none() | st.integers(1, 20).map(float) | st.floats(1e-3, 1e9)
bases = st.sampled_from(("total", "relative"))


@st.composite
def reports(draw: st.DrawFn) -> CurveReport:
    """A curve under limits, with what the knee chooses of it, if anything meets them."""
    points = tuple(point(index, *row) for index, row in enumerate(draw(rows), start=1))
    objective = ConstrainedObjective(Knee(), draw(limits), draw(limits))
    preview = CurvePreview(TradeoffCurve(points, draw(bases)), FITTED)
    return CurveReport.of(objective, preview)


def other_points(
    report: CurveReport, change: Callable[[tuple[TradeoffPoint, ...]], tuple[TradeoffPoint, ...]]
) -> CurveReport:
    """Report the same curve with other points."""
    assert report.preview is not None
    curve = report.preview.curve
    changed = replace(curve, points=change(curve.points))
    return CurveReport.of(report.objective, replace(report.preview, curve=changed))


def dominates(one: TradeoffPoint, other: TradeoffPoint) -> bool:
    no_worse = one.time <= other.time and one.cost <= other.cost
    return no_worse and (one.time, one.cost) != (other.time, other.cost)


@given(reports())
def test_the_front_is_exactly_the_feasible_points_that_no_feasible_one_dominates(
    report: CurveReport,
) -> None:
    feasible = [each.point for each in report.points if not each.violations]
    expected = {p for p in feasible if not any(dominates(other, p) for other in feasible)}
    assert set(report.front) == expected
    assert len(report.front) == len(expected)
    assert [p.time for p in report.front] == sorted(p.time for p in report.front)
    assert {each.point for each in report.points if each.is_on_front} == expected


@given(reports())
def test_marks_are_on_the_front_and_what_is_chosen_meets_the_limits_if_anything_does(
    report: CurveReport,
) -> None:
    marks = report.marks(report.objective)
    assert len(marks) == (3 if report.front else 0)
    assert all(choice.point in report.front for choice in marks.values())
    if report.front:
        assert report.choice is not None
        assert report.choice.point in report.front


@given(reports())
def test_every_point_that_is_beaten_names_the_point_of_the_front_that_beats_it(
    report: CurveReport,
) -> None:
    front = {p.config: p for p in report.front}
    for each in report.points:
        beaten_by = [p for p in report.front if dominates(p, each.point)]
        assert (each.dominated_by is not None) == bool(beaten_by)
        assert each.is_on_front <= (each.dominated_by is None)
        if each.dominated_by is not None:
            assert dominates(front[each.dominated_by], each.point)


@given(reports())
def test_each_hour_has_its_price_on_the_front_but_for_the_cheapest(report: CurveReport) -> None:
    priced = {r.point.config: r.marginal_price for r in report.points}
    assert all(r.marginal_price is None for r in report.points if not r.is_on_front)
    for fast, slow in pairwise(report.front):
        price = priced[fast.config]
        if fast.cost > slow.cost and report.basis == "total" and price is not None:
            paid = price * (slow.time - fast.time) / 3600
            assert math.isclose(paid, fast.cost - slow.cost, rel_tol=1e-9)
    if report.front:
        assert priced[report.front[-1].config] is None


@given(reports())
def test_chances_are_shares_that_agree_with_the_limits(report: CurveReport) -> None:
    for each in report.points:
        chances = (each.chances.max_cost, each.chances.max_time)
        known = [chance for chance in chances if chance is not None]
        assert all(0 <= chance <= 1 for chance in known)
        assert (min(known, default=1.0) >= 0.9) == (not each.violations)


def judged(report: CurveReport) -> dict[ClusterConfig, ReportedPoint]:
    return {each.point.config: each for each in report.points}


@given(reports())
def test_a_dominated_point_changes_nothing(report: CurveReport) -> None:
    worse = point(99, *(1 + max(getattr(r.point, name) for r in report.points) for name in AXES), 0)
    larger = other_points(report, lambda points: (worse, *points))
    if not report.front and larger.front:
        return  # it is the only one that meets the limits
    before, after = judged(report), judged(larger)
    assert {config: after[config] for config in before} == before
    assert larger.front == report.front
    one, other = (each.marks(each.objective) for each in (report, larger))
    assert {n: c.point for n, c in one.items()} == {n: c.point for n, c in other.items()}


AXES = ("time", "cost")


@given(reports(), st.randoms(use_true_random=False))
def test_the_order_of_points_changes_nothing(report: CurveReport, shuffle: Random) -> None:
    def shuffled(points: tuple[TradeoffPoint, ...]) -> tuple[TradeoffPoint, ...]:
        listed = list(points)
        shuffle.shuffle(listed)
        return tuple(listed)

    other = other_points(report, shuffled)
    assert (other.front, judged(other)) == (report.front, judged(report))
    assert other.marks(other.objective) == report.marks(report.objective)


def refuse(name: str) -> NoReturn:
    raise AssertionError(f"the curve holds {name}")


@given(reports())
def test_the_view_holds_ordered_numbers_and_comes_back_as_it_was(report: CurveReport) -> None:
    view = curve_view(report, WISH, None, "", NOW)
    text = view.model_dump_json()
    json.loads(text, parse_constant=refuse)
    assert CurveView.model_validate_json(text) == view
    assert len({p.id for p in view.points}) == len(view.points)
    for p in view.points:
        assert p.time_low <= p.time <= p.time_high
        assert p.cost_low <= p.cost <= p.cost_high
    on_front = {(p.workers, p.global_batch) for p in view.points if p.on_front}
    assert on_front == {(c.workers, c.global_batch) for c in view.front}
    for mark in (view.knee, view.fastest, view.cheapest):
        assert mark is None or mark in view.front


def test_what_lies_outside_the_probed_range_is_extrapolated() -> None:
    inside, outside = ClusterConfig(2, 64), ClusterConfig(8, 64)
    made = [replace(point(1, 1.0, 1.0, 0.1), config=config) for config in (inside, outside)]
    timed = replace(made[1], measured_step_time=0.3)
    preview = CurvePreview(TradeoffCurve(tuple(made), "total"), FITTED)
    report = CurveReport.of(ConstrainedObjective(Knee()), preview)
    assert [each.source for each in report.points] == ["predicted", "extrapolated"]
    again = other_points(report, lambda _: (timed,))
    assert [each.source for each in again.points] == ["measured"]
    unprobed = replace(preview, fitted=replace(FITTED, observations=()))
    nothing = CurveReport.of(ConstrainedObjective(Knee()), unprobed)
    assert {each.source for each in nothing.points} == {"extrapolated"}
