"""``scavenger token`` against a fake controller that keeps the REST contract."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from scavenger.errors import ExitCode
from scavenger.schemas.access import NewTokenView, TokenList, TokenView
from tests.builders import NOW
from tests.unit.test_cli_commands import run
from tests.unit.test_cli_rendering import problem

SECRET = "scv_0123456789ab_" + "x" * 43
FACTS: dict[str, Any] = {
    "id": "0123456789ab",
    "name": "ci",
    "project": "default",
    "role": "submitter",
    "created_at": NOW,
    "created_by": "serve",
    "expires_at": NOW,
    "revoked_at": None,
    "last_used_at": None,
}
TOKEN = TokenView.model_validate(FACTS)


class Tokens:
    """Answers as the controller does."""

    def __init__(self) -> None:
        self.wishes: list[Any] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        match request.method, request.url.path:
            case "GET", "/v1/tokens":
                return httpx.Response(200, text=TokenList(tokens=[TOKEN]).model_dump_json())
            case "POST", "/v1/tokens":
                self.wishes.append(json.loads(request.content))
                made = NewTokenView.model_validate(FACTS | {"token": SECRET})
                return httpx.Response(201, text=made.model_dump_json())
            case "POST", "/v1/tokens/0123456789ab/actions/revoke":
                revoked = TOKEN.model_copy(update={"revoked_at": NOW})
                return httpx.Response(200, text=revoked.model_dump_json())
            case _:
                missing = problem(404, title="There is nothing here", code="not_found")
                return httpx.Response(404, text=missing.model_dump_json())


def test_a_new_token_is_all_that_is_written_for_programs() -> None:
    controller = Tokens()
    words = ["token", "create", "ci", "--role", "submitter", "--project", "a", "--lifetime", "2d"]
    code, data, stderr = run(controller, *words)
    assert (code, data) == (0, f"{SECRET}\n")
    assert controller.wishes == [
        {"name": "ci", "role": "submitter", "project": "a", "lifetime": 172800.0}
    ]
    assert "scavenger token revoke 0123456789ab" in stderr
    assert "until 2026-01-01 12:00 UTC" in stderr


def test_a_viewer_for_ever_is_made_unless_told_otherwise() -> None:
    controller = Tokens()
    code, data, _ = run(controller, "token", "create", "me", "-o", "json")
    assert (code, json.loads(data)["token"]) == (0, SECRET)
    assert controller.wishes == [
        {"name": "me", "role": "viewer", "project": None, "lifetime": None}
    ]


def test_tokens_are_listed_without_their_secrets() -> None:
    code, data, _ = run(Tokens(), "token", "list")
    assert code == 0
    for word in ("0123456789ab", "ci", "submitter", "default", "2026-01-01 12:00", "–"):
        assert word in data
    assert SECRET not in data


def test_a_token_is_taken_back_by_its_id() -> None:
    code, data, _ = run(Tokens(), "token", "revoke", "0123456789ab", "-o", "json")
    assert (code, json.loads(data)["revoked_at"]) == (0, "2026-01-01T12:00:00Z")
    code, _, stderr = run(Tokens(), "token", "revoke", "unknown")
    assert code == ExitCode.NOT_FOUND
    assert "There is nothing here" in stderr


@pytest.mark.parametrize(
    "arguments",
    [["--role", "root"], ["--lifetime", "0d"], ["--lifetime", "9999d"], ["--lifetime", "90"]],
)
def test_wrong_use_is_told_before_the_controller_is_asked(arguments: list[str]) -> None:
    controller = Tokens()
    assert run(controller, "token", "create", "me", *arguments)[0] == ExitCode.USAGE
    assert controller.wishes == []


def test_who_asks_too_often_is_told_to_wait() -> None:
    busy = problem(429, title="Too many requests", code="too_many_requests")
    code, _, stderr = run(lambda _: httpx.Response(429, text=busy.model_dump_json()), "list")
    assert code == ExitCode.UNREACHABLE
    assert "wait a moment and try again" in stderr
