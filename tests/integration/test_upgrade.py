"""A database of an earlier version, with jobs that run, is brought up to date and loses nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, replace
from datetime import timedelta
from itertools import count

import pytest
from alembic import command
from alembic.config import Config
from pydantic import TypeAdapter
from sqlalchemy import Connection, Engine, create_engine, text

from scavenger.measurement.steps import StepColumns
from scavenger.protocol import Directive, Progress, StepReport
from service.db import directives, jobs, telemetry, vms
from service.db.database import MIGRATION_SCRIPTS, migrate
from service.db.step_arrays import to_arrays
from service.db.telemetry import NewRows
from service.postgres.server import EmbeddedPostgres
from service.reconciler.diff import VmChange, diff_machine
from tests.builders import NOW, directive
from tests.conftest import run
from tests.telemetry.source import measured

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

DIRECTIVES = text(
    "INSERT INTO directives SELECT 'j', n, CAST(:directive AS jsonb), now() "
    "FROM generate_series(1, 2) AS n"
).bindparams(directive=TypeAdapter(Directive).dump_json(directive(1, 32)).decode())


@pytest.fixture
def empty(postgres: EmbeddedPostgres) -> Iterator[Engine]:
    """A database with nothing in it."""
    name = f"upgrade{next(NUMBERS)}"
    run(postgres, f"CREATE DATABASE {name}")
    engine = create_engine(postgres.url(name))
    yield engine
    engine.dispose()
    run(postgres, f"DROP DATABASE {name} WITH (FORCE)")


def alembic_config(connection: Connection) -> Config:
    config = Config()
    config.set_main_option("script_location", str(MIGRATION_SCRIPTS))
    config.attributes["connection"] = connection
    return config


def bring_to(connection: Connection, revision: str) -> None:
    command.upgrade(alembic_config(connection), revision)


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
        begun = telemetry.first_iterations(connection, "j")
        rejected = connection.execute(text("SELECT rejected FROM workers")).scalar_one()
    told = {n: (*asdict(parts[0])[n], *asdict(parts[1])[n]) for n in asdict(parts[0])}
    for name in old:
        told[name] = (*parts[0].compute_time, *asdict(parts[1])[name])
    assert asdict(stored) == told
    assert rejected == 0
    assert begun == {1: 0}


def test_a_running_job_goes_on_after_the_upgrade_from_statistics(empty: Engine) -> None:
    """Version 0016 kept statistics of each series; 0017 keeps what the controller reads of them."""
    with empty.begin() as connection:
        bring_to(connection, "0005")
        connection.execute(text(BEFORE))
        store(connection, 0, measured(0, 10))
        bring_to(connection, "0016")
        connection.execute(text("INSERT INTO epochs VALUES ('counter', 7)"))
        connection.execute(DIRECTIVES)
        kept = connection.execute(text("SELECT min(received_at) FROM chunks")).scalar_one()
    migrate(empty)
    with empty.begin() as connection:
        assert connection.execute(text("SELECT received_at FROM chunks")).scalar_one() == kept
        assert vms.launch_counts(connection, ["counter"]) == {"counter": 7}
        fruitless = directives.published_without_iterations(connection, "j")
        assert len(fruitless) == 1, "the first directive bore iterations, the second none yet"
        rows = to_arrays(measured(70, 5))
        stands = StepReport("w", Progress(2, 75, 75, 0.1, {}))
        fresh = NewRows(70, 70, 75, 2, 0, rows, stands)
        assert telemetry.store_rows(connection, fresh, NOW) is not None
        assert telemetry.first_iterations(connection, "j") == {1: 0, 2: 70}
        assert directives.published_without_iterations(connection, "j") == ()


@pytest.mark.parametrize("state", ["intended", "ending"])
def test_a_machine_that_may_have_been_started_before_the_upgrade_stays_so(
    empty: Engine, state: str
) -> None:
    """Without its number it is no refused machine: only the lists prove that it never came."""
    row = f"""
    INSERT INTO vms (id, job, role, launch_key, state, price_per_hour, quantum, prepaid,
        intended_at, attempted_at, orders, prepaid_until)
    VALUES ('w', 'j', 'worker', 'k', '{state}', 1, 0, 0, now(), now(), 0, now())
    """
    with empty.begin() as connection:
        bring_to(connection, "0017")
        connection.execute(text(JOB))
        connection.execute(text(row))
    migrate(empty)
    with empty.connect() as connection:
        (vm,) = vms.of_job(connection, "j")
    long_ago, boot = NOW - timedelta(hours=1), timedelta(minutes=5)
    asked = replace(vm, attempted_at=long_ago, missed_at=long_ago + boot)
    found = diff_machine(asked, None, NOW, timedelta(minutes=1), boot, is_job_over=True)
    assert found is VmChange.MARK_GONE


def test_the_way_back_keeps_what_the_controller_reads(empty: Engine) -> None:
    with empty.begin() as connection:
        bring_to(connection, "0017")
        connection.execute(text(JOB))
        connection.execute(text("INSERT INTO measured_generations VALUES ('j', 3, 40)"))
        command.downgrade(alembic_config(connection), "0016")
        found = connection.execute(text("SELECT generation, lowest FROM statistics")).all()
        command.upgrade(alembic_config(connection), "head")
        assert telemetry.first_iterations(connection, "j") == {3: 40}
    assert [tuple(row) for row in found] == [(3, 40.0)]
