"""Jobs: submit, show, list, cancel. The API writes a row and the reconciler acts on it."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from datetime import datetime
from functools import partial
from typing import Annotated, Any, Literal

from anyio.to_thread import run_sync
from fastapi import APIRouter, Depends, Request, Response
from pydantic import TypeAdapter, ValidationError
from sqlalchemy import Connection

from scavenger.errors import DocumentProblem, InvalidDocument
from scavenger.job.spec import JobSpec
from scavenger.job.validation import parse_job
from scavenger.schemas.jobs import JobList, JobView
from scavenger.schemas.plans import PlanReference
from scavenger.schemas.problems import JobVersionView
from service.api.dependencies import AppState, RequestBody, State
from service.api.etag import IfMatch, IfNoneMatch, JobETag
from service.api.idempotency import IdempotentRequestDep, to_response
from service.api.job_filters import LIST_RESPONSES, JobFieldNames, JobFilterDep
from service.api.openapi import (
    LOCATION_HEADER,
    NOT_MODIFIED,
    REPLAYED_HEADER,
    answers_problems,
    job_responses,
    submission_body,
)
from service.api.pagination import Page
from service.api.problems import ApiProblem
from service.api.security import NO_SUCH_JOB, SUBMITTER, VIEWER, GuardedRoute, Submitter, Viewer
from service.api.validation import JOB_ID_PATTERN
from service.auth.permissions import UserPrincipal
from service.db import curves, jobs, packages, plans, prices
from service.db.idempotency import StoredAnswer
from service.db.jobs import record_event
from service.errors import UnknownCloud, UnknownPrice
from service.state.presenters import ALL_PARTS, JobParts, job_view, load_with_recent_steps

router = APIRouter(prefix="/v1/jobs", tags=["jobs"], route_class=GuardedRoute)

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
JOB_POSITION = TypeAdapter(tuple[datetime, str])


async def job_document(request: Request, body: RequestBody) -> JobSpec:
    """Parse the body, JSON or YAML, so that errors name lines and columns of the document.

    Raises:
        ApiProblem: The media type is unknown, or anything in the document is wrong.
    """
    content_type = request.headers.get("content-type", "")
    media = JOB_MEDIA_TYPES.get(content_type.partition(";")[0].strip().lower())
    if media is None:
        detail = f"send the body as {' or '.join(list(JOB_MEDIA_TYPES)[:2])}"
        raise ApiProblem("unsupported_media", detail)
    try:
        # In a thread: a document of 32 KiB may take a second to parse, and would block all others.
        return await run_sync(parse_job, body.decode(), media)
    except UnicodeDecodeError as error:
        raise ApiProblem("validation", f"the body is not UTF-8 at byte {error.start}") from None
    except InvalidDocument as error:
        raise ApiProblem("validation", str(error), error.problems) from None


JobDocument = Annotated[JobSpec, Depends(job_document)]
MAX_REFERENCE_BYTES = 200


async def submission(request: Request, body: RequestBody) -> JobSpec | PlanReference:
    """Return what is submitted: a job document, or a plan that was made of one."""
    if len(body) <= MAX_REFERENCE_BYTES and b'"plan"' in body:
        try:
            return PlanReference.model_validate_json(body)
        except ValidationError:
            hint = 'submit a plan with {"plan": "plan_..."} and nothing beside it'
            problem = DocumentProblem("plan", f"this names no plan: {hint}")
            raise ApiProblem("validation", str(problem), [problem]) from None
    return await job_document(request, body)


Submission = Annotated[JobSpec | PlanReference, Depends(submission)]


SUBMITTED = job_responses(201, {**LOCATION_HEADER, **REPLAYED_HEADER})


@router.post(
    "",
    status_code=201,
    response_model=JobView,
    responses={
        200: {"model": JobView, **SUBMITTED[201]},
        **SUBMITTED,
    },
    openapi_extra={
        **submission_body(JOB_EXAMPLE),
        **answers_problems("not_found", "plan_expired"),
    },
)
def submit(
    app_state: State, user: Submitter, wish: Submission, idempotent: IdempotentRequestDep
) -> Response:
    """Store a job; it starts with the reconciler's next tick.

    A plan is submitted once: sent again, it answers 200 with the job that it became.
    """
    match wish:
        case PlanReference(plan=plan):
            effect = partial(submit_plan, app_state, user, plan)
        case JobSpec():
            check_secrets(app_state, user.own_project, wish)
            spec = complete_job(app_state, wish)
            effect = partial(create_job, app_state, user.own_project, spec)
    return idempotent.run_once(app_state, effect)


@router.get("", response_model=None, responses=LIST_RESPONSES)
def list_jobs(
    app_state: State, user: Viewer, page: Page, wanted: JobFilterDep, fields: JobFieldNames = None
) -> Response:
    """List the jobs of the user's project, newest first."""
    names = None if fields is None else {"id", *fields.split(",")}
    parts = ALL_PARTS if names is None else JobParts.in_fields(names)
    before = page.position("jobs", JOB_POSITION)
    with app_state.engine.connect() as connection:
        found = jobs.newest(connection, before, page.limit + 1, user.project, wanted)
        shown, following = page.split(
            "jobs", found, lambda last: (last.created_at.isoformat(), last.id)
        )
        views = job_views(app_state, connection, shown, parts)
    listed = JobList(jobs=views, next_cursor=following)
    kept: dict[str, Any] | None = None
    if names is not None:
        kept = {"jobs": {"__all__": names}, "next_cursor": True}
    return Response(listed.model_dump_json(include=kept), media_type="application/json")


