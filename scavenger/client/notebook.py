"""The curve and the plan of a job for programs and notebooks: rows, CSV, pandas, a picture."""

from __future__ import annotations

import csv
from decimal import Decimal
from html import escape
from io import StringIO
from typing import TYPE_CHECKING, Any

from scavenger.drawing import draw_curve
from scavenger.schemas.curves import CurveView, LimitChancesView, PointView
from scavenger.schemas.plans import PlanView

if TYPE_CHECKING:
    import pandas


FRACTIONS = (float, float | None, Decimal)
LIMIT_NAMES = [*LimitChancesView.model_fields]
POINT_COLUMNS = [
    *(name for name in PointView.model_fields if name != "meets"),
    *(f"meets_{name}" for name in LIMIT_NAMES),
]
# Columns with fractions; the others are counts, words and statements.
FIGURES = [
    *(name for name, field in PointView.model_fields.items() if field.annotation in FRACTIONS),
    *(f"meets_{name}" for name in LIMIT_NAMES),
]


def row_of(point: PointView) -> dict[str, Any]:
    """Return a point as one row of a table."""
    row = point.model_dump(mode="json", exclude={"meets"})
    chances = {f"meets_{name}": getattr(point.meets, name) for name in LIMIT_NAMES}
    return {**row, **chances, "violations": "; ".join(point.violations)}


class ShownCurve(CurveView):
    """The curve of a job, as ``client.curve`` returns it."""

    def _repr_svg_(self) -> str:
        """Return the picture that a notebook shows."""
        return draw_curve(self)

    def to_rows(self) -> list[dict[str, Any]]:
        """Return a row for each point, as JSON values; ``violations`` are joined by semicolons.

        The chances of meeting the limits are in ``meets_max_cost`` and ``meets_max_time``.
        """
        return [row_of(point) for point in self.points]

    def to_csv(self) -> str:
        """Return the points as CSV, with a line of names first."""
        text = StringIO()
        writer = csv.DictWriter(text, POINT_COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.to_rows())
        return text.getvalue()

    def to_pandas(self) -> pandas.DataFrame:
        """Return the points as a table of pandas, where money is a float, as all figures are.

        Raises:
            ImportError: Pandas is not installed; the message says how to install it.
        """
        try:
            import pandas
        except ImportError:
            why = "to_pandas needs pandas: pip install 'scavenger[pandas]'"
            raise ImportError(why, name="pandas") from None
        table = pandas.DataFrame(self.to_rows(), columns=POINT_COLUMNS)
        # A column without any value, such as the chances of a limit that is not set, has no type.
        return table.astype(dict.fromkeys(FIGURES, float))


class ShownPlan(PlanView):
    """What would become of a job document, as ``client.plan`` returns it."""

    curve: ShownCurve

    def _repr_html_(self) -> str:
        """Return what a notebook shows: what the plan says, and its curve."""
        rows = "".join(
            f"<tr><th>{escape(name)}</th><td>{escape(fact)}</td></tr>"
            for name, fact in self._facts()
        )
        picture = draw_curve(self.curve) if self.curve.points else ""
        return f"<table>{rows}</table>{picture}"

    def _facts(self) -> list[tuple[str, str]]:
        """Return what the plan says, one fact per line."""
        chosen, search = self.choice, self.search
        choice = "a search decides" if chosen is None else str(chosen)
        probes = "nothing is measured" if search is None else f"{search.probes} probes"
        cost = "" if search is None or search.cost is None else f", {search.cost}"
        return [
            ("plan", self.id),
            ("choice", choice),
            ("why", self.why),
            ("search", f"{probes}{cost}"),
            ("most it may spend", "no limit" if self.cap is None else str(self.cap)),
            *(("check", check) for check in self.checks),
        ]
