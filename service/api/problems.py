"""Problems: every error becomes problem+json (RFC 9457).

Answers never contain what was sent, so that a NaN in a request cannot break its own error message.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.routing import Match

from scavenger.errors import DocumentProblem
from scavenger.schemas import ErrorDetail, ProblemView
from service.api.request_id import request_id
from service.db.database import DATABASE_AWAY

log = logging.getLogger(__name__)

PROBLEM_MEDIA_TYPE = "application/problem+json"
RETRY_ADVICE = (
    "send it again in a moment; what changes something may have been done all the same, so send it "
    "with the same Idempotency-Key"
)

PROBLEM_TYPES = {
    "unauthenticated": (401, "A token is needed"),
    "forbidden": (403, "This token does not open this"),
    "not_found": (404, "There is nothing here"),
    "method_not_allowed": (405, "This cannot be done here"),
    "too_slow": (408, "The request came too slowly"),
    "conflict_state": (409, "The job's state does not allow this"),
    "nothing_held": (409, "Nothing is held back"),
    "idempotency_in_progress": (409, "This request is being worked on"),
    "sequence_gap": (409, "Rows are missing"),
    "precondition_failed": (412, "Something has changed since you looked"),
    "payload_too_large": (413, "The body is too large"),
    "unsupported_media": (415, "The body is in another language"),
    "misdirected": (421, "This is not the controller of that name"),
    "validation": (422, "The request cannot be used"),
    "idempotency_mismatch": (422, "This key belongs to another request"),
    "too_many_requests": (429, "Too many requests"),
    "internal": (500, "The controller made a mistake"),
    "database_unavailable": (503, "The database does not answer"),
    "not_ready": (503, "The controller cannot work now"),
}
RETRY_AFTER = {
    "too_many_requests": 1,
    "idempotency_in_progress": 1,
    "database_unavailable": 2,
    "not_ready": 2,
}
PROBLEM_BY_STATUS = {
    400: "validation",
    404: "not_found",
    405: "method_not_allowed",
    413: "payload_too_large",
}
MAX_PROBLEMS_LISTED, MAX_NAME_LENGTH = 20, 200  # more help nobody


class ApiProblem(Exception):
    """A request is refused.

    Attributes:
        code: A word of the catalog.
        headers: What the answer says besides, or in other words than all with this word.
    """

    def __init__(
        self,
        code: str,
        detail: str,
        problems: Sequence[DocumentProblem] = (),
        *,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.code, self.detail, self.problems = code, detail, problems
        self.headers = headers or {}
        super().__init__(detail)

    def answer(self) -> JSONResponse:
        """Compose the answer that says so."""
        answer = problem_response(self.code, self.detail, self.problems)
        answer.headers.update(self.headers)
        return answer


def problem_response(
    code: str, detail: str, problems: Sequence[DocumentProblem] = ()
) -> JSONResponse:
    """Compose the answer for a word of the catalog."""
    status, title = PROBLEM_TYPES[code]
    view = ProblemView(
        type=problem_type(code),
        title=title,
        status=status,
        detail=detail,
        code=code,
        request_id=request_id.get(),
        errors=[
            ErrorDetail(
                pointer="".join(f"/{part}" for part in p.path.split(".") if part),
                message=p.message,
                line=p.line,
                column=p.column,
            )
            for p in problems
        ],
    )
    return JSONResponse(
        view.model_dump(mode="json"), status, problem_headers(code), media_type=PROBLEM_MEDIA_TYPE
    )


def problem_type(code: str) -> str:
    """Return the address that names a word of the catalog, forever; the controller answers there.

    It is a reference relative to the controller that was asked: the pages belong to its version.
    """
    return f"/problems/{code.replace('_', '-')}"


def problem_headers(code: str) -> dict[str, str]:
    """Return what every answer with this word says in its headers."""
    headers = {"WWW-Authenticate": "Bearer"} if code == "unauthenticated" else {}
    if code in RETRY_AFTER:
        headers["Retry-After"] = str(RETRY_AFTER[code])
    return headers


def install_problem_handlers(app: FastAPI) -> None:
    """Make every error of an application a problem."""

    @app.exception_handler(ApiProblem)
    async def refused(_: Request, refusal: ApiProblem) -> JSONResponse:
        return refusal.answer()

    @app.exception_handler(HTTPException)
    async def http_error(request: Request, error: HTTPException) -> JSONResponse:
        code = PROBLEM_BY_STATUS.get(error.status_code, "internal")
        answer = problem_response(code, f"{request.method} {request.url.path}: {error.detail}")
        if code == "method_not_allowed":
            answer.headers["Allow"] = ", ".join(allowed_methods(app, request))
        return answer

    @app.exception_handler(RequestValidationError)
    async def unusable(_: Request, error: RequestValidationError) -> JSONResponse:
        problems = [
            DocumentProblem(
                ".".join(str(part) for part in detail["loc"][1:])[:MAX_NAME_LENGTH], detail["msg"]
            )
            for detail in error.errors()[:MAX_PROBLEMS_LISTED]
        ]
        return problem_response(
            "validation", "; ".join(str(problem) for problem in problems), problems
        )

    async def away(_: Request, __: Exception) -> JSONResponse:
        return problem_response("database_unavailable", RETRY_ADVICE)

    for kind in DATABASE_AWAY:
        app.add_exception_handler(kind, away)

    @app.exception_handler(Exception)
    async def mistake(request: Request, error: Exception) -> JSONResponse:
        log.error("%s %s failed", request.method, request.url.path, exc_info=error)
        return problem_response(
            "internal", "nothing is wrong with the request; see the controller's log"
        )


def allowed_methods(app: FastAPI, request: Request) -> list[str]:
    """Return what can be done at the path that was asked for."""
    found = [route for route in app.routes if route.matches(request.scope)[0] is Match.PARTIAL]
    return sorted({method for route in found for method in getattr(route, "methods", None) or ()})
