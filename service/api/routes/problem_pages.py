"""Pages about problems: where the ``type`` of every problem leads to.

They are the sections of ``docs/problems.md``. Reading one takes a token, as every route does; the
answer to a request without one says how to get a token.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Annotated

from fastapi import APIRouter, Path
from fastapi.responses import PlainTextResponse

from scavenger.resources import resource_path
from service.api.openapi import answers_problems
from service.api.problems import PROBLEM_TYPES, ApiProblem, problem_type

router = APIRouter(prefix="/problems", tags=["problems"])

PAGE_SECTION = re.compile(r"^## (?P<code>\w+)$.*?(?=^## |\Z)", re.MULTILINE | re.DOTALL)


ProblemName = Annotated[
    str,
    Path(
        description="The last part of a problem's type",
        json_schema_extra={
            "enum": [problem_type(code).rpartition("/")[2] for code in PROBLEM_TYPES]
        },
    ),
]


class MarkdownResponse(PlainTextResponse):
    """A page of the documentation, as it is written."""

    media_type = "text/markdown"


@router.get(
    "/{problem}", response_class=MarkdownResponse, openapi_extra=answers_problems("not_found")
)
def explain(problem: ProblemName) -> MarkdownResponse:
    """Tell what a problem means and what to do about it."""
    page = pages().get(f"/problems/{problem}")
    if page is None:
        raise ApiProblem(
            "not_found", "there is no such problem; ask for the type that a problem has"
        )
    return MarkdownResponse(page)


@cache
def pages() -> Mapping[str, str]:
    """Return every page by the address that names its problem."""
    text = resource_path("problems.md").read_text("utf-8")
    found = {match["code"]: match[0].removeprefix("#") for match in PAGE_SECTION.finditer(text)}
    return {problem_type(code): found[code] for code in PROBLEM_TYPES}
