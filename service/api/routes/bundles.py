"""Compiled code that machines of a project share, so that a newcomer compiles nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from typing import Annotated

from anyio import fail_after
from anyio.to_thread import run_sync
from fastapi import APIRouter, Depends, Path, Response
from sqlalchemy import Connection

from service.api.dependencies import AppState, State
from service.api.enrolment import no_machine_problem
from service.api.openapi import answers_problems
from service.api.problems import ApiProblem
from service.api.routes.code import StoreLimit, UploadLimit
from service.api.security import CurrentWorker, GuardedRoute
from service.api.validation import StreamsBody, TextRule
from service.db import bundles, jobs, vms

router = APIRouter(prefix="/v1/agent", tags=["agent"], route_class=GuardedRoute)

MAX_BUNDLE_BYTES = 64 << 20
BUNDLE_TIMEOUT = 120.0
MEDIA_TYPE = "application/octet-stream"
CONTENT = {MEDIA_TYPE: {"schema": {"type": "string", "format": "binary"}}}

BundleKey = Annotated[
    str,
    Path(description="SHA-256 of model and platform"),
    TextRule("^[0-9a-f]{64}$", "write 64 lower-case hexadecimal digits"),
]
BundleBody = Annotated[AsyncIterator[bytes], Depends(StreamsBody(MAX_BUNDLE_BYTES))]


class BundleResponse(Response):
    """An archive."""

    media_type = MEDIA_TYPE


@router.get(
    "/bundles/{key}",
    response_class=BundleResponse,
    responses={200: {"description": "The archive", "content": CONTENT}},
    openapi_extra=answers_problems("not_found"),
)
def fetch_bundle(app_state: State, caller: CurrentWorker, key: BundleKey) -> BundleResponse:
    """Send a machine what others of its project have compiled."""
    with app_state.engine.begin() as connection:
        project = project_of(connection, caller.worker)
        found = bundles.fetch(connection, project, key, app_state.now())
    if found is None:
        raise ApiProblem("not_found", "no machine of this project has shared code of this key")
    return BundleResponse(found)


@router.put(
    "/bundles/{key}",
    status_code=204,
    response_class=Response,
    openapi_extra={
        "requestBody": {"required": True, "content": CONTENT},
        **answers_problems("not_found"),
    },
)
async def store_bundle(
    app_state: State,
    caller: CurrentWorker,
    key: BundleKey,
    body: BundleBody,
    upload_limit: UploadLimit,
    store_limit: StoreLimit,
) -> None:
    """Keep what a machine has compiled for the others of its project."""
    async with upload_limit:
        try:
            with fail_after(BUNDLE_TIMEOUT):
                content = b"".join([part async for part in body])
        except TimeoutError:
            why = f"compiled code must arrive within {BUNDLE_TIMEOUT:g} s"
            raise ApiProblem("too_slow", why) from None
        store = partial(keep_bundle, app_state, caller.worker, key, content)
        await run_sync(store, limiter=store_limit)


def keep_bundle(app_state: AppState, worker: str, key: str, content: bytes) -> None:
    """Store an archive for the project of a machine."""
    with app_state.engine.begin() as connection:
        project = project_of(connection, worker)
        bundles.store(connection, project, key, content, app_state.now())


def project_of(connection: Connection, worker: str) -> str:
    """Return the project of a machine that exists, or refuse."""
    job = vms.job_of_existing_vm(connection, worker)
    found = None if job is None else jobs.project_of(connection, job)
    if found is None:
        raise no_machine_problem(worker)
    return found
