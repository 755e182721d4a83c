"""Machines through the API: which there are, of whose jobs, and what is known of each."""

from __future__ import annotations

from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from sqlalchemy import Engine

from scavenger.protocol import Hello
from scavenger.schemas.diagnostics import VersionView
from scavenger.schemas.machines import MachineList, MachineView
from service.db import clock, jobs, vms, workers
from service.db.database import newest_revision
from service.db.jobs import record_event
from service.db.schema import vms as vms_table
from service.state.machines import describe_machine
from tests.builders import NOW, offer, spec, vm
from tests.integration.house import House


@pytest.fixture
def now(house: House, engine: Engine) -> datetime:
    """Store machines of two projects: one runs, one is gone, one is intended, one of another."""
    now = clock.now(engine)
    with engine.begin() as connection:
        for number, project in ((1, "alpha"), (2, "beta")):
            jobs.create(connection, f"job_{number}", spec(), now, project)
        for number in (1, 2, 3):
            asked = now - timedelta(minutes=10 - number)
            vms.record_intent(connection, "job_1", number, offer(), asked, timedelta(minutes=30))
        vms.record_intent(connection, "job_2", 1, offer(), now, timedelta(minutes=1))
        for number in (1, 2):
            vms.record_attempt(
                connection, f"job_1-w{number}", now - timedelta(minutes=8), now, "a-1"
            )
            vms.record_launch(connection, f"job_1-w{number}", f"i-{number}")
        workers.record_hello(
            connection, "job_1", Hello("job_1-w2", "h:1"), now - timedelta(minutes=2)
        )
        vms.record_gone(connection, "job_1-w1", now - timedelta(minutes=1))
        told = {"vm": "job_1-w1", "reason": "taken"}
        record_event(connection, "job_1", now, "vm_gone", "job_1-w1 is gone: it was taken", told)
    return now


def ask(house: House, project: str = "alpha", **query: Any) -> MachineList:
    answer = house.ask("GET", "/v1/machines", house.token("viewer", project), params=query)
    assert answer.status_code == 200, answer.text
    return MachineList.model_validate_json(answer.text)


def test_machines_are_shown_newest_first_with_what_is_known(house: House, now: datetime) -> None:
    intended, runs, gone = ask(house).machines
    assert [intended.state, runs.state, gone.state] == ["intended", "launched", "gone"]
    assert (intended.why, intended.launched_at) == ("it is about to be asked for", None)
    assert (runs.why, runs.project, runs.role) == ("it runs", "alpha", "worker")
    assert runs.launched_at == now - timedelta(minutes=8)
    assert runs.price_per_hour.amount == Decimal("0.36")
    assert runs.lease_age == pytest.approx(120, abs=60)
    assert (gone.why, gone.lease_age) == ("job_1-w1 is gone: it was taken", None)
    assert gone.gone_at == now - timedelta(minutes=1)


def test_machines_page_and_filter(house: House, now: datetime) -> None:
    whole = [each.id for each in ask(house, "*").machines]
    assert whole == ["job_2-w1", "job_1-w3", "job_1-w2", "job_1-w1"]
    found, place = list[MachineView](), dict[str, str]()
    while True:
        page = ask(house, "*", limit=1, **place)
        found += page.machines
        if page.next_cursor is None:
            break
        place = {"cursor": page.next_cursor}
    assert [each.id for each in found] == whole
    assert [each.id for each in ask(house, state="launched,gone").machines] == whole[2:]
    assert [each.id for each in ask(house, "*", job="job_2").machines] == whole[:1]


@pytest.mark.parametrize("job", ["job_2", "job_0", "nothing", "job_\x00"])
def test_machines_of_a_job_of_another_project_are_not_there(
    house: House, now: datetime, job: str
) -> None:
    token = house.token("viewer", "alpha")
    answer = house.ask("GET", "/v1/machines", token, params={"job": job})
    assert answer.status_code == 404
    assert "GET /v1/jobs lists them" in answer.json()["detail"]


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({}, "it runs"),
        ({"missed_at": NOW - timedelta(seconds=5)}, "its cloud has not shown it for 5 s"),
        ({"warned_at": NOW, "missed_at": NOW}, "its cloud takes it back, and its worker leaves"),
        ({"exit_code": 3, "warned_at": NOW}, "its command ended with exit code 3"),
        ({"state": "ending", "orders": 1}, "it was told to end"),
        (
            {"state": "ending", "orders": 3, "exit_code": 0},
            "it was told to end 3 times; its command ended with exit code 0",
        ),
        ({"state": "intended"}, "its cloud was asked for it and has not confirmed it"),
        ({"state": "intended", "attempted_at": None}, "it is about to be asked for"),
        ({"state": "gone"}, "it is gone"),
        ({"state": "gone", "refusal": "sold out"}, "its cloud never started it: sold out"),
    ],
)
def test_what_is_known_of_a_machine_is_said_the_gravest_first(
    facts: dict[str, Any], words: str
) -> None:
    assert describe_machine(vm(1, **facts), NOW) == words


def test_every_state_is_a_filter(house: House) -> None:
    (known,) = (
        each.sqltext.text for each in vms_table.constraints if each.name == "ck_vms_state_known"
    )
    for state in ("intended", "launched", "ending", "gone"):
        assert f"'{state}'" in known
        ask(house, state=state)


def test_a_controller_says_its_version(house: House) -> None:
    answer = house.ask("GET", "/v1/version", house.token("viewer", "alpha"))
    said = VersionView.model_validate_json(answer.text)
    assert (said.api, answer.json()["schema"]) == ("v1", newest_revision())
