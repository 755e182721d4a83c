"""Lines of commands through the API: stored once, followed without loss, bounded in number."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pydantic import TypeAdapter
from sqlalchemy import Engine, func, select

from scavenger.protocol import LogBatch, LogLine
from scavenger.schemas.jobs import JobPhase
from scavenger.schemas.telemetry import LogLineView, LogList
from service.db import jobs, log_lines, vms
from service.db.schema import log_lines as log_lines_table
from tests.builders import offer
from tests.integration.house import KEYS, House

BATCH = TypeAdapter(LogBatch)


@pytest.fixture
def machines(house: House, engine: Engine) -> list[str]:
    now = datetime.now(UTC)
    with engine.begin() as connection:
        for number in (1, 2):
            vms.record_intent(connection, house.job, number, offer(), now, timedelta(minutes=1))
    return [f"{house.job}-w{number}" for number in (1, 2)]


def batch(machine: str, first: int, count: int, printed: int | None = None) -> LogBatch:
    at = datetime.now(UTC)
    numbers = range(first, first + count)
    lines = tuple(LogLine(number, at, f"{machine} line {number}") for number in numbers)
    return LogBatch(machine, printed or first + count - 1, lines)


def send(house: House, message: LogBatch) -> Any:
    token = KEYS.issue_worker_token(message.worker)
    headers = {"Content-Type": "application/json"}
    content = BATCH.dump_json(message)
    return house.ask("POST", "/v1/agent/logs", token, content=content, headers=headers)


def read(house: House, **query: Any) -> LogList:
    path = f"/v1/jobs/{house.job}/logs"
    answer = house.ask("GET", path, house.token("viewer", "alpha"), params=query)
    assert answer.status_code == 200, answer.text
    return LogList.model_validate_json(answer.text)


def test_lines_are_stored_once_and_those_that_were_dropped_are_counted(
    house: House, machines: list[str]
) -> None:
    one, two = machines
    for message in (batch(one, 1, 3), batch(one, 2, 3), batch(two, 5, 2, printed=9)):
        assert send(house, message).status_code == 200
    found = read(house)
    assert [line.text for line in found.lines] == [
        *(f"{one} line {number}" for number in (1, 2, 3, 4)),
        *(f"{two} line {number}" for number in (5, 6)),
    ]
    assert {line.role for line in found.lines} == {"worker"}
    assert found.dropped == 7
    assert read(house, machine=one).dropped == 0
    assert [line.machine for line in read(house, machine=two).lines] == [two, two]
    assert [line.text for line in read(house, tail=1).lines] == [f"{two} line 6"]
    assert read(house, tail=0).lines == []


def test_lines_page_from_the_tail_on(house: House, machines: list[str]) -> None:
    send(house, batch(machines[0], 1, 50))
    found, place = list[LogLineView](), {"tail": "30"}
    while True:
        page = read(house, limit=7, **place)
        found += page.lines
        if page.next_cursor is None:
            break
        place = {"cursor": page.next_cursor}
    assert [line.text.split()[-1] for line in found] == [str(n) for n in range(21, 51)]
    after = read(house, after=found[9].number)
    assert after.lines == found[10:]


def test_a_follower_misses_no_line_while_machines_write_at_once(
    house: House, machines: list[str], engine: Engine
) -> None:
    def write(machine: str) -> None:
        for first in range(1, 200, 10):
            with engine.begin() as connection:
                log_lines.store_lines(connection, house.job, batch(machine, first, 10))

    writers = [threading.Thread(target=write, args=(machine,)) for machine in machines]
    for writer in writers:
        writer.start()
    seen = list[LogLineView]()
    while len(seen) < 400:
        with engine.connect() as connection:
            after = seen[-1].number if seen else 0
            seen += log_lines.lines_after(connection, house.job, after, 1000)
    for writer in writers:
        writer.join()
    for machine in machines:
        own = [line.text.split()[-1] for line in seen if line.machine == machine]
        assert own == [str(number) for number in range(1, 201)]


def test_a_job_keeps_its_newest_lines(
    house: House, machines: list[str], engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_lines, "MAX_LINES_KEPT", 100)
    monkeypatch.setattr(log_lines, "LINES_BETWEEN_CUTS", 50)
    for first in range(1, 500, 20):
        send(house, batch(machines[0], first, 20))
    with engine.connect() as connection:
        kept = connection.execute(select(func.count()).select_from(log_lines_table)).scalar_one()
    assert 100 <= kept <= 150
    assert read(house).dropped == 500 - kept
    assert read(house, tail=1).lines[0].text.endswith("line 500")


def test_secrets_are_taken_out_once_more_where_they_look_like_some(
    house: House, machines: list[str]
) -> None:
    at = datetime.now(UTC)
    text = "Authorization: Bearer abcdefghijk\0"
    send(house, LogBatch(machines[0], 1, (LogLine(1, at, text),)))
    assert "abcdefghijk" not in read(house).lines[0].text


def test_a_machine_speaks_for_itself_and_readers_see_their_own_project(
    house: House, machines: list[str]
) -> None:
    other = KEYS.issue_worker_token(machines[1])
    content = BATCH.dump_json(batch(machines[0], 1, 1))
    headers = {"Content-Type": "application/json"}
    answer = house.ask("POST", "/v1/agent/logs", other, content=content, headers=headers)
    assert answer.status_code == 403
    path, strange = f"/v1/jobs/{house.job}/logs", house.token("viewer", "beta")
    assert house.ask("GET", path, strange).status_code == 404
    unknown = {"machine": "job_0-w1"}
    answer = house.ask("GET", path, house.token("viewer", "alpha"), params=unknown)
    assert answer.status_code == 404
    assert "GET /v1/machines?job=" in answer.json()["detail"]


def test_lines_go_with_the_other_files_of_a_job_that_ended_long_ago(
    house: House, machines: list[str], engine: Engine
) -> None:
    send(house, batch(machines[0], 1, 5))
    ended = datetime.now(UTC)
    with engine.begin() as connection:
        assert log_lines.delete_of_ended_jobs(connection, ended) == 0
        jobs.change_outcome(connection, house.job, phase=JobPhase.CANCELLED, finished_at=ended)
        assert log_lines.delete_of_ended_jobs(connection, ended) == 0
        assert log_lines.delete_of_ended_jobs(connection, ended + timedelta(seconds=1)) == 5
    assert read(house).lines == []
