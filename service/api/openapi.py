"""The OpenAPI document, completed: problems, job documents, headers and links.

FastAPI describes parameters, bodies, answers and tokens from the signatures. Routes add problems of
their own; those that any request may meet are added to all routes here.
"""

from __future__ import annotations

from typing import Any

import yaml
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import TypeAdapter

from scavenger.job.spec import JobSpec
from scavenger.protocol import StepReport
from scavenger.schemas.jobs import JobList
from scavenger.schemas.plans import PlanReference
from scavenger.schemas.problems import ProblemView
from service.api.problems import PROBLEM_MEDIA_TYPE, PROBLEM_TYPES

JsonObject = dict[str, Any]
ResponseDocs = dict[int | str, JsonObject]

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
ETAG_HEADER: JsonObject = {"ETag": {"description": "Version of the job", "schema": STRING_SCHEMA}}
LOCATION_HEADER: JsonObject = {
    "Location": {"description": "Path of the new resource", "schema": STRING_SCHEMA}
}
REPLAYED_HEADER: JsonObject = {
    "Idempotent-Replayed": {
        "description": "This is the answer to an earlier request with the same Idempotency-Key",
        "schema": {"type": "string", "enum": ["true"]},
    }
}
PROBLEM_HEADERS: JsonObject = {
    "Allow": {"description": "Methods of this path", "schema": STRING_SCHEMA},
    "Retry-After": {"description": "Seconds to wait", "schema": {"type": "integer"}},
    "WWW-Authenticate": {"description": "How to authenticate", "schema": STRING_SCHEMA},
}
NOT_MODIFIED: ResponseDocs = {304: {"description": "Not modified", "headers": ETAG_HEADER}}


def answers_problems(*codes: str) -> JsonObject:
    """State the problems of a route, besides those that every request may meet."""
    return {PROBLEMS_KEY: list(codes)}


def request_body(body: type, *media: str, example: JsonObject | None = None) -> JsonObject:
    """Describe a body that the route parses itself, for speed or because it may be YAML."""
    schema = TypeAdapter(body).json_schema(ref_template=SCHEMA_REFERENCE)
    if "$defs" in schema:
        schema = {"$ref": SCHEMA_REFERENCE.format(model=body.__name__)}
    content: JsonObject = {"schema": schema}
    if example is not None:
        content["example"] = example
    kinds = media or ("application/json",)
    return {"requestBody": {"required": True, "content": dict.fromkeys(kinds, content)}}


def submission_body(example: JsonObject) -> JsonObject:
    """Describe what submits a job: a document, or as JSON the plan that was made of one."""
    described = request_body(JobSpec, "application/json", "application/yaml", example=example)
    content = described["requestBody"]["content"]
    kinds = [SCHEMA_REFERENCE.format(model=kind.__name__) for kind in (JobSpec, PlanReference)]
    either = {"anyOf": [{"$ref": kind} for kind in kinds]}
    return {
        "requestBody": {
            "required": True,
            "content": {**content, "application/json": {"schema": either, "example": example}},
        }
    }


def job_responses(status: int, headers: JsonObject | None = None) -> ResponseDocs:
    """Describe an answer that shows a job and its version, with links to its other routes."""
    of_it = {"job": "$response.body#/id"}
    names = ("get_job", "get_curve", "get_events", "cancel")
    links = {name: {"operationId": name, "parameters": of_it} for name in names}
    return {status: {"headers": {**ETAG_HEADER, **(headers or {})}, "links": links}}


def page_responses(operation: str, **parameters: str) -> ResponseDocs:
    """Describe a page of a list, with a link to the next."""
    following = {"cursor": "$response.body#/next_cursor", **parameters}
    return {200: {"links": {"next": {"operationId": operation, "parameters": following}}}}


