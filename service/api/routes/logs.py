"""Logs: what the commands of a job's machines printed; as a page, or as a stream.

The same address answers both. ``Accept: text/event-stream`` asks for the stream.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from anyio.to_thread import run_sync
from fastapi import APIRouter, Query, Request, Response
from sqlalchemy import Connection

from scavenger.protocol import LogBatch
from scavenger.schemas.telemetry import LogList
from service.api.dependencies import AppState, State
from service.api.followers import LineFilter
from service.api.openapi import answers_problems, page_responses
from service.api.pagination import LogPage, PageQuery
from service.api.problems import ApiProblem
from service.api.routes.agent import check_own_worker, job_of, storable_text
from service.api.routes.jobs import find_job
from service.api.security import CurrentWorker, GuardedRoute, Viewer
from service.api.streams import LastNumber, Streams, stream_content, wants_stream
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

LINE_FRAMES = (
    "Frames `line` with an id and a LogLineView; a frame `dropped` with the number of lines that "
    "are not kept, before the lines by which it grows; a frame `end` once the job has ended and "
    "all its lines are sent"
)
LOG_RESPONSES = page_responses(
    "get_logs", job="$request.path.job", machine="$request.query.machine"
)
LOG_RESPONSES[200]["content"] = stream_content(LINE_FRAMES)


@router.get(
    "/jobs/{job}/logs",
    response_model=LogList,
    responses=LOG_RESPONSES,
    openapi_extra=answers_problems("not_found"),
)
async def get_logs(
    request: Request,
    app_state: State,
    streams: Streams,
    user: Viewer,
    page: LogPage,
    job: str,
    machine: MachineName = None,
    tail: TailLength = 200,
    after: AfterLine = None,
    last: LastNumber = None,
) -> Response | LogList:
    """List what the commands of a job printed, oldest first; or stream it until the job ends.

    The newest lines are kept.
    """
    wanted = LineFilter(job, machine)
    if wants_stream(request):
        place = after if last is None else last
        begin = await run_sync(first_place, app_state, wanted, tail, place)
        return await streams.open(request, user, wanted, begin)
    return await run_sync(log_page, app_state, page, wanted, tail, after)


def first_place(app_state: AppState, wanted: LineFilter, tail: int, after: int | None) -> int:
    """Return the number after which a stream begins."""
    with app_state.engine.connect() as connection:
        check_machine(connection, wanted)
        if after is None:
            return log_lines.number_before_tail(connection, wanted.job, tail, wanted.machine)
        # A number above the newest is from before a backup was restored.
        return min(after, log_lines.number_before_tail(connection, wanted.job, 0))


def log_page(
    app_state: AppState, page: PageQuery, wanted: LineFilter, tail: int, after: int | None
) -> LogList:
    """Return the page of lines that a request asks for."""
    job, machine = wanted.job, wanted.machine
    name = f"logs of {job}"
    begin = page.number(name)
    with app_state.engine.connect() as connection:
        check_machine(connection, wanted)
        if begin is None and after is None:
            begin = log_lines.number_before_tail(connection, job, tail, machine)
        start = max(begin or 0, after or 0)
        found = log_lines.lines_after(connection, job, start, page.limit + 1, machine)
        dropped = log_lines.count_dropped(connection, job, machine)
    shown, following = page.split(name, found, lambda last: (last.number,))
    return LogList(lines=list(shown), dropped=dropped, next_cursor=following)


def check_machine(connection: Connection, wanted: LineFilter) -> None:
    """Refuse a job that is nowhere, and a machine that is not of the job."""
    find_job(connection, wanted.job)
    job, machine = wanted.job, wanted.machine
    if machine is not None and vms.job_of_vm(connection, machine) != job:
        why = f"this job never had a machine {machine}; GET /v1/machines?job={job} lists them"
        raise ApiProblem("not_found", why)


@router.post("/agent/logs", openapi_extra=answers_problems("not_found"))
def store_log(
    app_state: State, streams: Streams, caller: CurrentWorker, message: LogBatch
) -> dict[str, str]:
    """Store what the command of a machine printed, each line once."""
    check_own_worker(caller, message.worker)
    clean = replace(
        message, lines=tuple(replace(e, text=storable_text(e.text)) for e in message.lines)
    )
    with app_state.engine.begin() as connection:
        job = job_of(connection, caller.worker)
        log_lines.store_lines(connection, job, clean)
    streams.note_lines(job)
    return {}
