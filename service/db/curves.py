"""The curve of each choice of a job, and how good earlier forecasts of its model were.

A stored curve leaves out what other tables hold: the job's position, probes and resizes. Its points
are columns of numbers with 7 digits; 400 points, the most a job may have, take about 25 KB. Curves
that earlier versions stored lack some columns; they are read all the same.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, delete, func, insert, select
from sqlalchemy.dialects.postgresql import distinct_on

from scavenger.schemas.curves import CalibrationView, CurveView, DecisionView, PointView, point_id
from scavenger.schemas.jobs import ConfigView, JobPhase
from scavenger.stack import EAGER_NAME
from service.db.schema import curves, jobs, outcomes

FIELDS_STORED_ELSEWHERE = {
    *("decision", "decided_at", "as_of", "current", "probes", "resizes"),
    *("switch", "calibration", "is_finished"),
}
MAX_CURVES_KEPT = 32  # of a job: the first, and the newest
MAX_JUDGED_FORECASTS = 100  # older ones were made by other laws
# Of 80 % that are promised; of four jobs or fewer, half may miss by chance.
DEGRADED_COVERAGE = 0.6
FEWEST_JUDGED_FORECASTS = 5
JUDGED_LIMITS = ("max_cost", "max_time")
MONEY_COLUMNS = ("cost", "cost_low", "cost_high", "marginal_price")
# Named otherwise in columns, or what follows from where a job is.
DERIVED_FIELDS = ("id", "meets", "saving")


def store_curve(connection: Connection, job: str, curve: CurveView, now: datetime) -> None:
    """Store the curve of a choice, under the next number."""
    query = select(func.coalesce(func.max(curves.c.number), 0) + 1).where(curves.c.job == job)
    number = connection.execute(query).scalar_one()
    content = curve.model_dump(mode="json", exclude={*FIELDS_STORED_ELSEWHERE, "points"})
    row = {"job": job, "number": number, "at": now, "curve": content}
    connection.execute(insert(curves).values({**row, "points": points_to_columns(curve.points)}))
    old = (curves.c.number > 1) & (curves.c.number <= number - MAX_CURVES_KEPT + 1)
    connection.execute(delete(curves).where(curves.c.job == job, old))


def newest_curve(connection: Connection, job: str) -> CurveView | None:
    """Return the curve of a job's last choice; None before it chose."""
    query = select(curves).where(curves.c.job == job).order_by(curves.c.number.desc()).limit(1)
    row = connection.execute(query).one_or_none()
    return None if row is None else curve_of_row(row)


def newest_knees(connection: Connection, names: Collection[str]) -> Mapping[str, ConfigView]:
    """Return where the newest curve of each of these jobs bends, by job; none where it does not."""
    knee = curves.c.curve["knee"]
    query = (
        select(curves.c.job, knee.label("knee"), curves.c.curve["knee_bends"].label("bends"))
        .ext(distinct_on(curves.c.job))
        .where(curves.c.job.in_(names))
        .order_by(curves.c.job, curves.c.number.desc())
    )
    return {
        row.job: ConfigView.model_validate(row.knee)
        for row in connection.execute(query)
        if row.knee is not None and row.bends is not False
    }


def find_curve(connection: Connection, job: str, number: int) -> CurveView | None:
    """Return the curve of a choice; None if there is none of that number, or it is not kept."""
    query = select(curves).where(curves.c.job == job, curves.c.number == number)
    row = connection.execute(query).one_or_none()
    return None if row is None else curve_of_row(row)


def curve_of_row(row: Row[Any]) -> CurveView:
    """Turn a row into the curve, without what other tables hold."""
    facts = {"decision": row.number, "decided_at": row.at, "points": columns_to_points(row.points)}
    elsewhere: dict[str, Any] = {"as_of": row.at, "current": None, "probes": [], "resizes": []}
    return CurveView.model_validate({**row.curve, **facts, **elsewhere})


