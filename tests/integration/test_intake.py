"""What the intake answers, stores, tells and keeps, on a real database."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from pydantic import TypeAdapter
from sqlalchemy import Engine, select, text, update

from scavenger.cluster import ClusterConfig
from scavenger.measurement.profiling import ProbeComplete, evaluate_probe
from scavenger.measurement.steps import StepColumns
from scavenger.protocol import Progress, Reply, StepReport
from scavenger.schemas.events import EventList
from service.api.dependencies import AppState
from service.api.telemetry import REPORT_BODY
from service.app import build_app
from service.auth.tokens import ControllerKeys
from service.background import Maintenance
from service.clouds.clouds import Clouds
from service.clouds.local import LocalProvider
from service.clouds.storage import CheckpointStorage
from service.db import partitions, telemetry, workers
from service.db.schema import chunks as table
from tests.builders import HERE
from tests.poison import corpus
from tests.telemetry.source import measured
from tests.telemetry.stage import set_up

KEYS = ControllerKeys(home_token="scv_token", secret="s" * 48)
PERSON = {"Authorization": f"Bearer {KEYS.home_token}"}
REPLY = TypeAdapter(Reply)
DAY = timedelta(days=1)
NOWHERE = LocalProvider(Path("/nowhere"), "python")


class Machine:
    """A worker of a job of one, as its controller hears it."""

    def __init__(self, engine: Engine, client: TestClient) -> None:
        self.engine, self.client, self.job = engine, client, "job_1"
        with engine.begin() as connection:
            (self.worker,) = set_up(connection, self.job, 1)
        self.headers = {
            "Authorization": f"Bearer {KEYS.issue_worker_token(self.worker)}",
            "Content-Type": "application/json",
        }

    def say(self, what: str, body: bytes) -> Any:
        return self.client.post(f"/v1/agent/{what}", content=body, headers=self.headers)

    def message(self, sequence: int, steps: StepColumns) -> StepReport:
        return StepReport(self.worker, Progress(1, 1, 1, 0.1, {}), sequence, steps)

    def report(self, sequence: int, steps: StepColumns) -> Reply:
        answer = self.say("report", REPORT_BODY.dump_json(self.message(sequence, steps)))
        assert answer.status_code == 200, answer.text
        return REPLY.validate_json(answer.text)

    def stored(self) -> StepColumns:
        with self.engine.connect() as connection:
            return telemetry.steps_of(connection, self.job, 1)

    def told(self, kind: str) -> list[str]:
        found = self.client.get(f"/v1/jobs/{self.job}/events", headers=PERSON).text
        return [e.message for e in EventList.model_validate_json(found).events if e.kind == kind]

    def known(self) -> workers.WorkerRow:
        with self.engine.connect() as connection:
            (worker,) = workers.of_job(connection, self.job)
        return worker


@pytest.fixture
def machine(engine: Engine) -> Iterator[Machine]:
    app = build_app(AppState(engine, HERE, CheckpointStorage(Path("/srv/scavenger"))), KEYS)
    with TestClient(app, raise_server_exceptions=False) as client:
        yield Machine(engine, client)


def spoilt(steps: StepColumns, *places: int) -> StepColumns:
    """Return rows of which some took a negative time."""
    times = [-1.0 if place in places else x for place, x in enumerate(steps.step_time)]
    return StepColumns(**{**asdict(steps), "step_time": tuple(times)})


def test_an_answer_says_what_became_of_each_row(machine: Machine) -> None:
    first = machine.report(0, spoilt(measured(0, 5), 1, 3))
    assert (first.next_sequence, first.accepted, first.duplicates) == (5, 3, 0)
    assert [row.sequence for row in first.rejected] == [1, 3]
    assert first.rejected[0].why == "step_time: must lie between 0 and 1e+09"
    again = machine.report(0, spoilt(measured(0, 8), 1, 3, 6))
    assert (again.next_sequence, again.accepted, again.duplicates) == (8, 2, 3)
    assert [row.sequence for row in again.rejected] == [1, 3, 6]
    assert machine.stored().iteration == (0, 2, 4, 5, 7)
    assert machine.known().rejected == 3


def test_rows_that_are_left_out_are_told_once_and_counted(machine: Machine) -> None:
    machine.report(0, spoilt(measured(0, 3), 0, 1))
    machine.report(3, spoilt(measured(3, 3), 0, 1, 2))
    (said,) = machine.told("rows_rejected")
    assert said.startswith("2 measured iterations of job_1-w1 cannot be used")
    assert "row 0: step_time: must lie between" in said
    assert machine.known().rejected == 5


def test_rows_that_no_worker_can_have_measured_move_no_cursor(machine: Machine) -> None:
    answer = machine.say("report", REPORT_BODY.dump_json(machine.message(2**53, measured(0, 1))))
    assert answer.status_code == 422
    assert machine.report(0, measured(0, 1)).next_sequence == 1


def test_rows_and_the_beginning_of_their_generation_are_stored_together(machine: Machine) -> None:
    columns = measured(0, 700)
    machine.report(0, columns)
    machine.report(300, columns[300:])
    with machine.engine.connect() as connection:
        assert telemetry.first_iterations(connection, machine.job) == {1: 0}
    assert machine.stored().step_time == pytest.approx(columns.step_time, rel=1e-7)


def full_report(machine: Machine) -> dict[str, Any]:
    """A report that says everything there is to say."""
    steps = {name: list(column) for name, column in asdict(measured(0, 2)).items()}
    return {
        "worker": machine.worker,
        "progress": {
            "generation": 1,
            "iteration": 2,
            "samples": 3,
            "epochs": 0.5,
            "metrics": {"accuracy": 0.5},
        },
        "sequence": 0,
        "steps": steps,
        "regrouped": {"generation": 1, "pause": 0.5, "iterations_lost": 0},
        "broken": None,
        "refused": None,
        "finished": None,
        "dropped": 0,
    }


@pytest.mark.parametrize("what", ["hello", "report", "exit"])
def test_no_poison_makes_the_controller_stumble(machine: Machine, what: str) -> None:
    messages = {
        "hello": {"worker": machine.worker, "address": "127.0.0.1:1", "role": "worker"},
        "report": full_report(machine),
        "exit": {"worker": machine.worker, "code": 1, "tail": "x", "cause": "", "restarts": True},
    }
    statuses = {name: machine.say(what, body).status_code for name, body in corpus(messages[what])}
    assert {name: status for name, status in statuses.items() if status >= 500} == {}
    assert {200, 413, 422} <= set(statuses.values())
    hello = {"worker": machine.worker, "address": "127.0.0.1:2"}
    sequence = machine.say("hello", json.dumps(hello).encode()).json()["next_sequence"]
    assert machine.report(sequence, measured(0, 30)).accepted == 30
    settled = evaluate_probe(machine.stored(), ClusterConfig(4, 64), measures="time")
    assert isinstance(settled, ProbeComplete)
    figures = asdict(settled.observation.indicators).values()
    assert all(math.isfinite(x) for x in figures if x is not None)


# Partitions.


def days_of(engine: Engine) -> list[datetime]:
    with engine.connect() as connection:
        today = partitions.today(connection)
        return sorted((day - today).days for day in partitions.partitioned_days(connection))


def add_day(engine: Engine, ago: int) -> None:
    """Add the partition of a day that is past."""
    with engine.begin() as connection:
        day = partitions.today(connection) - ago * DAY
        connection.execute(
            text(
                f"CREATE TABLE chunks_{day:%Y%m%d} PARTITION OF chunks"
                f" FOR VALUES FROM ('{day} 00:00+00') TO ('{day + DAY} 00:00+00')"
            )
        )


def age(engine: Engine, days: int) -> None:
    """Let what was received be so many days old."""
    with engine.begin() as connection:
        connection.execute(update(table).values(received_at=table.c.received_at - days * DAY))


def test_days_ahead_are_made_while_rows_come_in(machine: Machine) -> None:
    with machine.engine.begin() as connection:
        # The schema may be of the day before: midnight passes while tests run, too.
        partitions.create_ahead(connection)
        for day in partitions.partitioned_days(connection) - {partitions.today(connection)}:
            connection.execute(text(f"DROP TABLE chunks_{day:%Y%m%d}"))
    assert days_of(machine.engine) == [0]
    with machine.engine.begin() as busy:
        busy.execute(text("INSERT INTO chunks VALUES (now(), 'w', 0, 'j', 1, 0, '')"))
        with machine.engine.begin() as connection:
            partitions.create_ahead(connection)
            partitions.create_ahead(connection)
    assert days_of(machine.engine) == [*range(partitions.DAYS_AHEAD + 1)]


def test_old_days_are_dropped_and_the_beginnings_of_generations_stay(machine: Machine) -> None:
    machine.report(0, measured(0, 20))
    for ago in (20, 31, 40):
        add_day(machine.engine, ago)
    age(machine.engine, 31)
    Maintenance(machine.engine, 30 * DAY, Clouds([NOWHERE])).run_once()
    assert days_of(machine.engine)[0] == -20
    assert len(machine.stored()) == 0
    with machine.engine.connect() as connection:
        assert telemetry.first_iterations(connection, machine.job) == {1: 0}


def test_dropping_gives_way_to_who_reads(machine: Machine) -> None:
    add_day(machine.engine, 40)
    with machine.engine.begin() as reader:
        reader.execute(select(table.c.sequence)).all()
        with pytest.raises(Exception, match="lock timeout"), machine.engine.begin() as connection:
            partitions.drop_older_than(connection, 30 * DAY)
    assert days_of(machine.engine)[0] == -40


def test_the_day_is_counted_in_utc(machine: Machine) -> None:
    with machine.engine.connect() as connection:
        connection.execute(text("SET TimeZone = 'Pacific/Kiritimati'"))
        assert partitions.today(connection) == datetime.now(UTC).date()
