"""Logs: what the commands of a job's machines printed."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from fastapi import APIRouter, Query

from scavenger.protocol import LogBatch
from scavenger.reading_schemas import LogList
from service.api.dependencies import State
from service.api.openapi import answers_problems, page_responses
from service.api.pagination import LogPage
from service.api.problems import ApiProblem
from service.api.routes.agent import check_own_worker, job_of, storable_text
from service.api.routes.jobs import find_job
from service.api.security import VIEWER, CurrentWorker, GuardedRoute
from service.api.validation import TextRule
from service.db import log_lines, vms

router = APIRouter(prefix="/v1", tags=["logs"], route_class=GuardedRoute)

MachineName = Annotated[
    str | None,
    Query(alias="machine", description="Only lines of this machine"),
    TextRule("^[A-Za-z0-9_-]{1,100}$", "write the id of a machine, such as job_0192-w1"),
]
TailLength = Annotated[
    int,
    Query(
        alias="tail",
        description="Begin with so many of the newest lines; `after` and `cursor` win over it",
        ge=0,
        le=log_lines.MAX_LINES_KEPT,
    ),
]
AfterLine = Annotated[
    int | None, Query(alias="after", description="Only lines after this number", ge=0, le=2**53)
]


@router.get(
    "/jobs/{job}/logs",
    responses=page_responses("get_logs", job="$request.path.job", machine="$request.query.machine"),
    openapi_extra=answers_problems("not_found"),
    dependencies=[VIEWER],
)
def get_logs(
    app_state: State,
    page: LogPage,
    job: str,
    machine: MachineName = None,
    tail: TailLength = 200,
    after: AfterLine = None,
) -> LogList:
    """List what the commands of a job printed, oldest first; the newest lines are kept."""
    name = f"logs of {job}"
    begin = page.number(name)
    with app_state.engine.connect() as connection:
        find_job(connection, job)
        if machine is not None and vms.job_of_vm(connection, machine) != job:
            why = f"this job never had a machine {machine}; GET /v1/machines?job={job} lists them"
            raise ApiProblem("not_found", why)
        if begin is None and after is None:
            begin = log_lines.number_before_tail(connection, job, tail, machine)
        start = max(begin or 0, after or 0)
        found = log_lines.lines_after(connection, job, start, page.limit + 1, machine)
        dropped = log_lines.count_dropped(connection, job, machine)
    shown, following = page.split(name, found, lambda last: (last.number,))
    return LogList(lines=list(shown), dropped=dropped, next_cursor=following)


@router.post("/agent/logs", openapi_extra=answers_problems("not_found"))
def store_log(app_state: State, caller: CurrentWorker, message: LogBatch) -> dict[str, str]:
    """Store what the command of a machine printed, each line once."""
    check_own_worker(caller, message.worker)
    clean = replace(
        message, lines=tuple(replace(e, text=storable_text(e.text)) for e in message.lines)
    )
    with app_state.engine.begin() as connection:
        log_lines.store_lines(connection, job_of(connection, caller.worker), clean)
    return {}
