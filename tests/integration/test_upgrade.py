"""A database of an earlier version, with jobs that run, is brought up to date and loses nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from itertools import count

import pytest
from alembic import command
from alembic.config import Config
from pydantic import TypeAdapter
from sqlalchemy import Connection, Engine, create_engine, text

from scavenger.measurement.steps import StepColumns
from service.db import jobs, telemetry
from service.db.database import MIGRATION_SCRIPTS, migrate
from service.postgres.server import EmbeddedPostgres
from tests.conftest import run
from tests.telemetry.source import measured
from tests.telemetry.stage import differences, truth

COLUMNS = TypeAdapter(StepColumns)
NUMBERS = count(1)
JOB = """
INSERT INTO jobs (id, project, name, model_key, spec, created_at)
VALUES ('j', 'default', 'j', 'm', '{}', now())
"""
BEFORE = """
INSERT INTO jobs (id, name, model_key, spec, created_at) VALUES ('j', 'j', 'm', '{}', now());
INSERT INTO vms (id, job, role, launch_key, state, price_per_hour, quantum, prepaid, intended_at,
    orders, prepaid_until)
VALUES ('w', 'j', 'worker', 'k', 'launched', 1, 0, 0, now(), 0, now());
INSERT INTO workers (worker, job, address, generation, iteration, samples, epochs, metrics,
    next_sequence, dropped, hello_at, seen_at)
VALUES ('w', 'j', 'a:1', 1, 70, 0, 0, '{}', 70, 0, now(), now());
"""


@pytest.fixture
def empty(postgres: EmbeddedPostgres) -> Iterator[Engine]:
    """A database with nothing in it."""
    name = f"upgrade{next(NUMBERS)}"
    run(postgres, f"CREATE DATABASE {name}")
    engine = create_engine(postgres.url(name))
    yield engine
    engine.dispose()
    run(postgres, f"DROP DATABASE {name} WITH (FORCE)")


def bring_to(connection: Connection, revision: str) -> None:
    config = Config()
    config.set_main_option("script_location", str(MIGRATION_SCRIPTS))
    config.attributes["connection"] = connection
    command.upgrade(config, revision)


def store(connection: Connection, sequence: int, columns: StepColumns, *without: str) -> None:
    """Store rows as version 0005 did."""
    content = COLUMNS.dump_python(columns, mode="json")
    told = {name: column for name, column in content.items() if name not in without}
    insert = text("INSERT INTO steps VALUES ('w', :sequence, 'j', 1, CAST(:columns AS jsonb))")
    body = TypeAdapter(dict).dump_json(told).decode()
    connection.execute(insert, {"sequence": sequence, "columns": body})


def test_events_go_on_from_the_numbers_they_had(empty: Engine) -> None:
    said = text(
        "INSERT INTO events (job, at, kind, message, data) VALUES ('j', now(), 'k', :said, '{}')"
    )
    with empty.begin() as connection:
        bring_to(connection, "0013")
        connection.execute(text(JOB))
        connection.execute(said, [{"said": "first"}, {"said": "second"}])
    migrate(empty)
    with empty.begin() as connection:
        connection.execute(said, {"said": "third"})
    with empty.connect() as connection:
        found = jobs.events_after(connection, "j", 0, 10)
        assert [each.message for each in found] == ["first", "second", "third"]
        assert [each.sequence for each in found][:2] == [1, 2]
        after = jobs.events_after(connection, "j", 2, 10)
    assert [each.message for each in after] == ["third"]


def test_what_running_jobs_measured_survives_the_upgrade(empty: Engine) -> None:
    old = ("mean_compute_time", "fastest_compute_time")
    parts = [measured(0, 10), measured(10, 60)]
    with empty.begin() as connection:
        bring_to(connection, "0005")
        connection.execute(text(BEFORE))
        store(connection, 0, parts[0], *old)
        store(connection, 10, parts[1])
    migrate(empty)
    with empty.connect() as connection:
        stored = telemetry.steps_of(connection, "j", 1)
        known = telemetry.statistics_of_job(connection, "j")
        rejected = connection.execute(text("SELECT rejected FROM workers")).scalar_one()
    told = {n: (*asdict(parts[0])[n], *asdict(parts[1])[n]) for n in asdict(parts[0])}
    for name in old:
        told[name] = (*parts[0].compute_time, *asdict(parts[1])[name])
    assert asdict(stored) == told
    assert rejected == 0
    for name, values in told.items():
        if name != "shards":
            figures = truth([float(x) for x in values if x is not None])
            assert differences(known[1, name], figures) == []
