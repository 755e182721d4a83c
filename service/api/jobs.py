"""Jobs: submit, look, cancel; the API writes a wish and the reconciler acts on it."""

from __future__ import annotations

import base64
import binascii
import json
import re
import secrets
from datetime import datetime
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request, Response
from sqlalchemy import Connection

from scavenger.errors import InvalidDocument, Problem
from scavenger.job import JobSpec
from scavenger.submission import parse_job
from scavenger.view import CurveView, EventList, JobList, JobView
from service.api.refusal import Refusal
from service.api.show import show_curve, show_job
from service.api.world import Asker, Body, Here, World
from service.db import directives, events, jobs, workers
from service.db.events import say
from service.reconciler.tick import read

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])

MEDIA: dict[str, Literal["json", "yaml"]] = {
    "application/json": "json",
    "application/yaml": "yaml",
    "application/x-yaml": "yaml",
    "text/yaml": "yaml",
}
RECENT_REPORTS = 10
JOB_ID = re.compile(r"job_[0-9a-z]{1,40}")

Limit = Annotated[int, Query(ge=1, le=200)]


@router.post("", status_code=201)
def submit(world: Here, asker: Asker, body: Body, request: Request, response: Response) -> JobView:
    """Store a job; it starts with the reconciler's next tick."""
    spec = read_spec(request.headers.get("content-type", ""), body)
    check_secrets(world, asker.own_project, spec)
    now = world.now()
    job = f"job_{int(now.timestamp() * 1000):011x}{secrets.token_hex(4)}"
    with world.engine.begin() as connection:
        jobs.create(connection, job, spec, now, asker.own_project)
        say(connection, job, now, "submitted", f"{spec.name}: {spec.target_in_words}")
    world.nudge()
    response.headers["Location"] = f"/v1/jobs/{job}"
    return view(world, job)


@router.get("")
def list_jobs(world: Here, asker: Asker, limit: Limit = 50, cursor: str | None = None) -> JobList:
    """List the jobs of the asker's project, newest first."""
    position = None if cursor is None else read_cursor(cursor)
    with world.engine.connect() as connection:
        found = jobs.newest(connection, position, limit + 1, asker.project)
        views = [show(world, connection, job.id) for job in found[:limit]]
    is_last = len(found) <= limit
    return JobList(jobs=views, next_cursor=None if is_last else write_cursor(views[-1]))


@router.get("/{job}")
def get_job(world: Here, job: str) -> JobView:
    """Show one job."""
    return view(world, job)


@router.post("/{job}/actions/cancel", status_code=202)
def cancel(world: Here, job: str) -> JobView:
    """Wish a job to end."""
    now = world.now()
    with world.engine.begin() as connection:
        found = find(connection, job)
        if found.phase.is_final:
            raise Refusal("conflict_state", f"{job} is {found.phase} already")
        jobs.request_cancel(connection, job, now)
        say(connection, job, now, "cancel", "cancellation was requested")
    world.nudge()
    return view(world, job)


@router.get("/{job}/curve")
def get_curve(world: Here, job: str) -> CurveView:
    """Show the cost/time curve of a job, with its probes and resizes."""
    with world.engine.connect() as connection:
        find(connection, job)
        snapshot = read(connection, world.machine, job, world.now())
        resizes = directives.history(connection, job)
    return show_curve(snapshot, snapshot.knowledge.sketch(), resizes)


@router.get("/{job}/events")
def get_events(
    world: Here, job: str, after: Annotated[int, Query(ge=0, le=2**63 - 1)] = 0, limit: Limit = 100
) -> EventList:
    """List what happened to a job, oldest first."""
    with world.engine.connect() as connection:
        find(connection, job)
        page = events.page(connection, job, after, limit)
    return EventList(events=page, next_after=page[-1].sequence if page else after)


def read_spec(content_type: str, body: bytes) -> JobSpec:
    """Read a job document; nothing is stored when anything in it is wrong."""
    media = MEDIA.get(content_type.partition(";")[0].strip().lower())
    if media is None:
        raise Refusal("unsupported_media", f"send {' or '.join(list(MEDIA)[:2])}")
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


def view(world: World, job: str) -> JobView:
    """Show one job, or refuse."""
    with world.engine.connect() as connection:
        find(connection, job)
        return show(world, connection, job)


def show(world: World, connection: Connection, job: str) -> JobView:
    """Show a job that exists."""
    snapshot = read(connection, world.machine, job, world.now())
    generation = 0 if snapshot.directive is None else snapshot.directive.generation
    recent = workers.steps_of(connection, job, generation, RECENT_REPORTS)
    return show_job(snapshot, recent, snapshot.knowledge.sketch(), world.storage)


def write_cursor(last: JobView) -> str:
    """Write the position after a job, opaquely."""
    position = json.dumps([last.created_at.isoformat(), last.id])
    return base64.urlsafe_b64encode(position.encode()).decode()


def read_cursor(cursor: str) -> tuple[datetime, str]:
    """Read a position that ``write_cursor`` wrote."""
    try:
        moment, job = json.loads(base64.urlsafe_b64decode(cursor[:300].encode()))
        if not JOB_ID.fullmatch(job):
            raise ValueError
        return datetime.fromisoformat(moment), job
    except (ValueError, TypeError, binascii.Error):
        raise Refusal("validation", "cursor: use next_cursor of the page before") from None
