"""Jobs: submit, look, cancel; the API writes a wish and the reconciler acts on it."""

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

from scavenger.errors import InvalidDocument, Problem
from scavenger.job import JobSpec
from scavenger.submission import parse_job
from scavenger.view import CurveView, EventList, JobList, JobView
from service.api.cursors import Cursor, Limit, Pages
from service.api.description import (
    NOT_MODIFIED,
    PLACE,
    REPLAYED,
    is_a_page,
    refuses,
    shows_a_job,
    takes,
)
from service.api.errand import Once, respond
from service.api.glance import look_at
from service.api.refusal import Refusal
from service.api.show import show_curve, show_job
from service.api.tag import IfMatch, IfNoneMatch, tag_of
from service.api.world import Asker, Body, Here, World
from service.curves import Drawing, show_drawing
from service.db import curves, directives, events, jobs, observations
from service.db.events import say
from service.db.requests import Answer
from service.reconciler.reading import read_all

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])

MEDIA: dict[str, Literal["json", "yaml"]] = {
    "application/json": "json",
    "application/yaml": "yaml",
    "application/x-yaml": "yaml",
    "text/yaml": "yaml",
}
EXAMPLE = {
    "model": {"key": "digits/mlp", "dataset_size": 1437},
    "target": {"metric": "accuracy", "goal": 0.97, "max_epochs": 60},
    "limits": {"max_cost": "1 USD", "workers": "1..2", "batch": [32, 128]},
    "price": "0.36 USD/h",
    "run": {"command": ["python", "train.py"]},
}
JOB_ID = re.compile(r"job_[0-9a-z]{1,40}")
JOB_POSITION, EVENT_POSITION = TypeAdapter(tuple[datetime, str]), TypeAdapter(tuple[int])

Wanted = Annotated[
    str | None,
    Query(
        alias="q",
        description="Only jobs whose id begins or ends with this, or whose name begins with it",
        min_length=1,
    ),
]
After = Annotated[int, Query(description="Only events after this number", ge=0, le=2**53)]


@router.post(
    "",
    status_code=201,
    response_model=JobView,
    responses=shows_a_job(201, {**PLACE, **REPLAYED}),
    openapi_extra={
        **takes(JobSpec, "application/json", "application/yaml", example=EXAMPLE),
        **refuses("unsupported_media"),
    },
)
def submit(world: Here, asker: Asker, body: Body, request: Request, once: Once) -> Response:
    """Store a job; it starts with the reconciler's next tick."""
    spec = read_spec(request.headers.get("content-type", ""), body)
    check_secrets(world, asker.own_project, spec)

    def store(connection: Connection) -> Answer:
        now = world.now()
        job = f"{jobs.PREFIX}{int(now.timestamp() * 1000):011x}{secrets.token_hex(4)}"
        jobs.create(connection, job, spec, now, asker.own_project)
        say(connection, job, now, "submitted", f"{spec.name}: {spec.target_in_words}")
        return answer(show(world, connection, job), 201, Location=f"/v1/jobs/{job}")

    answered = once.run(world, store)
    world.nudge()
    return answered


@router.get("", responses=is_a_page("list_jobs", q="$request.query.q"))
def list_jobs(
    world: Here,
    asker: Asker,
    pages: Pages,
    limit: Limit = 50,
    cursor: Cursor = None,
    wanted: Wanted = None,
) -> JobList:
    """List the jobs of the asker's project, newest first."""
    before = None if cursor is None else pages.read("jobs", cursor, JOB_POSITION)
    with world.engine.connect() as connection:
        found = jobs.newest(connection, before, limit + 1, asker.project, wanted)
        views = show_all(world, connection, found[:limit])
    following = None
    if len(found) > limit:
        following = pages.write("jobs", views[-1].created_at.isoformat(), views[-1].id)
    return JobList(jobs=views, next_cursor=following)


@router.get(
    "/{job}",
    response_model=JobView,
    responses={**shows_a_job(200), **NOT_MODIFIED},
    openapi_extra=refuses("not_found"),
)
def get_job(world: Here, job: str, seen: IfNoneMatch = None) -> Response:
    """Show one job."""
    with world.engine.connect() as connection:
        find(connection, job)
        shown = show(world, connection, job)
    answered = answer(shown, 200)
    if seen is not None and tag_of(shown).is_among(seen):
        return Response(status_code=304, headers=dict(answered.headers))
    return respond(answered)


