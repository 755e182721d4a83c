"""The database refuses what must never be in it."""

from __future__ import annotations

import math
from datetime import timedelta

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection, Engine, TextClause, text
from sqlalchemy.exc import DBAPIError

from scavenger.schemas.jobs import JobPhase
from service.db import jobs, partitions, vms
from service.db.schema import PHASE_TRANSITIONS, VM_TRANSITIONS, metadata
from tests.builders import NOW, offer, spec


def test_schema_and_migrations_say_the_same(engine: Engine) -> None:
    def is_declared(_: object, name: str | None, kind: str, *__: object) -> bool:
        return kind != "table" or not str(name).startswith(partitions.PARTITION_PREFIX)

    with engine.connect() as connection:
        options = {"include_object": is_declared}
        context = MigrationContext.configure(connection, opts=options)
        assert compare_metadata(context, metadata) == []


@pytest.mark.parametrize("before", JobPhase)
def test_the_database_lets_a_job_become_what_the_table_says(
    engine: Engine, before: JobPhase
) -> None:
    with engine.begin() as connection:
        for number, after in enumerate(JobPhase):
            lead_to(connection, f"job_{number}", before)
            assert is_accepted(
                connection,
                text("UPDATE outcomes SET phase = :state WHERE job = :id"),
                f"job_{number}",
                after,
            ) == (after is before or after in PHASE_TRANSITIONS[before]), (before, after)


def lead_to(connection: Connection, job: str, phase: JobPhase) -> None:
    """Make a job and bring it into a phase by legal steps."""
    jobs.create(connection, job, spec(), NOW)
    for step in (JobPhase.PENDING, JobPhase.STARTING, JobPhase.PROBING, JobPhase.TRAINING, phase):
        jobs.change_outcome(connection, job, phase=step)
        if step is phase:
            return


@pytest.mark.parametrize("before", VM_TRANSITIONS)
def test_the_database_lets_a_machine_become_what_the_table_says(
    engine: Engine, before: str
) -> None:
    with engine.begin() as connection:
        jobs.create(connection, "job_1", spec(), NOW)
        for number, after in enumerate(VM_TRANSITIONS):
            name = f"job_1-w{number}"
            vms.record_intent(connection, "job_1", number, offer("1"), NOW, timedelta(seconds=9))
            change = text("UPDATE vms SET state = :state WHERE id = :id")
            connection.execute(change, {"id": name, "state": before})
            assert is_accepted(connection, change, name, after) == (
                after == before or after in VM_TRANSITIONS[before]
            ), (before, after)


def is_accepted(connection: Connection, change: TextClause, row: str, state: str) -> bool:
    """Whether the database takes a change, which is undone at once."""
    step = connection.begin_nested()
    try:
        connection.execute(change, {"id": row, "state": state})
    except DBAPIError as error:
        if "and cannot become" not in str(error) and "and cannot change" not in str(error):
            raise
        return False
    finally:
        step.rollback()
    return True


@pytest.mark.parametrize("final", [phase for phase in JobPhase if phase.is_final])
def test_nothing_of_a_job_changes_after_its_end(engine: Engine, final: JobPhase) -> None:
    with engine.begin() as connection:
        lead_to(connection, "job_1", final)
    for change in ({"phase": JobPhase.TRAINING}, {"reason": "never mind"}, {"finished_at": NOW}):
        with (
            pytest.raises(DBAPIError, match="already and cannot become"),
            engine.begin() as connection,
        ):
            jobs.change_outcome(connection, "job_1", **change)


def test_an_event_that_was_told_never_changes(engine: Engine) -> None:
    with engine.begin() as connection:
        jobs.create(connection, "job_1", spec(), NOW)
        jobs.record_event(connection, "job_1", NOW, "test", "it happened")
        assert jobs.events_after(connection, "job_1", 0, 10) == []  # not yet
    for change in ("message = 'it did not'", "sequence = DEFAULT"):
        with pytest.raises(DBAPIError, match="cannot change"), engine.begin() as connection:
            connection.execute(text(f"UPDATE events SET {change}"))
    with engine.connect() as connection:
        assert [each.message for each in jobs.events_after(connection, "job_1", 0, 10)] == [
            "it happened"
        ]


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_nothing_that_is_not_finite_is_stored(engine: Engine, value: float) -> None:
    with engine.begin() as connection:
        jobs.create(connection, "job_1", spec(), NOW)
    insert = text("INSERT INTO regroups VALUES ('job_1', 1, :pause, 0, now())")
    with pytest.raises(DBAPIError, match="pause_finite"), engine.begin() as connection:
        connection.execute(insert, {"pause": value})
