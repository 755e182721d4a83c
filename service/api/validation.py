"""Validation of text fields and of query parameters.

A query parameter that the route does not have is refused: a list that is asked for
``?phase=failed`` would otherwise show every job, and its reader would not know. The check reads the
OpenAPI document, so that what a route takes and what it documents are the same.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import Request
from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from scavenger.errors import DocumentProblem
from scavenger.job.fields import closest_name
from service.api.openapi import JsonObject
from service.api.problems import MAX_NAME_LENGTH, MAX_PROBLEMS_LISTED, ApiProblem


@dataclass(frozen=True, slots=True)
class TextRule:
    """Refuses a text in words; the description of the API shows the pattern.

    Stands in an ``Annotated[str, ...]`` where pydantic's own ``pattern`` would repeat the
    expression to people who did not write it.

    Attributes:
        pattern: Regular expression of the whole text.
        rule: What is said of a text that does not match.
    """

    pattern: str
    rule: str

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        """Check the text after all else that is asked of it."""
        expression = re.compile(self.pattern)

        def check(text: str | None) -> str | None:
            if text is None or expression.search(text):
                return text
            raise PydanticCustomError("spelling", "{rule}", {"rule": self.rule})

        return core_schema.no_info_after_validator_function(check, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """Show the pattern."""
        return handler(schema) | {"pattern": self.pattern}


async def check_parameters(request: Request) -> None:
    """Refuse a request whose query names what its route does not have.

    Raises:
        Refusal: Each such name, with the names there are.
    """
    given = dict.fromkeys(request.query_params)
    if not given:
        return
    known = known_parameters(request.app.openapi(), request.method, request.scope["route"].path)
    strange = [name[:MAX_NAME_LENGTH] for name in given if name not in known][:MAX_PROBLEMS_LISTED]
    if strange:
        problems = [DocumentProblem(name, unknown_parameter(name, known)) for name in strange]
        raise ApiProblem("validation", "; ".join(each.message for each in problems), problems)


def known_parameters(document: JsonObject, method: str, path: str) -> list[str]:
    """Return the query parameters that the description of the API names for a route."""
    operation = document["paths"].get(path, {}).get(method.lower(), {})
    return [each["name"] for each in operation.get("parameters", ()) if each["in"] == "query"]


def unknown_parameter(name: str, known: Sequence[str]) -> str:
    """Say that there is no such parameter, and which there are.

    >>> unknown("limt", ["limit", "cursor"])
    'there is no parameter "limt" here; did you mean "limit"? this route takes limit, cursor'
    >>> unknown("x", [])
    'there is no parameter "x" here; this route takes none'
    """
    said = f'there is no parameter "{name}" here; '
    if not known:
        return f"{said}this route takes none"
    near = closest_name(name, known)
    hint = "" if near is None else f'did you mean "{near}"? '
    return f"{said}{hint}this route takes {', '.join(known)}"
