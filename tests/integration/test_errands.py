"""A request with a key acts once: sent again, at once, by others, or after a kill -9."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Engine, func, select
from sqlalchemy.exc import DBAPIError

from scavenger.schemas.problems import ProblemView
from service.api.dependencies import AppState
from service.api.idempotency import IdempotentRequest
from service.app import build_app
from service.auth.tokens import ControllerKeys, TokenDigest
from service.clouds.storage import CheckpointStorage
from service.db import idempotency, schema
from service.db.idempotency import ANSWERS_KEPT, MAX_ANSWERS_DELETED, IdempotencyKey, StoredAnswer
from tests.builders import HERE, NOW, document

KEYS = ControllerKeys(home_token="scv_token", secret="s" * 48)
STORAGE = CheckpointStorage(Path("/srv/scavenger"))


@pytest.fixture
def client(engine: Engine) -> Iterator[TestClient]:
    app = build_app(AppState(engine, HERE, STORAGE), KEYS)
    headers = {"Authorization": f"Bearer {KEYS.home_token}"}
    with TestClient(app, headers=headers, raise_server_exceptions=False) as client:
        yield client


def submit(client: TestClient, key: str | None, **changes: Any) -> Any:
    headers = {} if key is None else {"Idempotency-Key": key}
    return client.post("/v1/jobs", json=document(**changes), headers=headers)


def count(engine: Engine, table: str) -> int:
    with engine.connect() as connection:
        query = select(func.count()).select_from(schema.metadata.tables[table])
        return connection.execute(query).scalar_one()


def code(answer: Any) -> str:
    assert answer.headers["content-type"] == "application/problem+json"
    return ProblemView.model_validate_json(answer.text).code


def test_the_same_request_is_answered_as_before(client: TestClient, engine: Engine) -> None:
    first, again = submit(client, "k"), submit(client, "k")
    assert (first.status_code, again.status_code) == (201, 201)
    assert first.content == again.content
    assert first.headers["location"] == again.headers["location"]
    assert first.headers["etag"] == again.headers["etag"]
    assert "idempotent-replayed" not in first.headers
    assert again.headers["idempotent-replayed"] == "true"
    assert (count(engine, "jobs"), count(engine, "events")) == (1, 1)


@pytest.mark.parametrize("different", ["body", "path", "media"])
def test_a_key_belongs_to_one_request(client: TestClient, engine: Engine, different: str) -> None:
    job = submit(client, "k").json()["id"]
    headers = {"Idempotency-Key": "k"}
    match different:
        case "body":
            answer = submit(client, "k", name="other")
        case "path":
            answer = client.post(f"/v1/jobs/{job}/actions/cancel", headers=headers)
        case _:
            headers["Content-Type"] = "application/yaml"
            text = json.dumps(document(), separators=(",", ":"))
            answer = client.post("/v1/jobs", content=text, headers=headers)
    assert (answer.status_code, code(answer)) == (422, "idempotency_mismatch")
    assert (count(engine, "jobs"), count(engine, "events")) == (1, 1)


@given(st.lists(st.tuples(st.sampled_from(["a", "b", None]), st.booleans()), max_size=8))
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_there_are_as_many_jobs_as_keys_and_requests_without_one(
    client: TestClient, engine: Engine, sent: list[tuple[str | None, bool]]
) -> None:
    with engine.begin() as connection:
        for table in ("jobs", "requests"):
            connection.execute(schema.metadata.tables[table].delete())
    first: dict[str, bool] = {}
    expected = 0
    for key, is_named in sent:
        answer = submit(client, key, name="x" if is_named else "y")
        is_new = key is None or key not in first
        expected += is_new
        if key is not None:
            assert answer.status_code == (
                201 if first.setdefault(key, is_named) is is_named else 422
            )
        assert ("idempotent-replayed" in answer.headers) is (
            not is_new and answer.status_code == 201
        )
    assert count(engine, "jobs") == expected


def test_what_is_refused_is_not_kept(client: TestClient, engine: Engine) -> None:
    assert submit(client, "k", price="free").status_code == 422
    assert submit(client, "k").status_code == 201
    job = client.get("/v1/jobs").json()["jobs"][0]["id"]
    path, stale = f"/v1/jobs/{job}/actions/cancel", {"If-Match": '"stale"'}
    key = {"Idempotency-Key": "c"}
    assert client.post(path, headers={**key, **stale}).status_code == 412
    assert client.post(path, headers=key).status_code == 202
    replayed = client.post(path, headers={**key, **stale})
    assert replayed.headers["idempotent-replayed"] == "true", "it was done: it is not asked again"


def test_a_sweep_is_confirmed_once_per_key(client: TestClient) -> None:
    answer = client.post("/v1/sweeps", json={"confirm": True}, headers={"Idempotency-Key": "s"})
    assert (answer.status_code, code(answer)) == (404, "not_found")


@pytest.mark.parametrize("key", ["", " ", "x" * 256, "a b", "é", "a\tb"])
def test_a_strange_key_is_refused(client: TestClient, engine: Engine, key: str) -> None:
    headers = {"Idempotency-Key": key.encode()}
    answer = client.post("/v1/jobs", json=document(), headers=headers)
    assert (answer.status_code, code(answer)) == (422, "validation")
    assert count(engine, "jobs") == 0


def test_many_at_once_make_one_job(client: TestClient, engine: Engine) -> None:
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: submit(client, "k"), range(24)))
    assert count(engine, "jobs") == 1
    done = {answer.json()["id"] for answer in answers if answer.status_code == 201}
    assert len(done) == 1
    waiting = [answer for answer in answers if answer.status_code != 201]
    assert {code(answer) for answer in waiting} <= {"idempotency_in_progress"}


def test_while_one_is_worked_on_others_are_told_to_wait(client: TestClient, engine: Engine) -> None:
    with engine.begin() as connection:
        assert idempotency.lock_key(
            connection, IdempotencyKey(TokenDigest.of(KEYS.home_token).id, "k")
        )
        answer = submit(client, "k")
        assert submit(client, "other").status_code == 201
    assert (answer.status_code, code(answer)) == (409, "idempotency_in_progress")
    assert answer.headers["retry-after"] == "1"
    assert submit(client, "k").status_code == 201


def test_callers_do_not_share_keys(engine: Engine) -> None:
    world = AppState(engine, HERE, STORAGE)
    for caller in ("one", "another"):
        answer = IdempotentRequest(IdempotencyKey(caller, "k"), "same").run_once(
            world, lambda _: StoredAnswer(200, "{}", {})
        )
        assert "idempotent-replayed" not in answer.headers
    assert count(engine, "requests") == 2


def test_a_key_is_free_again_after_a_day(engine: Engine) -> None:
    key, answer = (
        IdempotencyKey(TokenDigest.of(KEYS.home_token).id, "k"),
        StoredAnswer(201, "{}", {"ETag": '"x"'}),
    )
    with engine.begin() as connection:
        idempotency.store_answer(connection, key, "print", answer, NOW)
        nearly = NOW + ANSWERS_KEPT - timedelta(seconds=1)
        assert idempotency.find_answer(connection, key, nearly) == ("print", answer)
        assert idempotency.find_answer(connection, key, NOW + ANSWERS_KEPT) is None
        idempotency.store_answer(connection, key, "other", answer, NOW + ANSWERS_KEPT)
        assert idempotency.find_answer(connection, key, NOW + ANSWERS_KEPT) == ("other", answer)


def test_what_is_old_goes_as_new_requests_come(engine: Engine) -> None:
    answer = StoredAnswer(200, "{}", {})
    with engine.begin() as connection:
        for number in range(MAX_ANSWERS_DELETED + 5):
            idempotency.store_answer(
                connection, IdempotencyKey("person", str(number)), "print", answer, NOW
            )
    for number, left in ((0, 6), (1, 2)):
        with engine.begin() as connection:
            key = IdempotencyKey("person", f"new-{number}")
            idempotency.store_answer(connection, key, "print", answer, NOW + ANSWERS_KEPT)
        assert count(engine, "requests") == left


KILLED = """
import os, signal, sys
from pathlib import Path
from sqlalchemy import create_engine
from service.api.idempotency import IdempotentRequest
from service.api.dependencies import AppState
from service.db import idempotency, jobs
from service.db.idempotency import IdempotencyKey, StoredAnswer
from service.clouds.storage import CheckpointStorage
from tests.builders import HERE, NOW, spec

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

