"""Cost: what the machines of a project cost, by job, model, project, cloud or day."""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import TypeAdapter

from scavenger.schemas.base import Moment, MoneyView
from scavenger.schemas.prices import CostEntryView, CostReportView
from service.api.dependencies import State
from service.api.openapi import page_responses
from service.api.pagination import Page
from service.api.security import GuardedRoute, ProjectViewer
from service.db import costs
from service.state.costs import CostGrouping, CostSpan, divide_cost, missing_costs

router = APIRouter(prefix="/v1/cost", tags=["cost"], route_class=GuardedRoute)

COST_POSITION = TypeAdapter(tuple[str])
# Ids of jobs and days begin with their date: the newest of them come first.
NEWEST_FIRST = ("job", "day")
OWNED = ("job", "model", "project")  # groupings that need to know whose each machine was

Grouping = Annotated[CostGrouping, Query(description="What one entry is; days are those of UTC")]
CostSince = Annotated[
    Moment | None,
    Query(description="Only what was spent from this moment on (RFC 3339)"),
]


@router.get(
    "",
    responses=page_responses(
        "get_cost", **{name: f"$request.query.{name}" for name in ("by", "since", "project")}
    ),
)
def get_cost(
    app_state: State, user: ProjectViewer, page: Page, by: Grouping = "job", since: CostSince = None
) -> CostReportView:
    """Show what the machines of the user's project cost; jobs and days are newest first."""
    listed, until = f"cost by {by}", app_state.now()
    after, is_falling = page.position(listed, COST_POSITION), by in NEWEST_FIRST
    with app_state.engine.connect() as connection:
        machines = costs.machines_of_project(connection, user.project, since)
        owners = costs.cost_owners(connection, user.project) if by in OWNED else {}
    span = CostSpan(None if since is None else min(since, until), until)
    spent = divide_cost(machines, by, span, owners)
    names = sorted(spent, reverse=is_falling)
    if after is not None:
        (last,) = after
        names = [name for name in names if (name < last if is_falling else name > last)]
    shown, following = page.split(listed, names, lambda name: (name,))
    titles = {job: owner.name for job, owner in owners.items()} if by == "job" else {}
    return CostReportView(
        by=by,
        since=since,
        until=until,
        total=MoneyView(amount=sum(spent.values(), Decimal(0))),
        entries=[
            CostEntryView(key=name, name=titles.get(name, ""), cost=MoneyView(amount=spent[name]))
            for name in shown
        ],
        not_included=missing_costs(machines),
        next_cursor=following,
    )
