"""Sweeps through the API: what is shown, and what may be confirmed."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import Engine

from scavenger.schemas.machines import OrphanView, SweepList, SweepView
from scavenger.schemas.problems import ProblemView
from service.api.dependencies import AppState
from service.app import build_app
from service.auth.tokens import ControllerKeys
from service.clouds.storage import CheckpointStorage
from service.db import sweeps
from tests.builders import HERE, NOW, orphan

KEYS = ControllerKeys(home_token="scv_token", secret="s" * 48)
HELD = orphan("i-1", "key-1", "job_1", "hold", "the database does not know it", NOW)
KEPT = orphan("i-2", "key-2", "job_1", "keep", "the database is older than it", None)
SPARED = orphan("i-3", "key-3", "", "spare", "it carries no label of ours", None)


@pytest.fixture
def client(engine: Engine) -> Iterator[TestClient]:
    app = build_app(AppState(engine, HERE, CheckpointStorage(Path("/srv/scavenger"))), KEYS)
    headers = {"Authorization": f"Bearer {KEYS.home_token}"}
    with TestClient(app, headers=headers, raise_server_exceptions=False) as client:
        yield client


def sweep(engine: Engine, *suspects: OrphanView, tripped: str | None = None) -> int:
    with engine.begin() as connection:
        number = sweeps.begin(connection, "local", NOW, timedelta(0))
        assert number is not None
        facts: dict[str, Any] = {"shown": 2, "suspects": suspects, "tripped": tripped}
        assert sweeps.record(connection, number, **facts)
    return number


def listed(client: TestClient, limit: int = 50) -> list[SweepView]:
    answer = client.get("/v1/sweeps", params={"limit": limit})
    return SweepList.model_validate_json(answer.text).sweeps


def confirm(client: TestClient, **body: Any) -> Any:
    return client.post("/v1/sweeps", json={"confirm": True, **body})


def test_sweeps_are_listed_newest_first_and_only_when_they_have_ended(
    engine: Engine, client: TestClient
) -> None:
    assert listed(client) == []
    first, second = sweep(engine, SPARED), sweep(engine, HELD, KEPT, tripped="too many")
    with engine.begin() as connection:
        sweeps.begin(connection, "local", NOW, timedelta(0))
    assert [one.number for one in listed(client)] == [second, first]
    (newest,) = listed(client, limit=1)
    assert newest.tripped == "too many"
    assert [(one.machine, one.fate) for one in newest.suspects] == [
        ("i-1", "hold"),
        ("i-2", "keep"),
    ]


def test_what_is_confirmed_is_what_was_held_and_in_use_and_no_more(
    engine: Engine, client: TestClient
) -> None:
    number = sweep(engine, HELD, KEPT, SPARED, tripped="too many")
    sweep(engine, SPARED, tripped="too many")
    answer = confirm(client, sweep=number)
    assert answer.status_code == 202
    confirmed = SweepView.model_validate_json(answer.text)
    assert confirmed.confirmed_at is not None
    with engine.connect() as connection:
        assert sweeps.confirmed_orphans(connection, "local") == {"i-1": "hold", "i-2": "keep"}
    again = SweepView.model_validate_json(confirm(client, sweep=number).text)
    assert again == confirmed


def test_the_newest_is_meant_when_none_is_named(engine: Engine, client: TestClient) -> None:
    sweep(engine, SPARED)
    number = sweep(engine, HELD, tripped="too many")
    assert SweepView.model_validate_json(confirm(client).text).number == number


@pytest.mark.parametrize(
    ("body", "code", "words"),
    [
        ({}, "nothing_held", "held nothing back"),
        ({"sweep": 99}, "not_found", "no such sweep"),
        ({"sweep": 99.0}, "not_found", "no such sweep"),
        ({"sweep": 99.5}, "validation", "sweep"),
        ({"confirm": False}, "validation", "confirm must be true"),
        ({"confirm": "yes"}, "validation", "confirm"),
        ({"sweep": 0}, "validation", "sweep"),
        ({"sweep": 2**63}, "validation", "sweep"),
        ({"machine": "i-1"}, "validation", "machine"),
    ],
)
def test_wrong_use_is_refused_in_words(
    engine: Engine, client: TestClient, body: dict[str, Any], code: str, words: str
) -> None:
    sweep(engine, SPARED)
    problem = ProblemView.model_validate_json(confirm(client, **body).text)
    assert problem.code == code
    assert words in problem.detail
    with engine.connect() as connection:
        assert sweeps.confirmed_orphans(connection, "local") == {}


def test_nothing_can_be_confirmed_before_the_first_sweep(client: TestClient) -> None:
    assert confirm(client).status_code == 404


def test_a_machine_may_neither_look_nor_confirm(client: TestClient) -> None:
    headers = {"Authorization": f"Bearer {KEYS.issue_worker_token('w1')}"}
    assert client.get("/v1/sweeps", headers=headers).status_code == 403
    assert client.post("/v1/sweeps", json={"confirm": True}, headers=headers).status_code == 403