def effect(connection):
    jobs.create(connection, "job_1", spec(), NOW)
    if sys.argv[2] == "after the effect":
        die()
    return StoredAnswer(201, "{}", {})

if sys.argv[2] == "after both":
    idempotency._delete_old_answers = die
storage = CheckpointStorage(Path("/srv"))
app_state = AppState(create_engine(sys.argv[1]), HERE, storage)
IdempotentRequest(IdempotencyKey("person", "k"), "print").run_once(app_state, effect)
"""


@pytest.mark.parametrize("moment", ["after the effect", "after both"])
def test_a_crash_between_effect_and_answer_leaves_neither(engine: Engine, moment: str) -> None:
    url = engine.url.render_as_string(hide_password=False)
    ended = subprocess.run(
        [sys.executable, "-c", KILLED, url, moment],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        check=False,
    )
    assert ended.returncode == -signal.SIGKILL
    assert (count(engine, "jobs"), count(engine, "requests")) == (0, 0)
    world = AppState(engine, HERE, STORAGE)
    errand = IdempotentRequest(IdempotencyKey(TokenDigest.of(KEYS.home_token).id, "k"), "print")
    patient(lambda: errand.run_once(world, lambda _: StoredAnswer(201, "{}", {})))
    assert count(engine, "requests") == 1


def patient(act: Any) -> None:
    """The database may need a moment to see that a process is dead."""
    for _ in range(1000):
        try:
            act()
        except Exception as error:
            if getattr(error, "code", "") != "idempotency_in_progress":
                raise
        else:
            return
    raise AssertionError("the key is never free again")


def test_a_key_that_cannot_be_stored_undoes_the_effect(engine: Engine) -> None:
    from service.db import jobs
    from tests.builders import spec

    def effect(connection: Any) -> StoredAnswer:
        jobs.create(connection, "job_1", spec(), NOW)
        return StoredAnswer(201, "a NUL: \x00", {})

    world = AppState(engine, HERE, STORAGE)
    with pytest.raises((DBAPIError, ValueError)):
        IdempotentRequest(
            IdempotencyKey(TokenDigest.of(KEYS.home_token).id, "k"), "print"
        ).run_once(world, effect)
    assert count(engine, "jobs") == 0
