"""What was forecast of the jobs of a model when they chose."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

from sqlalchemy import Connection, select
from sqlalchemy.dialects.postgresql import distinct_on

from scavenger.stack import EAGER_NAME
from service.db.schema import curves, outcomes

COST_COLUMNS = ("cost_low", "cost", "cost_high")


@dataclass(frozen=True, slots=True)
class ChosenForecast:
    """What was forecast of a job on the configuration it chose last.

    Attributes:
        due_from: One job in ten ends before this; None where nothing told.
        due_until: Nine of ten end before this.
        costs: Dollars that one in ten, half and nine of ten of such jobs cost less than; None where
            no whole cost was forecast.
    """

    due_from: datetime | None = None
    due_until: datetime | None = None
    costs: tuple[Decimal, Decimal, Decimal] | None = None


def forecasts_of_jobs(
    connection: Connection, wanted: Collection[str]
) -> Mapping[str, ChosenForecast]:
    """Return what was forecast of these jobs, by job."""
    newest = (
        select(curves.c.job, curves.c.curve, curves.c.points)
        .ext(distinct_on(curves.c.job))
        .where(curves.c.job.in_(wanted))
        .order_by(curves.c.job, curves.c.number.desc())
    )
    drawn = {row.job: chosen_costs(row.curve, row.points) for row in connection.execute(newest)}
    due = select(outcomes.c.job, outcomes.c.due_from, outcomes.c.due_until)
    return {
        row.job: ChosenForecast(row.due_from, row.due_until, drawn.get(row.job))
        for row in connection.execute(due.where(outcomes.c.job.in_(wanted)))
    }


def chosen_costs(
    curve: Mapping[str, Any], points: Mapping[str, list[Any]]
) -> tuple[Decimal, Decimal, Decimal] | None:
    """Return the costs of the configuration that a stored curve was chosen from."""
    chosen, basis = curve.get("chosen"), curve.get("basis")
    spent = (curve.get("spent") or {}).get("cost") if basis == "remaining" else "0"
    if chosen is None or basis not in ("total", "remaining") or spent is None:
        return None
    count = len(points["workers"])
    stacks = points.get("stack", [EAGER_NAME] * count)
    configs = zip(points["workers"], points["global_batch"], stacks, strict=True)
    named = (chosen["workers"], chosen["global_batch"], chosen.get("stack", EAGER_NAME))
    for place, config in enumerate(configs):
        if config == named:
            left = (Decimal(str(points[name][place])) for name in COST_COLUMNS)
            low, cost, high = (Decimal(spent) + each for each in left)
            return low, cost, high
    return None
