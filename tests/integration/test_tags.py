"""Versions of a job: what changes them, and what is answered to conditions on them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import Connection, Engine

from scavenger.cluster import ClusterConfig
from scavenger.protocol import Hello, Progress, StepReport
from scavenger.schemas.jobs import JobPhase
from scavenger.schemas.problems import ProblemView
from service.api.dependencies import AppState
from service.api.telemetry import store_report, validate_rows
from service.app import build_app
from service.auth.tokens import ControllerKeys
from service.clouds.storage import CheckpointStorage
from service.db import directives, jobs, vms, workers
from tests.builders import HERE, NOW, directive, document, offer

KEYS = ControllerKeys(home_token="scv_token", secret="s" * 48)


@pytest.fixture
def client(engine: Engine) -> Iterator[TestClient]:
    app = build_app(AppState(engine, HERE, CheckpointStorage(Path("/srv/scavenger"))), KEYS)
    headers = {"Authorization": f"Bearer {KEYS.home_token}"}
    with TestClient(app, headers=headers, raise_server_exceptions=False) as client:
        yield client


def submitted(client: TestClient) -> tuple[str, str]:
    answer = client.post("/v1/jobs", json=document())
    return answer.json()["id"], answer.headers["etag"]


def look(client: TestClient, job: str, condition: str | None = None) -> Any:
    headers = {} if condition is None else {"If-None-Match": condition}
    return client.get(f"/v1/jobs/{job}", headers=headers)


def cancel(client: TestClient, job: str, condition: str | None = None) -> Any:
    headers = {} if condition is None else {"If-Match": condition}
    return client.post(f"/v1/jobs/{job}/actions/cancel", headers=headers)


def test_a_job_that_did_not_change_is_not_sent_again(client: TestClient) -> None:
    job, tag = submitted(client)
    for condition in (tag, f'"other", {tag}', f"W/{tag}", "*"):
        answer = look(client, job, condition)
        assert (answer.status_code, answer.content) == (304, b""), condition
        assert answer.headers["etag"] == tag
    for condition in ('"other"', "", "nonsense", tag.strip('"')):
        assert look(client, job, condition).status_code == 200, condition


def launched(connection: Connection, job: str) -> None:
    terms, prepaid = offer("0.36"), timedelta(minutes=1)
    vms.record_intent(connection, job, 1, terms, datetime.now(UTC), prepaid)


Change = Callable[[Connection, str], object]
DECIDED: dict[str, Change] = {
    "phase": lambda c, job: jobs.change_outcome(c, job, phase=JobPhase.STARTING),
    "reason": lambda c, job: jobs.change_outcome(c, job, reason="because"),
    "choice": lambda c, job: jobs.change_outcome(c, job, chosen=ClusterConfig(2, 32), choice="x"),
    "machines": launched,
    "directive": lambda c, job: directives.publish(c, job, directive(2, 128), NOW),
}


@pytest.mark.parametrize("change", DECIDED.values(), ids=DECIDED)
def test_what_is_decided_changes_the_version(
    client: TestClient, engine: Engine, change: Change
) -> None:
    job, tag = submitted(client)
    with engine.begin() as connection:
        change(connection, job)
    assert look(client, job, tag).status_code == 200
    answer = cancel(client, job, tag)
    assert answer.status_code == 412
    assert answer.headers["content-type"] == "application/problem+json"
    assert ProblemView.model_validate_json(answer.text).code == "precondition_failed"
    fresh = look(client, job).headers["etag"]
    assert fresh != tag
    assert cancel(client, job, f"{tag}, {fresh}").status_code == 202


def test_progress_is_seen_and_hinders_no_wish(client: TestClient, engine: Engine) -> None:
    job, _ = submitted(client)
    with engine.begin() as connection:
        launched(connection, job)
        workers.record_hello(connection, job, Hello(f"{job}-w1", "127.0.0.1:1"), NOW)
        directives.publish(connection, job, directive(1, 32), NOW)
    tag = look(client, job).headers["etag"]
    with engine.begin() as connection:
        progress = Progress(1, 40, 1280, 2.5, {"loss": 0.5})
        store_report(connection, validate_rows(StepReport(f"{job}-w1", progress), {}), NOW)
    assert look(client, job, tag).status_code == 200
    assert cancel(client, job, tag).status_code == 202


PROBED: dict[str, Change] = {name: DECIDED[name] for name in ("reason", "machines", "directive")}
ASKED: dict[str, tuple[str, Any]] = {
    "resize": ("actions/resize", {"to": "cheapest"}),
    "pause": ("actions/pause", {}),
}


def begin_search(engine: Engine, job: str) -> None:
    with engine.begin() as connection:
        for phase in (JobPhase.STARTING, JobPhase.PROBING):
            jobs.change_outcome(connection, job, phase=phase)


@pytest.mark.parametrize("change", PROBED.values(), ids=PROBED)
def test_another_probe_is_seen_and_hinders_no_wish(
    client: TestClient, engine: Engine, change: Change
) -> None:
    job, _ = submitted(client)
    begin_search(engine, job)
    tag = look(client, job).headers["etag"]
    with engine.begin() as connection:
        change(connection, job)
    assert look(client, job, tag).status_code == 200
    assert cancel(client, job, tag).status_code == 202


@pytest.mark.parametrize("asked", ASKED.values(), ids=ASKED)
def test_an_order_in_a_search_and_its_end_hinder_a_wish(
    client: TestClient, engine: Engine, asked: tuple[str, Any]
) -> None:
    job, _ = submitted(client)
    begin_search(engine, job)
    tags = [look(client, job).headers["etag"]]
    path, body = asked
    assert client.post(f"/v1/jobs/{job}/{path}", json=body).status_code == 202
    tags.append(look(client, job).headers["etag"])
    with engine.begin() as connection:
        jobs.change_outcome(
            connection, job, phase=JobPhase.TRAINING, chosen=ClusterConfig(2, 32), choice="x"
        )
    assert [cancel(client, job, tag).status_code for tag in tags] == [412, 412]


@pytest.mark.parametrize(
    ("condition", "status"), [("*", 202), ('"x"', 412), ("nonsense", 412), (None, 202)]
)
def test_conditions_of_a_wish(client: TestClient, condition: str | None, status: int) -> None:
    job, _ = submitted(client)
    assert cancel(client, job, condition).status_code == status


def test_a_weak_version_is_never_good_enough_to_act_on(client: TestClient) -> None:
    job, tag = submitted(client)
    assert cancel(client, job, f"W/{tag}").status_code == 412
    assert cancel(client, job, tag).status_code == 202


def test_who_wishes_an_end_twice_is_recorded_once(client: TestClient) -> None:
    job, _ = submitted(client)
    assert [cancel(client, job).status_code for _ in range(2)] == [202, 202]
    events = client.get(f"/v1/jobs/{job}/events").json()["events"]
    assert [event["kind"] for event in events].count("cancel") == 1


def test_a_job_without_a_user_has_no_version(client: TestClient) -> None:
    assert cancel(client, "job_0", "*").status_code == 404
    assert look(client, "job_0", "*").status_code == 404
