"""What one test leaves in its database no other test sees."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest
from sqlalchemy import Connection, create_engine, text
from sqlalchemy.pool import NullPool

from service.postgres.server import EmbeddedPostgres
from tests.databases import DatabasePool

ADD = "INSERT INTO sweeps (cloud, at, ended) VALUES ('local', now(), 0)"
NUMBERS = "SELECT coalesce(array_agg(number), '{}') FROM sweeps"


@pytest.fixture
def pool(
    postgres: EmbeddedPostgres, admin: Connection, request: pytest.FixtureRequest
) -> Iterator[DatabasePool]:
    pool = DatabasePool(admin, postgres.url, prefix=f"pooled{abs(hash(request.node.name))}_")
    yield pool
    for name in pool.spare:
        admin.execute(text(f"DROP DATABASE {name} WITH (FORCE)"))


def use(postgres: EmbeddedPostgres, name: str, *commands: str) -> object:
    """Run commands; returns the row of the last one, if it has any."""
    engine = create_engine(postgres.url(name), poolclass=NullPool)
    with engine.begin() as connection:
        results = [connection.execute(text(command)) for command in commands]
        return tuple(results[-1].one()) if results[-1].returns_rows else None


def test_rows_and_numbers_are_gone(postgres: EmbeddedPostgres, pool: DatabasePool) -> None:
    first = pool.take()
    assert use(postgres, first, ADD, ADD, NUMBERS) == ([1, 2],)
    pool.give_back(first)
    assert pool.spare == [first]
    second = pool.take()
    assert use(postgres, second, ADD, NUMBERS) == ([1],)
    pool.give_back(second)


@pytest.mark.parametrize(
    "change",
    [
        "ALTER TABLE sweeps ADD COLUMN more text",
        "CREATE INDEX more ON sweeps (at)",
        "DROP TABLE regroups",
        "UPDATE alembic_version SET version_num = '0001'",
        "CREATE TABLE chunks_more PARTITION OF chunks FOR VALUES FROM ('2001-01-01')"
        " TO ('2001-01-02')",
    ],
)
def test_a_database_whose_schema_was_changed_is_not_used_again(
    postgres: EmbeddedPostgres, pool: DatabasePool, change: str
) -> None:
    name = pool.take()
    use(postgres, name, change)
    pool.give_back(name)
    assert pool.spare == []


def test_a_process_that_outlived_its_test_is_cut_off(
    postgres: EmbeddedPostgres, pool: DatabasePool
) -> None:
    name = pool.take()
    engine = create_engine(postgres.url(name))
    with engine.connect() as connection:
        connection.execute(text(ADD))
        pool.give_back(name)
        other = pool.take()
        assert use(postgres, other, NUMBERS) == ([],)
        with pytest.raises(psycopg.OperationalError):
            connection.connection.dbapi_connection.execute("SELECT 1")  # type: ignore[union-attr]
        connection.invalidate()
    engine.dispose()
    pool.give_back(other)
