"""The curves table: the curve that each choice of a job was made from, as pages show it.

A row holds all of it but what the job's own tables tell: where the job is, its probes and resizes.
Points are columns of numbers, to 7 digits: a job's most, 400 of them, take about 25 KB.
"""

from __future__ import annotations

import math
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, delete, func, insert, select

from scavenger.view import CurveView, PointView
from service.db.schema import curves

OF_THE_JOB = {"decision", "decided_at", "current", "probes", "resizes"}
MOST_KEPT = 32  # of a job: the first, and the newest


def store(connection: Connection, job: str, curve: CurveView, now: datetime) -> None:
    """Store the curve of a choice, under the next number."""
    query = select(func.coalesce(func.max(curves.c.number), 0) + 1).where(curves.c.job == job)
    number = connection.execute(query).scalar_one()
    content = curve.model_dump(mode="json", exclude={*OF_THE_JOB, "points"})
    row = {"job": job, "number": number, "at": now, "curve": content}
    connection.execute(insert(curves).values({**row, "points": to_columns(curve.points)}))
    old = (curves.c.number > 1) & (curves.c.number <= number - MOST_KEPT + 1)
    connection.execute(delete(curves).where(curves.c.job == job, old))


def newest(connection: Connection, job: str) -> CurveView | None:
    """Return the curve of a job's last choice; None before it chose."""
    query = select(curves).where(curves.c.job == job).order_by(curves.c.number.desc()).limit(1)
    row = connection.execute(query).one_or_none()
    if row is None:
        return None
    facts = {"decision": row.number, "decided_at": row.at, "points": to_points(row.points)}
    told_elsewhere: dict[str, Any] = {"current": None, "probes": [], "resizes": []}
    return CurveView.model_validate({**row.curve, **facts, **told_elsewhere})


def to_columns(points: list[PointView]) -> dict[str, list[Any]]:
    """Turn points into columns; one whose figures are no numbers cannot be drawn, and is left out.

    >>> to_columns([])["workers"]
    []
    """
    rows = [{name: short(value) for name, value in point} for point in points]
    kept = [row for row in rows if all(map(is_number, row.values()))]
    return {name: [row[name] for row in kept] for name in PointView.model_fields}


def to_points(columns: dict[str, list[Any]]) -> list[PointView]:
    """Turn columns into points again."""
    rows = zip(*columns.values(), strict=True)
    return [PointView.model_validate(dict(zip(columns, row, strict=True))) for row in rows]


def short(value: object) -> object:
    """Round a number to 7 digits, which is more than any forecast has.

    >>> short(0.123456789), short(64), short(True)
    (0.1234568, 64, True)
    """
    return float(f"{value:.7g}") if isinstance(value, float) else value


def is_number(value: object) -> bool:
    """Tell whether a value, if it is a number, is finite."""
    return not isinstance(value, float) or math.isfinite(value)
