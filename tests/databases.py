"""`DatabasePool`: empty databases with the schema in them, used again where that shows in nothing.

PostgreSQL takes 0.2 s of a core to copy a database and 0.03 s to empty one. A database gets a new
name for each test, so a process that outlived its test finds nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import count
from typing import Any

import psycopg
from sqlalchemy import Connection, text
from sqlalchemy.engine import make_url

TEMPLATE = "template"
MOST_BYTES = 4 << 20  # by which a database may have grown and be emptied all the same
END_POLL = 0.002  # seconds

# Rows of these tables change with every change of the schema, and with nothing else.
_SCHEMA = " UNION ALL ".join(
    f"SELECT count(*), max(xmin::text::bigint) FROM {catalog}"
    for catalog in (
        *("pg_class", "pg_attribute", "pg_constraint", "pg_index", "pg_trigger", "pg_proc"),
        *("pg_inherits", "pg_type", "pg_namespace", "pg_policy", "pg_db_role_setting"),
        "alembic_version",
    )
)
_EMPTY = """
SET session_replication_role = replica;
DO $$
DECLARE each record;
BEGIN
  FOR each IN SELECT oid::regclass AS name FROM pg_class
    WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace AND relname <> 'alembic_version'
  LOOP
    EXECUTE format('DELETE FROM %s', each.name);
  END LOOP;
  FOR each IN SELECT seqrelid::regclass AS name, seqstart AS first FROM pg_sequence
  LOOP
    PERFORM setval(each.name, each.first, false);
  END LOOP;
END $$
"""


class DatabasePool:
    """Gives out databases that hold the schema and no row.

    Args:
        admin: A connection to the server that commits each command by itself.
        url_of: Returns the address of a database by its name.
        prefix: What the names of databases begin with.
    """

    def __init__(
        self, admin: Connection, url_of: Callable[[str], str], prefix: str = "test"
    ) -> None:
        self.admin, self.url_of, self.prefix = admin, url_of, prefix
        self.numbers, self.spare = count(1), list[str]()
        self.schema = self._with(TEMPLATE, self._read_schema)
        self._end_connections(TEMPLATE)
        self.most_bytes = self._size(TEMPLATE) + MOST_BYTES

    def take(self) -> str:
        """Return the name of a database that was never given out by this name."""
        name = f"{self.prefix}{next(self.numbers)}"
        if self.spare:
            self._run(f"ALTER DATABASE {self.spare.pop()} RENAME TO {name}")
        else:
            self._run(f"CREATE DATABASE {name} TEMPLATE {TEMPLATE}")
        return name

    def give_back(self, name: str) -> None:
        """Empty a database, or drop it if its schema has changed or it has grown."""
        self._end_connections(name)
        if self._size(name) <= self.most_bytes and self._with(name, self._empty) == self.schema:
            self._end_connections(name)
            self.spare.append(name)
        else:
            self._run(f"DROP DATABASE {name} WITH (FORCE)")

    def _size(self, name: str) -> int:
        found: int = self._run(f"SELECT pg_database_size('{name}')").scalar_one()
        return found

    def _end_connections(self, name: str) -> None:
        """End all connections, and wait until they are gone: each would hold up a new name."""
        ended = (
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
            f" WHERE datname = '{name}' AND backend_type = 'client backend'"
        )
        while self._run(ended).scalar_one():
            time.sleep(END_POLL)

    def _empty(self, connection: psycopg.Connection[Any]) -> Any:
        connection.execute(_EMPTY)
        return self._read_schema(connection)

    def _read_schema(self, connection: psycopg.Connection[Any]) -> Any:
        return connection.execute(_SCHEMA).fetchall()

    def _with(self, name: str, act: Callable[[psycopg.Connection[Any]], Any]) -> Any:
        address = make_url(self.url_of(name)).set(drivername="postgresql")
        conninfo = address.render_as_string(hide_password=False)
        with psycopg.connect(conninfo, autocommit=True) as connection:
            return act(connection)

    def _run(self, command: str) -> Any:
        return self.admin.execute(text(command))
