"""Machines: which there are and were, what they cost, and why they ended."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, get_args

from fastapi import APIRouter, Query
from pydantic import TypeAdapter

from scavenger.schemas.machines import MachineList, MachineState
from service.api.dependencies import State
from service.api.job_filters import comma_separated
from service.api.openapi import answers_problems, page_responses
from service.api.pagination import Page
from service.api.problems import ApiProblem
from service.api.security import NO_SUCH_JOB, GuardedRoute, ProjectViewer
from service.api.validation import JOB_ID_PATTERN
from service.db import jobs, machines
from service.state.machines import machine_view

router = APIRouter(prefix="/v1/machines", tags=["machines"], route_class=GuardedRoute)

MACHINE_POSITION = TypeAdapter(tuple[datetime, str])
MACHINE_STATES: tuple[str, ...] = get_args(MachineState)

MachineJob = Annotated[
    str | None, Query(alias="job", description="Only machines of this job", min_length=1)
]
MachineStates = Annotated[
    str | None,
    Query(alias="state", description="Only machines in these states, separated by commas"),
    comma_separated([*MACHINE_STATES], "states"),
]


@router.get(
    "",
    responses=page_responses(
        "list_machines",
        **{name: f"$request.query.{name}" for name in ("job", "state", "project")},
    ),
    openapi_extra=answers_problems("not_found"),
)
def list_machines(
    app_state: State,
    user: ProjectViewer,
    page: Page,
    job: MachineJob = None,
    states: MachineStates = None,
) -> MachineList:
    """List the machines of the user's project, newest first."""
    before, now = page.position("machines", MACHINE_POSITION), app_state.now()
    wanted = () if states is None else tuple(states.split(","))
    with app_state.engine.connect() as connection:
        if job is not None:
            project = jobs.project_of(connection, job) if JOB_ID_PATTERN.fullmatch(job) else None
            if project is None or not user.sees(project):
                raise ApiProblem("not_found", NO_SUCH_JOB)
        found = machines.newest(connection, page.limit + 1, before, user.project, job, wanted)
        shown, following = page.split(
            "machines", found, lambda last: (last.vm.intended_at.isoformat(), last.vm.id)
        )
        ends = machines.told_ends(connection, [each.vm for each in shown])
    views = [machine_view(each, ends.get(each.vm.id), now) for each in shown]
    return MachineList(machines=views, next_cursor=following)
