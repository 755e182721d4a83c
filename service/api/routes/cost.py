"""Cost: what the machines of a project cost, by job, by cloud or by day."""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import TypeAdapter

from scavenger.schemas import CostEntryView, CostReportView, MoneyView
from service.api.dependencies import State
from service.api.openapi import page_responses
from service.api.pagination import Page
from service.api.security import GuardedRoute, Viewer
from service.db import costs
from service.state.costs import CostGrouping, divide_cost

router = APIRouter(prefix="/v1/cost", tags=["cost"], route_class=GuardedRoute)

COST_POSITION = TypeAdapter(tuple[str])

Grouping = Annotated[CostGrouping, Query(description="What one entry is; days are those of UTC")]


@router.get("", responses=page_responses("get_cost", by="$request.query.by"))
def get_cost(app_state: State, user: Viewer, page: Page, by: Grouping = "job") -> CostReportView:
    """Show what the machines of the user's project cost; jobs and days are newest first."""
    listed, until = f"cost by {by}", app_state.now()
    after = page.position(listed, COST_POSITION)
    with app_state.engine.connect() as connection:
        machines = costs.machines_of_project(connection, user.project)
        spent = divide_cost(machines, by, until)
        names = sorted(spent, reverse=by != "cloud")
        if after is not None:
            (last,) = after
            names = [name for name in names if (name > last if by == "cloud" else name < last)]
        shown, following = page.split(listed, names, lambda name: (name,))
        titles = costs.names_of_jobs(connection, shown) if by == "job" else {}
    return CostReportView(
        by=by,
        until=until,
        total=MoneyView(amount=sum(spent.values(), Decimal(0))),
        entries=[
            CostEntryView(key=name, name=titles.get(name, ""), cost=MoneyView(amount=spent[name]))
            for name in shown
        ],
        next_cursor=following,
    )
