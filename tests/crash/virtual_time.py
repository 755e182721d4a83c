"""Virtual time of a database: what SQL calls now is what a test says, on the connections made here.

Functions of the same names stand before Postgres's own in the search path.
"""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import URL, Connection, Engine, create_engine, text

PATH = "-c search_path=virtual,pg_catalog,public -c synchronous_commit=off"
NAMES = ("now", "clock_timestamp", "statement_timestamp", "transaction_timestamp")
STAMPED = (
    "SELECT table_name, column_name FROM information_schema.columns WHERE column_default = 'now()'"
)


def install(engine: Engine) -> None:
    """Give a database a clock that only moves when it is set."""
    install_clock(engine)
    with engine.begin() as connection:
        # A default remembers which function it meant, with any search path.
        for table, column in connection.execute(text(STAMPED)).all():
            connection.execute(
                text(f"ALTER TABLE {table} ALTER {column} SET DEFAULT virtual.now()")
            )


def install_clock(engine: Engine) -> None:
    """Give a database a clock for the connections made here; defaults of columns know it not."""
    with engine.begin() as connection:
        connection.execute(text("CREATE SCHEMA virtual"))
        connection.execute(text("CREATE TABLE virtual.clock (at timestamptz NOT NULL)"))
        connection.execute(text("INSERT INTO virtual.clock VALUES ('2026-01-01')"))
        for name in NAMES:
            connection.execute(
                text(
                    f"CREATE FUNCTION virtual.{name}() RETURNS timestamptz LANGUAGE sql "
                    "VOLATILE AS 'SELECT at FROM virtual.clock'"
                )
            )


def connect(url: URL | str) -> Engine:
    """Connect to a database, in its virtual time; what it says is written need not be on disk."""
    return create_engine(url, connect_args={"options": PATH})


def set_clock(connection: Connection, now: datetime) -> None:
    """Say what time it is."""
    connection.execute(text("UPDATE virtual.clock SET at = :now"), {"now": now})
