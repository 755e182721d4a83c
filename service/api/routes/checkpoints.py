"""Checkpoints in a bucket: machines send and fetch them with requests that the controller signs.

No byte of a checkpoint passes through the controller, and no bucket is asked inside a database
session. What is offered was complete when its last machine said so and the bucket confirmed it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

from fastapi import APIRouter, Path, Query
from sqlalchemy import Connection
from starlette.convertors import StringConvertor, register_url_convertor

from scavenger.checkpoints import (
    CHECKPOINT_ID,
    CheckpointTrouble,
    CheckpointUpload,
    NewestCheckpoint,
    StoredCheckpoint,
    UploadTarget,
)
from service.api.dependencies import AppState, State
from service.api.enrolment import no_machine_problem
from service.api.openapi import answers_problems
from service.api.problems import ApiProblem
from service.api.routes.agent import newest_directive, storable_text
from service.api.security import CurrentWorker, GuardedRoute
from service.api.validation import TextRule
from service.auth.permissions import WorkerPrincipal
from service.clouds.object_store import ObjectStore
from service.clouds.storage import checkpoint_settings
from service.db import checkpoints, jobs, vms
from service.db.checkpoints import KeptCheckpoint
from service.db.jobs import StoredJob, record_event
from service.errors import CloudError

router = APIRouter(prefix="/v1/agent/checkpoints", tags=["agent"], route_class=GuardedRoute)

_ID_RULE = TextRule(f"^{CHECKPOINT_ID.pattern}$", "write the name of a checkpoint as it was told")
CheckpointName = Annotated[str, Path(description="Name of a checkpoint of the job"), _ID_RULE]
OlderThan = Annotated[
    str | None,
    Query(description="A checkpoint that cannot be used: the one before it is meant"),
    _ID_RULE,
]
NO_BUCKET = "the checkpoints of this job are in no bucket"
GIVEN_UP = "this checkpoint was given up: newer ones are there, or its machine began another"


class CheckpointPath(StringConvertor):
    """Name of a checkpoint; none has the name of another route."""

    regex = "(?!newest$|trouble$)[^/]+"


register_url_convertor("checkpoint", CheckpointPath())


@router.put(
    "/{checkpoint:checkpoint}",
    openapi_extra=answers_problems("not_found", "conflict_state", "bucket_unavailable"),
)
def put_checkpoint(
    app_state: State, caller: CurrentWorker, checkpoint: CheckpointName, upload: CheckpointUpload
) -> UploadTarget:
    """Tell a machine where to send a checkpoint, or take note that it has sent all of it."""
    if checkpoint != upload.id:
        raise ApiProblem("validation", f"a checkpoint of these parts is called {upload.id}")
    now = app_state.now()
    with app_state.engine.begin() as connection:
        job, cloud, store = find_bucket(connection, app_state, caller)
        directive = newest_directive(connection, job.id)
        if directive is None or upload.generation > directive.generation:
            raise ApiProblem("conflict_state", f"there is no generation {upload.generation} yet")
        place = (cloud, store.url)
        kept = checkpoints.begin_upload(connection, job.id, caller.worker, upload, place, now)
    if kept is None:
        raise ApiProblem("conflict_state", "too many uploads of this job have not ended: wait")
    if kept.is_complete:
        return UploadTarget(is_complete=True)
    if kept.is_doomed:
        raise ApiProblem("conflict_state", GIVEN_UP)
    if upload.is_sent:
        finish(app_state, job, store, kept)
        return UploadTarget(is_complete=True)
    with bucket_problems():
        requests = tuple(
            store.sign_upload(name, part.size, part.sha256)
            for name, part in zip(kept.names, kept.parts, strict=True)
        )
    return UploadTarget(is_complete=False, requests=requests)


@router.get("/newest", openapi_extra=answers_problems("not_found", "bucket_unavailable"))
def get_newest_checkpoint(
    app_state: State, caller: CurrentWorker, older_than: OlderThan = None
) -> NewestCheckpoint:
    """Tell a machine from where to fetch the newest complete checkpoint of its job."""
    now = app_state.now()
    with app_state.engine.begin() as connection:
        job, _, store = find_bucket(connection, app_state, caller)
        kept = checkpoints.newest_complete(connection, job.id, store.url, older_than, now)
    if kept is None:
        return NewestCheckpoint(None)
    with bucket_problems():
        requests = tuple(map(store.sign_download, kept.names))
    return NewestCheckpoint(
        StoredCheckpoint(kept.id, kept.generation, kept.iteration, kept.parts, requests)
    )


@router.post("/trouble")
def report_trouble(
    app_state: State, caller: CurrentWorker, trouble: CheckpointTrouble
) -> dict[str, str]:
    """Record what a machine could not do with its job's bucket; training goes on."""
    with app_state.engine.begin() as connection:
        job = vms.job_of_existing_vm(connection, caller.worker)
        if job is None:
            raise no_machine_problem(caller.worker)
        why = f"{caller.worker}: {storable_text(trouble.why)}"
        facts = {"worker": caller.worker}
        record_event(connection, job, app_state.now(), "checkpoint_trouble", why, facts)
    return {}


def finish(app_state: AppState, job: StoredJob, store: ObjectStore, kept: KeptCheckpoint) -> None:
    """Record that a checkpoint is complete, if the bucket has all of its objects."""
    with bucket_problems():
        for name, part in zip(kept.names, kept.parts, strict=True):
            if not store.holds(name, part.size, part.sha256):
                why = f"{name} is not in {store.url} as it was told"
                raise ApiProblem("bucket_unavailable", why)
    now = app_state.now()
    with app_state.engine.begin() as connection:
        is_first = not checkpoints.count_complete(connection, job.id)
        keep = checkpoint_settings(job.spec).keep
        if not checkpoints.finish_upload(connection, job.id, kept.id, keep, now):
            raise ApiProblem("conflict_state", GIVEN_UP)
        if is_first:
            why = f"checkpoints are in {store.url}/{job.id} from iteration {kept.iteration} on"
            record_event(connection, job.id, now, "checkpoints", why)


def find_bucket(
    connection: Connection, app_state: AppState, caller: WorkerPrincipal
) -> tuple[StoredJob, str, ObjectStore]:
    """Return the job of a machine, and the cloud and bucket of its checkpoints, or refuse."""
    name = vms.job_of_existing_vm(connection, caller.worker)
    job = None if name is None else jobs.find(connection, name)
    if job is None:
        raise no_machine_problem(caller.worker)
    found = app_state.storage.bucket(job.spec)
    if found is None:
        raise ApiProblem("not_found", NO_BUCKET)
    return job, *found


@contextmanager
def bucket_problems() -> Iterator[None]:
    """Answer the error of a bucket as a problem."""
    try:
        yield
    except CloudError as error:
        raise ApiProblem("bucket_unavailable", storable_text(str(error))) from error
