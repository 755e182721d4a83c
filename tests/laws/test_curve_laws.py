"""Curves come back from the database as they went in, to seven digits."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scavenger.schemas import PointView
from service.db.jobs import columns_to_points, points_to_columns

FIGURES = [name for name, field in PointView.model_fields.items() if field.annotation is float]
MAY_LACK = ("noise", "measured_step_time")
ANY = st.floats(allow_nan=True, allow_infinity=True)


@st.composite
def points(draw: st.DrawFn, figures: st.SearchStrategy[float]) -> PointView:
    facts = {name: draw(figures) for name in FIGURES}
    facts |= {name: draw(st.none() | figures) for name in MAY_LACK}
    return PointView(
        workers=draw(st.integers(1, 64)),
        global_batch=draw(st.integers(64, 4096)),
        measured=draw(st.booleans()),
        on_front=draw(st.booleans()),
        violations=draw(st.lists(st.text(st.characters(codec="ascii"), max_size=9), max_size=2)),
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
            expected = pytest.approx(value, rel=1e-6) if isinstance(value, float) else value
            assert getattr(after, name) == expected
    assert points_to_columns(back) == columns
