"""Curves come back from the database as they went in, to seven digits."""

from __future__ import annotations

import json
import math
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scavenger.money import forecast_dollars
from scavenger.schemas.curves import LimitChancesView, PointView, point_id
from service.db.curves import columns_to_points, points_to_columns

FIGURES = [name for name, field in PointView.model_fields.items() if field.annotation is float]
MAY_LACK = (
    *("noise", "measured_step_time"),
    *("parallel_efficiency", "statistical_efficiency"),
)
MONEY = ("cost", "cost_low", "cost_high")
ANY = st.floats(allow_nan=True, allow_infinity=True)
AMOUNTS = st.floats(0, 1e300).map(forecast_dollars)
CHANCES = st.none() | st.floats(0, 1)


@st.composite
def points(draw: st.DrawFn, figures: st.SearchStrategy[float]) -> PointView:
    facts: dict[str, Any] = {name: draw(figures) for name in FIGURES}
    facts |= {name: draw(st.none() | figures) for name in MAY_LACK}
    facts |= {name: draw(AMOUNTS) for name in MONEY}
    facts["marginal_price"] = draw(st.none() | AMOUNTS)
    workers, batch = draw(st.integers(1, 64)), draw(st.integers(64, 4096))
    return PointView(
        id=point_id(workers, batch),
        workers=workers,
        global_batch=batch,
        source=draw(st.sampled_from(["measured", "predicted", "extrapolated"])),
        on_front=draw(st.booleans()),
        violations=draw(st.lists(st.text(st.characters(codec="ascii"), max_size=9), max_size=2)),
        meets=LimitChancesView(max_cost=draw(CHANCES), max_time=draw(CHANCES)),
        dominated_by=draw(st.sampled_from([None, "k1-b32"])),
        **facts,
    )


@given(st.lists(points(ANY), max_size=8))
def test_points_come_back_but_those_whose_figures_are_no_numbers(given: list[PointView]) -> None:
    columns = json.loads(json.dumps(points_to_columns(given), allow_nan=False))
    back = columns_to_points(columns)
    figures = [[value for _, value in point if isinstance(value, float)] for point in given]
    kept = [p for p, own in zip(given, figures, strict=True) if all(map(math.isfinite, own))]
    assert len(back) == len(kept)
    for before, after in zip(kept, back, strict=True):
        for name, value in before:
            assert alike(getattr(after, name), value), name
    assert points_to_columns(back) == columns


def alike(one: object, other: object) -> bool:
    match other:
        case float():
            return bool(one == pytest.approx(other, rel=1e-6))
        case LimitChancesView(max_cost=cost, max_time=time):
            assert isinstance(one, LimitChancesView)
            return alike(one.max_cost, cost) and alike(one.max_time, time)
        case Decimal():
            assert isinstance(one, Decimal)
            return one == other
        case _:
            return one == other


def test_a_point_that_an_earlier_version_stored_is_still_read() -> None:
    old = {"workers": 2, "global_batch": 64, "noise": None, "epochs": 9.0, "compute_time": 0.1}
    old |= {"sync_time": 0.1, "step_time": 0.2, "measured_step_time": 0.21, "time": 30.0}
    old |= {"time_low": 25.0, "time_high": 36.0, "cost": 0.00125, "cost_low": 0.001}
    old |= {"cost_high": 0.002, "measured": True, "on_front": True, "violations": []}
    (shown,) = columns_to_points({name: [value] for name, value in old.items()})
    assert (shown.id, shown.source, str(shown.cost)) == ("k2-b64", "measured", "0.00125")
    assert (shown.meets, shown.dominated_by) == (LimitChancesView(), None)
    (other,) = columns_to_points({n: [v] for n, v in (old | {"measured": False}).items()})
    assert other.source == "predicted"