@router.get(
    "/{job}",
    response_model=JobView,
    responses={**job_responses(200), **NOT_MODIFIED},
    openapi_extra=answers_problems("not_found"),
    dependencies=[VIEWER],
)
def get_job(app_state: State, job: str, seen: IfNoneMatch = None) -> Response:
    """Show one job."""
    with app_state.engine.connect() as connection:
        (view,) = job_views(app_state, connection, [find_job(connection, job)])
    answer = job_answer(view, 200)
    if seen is not None and JobETag.of(view).satisfies_if_none_match(seen):
        return Response(status_code=304, headers=dict(answer.headers))
    return to_response(answer)


@router.post(
    "/{job}/actions/cancel",
    status_code=202,
    response_model=JobView,
    responses=job_responses(202, REPLAYED_HEADER),
    openapi_extra=answers_problems("not_found", "conflict_state", "precondition_failed"),
    dependencies=[SUBMITTER],
)
def cancel(
    app_state: State, job: str, idempotent: IdempotentRequestDep, seen: IfMatch = None
) -> Response:
    """Request that a job ends."""
    return idempotent.run_once(app_state, partial(cancel_job, app_state, job, seen))


def complete_job(app_state: AppState, spec: JobSpec) -> JobSpec:
    """Return a new job with cloud, machine type and price written down, as they are now."""
    try:
        spec = app_state.clouds.complete(spec)
        if spec.price is None:
            with app_state.engine.connect() as connection:
                book = prices.read_price_book(connection, app_state.clouds.priced_regions)
            spec = app_state.clouds.price(spec, book)
    except UnknownCloud as error:
        raise ApiProblem("validation", str(error)) from error
    except UnknownPrice as error:
        problem = DocumentProblem("price", str(error))
        raise ApiProblem("validation", str(problem), [problem]) from error
    return spec


def check_secrets(app_state: AppState, project: str, spec: JobSpec) -> None:
    """Refuse a job that names secrets the controller does not have for its project."""
    missing = ", ".join(app_state.secret_store.missing_names(project, spec.run.secrets))
    if missing:
        why = f"the controller has no {missing}: put each into a file secrets/{project}/NAME"
        problem = DocumentProblem("run.secrets", f"{why} in its home, for its owner only")
        raise ApiProblem("validation", str(problem), [problem])


def check_code(connection: Connection, project: str, spec: JobSpec, now: datetime) -> None:
    """Refuse a job whose code the controller does not have, else keep that code for it."""
    digest = spec.run.code
    if digest is not None and not packages.record_use(connection, project, digest, now):
        why = (
            f"the controller has no code {digest} in the project {project}: submit with "
            "--code DIR, which sends it, or send it with PUT /v1/code/{sha256}"
        )
        problem = DocumentProblem("run.code", why)
        raise ApiProblem("validation", str(problem), [problem])


