"""Refusal: how an endpoint says no, and how every error becomes problem+json (RFC 9457).

Answers never contain what was sent, so that a NaN in a request cannot break its own error message.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from sqlalchemy.exc import OperationalError
from starlette.exceptions import HTTPException

from scavenger.errors import Problem
from scavenger.view import ErrorDetail, ProblemView
from service.api.envelope import request_id

log = logging.getLogger(__name__)

CATALOG = {
    "unauthenticated": (401, "A token is needed"),
    "forbidden": (403, "This token does not open this"),
    "not_found": (404, "There is nothing here"),
    "method_not_allowed": (405, "This cannot be done here"),
    "too_slow": (408, "The request came too slowly"),
    "conflict_state": (409, "The job's state does not allow this"),
    "nothing_held": (409, "Nothing is held back"),
    "sequence_gap": (409, "Rows are missing"),
    "payload_too_large": (413, "The body is too large"),
    "misdirected": (421, "This is not the controller of that name"),
    "too_many_requests": (429, "Too many requests"),
    "unsupported_media": (415, "The body is in another language"),
    "validation": (422, "The request cannot be used"),
    "internal": (500, "The controller made a mistake"),
    "database_unavailable": (503, "The database does not answer"),
}
BY_STATUS = {404: "not_found", 405: "method_not_allowed", 413: "payload_too_large"}


class Refusal(Exception):
    """A request is refused; ``code`` is a word of the catalog."""

    def __init__(self, code: str, detail: str, problems: Sequence[Problem] = ()) -> None:
        self.code, self.detail, self.problems = code, detail, problems
        super().__init__(detail)


def refuse(code: str, detail: str, problems: Sequence[Problem] = ()) -> JSONResponse:
    """Compose the answer for a word of the catalog."""
    status, title = CATALOG[code]
    view = ProblemView(
        type=f"https://docs.scavenger.dev/problems/{code.replace('_', '-')}",
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
    headers = {"WWW-Authenticate": "Bearer"} if status == 401 else None
    return JSONResponse(
        view.model_dump(mode="json"), status, headers, media_type="application/problem+json"
    )


def answer_in_problems(app: FastAPI) -> None:
    """Make every error of an application a problem."""

    @app.exception_handler(Refusal)
    async def refused(_: Request, refusal: Refusal) -> JSONResponse:
        return refuse(refusal.code, refusal.detail, refusal.problems)

    @app.exception_handler(HTTPException)
    async def http_error(request: Request, error: HTTPException) -> JSONResponse:
        code = BY_STATUS.get(error.status_code, "internal")
        return refuse(code, f"{request.method} {request.url.path}: {error.detail}")

    @app.exception_handler(OperationalError)
    async def away(_: Request, __: Exception) -> JSONResponse:
        answer = refuse("database_unavailable", "nothing was stored; send it again in a moment")
        answer.headers["Retry-After"] = "2"
        return answer

    @app.exception_handler(Exception)
    async def mistake(request: Request, error: Exception) -> JSONResponse:
        log.error("%s %s failed", request.method, request.url.path, exc_info=error)
        return refuse("internal", "nothing is wrong with the request; see the controller's log")