def install_openapi(app: FastAPI) -> None:
    """Let ``app.openapi`` return the completed document."""

    def openapi() -> JsonObject:
        if app.openapi_schema is None:
            document = get_openapi(title=app.title, version=app.version, routes=app.routes)
            app.openapi_schema = complete_document(document)
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def complete_document(document: JsonObject) -> JsonObject:
    """Add what is true of every route, and the schemas that no signature mentions."""
    components = document["components"]
    for ours_instead in ("HTTPValidationError", "ValidationError"):
        components["schemas"].pop(ours_instead, None)
    for body in (StepReport, ProblemView, PlanReference):
        components["schemas"].update(schemas_of(body))
    components["schemas"].update(parse_examples(without_null(schemas_of(JobSpec))))
    components["schemas"].update(row_schemas())
    for operation in (each for path in document["paths"].values() for each in path.values()):
        # FastAPI describes its own validation error, which no client ever sees.
        operation["responses"].pop("422", None)
        operation["parameters"] = without_null(operation.get("parameters", []))
        if "security" not in operation and PROBLEMS_KEY not in operation:
            operation["responses"].update(problem_docs(["validation"]))
        else:
            operation[PROBLEMS_KEY] = problem_codes_of(operation)
            operation["responses"].update(problem_docs(operation[PROBLEMS_KEY]))
    return document


def row_schemas() -> JsonObject:
    """Return the schemas of a list of jobs, whole and with some of their fields only."""
    schema = TypeAdapter(JobList).json_schema(mode="serialization", ref_template=SCHEMA_REFERENCE)
    whole = {**schema.pop("$defs"), "JobList": schema}
    rows = {**schema, "title": "JobRowList"}
    items = {
        "type": "array",
        "title": "Jobs",
        "items": {"$ref": SCHEMA_REFERENCE.format(model="JobRow")},
    }
    rows["properties"] = {**rows["properties"], "jobs": items}
    row = {**whole["JobView"], "title": "JobRow", "required": ["id"]}
    return {**whole, "JobRowList": rows, "JobRow": row}


def schemas_of(kind: type) -> JsonObject:
    """Return the JSON schema of a type and of everything in it, by name."""
    schema = TypeAdapter(kind).json_schema(ref_template=SCHEMA_REFERENCE)
    return {**schema.pop("$defs", {}), kind.__name__: schema}


def without_null(schema: Any) -> Any:
    """Leave out null where it only stands for a missing value: a request with it is refused."""
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
    """Turn examples into values; those of a job document are written as YAML."""
    match schema:
        case {"examples": [str(words)], **rest}:
            return {**parse_examples(rest), "examples": [yaml.safe_load(words)]}
        case dict():
            return {key: parse_examples(value) for key, value in schema.items()}
        case list():
            return [parse_examples(value) for value in schema]
        case _:
            return schema


def problem_codes_of(operation: JsonObject) -> list[str]:
    """Return every problem that an operation may answer with."""
    names = {parameter["name"] for parameter in operation.get("parameters", ())}
    keyed = IDEMPOTENCY_PROBLEMS if "Idempotency-Key" in names else ()
    typed = ("unsupported_media",) if "requestBody" in operation else ()
    own = operation.get(PROBLEMS_KEY, ())
    return list(dict.fromkeys((*own, *keyed, *typed, *COMMON_PROBLEMS)))


def problem_docs(codes: list[str]) -> dict[str, JsonObject]:
    """Describe problems, by status."""
    by_status: dict[str, list[str]] = {}
    for code in codes:
        by_status.setdefault(str(PROBLEM_TYPES[code].status), []).append(code)
    return {status: problem_doc(alike) for status, alike in sorted(by_status.items())}


def problem_doc(codes: list[str]) -> JsonObject:
    """Describe an answer that is one of several problems of one status."""
    answer: JsonObject = {
        "description": "; ".join(f"`{code}`: {PROBLEM_TYPES[code].title}" for code in codes),
        "content": {
            PROBLEM_MEDIA_TYPE: {
                "schema": {"$ref": SCHEMA_REFERENCE.format(model=ProblemView.__name__)}
            }
        },
    }
    names = sorted({name for code in codes for name in PROBLEM_TYPES[code].headers})
    if names:
        answer["headers"] = {name: PROBLEM_HEADERS[name] for name in names}
    return answer
