"""The code that jobs run: sent once by a user, and fetched by each machine of the job."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from hashlib import sha256 as new_digest
from tempfile import SpooledTemporaryFile
from typing import IO, Annotated

from anyio import CapacityLimiter, fail_after
from anyio.to_thread import run_sync
from fastapi import APIRouter, Depends, Path, Response
from fastapi.responses import StreamingResponse

from scavenger.code_archive import CODE_DIGEST, MAX_PACKED_BYTES, MEBIBYTE
from scavenger.schemas.jobs import CodeView
from service.api.dependencies import AppState, FromApp, State
from service.api.enrolment import no_machine_problem
from service.api.openapi import answers_problems
from service.api.problems import ApiProblem
from service.api.security import CurrentWorker, GuardedRoute, Submitter
from service.api.validation import StreamsBody, TextRule
from service.db import jobs, packages, vms

router = APIRouter(prefix="/v1", tags=["code"], route_class=GuardedRoute)

ARCHIVE_MEDIA_TYPE = "application/octet-stream"
ARCHIVE_CONTENT = {ARCHIVE_MEDIA_TYPE: {"schema": {"type": "string", "format": "binary"}}}
UPLOAD_TIMEOUT = 600.0  # 64 MiB within it are 0.9 Mbit/s
# Of each controller; others wait with their archives unsent. One that arrives is on disk, and one
# that is stored in memory.
CONCURRENT_UPLOADS, CONCURRENT_STORES = 16, 2
NO_SUCH_CODE = "there is no code of this hash in this project; send it with PUT"

CodeDigest = Annotated[
    str,
    Path(description="SHA-256 of the archive"),
    TextRule(f"^{CODE_DIGEST.pattern}$", "write 64 lower-case hexadecimal digits"),
]
ArchiveBody = Annotated[AsyncIterator[bytes], Depends(StreamsBody(MAX_PACKED_BYTES))]
UploadLimit = Annotated[CapacityLimiter, Depends(FromApp("upload_limit"))]
StoreLimit = Annotated[CapacityLimiter, Depends(FromApp("store_limit"))]


@router.get("/code/{sha256}", openapi_extra=answers_problems("not_found"))
def get_code(app_state: State, user: Submitter, sha256: CodeDigest) -> CodeView:
    """Tell whether the project has the code of a hash."""
    with app_state.engine.connect() as connection:
        found = packages.find(connection, user.own_project, sha256)
    if found is None:
        raise ApiProblem("not_found", NO_SUCH_CODE)
    return CodeView.model_validate(found)


@router.put(
    "/code/{sha256}",
    responses={201: {"description": "Stored", "model": CodeView}},
    openapi_extra={
        "requestBody": {"required": True, "content": ARCHIVE_CONTENT},
    },
)
async def put_code(
    app_state: State,
    user: Submitter,
    sha256: CodeDigest,
    body: ArchiveBody,
    upload_limit: UploadLimit,
    store_limit: StoreLimit,
    response: Response,
) -> CodeView:
    """Store the code of a hash for the project; nothing is stored unless all of it has arrived."""
    async with upload_limit:
        with SpooledTemporaryFile(MEBIBYTE) as file:
            arrived = await receive_archive(body, file)
            if arrived != sha256:
                why = f"what arrived has the SHA-256 {arrived}: send it again, or under this name"
                raise ApiProblem("validation", why)
            store = partial(store_code, app_state, user.own_project, sha256, file)
            view, is_new = await run_sync(store, limiter=store_limit)
    response.status_code = 201 if is_new else 200
    return view


@router.get(
    "/agent/code",
    response_class=StreamingResponse,
    responses={200: {"description": "The archive", "content": ARCHIVE_CONTENT}},
    openapi_extra=answers_problems("not_found"),
)
def fetch_code(app_state: State, caller: CurrentWorker) -> StreamingResponse:
    """Send a machine the code of its job."""
    with app_state.engine.connect() as connection:
        name = vms.job_of_existing_vm(connection, caller.worker)
        job = None if name is None else jobs.find(connection, name)
        if job is None:
            raise no_machine_problem(caller.worker)
        digest = job.spec.run.code
        found = None if digest is None else packages.find(connection, job.project, digest)
    if found is None:
        raise ApiProblem("not_found", f"{job.id} runs no code that this controller has")
    parts = packages.read_parts(app_state.engine, found)
    size = {"Content-Length": str(found.size)}
    return StreamingResponse(parts, headers=size, media_type=ARCHIVE_MEDIA_TYPE)


async def receive_archive(body: AsyncIterator[bytes], file: IO[bytes]) -> str:
    """Write an archive to a file as it arrives; returns its SHA-256.

    Raises:
        ApiProblem: It is too large, or arrives too slowly.
    """
    digest = new_digest()
    try:
        with fail_after(UPLOAD_TIMEOUT):
            async for part in body:
                digest.update(part)
                file.write(part)
    except TimeoutError:
        why = f"the code must arrive within {UPLOAD_TIMEOUT:g} s"
        raise ApiProblem("too_slow", why) from None
    return digest.hexdigest()


def store_code(
    app_state: AppState, project: str, sha256: str, file: IO[bytes]
) -> tuple[CodeView, bool]:
    """Store an archive that has arrived; returns it, and whether it is new."""
    file.seek(0)
    with app_state.engine.begin() as connection:
        stored, is_new = packages.store(connection, project, sha256, file.read(), app_state.now())
    return CodeView.model_validate(stored), is_new
