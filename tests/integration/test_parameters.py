"""Requests that name what a route does not have, and answers that name what must be there."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Engine

from scavenger.schemas.problems import ProblemView
from service.api.dependencies import AppState
from service.api.health import BACKGROUND_TASKS
from service.app import build_app
from service.auth.permissions import BootstrapOnly, Permission, WorkersOnly
from service.background import TaskHeartbeat
from service.clouds.storage import CheckpointStorage
from service.db import vms
from tests.builders import HERE, document
from tests.contract.host import KEYS, ROUTES, WORKER, fill, filled, unhurried

# The dashboard's pages have parameters of their own, which the browser reads.
PAGES = {"/", "/{page:dashboard_path}", "/assets/{asset:path}"}
ENDPOINTS = sorted((method, path) for method, path in ROUTES if path not in PAGES)


@pytest.fixture
def client(engine: Engine) -> Iterator[TestClient]:
    fill(engine)
    now = datetime.now(UTC)
    with engine.begin() as connection:
        vms.record_attempt(connection, WORKER, now, now + timedelta(minutes=1), "a-1")
    well = dict.fromkeys(BACKGROUND_TASKS, TaskHeartbeat(math.inf))
    world = AppState(engine, HERE, CheckpointStorage(Path("/srv")), well)
    with TestClient(build_app(world, KEYS, unhurried())) as client:
        yield client


def token_for(access: Permission) -> str:
    """The token of a caller whom a route is open to."""
    match access:
        case WorkersOnly():
            return KEYS.issue_worker_token(WORKER)
        case BootstrapOnly():
            return KEYS.bootstrap_token(WORKER)
        case _:
            return KEYS.home_token


def ask(client: TestClient, method: str, path: str, **options: Any) -> Any:
    headers = {"Authorization": f"Bearer {token_for(ROUTES[method, path])}"}
    url = filled(path) + options.pop("query", "")
    return client.request(method, url, headers=headers, **options)


def parameters(client: TestClient, method: str, path: str) -> list[str]:
    """The query parameters that the description of the API names for a route."""
    app: Any = client.app
    operation = app.openapi()["paths"].get(path, {}).get(method.lower(), {})
    return [each["name"] for each in operation.get("parameters", []) if each["in"] == "query"]


TEXT = st.text(st.characters(codec="utf-8"), max_size=300)


@given(name=TEXT, value=TEXT)
@settings(
    max_examples=5,  # of each route
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_a_parameter_that_a_route_does_not_have_is_refused_by_its_name(
    client: TestClient, name: str, value: str
) -> None:
    for method, path in ENDPOINTS:
        if name in parameters(client, method, path):
            continue
        answer = ask(client, method, path, query=f"?{urlencode({name: value})}")
        assert answer.status_code == 422, (method, path, answer.text)
        problem = ProblemView.model_validate_json(answer.text)
        assert problem.code == "validation"
        assert f'no parameter "{name[:200]}" here' in problem.errors[0].message


def test_who_misspells_a_parameter_is_told_which_there_are(client: TestClient) -> None:
    for path, query, words in (
        (
            "/v1/jobs",
            "?colour=red",
            'no parameter "colour" here; this route takes fields, limit, cursor, q, phase, model, '
            "project, since",
        ),
        ("/v1/jobs", "?limt=3", 'no parameter "limt" here; did you mean "limit"?'),
        ("/v1/tokens", "?limit=3", 'no parameter "limit" here; this route takes none'),
        ("/healthz", "?deep=1", 'no parameter "deep" here; this route takes none'),
    ):
        assert words in ask(client, "GET", path, query=query).json()["detail"]


def test_all_that_is_wrong_is_named_and_what_is_known_is_not(client: TestClient) -> None:
    answer = ask(client, "GET", "/v1/jobs", query="?a=1&limit=2&b=2&a=3")
    assert [error["pointer"] for error in answer.json()["errors"]] == ["/a", "/b"]
    assert ask(client, "GET", "/v1/jobs", query="?limit=2").status_code == 200


def test_nothing_is_done_for_a_request_with_a_strange_parameter(client: TestClient) -> None:
    before = ask(client, "GET", "/v1/jobs").json()
    answer = ask(client, "POST", "/v1/jobs", query="?dry_run=1", json=document())
    assert answer.status_code == 422
    assert len(ask(client, "GET", "/v1/jobs").json()["jobs"]) == len(before["jobs"])


def test_no_refusal_repeats_a_pattern_that_only_programs_read(client: TestClient) -> None:
    app: Any = client.app
    patterns = set(re.findall(r'"pattern": ("(?:[^"\\]|\\.)*")', json.dumps(app.openapi())))
    assert len(patterns) >= 4
    for answer in (
        ask(client, "GET", "/v1/jobs", query=f"?cursor={'!' * 30}"),
        ask(client, "GET", "/v1/jobs/{job}/events", query=f"?cursor={'!' * 30}"),
        ask(client, "POST", "/v1/tokens", json={"name": "a/b", "role": "viewer"}),
        ask(client, "POST", "/v1/tokens", json={"name": "a", "role": "viewer", "project": "A"}),
        ask_with(client, {"Idempotency-Key": "a b"}),
    ):
        assert answer.status_code == 422
        assert "pattern" not in answer.text
        assert [each for each in patterns if json.loads(each) in answer.json()["detail"]] == []


def ask_with(client: TestClient, headers: dict[str, str]) -> Any:
    mine = {"Authorization": f"Bearer {KEYS.home_token}", **headers}
    return client.post("/v1/jobs", json=document(), headers=mine)


REPORT = {"generation": 1, "iteration": 0, "samples": 0, "epochs": 0.0, "metrics": {}}
# What each route that takes a JSON body does as it is asked to; a PUT names its own resource.
CHANGES: dict[str, Any] = {
    "/v1/jobs": document(),
    "/v1/jobs/{job}/actions/resize": {"to": {"workers": 2, "global_batch": 32}},
    "/v1/jobs/{job}/actions/probe": {"workers": 1, "global_batch": 128},
    "/v1/jobs/{job}/actions/pause": None,
    "/v1/jobs/{job}/actions/resume": {"reason": "the price has fallen"},
    "/v1/jobs/{job}/actions/cancel": None,
    "/v1/jobs/{job}/curve/whatif": {"objective": "cheapest"},
    "/v1/plans": document(),
    "/v1/tokens": {"name": "ci", "role": "viewer"},
    "/v1/tokens/{token}/actions/revoke": None,
    "/v1/prices": {
        "prices": [{"provider": "aws", "region": "r", "item": "m7i.large", "price": "0.1"}]
    },
    "/v1/sweeps": {"confirm": True},
    "/v1/models/{signature:signature}/actions/forget": None,
    "/v1/session": {"token": KEYS.home_token},
    "/v1/session/codes": None,
    "/v1/webhooks": {"url": "https://93.184.216.34/"},
    "/v1/webhooks/{webhook}/actions/rotate": None,
    "/v1/webhooks/{webhook}/actions/test": None,
    "/v1/webhooks/{webhook}/deliveries/{delivery}/actions/replay": None,
    "/v1/telemetry/backfill": {"worker": WORKER, "progress": REPORT},
    "/v1/deliveries": {"worker": WORKER, "progress": REPORT},
    "/v1/agent/enrol": {"worker": WORKER, "nonce": "once"},
    "/v1/agent/profile": {"worker": WORKER, "profile": None, "failure": "it takes one step"},
    "/v1/agent/hello": {"worker": WORKER, "address": ""},
    "/v1/agent/report": {"worker": WORKER, "progress": REPORT},
    "/v1/agent/lease": None,
    "/v1/agent/notice": {"worker": WORKER, "reason": "it is taken"},
    "/v1/agent/exit": {"worker": WORKER, "code": 0, "tail": ""},
    "/v1/agent/logs": {"worker": WORKER, "printed": 0, "lines": []},
    "/v1/agent/checkpoints/trouble": {"why": "the bucket refuses"},
}


def test_what_an_answer_names_as_its_location_is_there(client: TestClient) -> None:
    assert set(CHANGES) == {path for method, path in ROUTES if method == "POST"}
    app: Any = client.app
    described = dict(app.openapi()["paths"])
    described = {
        path.replace("{signature}", "{signature:signature}"): at for path, at in described.items()
    }
    described["/v1/deliveries"] = described["/v1/telemetry/backfill"]  # its old path
    told: dict[str, int] = {}
    for path, body in CHANGES.items():
        answer = ask(client, "POST", path, json=body)
        assert answer.is_success, (path, answer.text)
        headers = described[path]["post"]["responses"][str(answer.status_code)].get("headers", {})
        assert ("location" in answer.headers) is ("Location" in headers), path
        if place := answer.headers.get("location"):
            at = client.get(place, headers={"Authorization": f"Bearer {KEYS.home_token}"})
            told[path] = at.status_code
            assert at.json()["id"] == answer.json()["id"]
    assert told == dict.fromkeys(["/v1/jobs", "/v1/plans", "/v1/tokens", "/v1/webhooks"], 200)


def test_a_parameter_that_is_given_twice_is_refused(client: TestClient) -> None:
    """One of them would count, and the reader would not know which."""
    for path, query in (
        ("/v1/jobs", "?phase=training&phase=cancelled"),
        ("/v1/jobs", "?fields=name&fields=phase"),
        ("/v1/jobs/{job}/events", "?kind=resize&limit=3&kind=exit"),
    ):
        answer = ask(client, "GET", path, query=query)
        assert (answer.status_code, answer.json()["code"]) == (422, "validation")
        assert "2 times" in answer.json()["detail"]


def test_a_kind_of_events_that_does_not_exist_is_refused_with_the_nearest(
    client: TestClient,
) -> None:
    for path in ("/v1/events", "/v1/jobs/{job}/events"):
        answer = ask(client, "GET", path, query="?kind=resise,exit")
        assert answer.status_code == 422
        assert 'there is no kind "resise" of events, did you mean "resize"?' in answer.text.replace(
            "\\", ""
        )
        assert ask(client, "GET", path, query="?kind=resize,exit").status_code == 200


@pytest.mark.parametrize("media", [None, "text/plain", "application/x-www-form-urlencoded"])
def test_a_body_that_does_not_say_it_is_json_is_refused_with_the_header_to_send(
    client: TestClient, media: str | None
) -> None:
    app: Any = client.app
    asked = 0
    for path, body in CHANGES.items():
        operation = app.openapi()["paths"].get(path, {}).get("post", {})
        if body is None or "requestBody" not in operation:
            continue
        assert "415" in operation["responses"], path
        headers = {} if media is None else {"Content-Type": media}
        mine = {"Authorization": f"Bearer {token_for(ROUTES['POST', path])}", **headers}
        answer = client.post(filled(path), content=json.dumps(body), headers=mine)
        if path == "/v1/agent/report" or path == "/v1/telemetry/backfill":
            continue  # read by its own parser, of machines only
        assert (answer.status_code, answer.json()["code"]) == (415, "unsupported_media"), path
        assert "application/json" in answer.json()["detail"]
        asked += 1
    assert asked >= 12


def test_an_answer_is_compressed_only_where_that_is_allowed(client: TestClient) -> None:
    for header, coding in (
        ("gzip", "gzip"),
        ("br;q=1.0, gzip;q=0.5", "gzip"),
        ("gzip;q=0", None),
        ("identity", None),
    ):
        mine = {"Authorization": f"Bearer {KEYS.home_token}", "Accept-Encoding": header}
        answer = client.get("/openapi.json", headers=mine)
        assert answer.headers.get("content-encoding") == coding, header


def test_no_money_is_written_with_an_exponent(client: TestClient) -> None:
    """A cost of nothing is 0.000000000, and not the 0E-9 that Python writes."""
    for path in ("/v1/jobs/{job}", "/v1/jobs", "/v1/cost", "/v1/machines"):
        text = ask(client, "GET", path).text
        assert re.findall(r'"amount":"[^"]*"', text), path
        assert not re.findall(r'"amount":"[^"]*[eE][^"]*"', text), path
