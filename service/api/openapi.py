"""The OpenAPI document, completed: problems, bodies, headers, tokens and links.

Routes declare the body they read themselves and the problems they answer with; what the middleware
may answer to any request is added to all of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import yaml
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import TypeAdapter

from scavenger.job.spec import JobSpec
from scavenger.protocol import StepReport
from scavenger.schemas import ProblemView
from service.api.problems import PROBLEM_MEDIA_TYPE, PROBLEM_TYPES, problem_headers

JsonObject = dict[str, Any]
ResponseDocs = dict[int | str, JsonObject]

PUBLIC_PATHS = ("/healthz", "/readyz")
AGENT_PATHS = "/v1/agent/"
PROBLEMS_KEY = "x-problems"
COMMON_PROBLEMS = (
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
IDEMPOTENCY_PROBLEMS = ("idempotency_in_progress", "idempotency_mismatch")
SCHEMA_REFERENCE = "#/components/schemas/{model}"
STRING_SCHEMA: JsonObject = {"type": "string"}
NULL_SCHEMA: JsonObject = {"type": "null"}
ETAG_HEADER: JsonObject = {
    "ETag": {"description": "The version of the job that is shown", "schema": STRING_SCHEMA}
}
LOCATION_HEADER: JsonObject = {
    "Location": {"description": "Where what was made is shown", "schema": STRING_SCHEMA}
}
REPLAYED_HEADER: JsonObject = {
    "Idempotent-Replayed": {
        "description": "Says that this was answered to the same Idempotency-Key before",
        "schema": {"type": "string", "enum": ["true"]},
    }
}
PROBLEM_HEADERS: JsonObject = {
    "Allow": {"description": "What can be done here", "schema": STRING_SCHEMA},
    "Retry-After": {"description": "Seconds to wait", "schema": {"type": "integer"}},
    "WWW-Authenticate": {"description": "How to prove who asks", "schema": STRING_SCHEMA},
}
NOT_MODIFIED: ResponseDocs = {304: {"description": "Nothing has changed", "headers": ETAG_HEADER}}


def answers_problems(*codes: str) -> JsonObject:
    """Say which words of the catalog a route answers, besides those that every route may."""
    return {PROBLEMS_KEY: list(codes)}


def request_body(body: type, *media: str, example: JsonObject | None = None) -> JsonObject:
    """Describe a body that the route itself reads."""
    schema = TypeAdapter(body).json_schema(ref_template=SCHEMA_REFERENCE)
    if "$defs" in schema:
        schema = {"$ref": SCHEMA_REFERENCE.format(model=body.__name__)}
    content: JsonObject = {"schema": schema}
    if example is not None:
        content["example"] = example
    kinds = media or ("application/json",)
    return {"requestBody": {"required": True, "content": dict.fromkeys(kinds, content)}}


def job_responses(status: int, headers: JsonObject | None = None) -> ResponseDocs:
    """Describe an answer that shows a job and its version, and what can be asked next."""
    of_it = {"job": "$response.body#/id"}
    names = ("get_job", "get_curve", "get_events", "cancel")
    links = {name: {"operationId": name, "parameters": of_it} for name in names}
    return {status: {"headers": {**ETAG_HEADER, **(headers or {})}, "links": links}}


def page_responses(operation: str, **parameters: str) -> ResponseDocs:
    """Describe a page of a list, and how to ask for the next."""
    following = {"cursor": "$response.body#/next_cursor", **parameters}
    return {200: {"links": {"next": {"operationId": operation, "parameters": following}}}}


def install_openapi(app: FastAPI) -> None:
    """Let an application tell everything about itself in /openapi.json."""

    def openapi() -> JsonObject:
        if app.openapi_schema is None:
            document = get_openapi(title=app.title, version=app.version, routes=app.routes)
            app.openapi_schema = complete_document(document)
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def complete_document(document: JsonObject) -> JsonObject:
    """Add what is true of every route, and the shapes of bodies."""
    components = document["components"]
    for ours_instead in ("HTTPValidationError", "ValidationError"):
        components["schemas"].pop(ours_instead, None)
    for body in (StepReport, ProblemView):
        components["schemas"].update(schemas_of(body))
    components["schemas"].update(parse_examples(without_null(schemas_of(JobSpec))))
    components["securitySchemes"] = {
        "person": {"type": "http", "scheme": "bearer"},
        "machine": {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"},
    }
    for path, operation in operations_of(document):
        operation["responses"].pop("422", None)
        operation["parameters"] = without_null(operation.get("parameters", []))
        if path in PUBLIC_PATHS:
            operation["responses"].update(problem_docs(["validation"]))
        else:
            operation["security"] = [{"machine" if path.startswith(AGENT_PATHS) else "person": []}]
            operation[PROBLEMS_KEY] = problem_codes_of(operation)
            operation["responses"].update(problem_docs(operation[PROBLEMS_KEY]))
    return document


def schemas_of(kind: type) -> JsonObject:
    """Return the JSON schema of a type and of everything in it, by name."""
    schema = TypeAdapter(kind).json_schema(ref_template=SCHEMA_REFERENCE)
    return {**schema.pop("$defs", {}), kind.__name__: schema}


def without_null(schema: Any) -> Any:
    """Leave out null where it only means that something is missing: nobody may send it."""
    if isinstance(schema, list):
        return [without_null(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {key: without_null(value) for key, value in schema.items()}
    if NULL_SCHEMA not in kept.get("anyOf", []):
        return kept
    kinds = [kind for kind in kept.pop("anyOf") if kind != NULL_SCHEMA]
    kept.pop("default", None)
    return {**(kinds[0] if len(kinds) == 1 else {"anyOf": kinds}), **kept}


def parse_examples(schema: Any) -> Any:
    """Turn examples into values; those of a job document are words, as people write them."""
    match schema:
        case {"examples": [str(words)], **rest}:
            return {**parse_examples(rest), "examples": [yaml.safe_load(words)]}
        case dict():
            return {key: parse_examples(value) for key, value in schema.items()}
        case list():
            return [parse_examples(value) for value in schema]
        case _:
            return schema


def operations_of(document: JsonObject) -> Iterator[tuple[str, JsonObject]]:
    """Yield every operation with its path."""
    for path, methods in document["paths"].items():
        for operation in methods.values():
            yield path, operation


def problem_codes_of(operation: JsonObject) -> list[str]:
    """Return every word of the catalog that an operation may answer."""
    names = {parameter["name"] for parameter in operation.get("parameters", ())}
    keyed = IDEMPOTENCY_PROBLEMS if "Idempotency-Key" in names else ()
    return list(dict.fromkeys((*operation.get(PROBLEMS_KEY, ()), *keyed, *COMMON_PROBLEMS)))


def problem_docs(codes: list[str]) -> dict[str, JsonObject]:
    """Describe answers that say no, by status."""
    by_status: dict[str, list[str]] = {}
    for code in codes:
        by_status.setdefault(str(PROBLEM_TYPES[code][0]), []).append(code)
    return {status: problem_doc(words) for status, words in sorted(by_status.items())}


def problem_doc(codes: list[str]) -> JsonObject:
    """Describe an answer that is one of several problems of the same status."""
    answer: JsonObject = {
        "description": "; ".join(f"`{code}`: {PROBLEM_TYPES[code][1]}" for code in codes),
        "content": {
            PROBLEM_MEDIA_TYPE: {
                "schema": {"$ref": SCHEMA_REFERENCE.format(model=ProblemView.__name__)}
            }
        },
    }
    said = sorted({name for code in codes for name in problem_headers(code)})
    return {**answer, "headers": {name: PROBLEM_HEADERS[name] for name in said}} if said else answer
