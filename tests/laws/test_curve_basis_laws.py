"""What is left of a job and its total are one curve: they differ by what was spent."""

from __future__ import annotations

from decimal import Decimal
from itertools import pairwise

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from scavenger.curve_basis import JobPosition, count_curve
from scavenger.report import CurveReport
from scavenger.schemas.curves import CurveView, LimitsView, PointView, SpentView
from service.state.curves import curve_view
from tests.builders import NOW, spec
from tests.laws.test_report_laws import FITTED, reports

WHOLE = FITTED.model.epochs_at_reference
spent = st.integers(0, 10).map(float)
limits = st.none() | st.integers(1, 40).map(float)
positions = st.builds(
    lambda time, cost, share, max_cost, max_time: JobPosition(
        SpentView(time=time, cost=Decimal(cost)),
        share * (WHOLE or 0.0),
        LimitsView(max_cost=max_cost, max_time=max_time),
    ),
    *(spent, spent, st.floats(0.01, 1.5), limits, limits),
)


def drawn(report: CurveReport) -> CurveView:
    return curve_view(report, spec(), None, "so", NOW)


@given(reports(), positions)
def test_what_is_left_and_the_total_differ_by_what_was_spent(
    report: CurveReport, position: JobPosition
) -> None:
    curve = drawn(report)
    rest, total = (count_curve(curve, wanted, position) for wanted in ("remaining", "total"))
    assert count_curve(curve, "auto", position) == rest
    if curve.basis == "relative" or not curve.points:
        assert rest == total == curve
        return
    assert (rest.basis, total.basis) == ("remaining", "total")
    for one, whole in zip(rest.points, total.points, strict=True):
        for name in ("time", "time_low", "time_high"):
            assert getattr(whole, name) == pytest.approx(
                getattr(one, name) + position.spent.time, rel=1e-6
            )
        assert float(whole.cost) == pytest.approx(
            float(one.cost) + float(position.spent.cost), rel=1e-6
        )
        judged = ("violations", "meets", "on_front", "dominated_by", "marginal_price")
        assert all(getattr(one, name) == getattr(whole, name) for name in judged)
    assert (rest.front, rest.knee) == (total.front, total.knee)
    assert {p.id for p in rest.points if p.on_front} == {
        f"k{config.workers}-b{config.global_batch}" for config in rest.front
    }


@given(reports())
def test_at_the_start_all_of_the_job_is_left(report: CurveReport) -> None:
    curve = drawn(report)
    objective = report.objective
    start = JobPosition(
        SpentView(time=0.0, cost=Decimal(0)),
        WHOLE,
        LimitsView(max_cost=objective.max_cost, max_time=objective.max_time),
    )
    counted = count_curve(curve, "remaining", start)
    # Views hold 7 digits, which tell nothing of what lies on a limit, nor which of two is cheaper.
    assume(not any(is_on_a_limit(report, each) for each in curve.points))
    for before, after in zip(curve.points, counted.points, strict=True):
        assert (after.time, after.cost) == (before.time, before.cost)
        assert bool(after.violations) == bool(before.violations)
    if all_differ([float(each.cost) for each in curve.points]) and all_differ(
        [each.time for each in curve.points]
    ):
        assert counted.front == curve.front


def all_differ(figures: list[float]) -> bool:
    ordered = sorted(figures)
    return all(high > low * (1 + 1e-5) for low, high in pairwise(ordered))


def is_on_a_limit(report: CurveReport, shown: PointView) -> bool:
    cost, time = report.objective.max_cost, report.objective.max_time
    pairs = ((float(shown.cost), cost), (shown.time, time))
    return any(limit == pytest.approx(value, rel=1e-5) for value, limit in pairs if limit)


@given(reports(), positions)
def test_a_curve_stays_as_it_was_drawn_where_that_is_asked_for_or_there_is_no_now(
    report: CurveReport, position: JobPosition
) -> None:
    curve = drawn(report)
    assert count_curve(curve, "decision", position) == curve
    assert count_curve(curve, "auto", None) == count_curve(curve, "total", None) == curve
