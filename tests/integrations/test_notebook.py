"""The curve of a job as a table of the real pandas."""

from __future__ import annotations

import math
from typing import Any

import pandas

from scavenger.client.notebook import POINT_COLUMNS, ShownCurve
from scavenger.schemas.curves import LimitChancesView
from tests.unit.test_cli_rendering import curve_view


def table_of(**changes: Any) -> tuple[ShownCurve, pandas.DataFrame]:
    curve = ShownCurve.model_validate(curve_view(**changes).model_dump())
    return curve, curve.to_pandas()


def test_a_table_has_a_row_for_each_point_with_its_figures() -> None:
    curve, table = table_of()
    assert list(table.columns) == POINT_COLUMNS
    assert list(table["id"]) == [point.id for point in curve.points]
    for name in ("cost", "cost_low", "time", "step_time"):
        assert table[name].dtype == float
        assert list(table[name]) == [float(getattr(point, name)) for point in curve.points]
    assert table["workers"].dtype == int
    assert table["on_front"].dtype == bool
    cheapest = min(curve.points, key=lambda point: point.cost)
    assert table.loc[table["cost"].idxmin(), "id"] == cheapest.id
    assert set(table[table["on_front"]]["id"]) == {p.id for p in curve.points if p.on_front}


def test_what_is_not_known_is_not_a_number_and_limits_are_chances() -> None:
    some = curve_view().points
    known = some[0].model_copy(
        update={"meets": LimitChancesView(max_cost=0.25), "marginal_price": 1.5}
    )
    _, table = table_of(points=[known, some[1].model_copy(update={"marginal_price": None})])
    assert table["meets_max_cost"][0] == 0.25
    assert table["marginal_price"][0] == 1.5
    assert math.isnan(table["marginal_price"][1])
    assert table["meets_max_time"].isna().all()


def test_a_curve_without_points_is_an_empty_table() -> None:
    _, table = table_of(points=[])
    assert (len(table), list(table.columns)) == (0, POINT_COLUMNS)
