"""Parameters: a query parameter that a route does not have is refused, never overlooked.

One check stands before all routes. It goes by the description of the API, so that what a route
takes and what it says it takes are the same. Without it a list that is asked for ``?phase=failed``
would show everything, and its reader would not know.
"""

from __future__ import annotations

from collections.abc import Sequence

from fastapi import Request

from scavenger.errors import Problem
from scavenger.section import nearest
from service.api.description import Json
from service.api.refusal import LONGEST, MOST_PROBLEMS, Refusal


async def check_parameters(request: Request) -> None:
    """Refuse a request whose query names what its route does not have.

    Raises:
        Refusal: Each such name, with the names there are.
    """
    given = dict.fromkeys(request.query_params)
    if not given:
        return
    known = known_at(request.app.openapi(), request.method, request.scope["route"].path)
    strange = [name[:LONGEST] for name in given if name not in known][:MOST_PROBLEMS]
    if strange:
        problems = [Problem(name, unknown(name, known)) for name in strange]
        raise Refusal("validation", "; ".join(each.message for each in problems), problems)


def known_at(document: Json, method: str, path: str) -> list[str]:
    """Return the query parameters that the description of the API names for a route."""
    operation = document["paths"].get(path, {}).get(method.lower(), {})
    return [each["name"] for each in operation.get("parameters", ()) if each["in"] == "query"]


def unknown(name: str, known: Sequence[str]) -> str:
    """Say that there is no such parameter, and which there are.

    >>> unknown("limt", ["limit", "cursor"])
    'there is no parameter "limt" here; did you mean "limit"? this route takes limit, cursor'
    >>> unknown("x", [])
    'there is no parameter "x" here; this route takes none'
    """
    said = f'there is no parameter "{name}" here; '
    if not known:
        return f"{said}this route takes none"
    near = nearest(name, known)
    hint = "" if near is None else f'did you mean "{near}"? '
    return f"{said}{hint}this route takes {', '.join(known)}"
