"""Events: what happened, and why, to all jobs or to one; as a page, or as a stream.

The same address answers both. ``Accept: text/event-stream`` asks for the stream.
"""

from __future__ import annotations

from typing import Annotated

from anyio.to_thread import run_sync
from fastapi import APIRouter, Depends, Query, Request, Response

from scavenger.errors import DocumentProblem
from scavenger.job.fields import closest_name
from scavenger.schemas.events import EventList
from scavenger.schemas.webhooks import EventKind
from service.api.dependencies import AppState, State
from service.api.followers import StreamFilter
from service.api.openapi import ResponseDocs, answers_problems, page_responses
from service.api.pagination import LongPage, PageQuery
from service.api.problems import ApiProblem
from service.api.security import NO_SUCH_JOB, GuardedRoute, ProjectViewer, Viewer
from service.api.streams import LastNumber, Streams, stream_content, wants_stream
from service.api.validation import JOB_ID_PATTERN, TextRule
from service.auth.permissions import UserPrincipal
from service.db import jobs

router = APIRouter(prefix="/v1", tags=["events"], route_class=GuardedRoute)

AfterEvent = Annotated[
    int | None,
    Query(
        description="Only events after this number; without it, a page begins at the first event, "
        "and a stream now",
        ge=0,
        le=2**53,
    ),
]
KNOWN_KINDS = frozenset(kind.value for kind in EventKind if kind is not EventKind.EVERY)
ONE_KIND = f"({'|'.join(sorted(KNOWN_KINDS))})"
KindsParameter = Annotated[
    str | None,
    Query(alias="kind", description="Only events of these kinds, such as resize,exit"),
    TextRule(
        "^[a-z_]{1,40}(,[a-z_]{1,40}){0,20}$",
        "write kinds of events with commas between",
        shown=f"^{ONE_KIND}(,{ONE_KIND})*$",
    ),
]
OneJob = Annotated[
    str | None,
    Query(alias="job", description="Only events of this job"),
    TextRule(f"^{JOB_ID_PATTERN.pattern}$", "write the id of a job, such as job_0192"),
]
NewestEvents = Annotated[
    bool, Query(alias="newest", description="The last events, not the first; of a page only")
]
EVENT_FRAMES = (
    "Frames `event` with an id and an EventView, and frames `job` without an id and with a "
    "JobNewsView"
)


def event_responses(operation: str, **parameters: str) -> ResponseDocs:
    """Describe a page of events, and the stream that the same address answers."""
    responses = page_responses(operation, **parameters)
    responses[200]["content"] = stream_content(EVENT_FRAMES)
    return responses


async def event_kinds(kinds: KindsParameter = None) -> frozenset[str]:
    """Return the kinds of events that a request asks for; none for all.

    Raises:
        ApiProblem: No event has one of these kinds: the answer would always be empty.
    """
    wanted = frozenset() if kinds is None else frozenset(kinds.split(","))
    strange = sorted(wanted - KNOWN_KINDS)
    if strange:
        near = closest_name(strange[0], sorted(KNOWN_KINDS))
        hint = "" if near is None else f', did you mean "{near}"?'
        why = f'there is no kind "{strange[0]}" of events{hint}'
        raise ApiProblem("validation", why, [DocumentProblem("kind", why)])
    return wanted


WantedKinds = Annotated[frozenset[str], Depends(event_kinds)]


@router.get(
    "/events",
    response_model=EventList,
    responses=event_responses(
        "list_events", **{name: f"$request.query.{name}" for name in ("kind", "job", "project")}
    ),
    openapi_extra=answers_problems("not_found"),
)
async def list_events(
    request: Request,
    app_state: State,
    streams: Streams,
    user: ProjectViewer,
    page: LongPage,
    kinds: WantedKinds,
    after: AfterEvent = None,
    wanted: OneJob = None,
    is_newest: NewestEvents = False,
    last: LastNumber = None,
) -> Response | EventList:
    """List what happened to the jobs of the user's project, oldest first; or stream it."""
    if wanted is not None:
        await run_sync(check_job, app_state, user, wanted)
    shown = StreamFilter(user.project, wanted, kinds)
    if wants_stream(request):
        return await streams.open(request, user, shown, after if last is None else last)
    return await run_sync(event_page, app_state, page, shown, after or 0, is_newest)


@router.get(
    "/jobs/{job}/events",
    response_model=EventList,
    responses=event_responses("get_events", job="$request.path.job"),
    openapi_extra=answers_problems("not_found"),
)
async def get_events(
    request: Request,
    app_state: State,
    streams: Streams,
    user: Viewer,
    page: LongPage,
    job: str,
    kinds: WantedKinds,
    after: AfterEvent = None,
    is_newest: NewestEvents = False,
    last: LastNumber = None,
) -> Response | EventList:
    """List what happened to a job, oldest first; or stream it."""
    shown = StreamFilter(user.project, job, kinds)
    if wants_stream(request):
        return await streams.open(request, user, shown, after if last is None else last)
    return await run_sync(event_page, app_state, page, shown, after or 0, is_newest)


def check_job(app_state: AppState, user: UserPrincipal, job: str) -> None:
    """Refuse a job that does not exist for a user; the gate sees only jobs in paths."""
    with app_state.engine.connect() as connection:
        project = jobs.project_of(connection, job)
    if project is None or not user.sees(project):
        raise ApiProblem("not_found", NO_SUCH_JOB)


def event_page(
    app_state: AppState, page: PageQuery, shown: StreamFilter, after: int, is_newest: bool
) -> EventList:
    """Return the page of events that a request asks for."""
    name = "events" if shown.job is None else f"events of {shown.job}"
    after = max(after, page.number(name) or 0)
    with app_state.engine.connect() as connection:
        found = jobs.events_after(
            connection,
            shown.job,
            after,
            page.limit + (not is_newest),  # after the last there is no further page
            project=shown.project,
            kinds=shown.kinds,
            is_newest=is_newest,
        )
    entries, following = page.split(name, found, lambda last: (last.sequence,))
    return EventList(events=list(entries), next_cursor=following)
