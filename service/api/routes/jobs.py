"""Jobs: submit, show, list, cancel. The API writes a row and the reconciler acts on it."""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request, Response
from pydantic import TypeAdapter
from sqlalchemy import Connection

from scavenger.errors import DocumentProblem, InvalidDocument
from scavenger.job.spec import JobSpec
from scavenger.job.validation import parse_job
from scavenger.schemas import CurveView, EventList, JobList, JobView
from service.api.dependencies import AppState, CurrentUser, RequestBody, State
from service.api.etag import IfMatch, IfNoneMatch, etag_of
from service.api.idempotency import OncePerKey, to_response
from service.api.openapi import (
    LOCATION_HEADER,
    NOT_MODIFIED,
    REPLAYED_HEADER,
    answers_problems,
    job_responses,
    page_responses,
    request_body,
)
from service.api.pagination import PageCursor, PageCursors, PageLimit
from service.api.problems import ApiProblem
from service.db import directives, jobs, measurements
from service.db.access import StoredAnswer
from service.db.jobs import record_event
from service.state.curves import CurveDrawing, curve_view
from service.state.loader import load_job_states
from service.state.presenters import curve_view_of_job, job_view, load_with_recent_steps

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])

JOB_MEDIA_TYPES: dict[str, Literal["json", "yaml"]] = {
    "application/json": "json",
    "application/yaml": "yaml",
    "application/x-yaml": "yaml",
    "text/yaml": "yaml",
}
JOB_EXAMPLE = {
    "model": {"key": "digits/mlp", "dataset_size": 1437},
    "target": {"metric": "accuracy", "goal": 0.97, "max_epochs": 60},
    "limits": {"max_cost": "1 USD", "workers": "1..2", "batch": [32, 128]},
    "price": "0.36 USD/h",
    "run": {"command": ["python", "train.py"]},
}
JOB_ID_PATTERN = re.compile(r"job_[0-9a-z]{1,40}")
JOB_POSITION, EVENT_POSITION = TypeAdapter(tuple[datetime, str]), TypeAdapter(tuple[int])

JobFilter = Annotated[
    str | None,
    Query(
        alias="q",
        description="Only jobs whose id begins or ends with this, or whose name begins with it",
        min_length=1,
    ),
]
AfterEvent = Annotated[int, Query(description="Only events after this number", ge=0, le=2**53)]


@router.post(
    "",
    status_code=201,
    response_model=JobView,
    responses=job_responses(201, {**LOCATION_HEADER, **REPLAYED_HEADER}),
    openapi_extra={
        **request_body(JobSpec, "application/json", "application/yaml", example=JOB_EXAMPLE),
        **answers_problems("unsupported_media"),
    },
)
def submit(
    app_state: State, user: CurrentUser, body: RequestBody, request: Request, once: OncePerKey
) -> Response:
    """Store a job; it starts with the reconciler's next tick."""
    spec = read_spec(request.headers.get("content-type", ""), body)
    check_secrets(app_state, user.own_project, spec)

    def store(connection: Connection) -> StoredAnswer:
        now = app_state.now()
        job = f"{jobs.JOB_ID_PREFIX}{int(now.timestamp() * 1000):011x}{secrets.token_hex(4)}"
        jobs.create(connection, job, spec, now, user.own_project)
        record_event(connection, job, now, "submitted", f"{spec.name}: {spec.target_text}")
        return job_answer(
            show_stored_job(app_state, connection, job), 201, Location=f"/v1/jobs/{job}"
        )

    answered = once.run(app_state, store)
    app_state.nudge()
    return answered


@router.get("", responses=page_responses("list_jobs", q="$request.query.q"))
def list_jobs(
    app_state: State,
    user: CurrentUser,
    pages: PageCursors,
    limit: PageLimit = 50,
    cursor: PageCursor = None,
    wanted: JobFilter = None,
) -> JobList:
    """List the jobs of the user's project, newest first."""
    before = None if cursor is None else pages.read("jobs", cursor, JOB_POSITION)
    with app_state.engine.connect() as connection:
        found = jobs.newest(connection, before, limit + 1, user.project, wanted)
        views = show_stored_jobs(app_state, connection, found[:limit])
    following = None
    if len(found) > limit:
        following = pages.write("jobs", views[-1].created_at.isoformat(), views[-1].id)
    return JobList(jobs=views, next_cursor=following)


@router.get(
    "/{job}",
    response_model=JobView,
    responses={**job_responses(200), **NOT_MODIFIED},
    openapi_extra=answers_problems("not_found"),
)
def get_job(app_state: State, job: str, seen: IfNoneMatch = None) -> Response:
    """Show one job."""
    with app_state.engine.connect() as connection:
        find_job(connection, job)
        shown = show_stored_job(app_state, connection, job)
    answered = job_answer(shown, 200)
    if seen is not None and etag_of(shown).is_among(seen):
        return Response(status_code=304, headers=dict(answered.headers))
    return to_response(answered)


