"""The API's description of itself: version, OpenAPI, and the page that a problem's ``type`` names.

The pages are the sections of ``docs/problems.md``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from importlib.metadata import version
from typing import Annotated, Any

from fastapi import APIRouter, Path, Request
from fastapi.responses import PlainTextResponse

from scavenger.resources import resource_path
from scavenger.schemas.diagnostics import VersionView
from service.api.dependencies import State
from service.api.openapi import answers_problems
from service.api.problems import PROBLEM_TYPES, ApiProblem, problem_uri
from service.api.security import VIEWER, GuardedRoute
from service.db.database import applied_revision

router = APIRouter(tags=["problems"], route_class=GuardedRoute)

PAGE_SECTION = re.compile(r"^## (?P<code>\w+)$.*?(?=^## |\Z)", re.MULTILINE | re.DOTALL)

ProblemName = Annotated[
    str,
    Path(
        description="The last part of a problem's type",
        json_schema_extra={
            "enum": [problem_uri(code).rpartition("/")[2] for code in PROBLEM_TYPES]
        },
    ),
]


class MarkdownResponse(PlainTextResponse):
    """A page of the documentation as it is written."""

    media_type = "text/markdown"


@router.get("/openapi.json", include_in_schema=False, dependencies=[VIEWER])
def openapi(request: Request) -> dict[str, Any]:
    """Return the OpenAPI document."""
    document: dict[str, Any] = request.app.openapi()
    return document


@router.get("/v1/version", dependencies=[VIEWER])
def get_version(app_state: State) -> VersionView:
    """Say which controller answers, and which schema its database has."""
    with app_state.engine.connect() as connection:
        revision = applied_revision(connection)
    facts = {"version": version("scavenger"), "api": "v1", "schema": revision or ""}
    return VersionView.model_validate(facts)


@router.get(
    "/problems/{problem}",
    response_class=MarkdownResponse,
    openapi_extra=answers_problems("not_found"),
    dependencies=[VIEWER],
)
def explain(problem: ProblemName) -> MarkdownResponse:
    """Explain a problem, and what to do about it."""
    page = pages().get(f"/problems/{problem}")
    if page is None:
        detail = "there is no such problem; use the path in the type of a problem"
        raise ApiProblem("not_found", detail)
    return MarkdownResponse(page)


@cache
def pages() -> Mapping[str, str]:
    """Return every page by its path."""
    text = resource_path("problems.md").read_text("utf-8")
    found = {match["code"]: match[0].removeprefix("#") for match in PAGE_SECTION.finditer(text)}
    return {problem_uri(code): found[code] for code in PROBLEM_TYPES}
