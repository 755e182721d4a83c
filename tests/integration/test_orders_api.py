"""Orders over the API: what is accepted, what is refused with which remedy, and who was first."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import Engine, text

from scavenger.client.client import Client
from scavenger.client.errors import PreconditionFailed
from scavenger.cluster import ClusterConfig
from scavenger.schemas.jobs import JobPhase, JobView
from scavenger.schemas.orders import OrderView
from scavenger.schemas.problems import ProblemView
from service.api.dependencies import AppState
from service.api.routes.orders import MAX_ORDERS
from service.app import build_app
from service.auth.tokens import ControllerKeys
from service.clouds.storage import CheckpointStorage
from service.db import jobs, measurements, vms
from tests.builders import HERE, document, offer, probe
from tests.contract.host import JOB, host
from tests.fakecloud.object_server import ObjectShelf
from tests.integration.keeper import open_keeper

KEYS = ControllerKeys(home_token="scv_token", secret="s" * 48)
PINNED = {"to": {"workers": 2, "global_batch": 64}}
FUSED = {"workers": 2, "global_batch": 64, "stack": "fused"}
GRID = {"max_cost": "1 USD", "workers": [1, 2, 4], "batch": [32, 64, 128]}


COPY_ORDER = text("""
INSERT INTO orders SELECT (jsonb_populate_record(one, jsonb_build_object('number', n))).*
FROM orders AS one, generate_series(2, :last) AS n
""")


@pytest.fixture
def client(engine: Engine) -> Iterator[TestClient]:
    app = build_app(AppState(engine, HERE, CheckpointStorage(Path("/srv/scavenger"))), KEYS)
    headers = {"Authorization": f"Bearer {KEYS.home_token}"}
    with TestClient(app, headers=headers, raise_server_exceptions=False) as client:
        yield client


def submitted(client: TestClient, **changes: Any) -> str:
    answer = client.post("/v1/jobs", json=document(**{"limits": GRID, **changes}))
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


def order(client: TestClient, job: str, action: str, wish: Any, **headers: str) -> Any:
    if action == "change":
        return client.patch(f"/v1/jobs/{job}", json=wish, headers=headers)
    return client.post(f"/v1/jobs/{job}/actions/{action}", json=wish, headers=headers)


def look(client: TestClient, job: str) -> JobView:
    return JobView.model_validate_json(client.get(f"/v1/jobs/{job}").text)


def launched(engine: Engine, job: str, minutes: float) -> None:
    """Let a job have a machine whose time is reserved for so long, at 36 cents an hour."""
    now = datetime.now(UTC)
    with engine.begin() as connection:
        vms.record_intent(connection, job, 1, offer("0.36"), now, timedelta(minutes=minutes))


WISHES = {
    "resize": PINNED,
    "probe": {"workers": 2, "global_batch": 64},
    "pause": {},
    "change": {"limits": {"max_cost": "5.00 USD", "max_time": None}, "objective": "cheapest"},
}


def test_orders_are_listed_newest_first_as_they_were_sent(client: TestClient) -> None:
    job = submitted(client)
    given = []
    for action, wish in (*WISHES.items(), ("resume", {})):
        if action == "pause":
            assert order(client, job, "resume", {}).status_code == 409
        answer = order(client, job, action, {**wish, "reason": f"to try {action}"})
        assert answer.status_code == 202, answer.text
        given.append(OrderView.model_validate_json(answer.text))
    assert [each.number for each in given] == [1, 2, 3, 4, 5]
    assert [each.wish for each in given] == [*WISHES.values(), {}]
    assert {each.state for each in given} == {"open"}
    assert given[0].reason == "to try resize"
    first = client.get(f"/v1/jobs/{job}/orders?limit=3").json()
    second = client.get(
        f"/v1/jobs/{job}/orders", params={"limit": 3, "cursor": first["next_cursor"]}
    ).json()
    listed = [OrderView.model_validate(each) for each in (*first["orders"], *second["orders"])]
    assert listed == given[::-1]
    assert second["next_cursor"] is None
    said = [event["message"] for event in client.get(f"/v1/jobs/{job}/events").json()["events"]]
    assert "order 1: resize to K=2 B=64 (to try resize)" in said


def test_an_order_without_a_stack_keeps_the_one_that_the_job_has(client: TestClient) -> None:
    job = submitted(client, stacks=["fused", "eager", "bf16"], precision="any")
    point = {"workers": 2, "global_batch": 64}
    sent = [point, {**point, "stack": "eager"}, {**point, "stack": "bf16"}]
    given = [order(client, job, "resize", {"to": to}).json()["wish"]["to"] for to in sent]
    assert given == [{**point, "stack": "fused"}, sent[1], sent[2]]
    assert order(client, job, "probe", point).json()["wish"] == {**point, "stack": "fused"}
    refused = order(client, job, "probe", {**point, "stack": "bf16+fused"})
    said = "the job cannot use the stack bf16+fused, but fused, eager, bf16: the nearest is K=2"
    assert said in refused.json()["detail"]


def test_a_stack_that_was_not_measured_is_taken_though_nothing_tells_what_it_costs(
    client: TestClient, engine: Engine
) -> None:
    job = submitted(client, stacks=["eager", "fused"], target={"epochs": 10, "at_batch": 32})
    with engine.begin() as connection:
        for config in ((1, 32), (4, 128)):
            measurements.record_probe(connection, job, probe(*config))
    for action, point in (("resize", {"to": FUSED}), ("probe", FUSED)):
        taken = order(client, job, action, point)
        assert taken.status_code == 202, taken.text


def test_a_job_takes_a_thousand_orders_and_a_pause(client: TestClient, engine: Engine) -> None:
    job = submitted(client)
    assert order(client, job, "resize", PINNED).status_code == 202
    with engine.begin() as connection:
        connection.execute(COPY_ORDER, {"last": MAX_ORDERS - 1})
    assert order(client, job, "resize", PINNED).status_code == 202
    assert order(client, job, "pause", {}).status_code == 202, "it saves money"
    refused = order(client, job, "resume", {})
    assert (refused.status_code, ProblemView.model_validate_json(refused.text).code) == (
        409,
        "conflict_state",
    )
    assert "cancel it, and submit it again" in refused.text
    assert client.post(f"/v1/jobs/{job}/actions/cancel").status_code == 202


def test_an_order_stands_from_its_answer_on(client: TestClient) -> None:
    job = submitted(client)
    assert (look(client, job).preference, look(client, job).pinned) == ("auto", None)
    order(client, job, "resize", PINNED)
    pinned = look(client, job)
    assert pinned.pinned is not None
    assert (pinned.preference, pinned.pinned.workers, pinned.open_orders) == ("pinned", 2, 1)
    order(client, job, "resize", {"to": "fastest"})
    order(client, job, "change", WISHES["change"])
    order(client, job, "pause", {})
    view = look(client, job)
    assert (view.preference, view.pinned, view.is_paused) == ("fastest", None, True)
    assert view.spec["limits"]["max_cost"] == "5.00 USD"
    assert view.spec["objective"] == "cheapest"
    assert view.cost.cap is not None
    assert view.cost.cap.amount == 5
    order(client, job, "resume", {})
    order(client, job, "resize", {"to": "auto"})
    view = look(client, job)
    assert (view.preference, view.is_paused, view.open_orders) == ("auto", False, 6)


def test_of_two_people_who_order_at_once_one_gets_the_new_numbers(client: TestClient) -> None:
    job = submitted(client)
    tag = client.get(f"/v1/jobs/{job}").headers["etag"]
    wishes = ({"to": "cheapest"}, {"to": "fastest"})
    with ThreadPoolExecutor(2) as people:
        answers = [
            people.submit(order, client, job, "resize", wish, **{"If-Match": tag})
            for wish in wishes
        ]
    by_status = {answer.result().status_code: answer.result() for answer in answers}
    assert set(by_status) == {202, 412}
    problem = ProblemView.model_validate_json(by_status[412].text)
    assert problem.code == "precondition_failed"
    assert problem.current is not None
    assert problem.current.preference == by_status[202].json()["wish"]["to"]
    assert problem.current.etag == by_status[202].headers["etag"]
    again = order(client, job, "resize", {"to": "auto"}, **{"If-Match": problem.current.etag})
    assert again.status_code == 202
    assert len(client.get(f"/v1/jobs/{job}/orders").json()["orders"]) == 2


def test_an_order_with_a_key_is_given_once(client: TestClient) -> None:
    job = submitted(client)
    answers = [order(client, job, "pause", {}, **{"Idempotency-Key": "k"}) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [202, 202]
    assert answers[1].json()["number"] == 1
    assert len(client.get(f"/v1/jobs/{job}/orders").json()["orders"]) == 1


REFUSED: dict[str, tuple[str, Any, dict[str, Any], int, str]] = {
    "off the grid": ("resize", {"to": {"workers": 3, "global_batch": 64}}, {}, 422, "K=4 B=64"),
    "fewer samples than workers": ("probe", {"workers": 9, "global_batch": 1}, {}, 422, "K=4 B=32"),
    "more than memory": (
        "resize",
        {"to": {"workers": 1, "global_batch": 128}},
        {
            "limits": {
                **GRID,
                "memory": {"machine_gib": 2, "fixed_gib": 1, "gib_per_sample": 0.01},
            }
        },
        422,
        "limits.memory, with 128 samples a worker: the nearest is K=1 B=64",
    ),
    "over the cap": (
        "resize",
        {"to": {"workers": 4, "global_batch": 128}},
        {"limits": {**GRID, "max_cost": "0.003 USD"}},
        422,
        "the nearest that it pays is K=1 B=128",
    ),
    "an unknown objective": ("resize", {"to": "chepest"}, {}, 422, "must be knee, cheapest"),
    "nothing to change": ("change", {}, {}, 422, "nothing is to be changed"),
    "no unit": ("change", {"limits": {"max_cost": 5}}, {}, 422, "has no unit"),
    "no limit of that name": ("change", {"limits": {"workers": "1..2"}}, {}, 422, "not permitted"),
    "no objective": ("change", {"objective": None}, {}, 422, "has no value"),
    "downpour": (
        "resize",
        {"to": "knee"},
        {
            "strategy": "downpour",
            "limits": {"max_cost": "1 USD", "workers": 1, "batch": 32},
        },
        422,
        "submit the job again",
    ),
    "state on servers": ("pause", {}, {"strategy": "parameter_server"}, 422, "servers"),
    "level observe": ("resize", {"to": "knee"}, {"level": "observe"}, 409, "with level: control"),
    "level advise": ("probe", WISHES["probe"], {"level": "advise"}, 409, "with level: control"),
    "not paused": ("resume", {}, {}, 409, "not paused"),
    "a long reason": ("pause", {"reason": "x" * 501}, {}, 422, "at most 500"),
    "two lines": ("pause", {"reason": "a\nb"}, {}, 422, "one line"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_obeyed_is_refused_with_what_would_do(client: TestClient, name: str) -> None:
    action, wish, changes, status, said = REFUSED[name]
    job = submitted(client, **changes)
    answer = order(client, job, action, wish)
    assert (answer.status_code, said in answer.json()["detail"]) == (status, True), answer.text
    assert client.get(f"/v1/jobs/{job}/orders").json()["orders"] == []


def test_a_limit_below_what_is_spent_and_reserved_names_the_least(
    client: TestClient, engine: Engine
) -> None:
    job = submitted(client)
    launched(engine, job, minutes=10)
    answer = order(client, job, "change", {"limits": {"max_cost": "0.05 USD"}})
    assert answer.status_code == 422
    assert "write at least 0.07 USD" in answer.json()["detail"]
    assert answer.json()["errors"][0]["pointer"] == "/limits/max_cost"
    answer = order(client, job, "change", {"limits": {"max_time": "1ms"}})
    assert "write a max_time above 1s" in answer.json()["detail"]
    assert order(client, job, "change", {"limits": {"max_cost": "0.07 USD"}}).status_code == 202


def test_a_job_that_has_ended_takes_no_order(client: TestClient, engine: Engine) -> None:
    job = submitted(client)
    client.post(f"/v1/jobs/{job}/actions/cancel")
    for action, wish in WISHES.items():
        assert "is being cancelled" in order(client, job, action, wish).json()["detail"]
    with engine.begin() as connection:
        jobs.change_outcome(connection, job, phase=JobPhase.CANCELLED, chosen=ClusterConfig(1, 32))
    for action, wish in WISHES.items():
        for stale in ({}, {"If-Match": '"seen-before-its-end"'}):
            answer = order(client, job, action, wish, **stale)
            assert (answer.status_code, answer.json()["code"]) == (409, "conflict_state")
        assert "has ended already: cancelled" in answer.json()["detail"]


def test_a_paused_job_is_neither_paused_again_nor_probed(client: TestClient) -> None:
    job = submitted(client)
    order(client, job, "pause", {})
    assert "paused already" in order(client, job, "pause", {}).json()["detail"]
    assert "resume it first" in order(client, job, "probe", WISHES["probe"]).json()["detail"]


def test_a_job_without_a_lasting_checkpoint_is_not_paused(engine: Engine) -> None:
    with open_keeper(engine, None, ObjectShelf(lambda *_: None)) as keeper:
        job = keeper.submit()
        headers = {"Authorization": f"Bearer {KEYS.home_token}"}
        answer = keeper.client.post(f"/v1/jobs/{job}/actions/pause", json={}, headers=headers)
        assert answer.status_code == 409
        assert "run.checkpoints.directory" in answer.json()["detail"]


def test_the_client_gives_every_order_and_reads_what_became_of_it(engine: Engine) -> None:
    with host(engine) as controller, Client(controller.url, KEYS.home_token) as scavenger:
        scavenger.resize(JOB, (2, 128), reason="it pays")
        with pytest.raises(PreconditionFailed) as refused:
            scavenger.resize(JOB, "cheapest", seen='"an-old-version"')
        current = refused.value.problem.current
        assert current is not None
        scavenger.resize(JOB, "auto", seen=current.etag)
        scavenger.probe(JOB, 1, 128, "eager")
        scavenger.change_limits(JOB, {"max_cost": None}, objective={"time_weight": 0.5})
        scavenger.pause(JOB)
        scavenger.resume(JOB)
        listed = list(scavenger.orders(JOB))
        assert [each.kind for each in listed] == [
            *("resume", "pause", "change", "probe", "resize", "resize")
        ]
        assert (listed[-1].wish, listed[-1].reason) == (
            {"to": {"workers": 2, "global_batch": 128}},
            "it pays",
        )
        assert scavenger.get_job(JOB).spec["objective"] == {"time_weight": 0.5}