@router.post(
    "/{job}/actions/cancel",
    status_code=202,
    response_model=JobView,
    responses=shows_a_job(202, REPLAYED),
    openapi_extra=refuses("not_found", "conflict_state", "precondition_failed"),
)
def cancel(world: Here, job: str, once: Once, seen: IfMatch = None) -> Response:
    """Wish a job to end."""

    def wish(connection: Connection) -> Answer:
        find(connection, job)
        jobs.hold(connection, job)
        found = find(connection, job)
        if seen is not None and not tag_of(show(world, connection, job)).agrees_with(seen):
            raise Refusal("precondition_failed", f"look again: GET /v1/jobs/{job}")
        if found.phase.is_final:
            raise Refusal("conflict_state", f"{job} has ended already: {found.phase}")
        if found.cancel_requested_at is None:
            now = world.now()
            jobs.request_cancel(connection, job, now)
            say(connection, job, now, "cancel", "cancellation was requested")
        return answer(show(world, connection, job), 202)

    answered = once.run(world, wish)
    world.nudge()
    return answered


@router.get("/{job}/curve", openapi_extra=refuses("not_found"))
def get_curve(world: Here, job: str) -> CurveView:
    """Show the cost/time curve of a job's last choice, with its probes and resizes.

    Before there is one, it is drawn from what is known by now.
    """
    with world.engine.connect() as connection:
        found = find(connection, job)
        drawn = curves.newest(connection, job) or draw(world, connection, found)
        probes = observations.of_job(connection, job)
        resizes = directives.history(connection, job)
    return show_curve(drawn, found, probes, resizes)


def draw(world: World, connection: Connection, job: jobs.Job) -> CurveView:
    """Draw the curve of a job for which none is stored.

    One that ended before it chose is drawn from its own measurements alone, so that later jobs do
    not change it; one that chose before curves were stored, from all that is known.
    """
    (snapshot,) = read_all(connection, world.machine, [job], world.now())
    known, why = snapshot.knowledge, job.choice or job.reason
    if job.phase.is_final and job.chosen is None:
        known = replace(known, stored=None, models=())
    drawing = Drawing.of(job.spec, known.sketch())
    return show_drawing(drawing, job.spec, job.chosen, why)


@router.get(
    "/{job}/events",
    responses=is_a_page("get_events", job="$request.path.job"),
    openapi_extra=refuses("not_found"),
)
def get_events(
    world: Here,
    pages: Pages,
    job: str,
    after: After = 0,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> EventList:
    """List what happened to a job, oldest first."""
    listed = f"events of {job}"
    if cursor is not None:
        (position,) = pages.read(listed, cursor, EVENT_POSITION)
        after = max(after, position)
    with world.engine.connect() as connection:
        find(connection, job)
        found = events.page(connection, job, after, limit + 1)
    following = pages.write(listed, found[limit - 1].sequence) if len(found) > limit else None
    return EventList(events=found[:limit], next_cursor=following)


def read_spec(content_type: str, body: bytes) -> JobSpec:
    """Read a job document; nothing is stored when anything in it is wrong."""
    media = MEDIA.get(content_type.partition(";")[0].strip().lower())
    if media is None:
        raise Refusal("unsupported_media", f"send the body as {' or '.join(list(MEDIA)[:2])}")
    try:
        return parse_job(body.decode(), media)
    except UnicodeDecodeError as error:
        raise Refusal("validation", f"the body is not UTF-8 at byte {error.start}") from None
    except InvalidDocument as error:
        raise Refusal("validation", str(error), error.problems) from None


def check_secrets(world: World, project: str, spec: JobSpec) -> None:
    """Refuse a job that names secrets the controller does not have for its project."""
    missing = ", ".join(world.vault.missing(project, spec.run.secrets))
    if missing:
        why = f"the controller has no {missing}: put each into a file secrets/{project}/NAME"
        problem = Problem("run.secrets", f"{why} in its home, for its owner only")
        raise Refusal("validation", str(problem), [problem])


def find(connection: Connection, job: str) -> jobs.Job:
    """Return a job, or refuse."""
    found = jobs.find(connection, job) if JOB_ID.fullmatch(job) else None
    if found is None:
        raise Refusal("not_found", "there is no job of that id; GET /v1/jobs lists them")
    return found


def answer(shown: JobView, status: int, **headers: str) -> Answer:
    """Compose an answer that shows a job, and its version."""
    return Answer(status, shown.model_dump_json(), {"ETag": str(tag_of(shown)), **headers})


def show(world: World, connection: Connection, job: str) -> JobView:
    """Show a job that exists."""
    (shown,) = show_all(world, connection, [find(connection, job)])
    return shown


def show_all(world: World, connection: Connection, wanted: Sequence[jobs.Job]) -> list[JobView]:
    """Show jobs, with as many queries as for one."""
    found = look_at(world, connection, wanted)
    return [show_job(snapshot, recent, world.storage) for snapshot, recent in found]
