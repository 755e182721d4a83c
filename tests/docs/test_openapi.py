"""The description of the API is the one that was reviewed, and leaves nothing out."""

from __future__ import annotations

import json
from typing import Any

import pytest

from service.api.problems import PROBLEM_TYPES
from tests.contract.snapshot import SNAPSHOT, described

# The first test asserts that it is what the API says, which takes seconds to find out.
DOCUMENT = json.loads(SNAPSHOT.read_text())
OPERATIONS = {
    f"{method} {path}": operation
    for path, methods in DOCUMENT["paths"].items()
    for method, operation in methods.items()
}
SHOWN = [
    [],
    ["application/json"],
    ["application/json", "text/event-stream"],
    ["application/json", "image/svg+xml"],
    ["text/plain"],
    ["text/html", "text/markdown"],
    ["text/csv"],
    ["application/zip"],
    ["application/octet-stream"],
]
OPEN = (
    "get /healthz",
    "get /readyz",
    "get /v1/agent/ca",
    "post /v1/session",
    "get /problems/{problem}",
)
GUARDED = {name: each for name, each in OPERATIONS.items() if name not in OPEN}


def test_the_description_is_the_one_in_the_repository() -> None:
    assert described() == SNAPSHOT.read_text(), (
        "the API says something else about itself than docs/openapi.json: "
        "write it anew with make openapi, and look at what changes for clients"
    )


@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS)
def test_an_operation_says_what_it_answers(operation: dict[str, Any]) -> None:
    for status, answer in operation["responses"].items():
        media = {"2": SHOWN, "3": [[]]}.get(status[0], [["application/problem+json"]])
        assert list(answer.get("content", {})) in media, status
        assert all(content["schema"] for content in answer.get("content", {}).values())
        for link in answer.get("links", {}).values():
            assert link["operationId"] in names()
    assert any(status.startswith("2") for status in operation["responses"])
    assert operation["summary"]


def names() -> list[str]:
    return [operation["operationId"] for operation in OPERATIONS.values()]


def test_operations_have_names_of_their_own() -> None:
    assert len(set(names())) == len(names())


@pytest.mark.parametrize("operation", GUARDED.values(), ids=GUARDED)
def test_a_guarded_operation_says_which_token_it_needs_and_every_word(
    operation: dict[str, Any],
) -> None:
    assert operation["security"]
    assert operation["description"]
    stated = {status for status in operation["responses"] if status >= "400"}
    assert {str(PROBLEM_TYPES[word].status) for word in operation["x-problems"]} == stated
    assert {"401", "403", "413", "500", "503"} <= stated
    for parameter in operation.get("parameters", ()):
        assert parameter["in"] == "path" or parameter["description"]


@pytest.mark.parametrize("operation", GUARDED.values(), ids=GUARDED)
def test_who_takes_a_body_or_a_parameter_may_refuse_it(operation: dict[str, Any]) -> None:
    given = [each for each in operation.get("parameters", ()) if each["in"] != "path"]
    if given or "requestBody" in operation:
        assert "422" in operation["responses"]