def decisions_after(connection: Connection, job: str, after: int, limit: int) -> list[DecisionView]:
    """Return the choices of a job whose curves are kept, after a number, oldest first."""
    content = curves.c.curve
    query = (
        select(
            curves.c.number,
            curves.c.at,
            content["why"].astext.label("why"),
            content["chosen"].label("chosen"),
            content["basis"].astext.label("basis"),
        )
        .where(curves.c.job == job, curves.c.number > after)
        .order_by(curves.c.number)
        .limit(limit)
    )
    return [
        DecisionView(
            number=row.number,
            at=row.at,
            why=row.why,
            chosen=None if row.chosen is None else ConfigView.model_validate(row.chosen),
            basis=row.basis,
        )
        for row in connection.execute(query)
    ]


def judge_forecasts(
    connection: Connection, project: str, model_key: str, before: datetime
) -> CalibrationView | None:
    """Return how many forecasts of a model's jobs held that ended before a moment; None of none.

    What ended later would change the picture of a choice that is made.
    """
    held = outcomes.c.finished_at.between(outcomes.c.due_from, outcomes.c.due_until)
    newest = (
        select(held.label("held"))
        .join(jobs, jobs.c.id == outcomes.c.job)
        .where(
            jobs.c.project == project,
            jobs.c.model_key == model_key,
            outcomes.c.phase == JobPhase.SUCCEEDED,
            outcomes.c.due_until.is_not(None),
            outcomes.c.finished_at < before,
        )
        .order_by(outcomes.c.finished_at.desc())
        .limit(MAX_JUDGED_FORECASTS)
        .subquery()
    )
    query = select(func.count(), func.count().filter(newest.c.held)).select_from(newest)
    count, met = connection.execute(query).one()
    if count == 0:
        return None
    is_degraded = count >= FEWEST_JUDGED_FORECASTS and met / count < DEGRADED_COVERAGE
    return CalibrationView(coverage=met / count, forecasts=count, is_degraded=is_degraded)


def points_to_columns(points: list[PointView]) -> dict[str, list[Any]]:
    """Turn points into columns; one whose figures are no numbers cannot be drawn, and is left out.

    >>> points_to_columns([])["workers"]
    []
    """
    rows = [point_to_row(point) for point in points]
    kept = [row for row in rows if all(map(is_finite_or_text, row.values()))]
    return {name: [row[name] for row in kept] for name in STORED_COLUMNS}


STORED_COLUMNS = (
    *(name for name in PointView.model_fields if name not in DERIVED_FIELDS),
    *(f"meets_{name}" for name in JUDGED_LIMITS),
)


def point_to_row(point: PointView) -> dict[str, Any]:
    """Return what is stored of a point, by column."""
    row: dict[str, Any] = {name: value for name, value in point if name not in DERIVED_FIELDS}
    row |= {name: float(row[name]) for name in MONEY_COLUMNS if row[name] is not None}
    row |= {f"meets_{name}": getattr(point.meets, name) for name in JUDGED_LIMITS}
    return {name: round_to_7_digits(value) for name, value in row.items()}


def columns_to_points(columns: dict[str, list[Any]]) -> list[PointView]:
    """Turn columns into points again."""
    rows = zip(*columns.values(), strict=True)
    return [row_to_point(dict(zip(columns, row, strict=True))) for row in rows]


def row_to_point(row: dict[str, Any]) -> PointView:
    """Turn what is stored of a point into the point; earlier versions stored less."""
    source = "measured" if row.pop("measured", False) else "predicted"
    meets = {name: row.pop(f"meets_{name}", None) for name in JUDGED_LIMITS}
    name = point_id(row["workers"], row["global_batch"], row.get("stack", EAGER_NAME))
    money = {
        column: f"{row[column]:.7g}" for column in MONEY_COLUMNS if row.get(column) is not None
    }
    return PointView.model_validate({"source": source, **row, **money, "id": name, "meets": meets})


def round_to_7_digits(value: object) -> object:
    """Round a number to 7 digits, which is more than any forecast has.

    >>> round_to_7_digits(0.123456789), round_to_7_digits(64), round_to_7_digits(True)
    (0.1234568, 64, True)
    """
    return float(f"{value:.7g}") if isinstance(value, float) else value


def is_finite_or_text(value: object) -> bool:
    """Tell whether a value, if it is a number, is finite."""
    return not isinstance(value, float) or math.isfinite(value)