@router.post(
    "/{job}/actions/cancel",
    status_code=202,
    response_model=JobView,
    responses=job_responses(202, REPLAYED_HEADER),
    openapi_extra=answers_problems("not_found", "conflict_state", "precondition_failed"),
)
def cancel(app_state: State, job: str, once: OncePerKey, seen: IfMatch = None) -> Response:
    """Wish a job to end."""

    def wish(connection: Connection) -> StoredAnswer:
        find_job(connection, job)
        jobs.lock_for_change(connection, job)
        found = find_job(connection, job)
        if seen is not None and not etag_of(
            show_stored_job(app_state, connection, job)
        ).agrees_with(seen):
            raise ApiProblem("precondition_failed", f"look again: GET /v1/jobs/{job}")
        if found.phase.is_final:
            raise ApiProblem("conflict_state", f"{job} has ended already: {found.phase}")
        if found.cancel_requested_at is None:
            now = app_state.now()
            jobs.request_cancel(connection, job, now)
            record_event(connection, job, now, "cancel", "cancellation was requested")
        return job_answer(show_stored_job(app_state, connection, job), 202)

    answered = once.run(app_state, wish)
    app_state.nudge()
    return answered


@router.get("/{job}/curve", openapi_extra=answers_problems("not_found"))
def get_curve(app_state: State, job: str) -> CurveView:
    """Show the cost/time curve of a job's last choice, with its probes and resizes.

    Before there is one, it is drawn from what is known by now.
    """
    with app_state.engine.connect() as connection:
        found = find_job(connection, job)
        drawn = jobs.newest_curve(connection, job) or draw_curve(app_state, connection, found)
        probes = measurements.probes_of_job(connection, job)
        resizes = directives.history(connection, job)
    return curve_view_of_job(drawn, found, probes, resizes)


def draw_curve(app_state: AppState, connection: Connection, job: jobs.StoredJob) -> CurveView:
    """Draw the curve of a job for which none is stored.

    One that ended before it chose is drawn from its own measurements alone, so that later jobs do
    not change it; one that chose before curves were stored, from all that is known.
    """
    (state,) = load_job_states(connection, app_state.machine, [job], app_state.now())
    known, why = state.knowledge, job.choice or job.reason
    if job.phase.is_final and job.chosen is None:
        known = replace(known, stored=None, models=())
    drawing = CurveDrawing.of(job.spec, known.preview())
    return curve_view(drawing, job.spec, job.chosen, why)


@router.get(
    "/{job}/events",
    responses=page_responses("get_events", job="$request.path.job"),
    openapi_extra=answers_problems("not_found"),
)
def get_events(
    app_state: State,
    pages: PageCursors,
    job: str,
    after: AfterEvent = 0,
    limit: PageLimit = 100,
    cursor: PageCursor = None,
) -> EventList:
    """List what happened to a job, oldest first."""
    listed = f"events of {job}"
    if cursor is not None:
        (position,) = pages.read(listed, cursor, EVENT_POSITION)
        after = max(after, position)
    with app_state.engine.connect() as connection:
        find_job(connection, job)
        found = jobs.events_after(connection, job, after, limit + 1)
    following = pages.write(listed, found[limit - 1].sequence) if len(found) > limit else None
    return EventList(events=found[:limit], next_cursor=following)


def read_spec(content_type: str, body: bytes) -> JobSpec:
    """Read a job document; nothing is stored when anything in it is wrong."""
    media = JOB_MEDIA_TYPES.get(content_type.partition(";")[0].strip().lower())
    if media is None:
        raise ApiProblem(
            "unsupported_media", f"send the body as {' or '.join(list(JOB_MEDIA_TYPES)[:2])}"
        )
    try:
        return parse_job(body.decode(), media)
    except UnicodeDecodeError as error:
        raise ApiProblem("validation", f"the body is not UTF-8 at byte {error.start}") from None
    except InvalidDocument as error:
        raise ApiProblem("validation", str(error), error.problems) from None


def check_secrets(app_state: AppState, project: str, spec: JobSpec) -> None:
    """Refuse a job that names secrets the controller does not have for its project."""
    missing = ", ".join(app_state.secret_store.missing(project, spec.run.secrets))
    if missing:
        why = f"the controller has no {missing}: put each into a file secrets/{project}/NAME"
        problem = DocumentProblem("run.secrets", f"{why} in its home, for its owner only")
        raise ApiProblem("validation", str(problem), [problem])


def find_job(connection: Connection, job: str) -> jobs.StoredJob:
    """Return a job, or refuse."""
    found = jobs.find(connection, job) if JOB_ID_PATTERN.fullmatch(job) else None
    if found is None:
        raise ApiProblem("not_found", "there is no job of that id; GET /v1/jobs lists them")
    return found


def job_answer(shown: JobView, status: int, **headers: str) -> StoredAnswer:
    """Compose an answer that shows a job, and its version."""
    return StoredAnswer(status, shown.model_dump_json(), {"ETag": str(etag_of(shown)), **headers})


def show_stored_job(app_state: AppState, connection: Connection, job: str) -> JobView:
    """Show a job that exists."""
    (shown,) = show_stored_jobs(app_state, connection, [find_job(connection, job)])
    return shown


def show_stored_jobs(
    app_state: AppState, connection: Connection, wanted: Sequence[jobs.StoredJob]
) -> list[JobView]:
    """Show jobs, with as many queries as for one."""
    found = load_with_recent_steps(connection, app_state.machine, wanted, app_state.now())
    return [job_view(state, recent, app_state.storage) for state, recent in found]
