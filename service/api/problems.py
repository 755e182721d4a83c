"""Pages about problems: what the ``type`` of every problem leads to.

They are the sections of ``docs/problems.md``, which is read once. A person who was refused reads
them with the same token; without one the answer itself says how to get one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Annotated

from fastapi import APIRouter, Path
from fastapi.responses import PlainTextResponse

from scavenger.shipped import shipped
from service.api.description import refuses
from service.api.refusal import CATALOG, Refusal, type_of

router = APIRouter(prefix="/problems", tags=["problems"])

SECTION = re.compile(r"^## (?P<code>\w+)$.*?(?=^## |\Z)", re.MULTILINE | re.DOTALL)


ProblemName = Annotated[
    str,
    Path(
        description="The last part of a problem's type",
        json_schema_extra={"enum": [type_of(code).rpartition("/")[2] for code in CATALOG]},
    ),
]


class Markdown(PlainTextResponse):
    """A page of the documentation, as it is written."""

    media_type = "text/markdown"


@router.get("/{problem}", response_class=Markdown, openapi_extra=refuses("not_found"))
def explain(problem: ProblemName) -> Markdown:
    """Tell what a problem means and what to do about it."""
    page = pages().get(f"/problems/{problem}")
    if page is None:
        raise Refusal("not_found", "there is no such problem; ask for the type that a problem has")
    return Markdown(page)


@cache
def pages() -> Mapping[str, str]:
    """Return every page by the address that names its problem."""
    text = shipped("problems.md").read_text("utf-8")
    found = {match["code"]: match[0].removeprefix("#") for match in SECTION.finditer(text)}
    return {type_of(code): found[code] for code in CATALOG}
