"""The database refuses what must never be in it."""

from __future__ import annotations

import math

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Engine, text
from sqlalchemy.exc import DBAPIError

from scavenger.view import Phase
from service.db import jobs, partitions
from service.db.schema import metadata
from tests.builders import NOW, spec


def test_schema_and_migrations_say_the_same(engine: Engine) -> None:
    def is_declared(_: object, name: str | None, kind: str, *__: object) -> bool:
        return kind != "table" or not str(name).startswith(partitions.PREFIX)

    with engine.connect() as connection:
        options = {"include_object": is_declared}
        context = MigrationContext.configure(connection, opts=options)
        assert compare_metadata(context, metadata) == []


@pytest.mark.parametrize("final", [phase for phase in Phase if phase.is_final])
def test_a_final_phase_is_forever(engine: Engine, final: Phase) -> None:
    with engine.begin() as connection:
        jobs.create(connection, "job_1", spec(), NOW)
        jobs.change_outcome(connection, "job_1", phase=final, reason="over")
    with (
        pytest.raises(DBAPIError, match="cannot become training"),
        engine.begin() as connection,
    ):
        jobs.change_outcome(connection, "job_1", phase=Phase.TRAINING)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_nothing_that_is_not_finite_is_stored(engine: Engine, value: float) -> None:
    with engine.begin() as connection:
        jobs.create(connection, "job_1", spec(), NOW)
    insert = text("INSERT INTO regroups VALUES ('job_1', 1, :pause, 0, now())")
    with pytest.raises(DBAPIError, match="pause_finite"), engine.begin() as connection:
        connection.execute(insert, {"pause": value})
