"""Problems: every error is answered as problem+json (RFC 9457).

``PROBLEM_TYPES`` is the catalog; ``docs/problems.md`` explains each entry and its remedy, and the
controller serves that section at the problem's ``type``. An answer never repeats what was sent: a
NaN in a request would otherwise break the message about it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from scavenger.errors import DocumentProblem
from scavenger.schemas.problems import ErrorDetail, JobVersionView, ProblemView

log = logging.getLogger(__name__)

# Set by RequestIdMiddleware; it stands here because problems quote it.
request_id: ContextVar[str | None] = ContextVar("request_id", default=None)

PROBLEM_MEDIA_TYPE = "application/problem+json"
RETRY_ADVICE = (
    "try again in a moment; a request that changes something may have taken effect all the same, "
    "so repeat it with the same Idempotency-Key"
)


@dataclass(frozen=True, slots=True)
class ProblemType:
    """What all problems of one type share.

    Attributes:
        retry_after: Seconds after which to repeat the request; None where repeating it is no use.
    """

    status: int
    title: str
    retry_after: int | None = None

    @property
    def headers(self) -> dict[str, str]:
        """Headers of every answer with this problem."""
        headers = {"WWW-Authenticate": "Bearer"} if self.status == 401 else {}
        if self.retry_after is not None:
            headers["Retry-After"] = str(self.retry_after)
        return headers


PROBLEM_TYPES: Mapping[str, ProblemType] = {
    "unauthenticated": ProblemType(401, "Authentication required"),
    "forbidden": ProblemType(403, "Permission denied"),
    "csrf": ProblemType(403, "Request from another page"),
    "not_found": ProblemType(404, "Not found"),
    "method_not_allowed": ProblemType(405, "Method not allowed"),
    "too_slow": ProblemType(408, "Request timeout"),
    "conflict_state": ProblemType(409, "Not possible in the job's state"),
    "nothing_held": ProblemType(409, "Nothing to confirm"),
    "idempotency_in_progress": ProblemType(409, "Request in progress", retry_after=1),
    "shown_once": ProblemType(409, "Secret already shown"),
    "sequence_gap": ProblemType(409, "Worker not introduced"),
    "plan_expired": ProblemType(410, "Plan expired"),
    "precondition_failed": ProblemType(412, "Precondition failed"),
    "payload_too_large": ProblemType(413, "Request body too large"),
    "unsupported_media": ProblemType(415, "Unsupported media type"),
    "misdirected": ProblemType(421, "Unknown host name"),
    "validation": ProblemType(422, "Invalid request"),
    "idempotency_mismatch": ProblemType(422, "Idempotency key already used"),
    "too_many_requests": ProblemType(429, "Too many requests", retry_after=1),
    "internal": ProblemType(500, "Internal error"),
    "bucket_unavailable": ProblemType(503, "Bucket unavailable", retry_after=60),
    "database_unavailable": ProblemType(503, "Database unavailable", retry_after=2),
    "not_ready": ProblemType(503, "Controller not ready", retry_after=2),
}
# A hostile body can have 100 000 errors with names as long as itself; a person reads the first few.
MAX_PROBLEMS_LISTED, MAX_NAME_LENGTH = 20, 200


class ApiProblem(Exception):
    """A request is refused, and answered with a problem.

    Attributes:
        code: Key of the type in ``PROBLEM_TYPES``.
        detail: What happened this time, and the next step.
        errors: What is wrong, place by place.
        headers: Headers of this answer; they win over those of the type.
        current: The job as it is now, where that is what is wrong.
    """

    def __init__(
        self,
        code: str,
        detail: str,
        errors: Sequence[DocumentProblem] = (),
        *,
        headers: Mapping[str, str] | None = None,
        current: JobVersionView | None = None,
    ) -> None:
        self.code, self.detail, self.errors = code, detail, errors
        self.headers, self.current = headers or {}, current
        super().__init__(detail)

    def response(self) -> JSONResponse:
        kind = PROBLEM_TYPES[self.code]
        view = ProblemView(
            type=problem_uri(self.code),
            title=kind.title,
            status=kind.status,
            detail=self.detail,
            code=self.code,
            request_id=request_id.get(),
            errors=[
                ErrorDetail(
                    pointer="".join(f"/{part}" for part in error.path.split(".") if part),
                    message=error.message,
                    line=error.line,
                    column=error.column,
                )
                for error in self.errors
            ],
            current=self.current,
        )
        return JSONResponse(
            view.model_dump(mode="json"),
            kind.status,
            {**kind.headers, **self.headers},
            media_type=PROBLEM_MEDIA_TYPE,
        )


def problem_uri(code: str) -> str:
    """Return the ``type`` of a problem: the path at which the controller explains it.

    It is relative to the controller, so that each explains the problems of its own version.
    """
    return f"/problems/{code.replace('_', '-')}"


def install_problem_handlers(app: FastAPI) -> None:
    """Answer what FastAPI itself raises, and everything unexpected, with a problem.

    The middleware answers ``ApiProblem``.
    """

    @app.exception_handler(HTTPException)
    async def http_error(_: Request, error: HTTPException) -> JSONResponse:
        # FastAPI raises 400 for a body that it cannot read at all, such as one that is no UTF-8.
        code = "validation" if error.status_code == 400 else "internal"
        return ApiProblem(code, str(error.detail)).response()

    @app.exception_handler(RequestValidationError)
    async def invalid_request(_: Request, error: RequestValidationError) -> JSONResponse:
        errors = []
        for found in error.errors()[:MAX_PROBLEMS_LISTED]:
            _, *path = found["loc"]
            if found["type"] == "json_invalid":
                errors.append(DocumentProblem("", f"not JSON: {found['ctx']['error']}"))
            else:
                name = ".".join(str(part) for part in path)[:MAX_NAME_LENGTH]
                errors.append(DocumentProblem(name, found["msg"].removeprefix("Value error, ")))
        detail = "; ".join(str(each) for each in errors)
        return ApiProblem("validation", detail, errors).response()

    @app.exception_handler(Exception)
    async def internal_error(request: Request, error: Exception) -> JSONResponse:
        log.error("%s %s failed", request.method, request.url.path, exc_info=error)
        detail = "the request is not at fault; see the log of the controller"
        return ApiProblem("internal", detail).response()
