"""The API's description of itself: version, OpenAPI, and the page that a problem's ``type`` names.

The pages are the sections of ``docs/problems.md``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from importlib.metadata import version
from typing import Annotated, Any

from fastapi import APIRouter, Path, Request, Response
from fastapi.responses import HTMLResponse, PlainTextResponse
from markdown_it import MarkdownIt

from scavenger.resources import resource_path
from scavenger.schemas.diagnostics import VersionView
from service.api.dependencies import State
from service.api.negotiation import prefers
from service.api.openapi import problem_doc
from service.api.problems import PROBLEM_TYPES, ApiProblem, problem_uri
from service.api.security import PUBLIC, VIEWER, GuardedRoute
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


# A page has no data and no script: browsers of people who are not signed in read it, too.
HTML_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<link rel="icon" href="data:,">
<title>Scavenger: {title}</title>
</head>
<body>
<main>
{content}</main>
</body>
</html>
"""
REFERENCE_HEADERS = {"Vary": "Accept", "Content-Security-Policy": "default-src 'none'"}


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
    responses={
        200: {"content": {"text/html": {"schema": {"type": "string"}}}},
        404: problem_doc(["not_found"]),
    },
    dependencies=[PUBLIC],
)
def explain(request: Request, problem: ProblemName) -> Response:
    """Explain a problem, and what to do about it; to a browser as a page.

    Open to strangers: the problem may be that they have no token.
    """
    page = pages().get(f"/problems/{problem}")
    if page is None:
        detail = "there is no such problem; use the path in the type of a problem"
        raise ApiProblem("not_found", detail)
    if prefers(request.headers.get("accept", ""), "text/html", MarkdownResponse.media_type):
        return HTMLResponse(html_page(problem), headers=REFERENCE_HEADERS)
    return MarkdownResponse(page, headers=REFERENCE_HEADERS)


@cache
def html_page(problem: str) -> str:
    """Return a page for browsers."""
    page = pages()[f"/problems/{problem}"]
    title = page.partition("\n")[0].removeprefix("#").strip()
    content = MarkdownIt("commonmark", {"html": False}).render(page)
    return HTML_PAGE.format(title=title, content=content)


@cache
def pages() -> Mapping[str, str]:
    """Return every page by its path."""
    text = resource_path("problems.md").read_text("utf-8")
    found = {match["code"]: match[0].removeprefix("#") for match in PAGE_SECTION.finditer(text)}
    return {problem_uri(code): found[code] for code in PROBLEM_TYPES}
