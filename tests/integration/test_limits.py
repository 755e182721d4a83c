"""Rates, headers, host names, and the limits of bodies."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from itertools import count
from typing import Any

import pytest
from sqlalchemy import text
from starlette.requests import Request

from service.api import validation
from service.api.middleware import SECURITY_HEADERS
from service.api.problems import ApiProblem
from service.auth.rate_limit import RateLimiter
from service.auth.tokens import make_token
from tests.integration.house import JSON, KEYS, House, code_of


def test_who_asks_too_often_is_told_when_to_come_back(house: House) -> None:
    now = [0.0]
    client = house.open(limiter=RateLimiter(lambda: now[0]))
    mine = {"Authorization": f"Bearer {house.token('viewer')}"}
    other = {"Authorization": f"Bearer {house.token('viewer', 'beta')}"}

    def allowed(headers: Mapping[str, str]) -> int:
        """How many requests go on before the first that does not."""
        return next(n for n in count() if client.get("/v1/x", headers=headers).status_code == 429)

    assert allowed(mine) == 500
    assert client.get("/v1/x", headers=other).status_code == 404, "others are not concerned"
    refused = client.get("/v1/jobs", headers=mine)
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
    assert code_of(refused) == "too_many_requests"
    now[0] += 2
    assert allowed(mine) == 100


def test_strangers_are_counted_together_and_lock_no_user_out(house: House) -> None:
    now = [0.0]
    client = house.open(limiter=RateLimiter(lambda: now[0]))
    statuses = [
        client.get("/v1/jobs", headers={"Authorization": f"Bearer {make_token()}"}).status_code
        for _ in range(110)
    ]
    assert statuses == [401] * 100 + [429] * 10
    mine = {"Authorization": f"Bearer {house.token('viewer')}"}
    assert client.get("/v1/jobs", headers=mine).status_code == 200
    assert client.get("/healthz").status_code == 200
    now[0] += 1
    assert [client.get("/v1/jobs").status_code for _ in range(6)] == [401] * 5 + [429]


def test_every_answer_carries_its_id_and_keeps_browsers_careful(house: House) -> None:
    asked = {
        200: house.client.get("/healthz"),
        401: house.client.get("/v1/jobs"),
        404: house.ask("GET", "/v1/nowhere", house.token()),
        422: house.ask("POST", "/v1/tokens", house.token(), json={}),
    }
    for status, answer in asked.items():
        assert answer.status_code == status
        assert {name: answer.headers[name] for name in SECURITY_HEADERS} == SECURITY_HEADERS
        assert len(answer.headers["x-request-id"]) == 32
        if status != 200:
            assert answer.json()["request_id"] == answer.headers["x-request-id"]


@pytest.mark.parametrize(
    ("name", "is_kept"),
    [("a-request-of-mine", True), ("short", False), ("x" * 65, False), ("two\twords here", False)],
)
def test_a_request_keeps_the_id_its_sender_gave_it(house: House, name: str, is_kept: bool) -> None:
    answer = house.client.get("/healthz", headers={"X-Request-Id": name})
    assert (answer.headers["x-request-id"] == name) is is_kept


def test_a_mistake_of_the_controller_leaves_in_the_same_envelope(house: House) -> None:
    with house.engine.begin() as connection:
        connection.execute(text("ALTER TABLE sweeps RENAME TO brooms"))
    answer = house.ask("GET", "/v1/sweeps", house.token("admin", "*"))
    assert (answer.status_code, code_of(answer)) == (500, "internal")
    assert {name: answer.headers[name] for name in SECURITY_HEADERS} == SECURITY_HEADERS
    answer = house.ask("POST", "/v1/sweeps", house.token("admin", "*"), json={"confirm": True})
    assert answer.status_code == house.written()[-1]["status"] == 500


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:8321", 200),
        ("localhost", 200),
        ("[::1]:8321", 200),
        ("LOCALHOST:1", 200),
        ("ctl.example.org", 200),
        ("evil.example.org", 421),
        ("127.0.0.1.evil.example.org", 421),
        ("localhost.", 421),
        ("", 421),
    ],
)
def test_only_known_names_are_answered(house: House, host: str, status: int) -> None:
    client = house.open(allowed_hosts={"127.0.0.1", "localhost", "[::1]", "ctl.example.org"})
    answer = client.get("/healthz", headers={"Host": host})
    assert answer.status_code == status


@pytest.mark.parametrize("path", ["/v1/jobs", "/v1/sweeps", "/v1/tokens", "/v1/telemetry/backfill"])
@pytest.mark.parametrize("piece", ["[", '{"a":', '[{"\\"]":'])
def test_what_is_nested_very_deep_is_refused_before_it_is_parsed(
    house: House, path: str, piece: str
) -> None:
    answer = house.ask("POST", path, KEYS.home_token, content=piece * 100_000, headers=JSON)
    assert (answer.status_code, code_of(answer)) == (422, "validation")
    assert "nested too deep" in answer.json()["detail"]


def test_a_body_that_trickles_in_is_not_waited_for_for_ever() -> None:
    async def receive() -> Any:
        await asyncio.sleep(0.002)
        return {"type": "http.request", "body": b" ", "more_body": True}

    request = Request({"type": "http", "headers": []}, receive)
    with pytest.raises(ApiProblem, match=r"within 0\.05 s") as refused:
        asyncio.run(validation.read_body(request, timeout=0.05))
    assert refused.value.code == "too_slow"


def test_many_brackets_are_not_deep(house: House) -> None:
    wide = json.dumps({"name": "x", "role": "viewer", "more": [["]["]] * 1000})
    answer = house.ask("POST", "/v1/tokens", KEYS.home_token, content=wide, headers=JSON)
    assert "nested" not in answer.text
