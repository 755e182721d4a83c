"""Description: the OpenAPI document, made complete: problems, bodies, headers, tokens and links.

Routes say here what they take, where they read a body themselves, and which words of the catalog
they answer; what the gate or a handler may answer to any request is added to all of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import yaml
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import TypeAdapter

from scavenger.job import JobSpec
from scavenger.protocol import StepReport
from scavenger.view import ProblemView
from service.api.refusal import CATALOG, PROBLEM, headers_of

Json = dict[str, Any]
Answers = dict[int | str, Json]

OPEN = ("/healthz", "/readyz")
AGENT = "/v1/agent/"
SAID = "x-problems"
EVERYWHERE = (
    "unauthenticated",
    "forbidden",
    "too_slow",
    "payload_too_large",
    "misdirected",
    "validation",  # at least of a query parameter that the route does not have
    "too_many_requests",
    "internal",
    "database_unavailable",
)
KEYED = ("idempotency_in_progress", "idempotency_mismatch")
SCHEMAS = "#/components/schemas/{model}"
WORDS: Json = {"type": "string"}
NULL: Json = {"type": "null"}
TAG: Json = {"ETag": {"description": "The version of the job that is shown", "schema": WORDS}}
PLACE: Json = {"Location": {"description": "Where what was made is shown", "schema": WORDS}}
REPLAYED: Json = {
    "Idempotent-Replayed": {
        "description": "Says that this was answered to the same Idempotency-Key before",
        "schema": {"type": "string", "enum": ["true"]},
    }
}
HEADERS: Json = {
    "Allow": {"description": "What can be done here", "schema": WORDS},
    "Retry-After": {"description": "Seconds to wait", "schema": {"type": "integer"}},
    "WWW-Authenticate": {"description": "How to prove who asks", "schema": WORDS},
}
NOT_MODIFIED: Answers = {304: {"description": "Nothing has changed", "headers": TAG}}


def refuses(*codes: str) -> Json:
    """Say which words of the catalog a route answers, besides those that every route may."""
    return {SAID: list(codes)}


def takes(body: type, *media: str, example: Json | None = None) -> Json:
    """Describe a body that the route itself reads."""
    schema = TypeAdapter(body).json_schema(ref_template=SCHEMAS)
    if "$defs" in schema:
        schema = {"$ref": SCHEMAS.format(model=body.__name__)}
    content: Json = {"schema": schema}
    if example is not None:
        content["example"] = example
    kinds = media or ("application/json",)
    return {"requestBody": {"required": True, "content": dict.fromkeys(kinds, content)}}


def shows_a_job(status: int, headers: Json | None = None) -> Answers:
    """Describe an answer that shows a job and its version, and what can be asked next."""
    of_it = {"job": "$response.body#/id"}
    names = ("get_job", "get_curve", "get_events", "cancel")
    links = {name: {"operationId": name, "parameters": of_it} for name in names}
    return {status: {"headers": {**TAG, **(headers or {})}, "links": links}}


def is_a_page(operation: str, **parameters: str) -> Answers:
    """Describe a page of a list, and how to ask for the next."""
    following = {"cursor": "$response.body#/next_cursor", **parameters}
    return {200: {"links": {"next": {"operationId": operation, "parameters": following}}}}


def describe(app: FastAPI) -> None:
    """Let an application tell everything about itself in /openapi.json."""

    def openapi() -> Json:
        if app.openapi_schema is None:
            document = get_openapi(title=app.title, version=app.version, routes=app.routes)
            app.openapi_schema = complete(document)
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def complete(document: Json) -> Json:
    """Add what is true of every route, and the shapes of bodies."""
    components = document["components"]
    for ours_instead in ("HTTPValidationError", "ValidationError"):
        components["schemas"].pop(ours_instead, None)
    for body in (StepReport, ProblemView):
        components["schemas"].update(shapes(body))
    components["schemas"].update(as_values(without_null(shapes(JobSpec))))
    components["securitySchemes"] = {
        "person": {"type": "http", "scheme": "bearer"},
        "machine": {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"},
    }
    for path, operation in operations(document):
        operation["responses"].pop("422", None)
        operation["parameters"] = without_null(operation.get("parameters", []))
        if path in OPEN:
            operation["responses"].update(problems(["validation"]))
        else:
            operation["security"] = [{"machine" if path.startswith(AGENT) else "person": []}]
            operation[SAID] = words_of(operation)
            operation["responses"].update(problems(operation[SAID]))
    return document


def shapes(kind: type) -> Json:
    """Return the JSON schema of a type and of everything in it, by name."""
    schema = TypeAdapter(kind).json_schema(ref_template=SCHEMAS)
    return {**schema.pop("$defs", {}), kind.__name__: schema}


def without_null(schema: Any) -> Any:
    """Leave out null where it only means that something is missing: nobody may send it."""
    if isinstance(schema, list):
        return [without_null(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {key: without_null(value) for key, value in schema.items()}
    if NULL not in kept.get("anyOf", []):
        return kept
    kinds = [kind for kind in kept.pop("anyOf") if kind != NULL]
    kept.pop("default", None)
    return {**(kinds[0] if len(kinds) == 1 else {"anyOf": kinds}), **kept}


def as_values(schema: Any) -> Any:
    """Turn examples into values; those of a job document are words, as people write them."""
    match schema:
        case {"examples": [str(words)], **rest}:
            return {**as_values(rest), "examples": [yaml.safe_load(words)]}
        case dict():
            return {key: as_values(value) for key, value in schema.items()}
        case list():
            return [as_values(value) for value in schema]
        case _:
            return schema


def operations(document: Json) -> Iterator[tuple[str, Json]]:
    """Yield every operation with its path."""
    for path, methods in document["paths"].items():
        for operation in methods.values():
            yield path, operation


def words_of(operation: Json) -> list[str]:
    """Return every word of the catalog that an operation may answer."""
    names = {parameter["name"] for parameter in operation.get("parameters", ())}
    keyed = KEYED if "Idempotency-Key" in names else ()
    return list(dict.fromkeys((*operation.get(SAID, ()), *keyed, *EVERYWHERE)))


def problems(codes: list[str]) -> dict[str, Json]:
    """Describe answers that say no, by status."""
    by_status: dict[str, list[str]] = {}
    for code in codes:
        by_status.setdefault(str(CATALOG[code][0]), []).append(code)
    return {status: problem(words) for status, words in sorted(by_status.items())}


def problem(codes: list[str]) -> Json:
    """Describe an answer that is one of several problems of the same status."""
    answer: Json = {
        "description": "; ".join(f"`{code}`: {CATALOG[code][1]}" for code in codes),
        "content": {PROBLEM: {"schema": {"$ref": SCHEMAS.format(model=ProblemView.__name__)}}},
    }
    said = sorted({name for code in codes for name in headers_of(code)})
    return {**answer, "headers": {name: HEADERS[name] for name in said}} if said else answer