def create_job(
    app_state: AppState, project: str, spec: JobSpec, connection: Connection
) -> StoredAnswer:
    """Store a job, and return the answer that shows it."""
    now = app_state.now()
    check_code(connection, project, spec, now)
    job = f"{jobs.JOB_ID_PREFIX}{int(now.timestamp() * 1000):011x}{secrets.token_hex(4)}"
    jobs.create(connection, job, spec, now, project)
    record_event(connection, job, now, "submitted", f"{spec.name}: {spec.target_text}")
    warning = app_state.storage.warning(spec)
    if warning is not None:
        record_event(connection, job, now, "checkpoints", warning)
    (view,) = job_views(app_state, connection, [find_job(connection, job)])
    return job_answer(view, 201, Location=f"/v1/jobs/{job}")


def submit_plan(
    app_state: AppState, user: UserPrincipal, plan: str, connection: Connection
) -> StoredAnswer:
    """Store the job of a plan, unless that was done before; return the answer that shows it."""
    found = plans.find(connection, plan, locks=True)
    if found is None or not user.sees(found.project):
        raise ApiProblem("not_found", "there is no plan of that id; POST /v1/plans makes one")
    if found.view.job is not None:
        (view,) = job_views(app_state, connection, [find_job(connection, found.view.job)])
        return job_answer(view, 200, Location=f"/v1/jobs/{view.id}")
    if app_state.now() >= found.view.expires_at:
        when = f"{found.view.expires_at:%Y-%m-%d %H:%M:%S} UTC"
        detail = f"{plan} expired at {when}, and prices may have changed: plan the document again"
        raise ApiProblem("plan_expired", detail)
    check_secrets(app_state, found.project, found.spec)
    answer = create_job(app_state, found.project, found.spec, connection)
    job = answer.headers["Location"].rpartition("/")[2]
    plans.record_submission(connection, plan, job)
    return answer


def cancel_job(
    app_state: AppState, job: str, seen: str | None, connection: Connection
) -> StoredAnswer:
    """Store that a job is to end, and return the answer that shows it."""
    find_job(connection, job)
    # The reconciler must not decide between the comparison of versions and the change.
    jobs.lock_for_change(connection, job)
    found = find_job(connection, job)
    if found.phase.is_final:
        raise ApiProblem("conflict_state", f"{job} has ended already: {found.phase}")
    check_version(app_state, connection, found, seen)
    if found.cancel_requested_at is None:
        now = app_state.now()
        jobs.request_cancel(connection, job, now)
        record_event(connection, job, now, "cancel", "cancellation was requested")
    (view,) = job_views(app_state, connection, [find_job(connection, job)])
    return job_answer(view, 202)


def check_version(
    app_state: AppState, connection: Connection, job: jobs.StoredJob, seen: str | None
) -> None:
    """Refuse a change of a job about which something was decided since it was seen."""
    if seen is None:
        return
    (view,) = job_views(app_state, connection, [job])
    tag = JobETag.of(view)
    if tag.satisfies_if_match(seen):
        return
    current = JobVersionView(
        etag=str(tag),
        phase=view.phase,
        target=view.target,
        applied=view.applied,
        forecast=view.cost.forecast,
        preference=view.preference,
        is_paused=view.is_paused,
    )
    why = f"something was decided since; act on what is current: GET /v1/jobs/{job.id}"
    raise ApiProblem("precondition_failed", why, current=current)


def find_job(connection: Connection, job: str) -> jobs.StoredJob:
    """Return a job, or refuse."""
    found = jobs.find(connection, job) if JOB_ID_PATTERN.fullmatch(job) else None
    if found is None:
        # The words of a job in another project, so that the answer does not tell them apart.
        raise ApiProblem("not_found", NO_SUCH_JOB)
    return found


def job_views(
    app_state: AppState,
    connection: Connection,
    wanted: Sequence[jobs.StoredJob],
    parts: JobParts = ALL_PARTS,
) -> list[JobView]:
    """Return jobs as the API shows them, with as many queries for many as for one."""
    found = load_with_recent_steps(
        connection, app_state.machine_type, wanted, app_state.now(), parts
    )
    knees = curves.newest_knees(connection, [job.id for job in wanted])
    return [
        job_view(state, recent, app_state.storage, parts, knees.get(state.job.id))
        for state, recent in found
    ]


def job_answer(view: JobView, status: int, **headers: str) -> StoredAnswer:
    """Return an answer that shows a job, with its version."""
    return StoredAnswer(status, view.model_dump_json(), {"ETag": str(JobETag.of(view)), **headers})
