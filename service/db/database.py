"""Connections to the database, its migrations, and what its server says about itself.

Time-outs are short, so that a database that does not answer delays no thread for long. A controller
may hang, or its computer sleep, in the middle of a transaction that holds rows another controller
needs; the server ends such a transaction.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, column, create_engine, exc, select, table, text

import migrations

# What is raised where the database is away, or has hung up: the same may be asked again soon.
DATABASE_AWAY = (exc.OperationalError, exc.InterfaceError, exc.InternalError, exc.TimeoutError)
POOL_TIMEOUT = 5.0
IDLE_TRANSACTION_TIMEOUT = timedelta(seconds=10)
# A database that is silent is away: Linux itself would wait for a quarter of an hour.
CONNECTION_TIMEOUTS = {
    "connect_timeout": 5,
    "keepalives": 1,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
}


def open_pool(url: str, silence: timedelta = IDLE_TRANSACTION_TIMEOUT) -> Engine:
    """Return an engine for a database that may be away; nothing is connected yet.

    Args:
        url: The database.
        silence: How long a transaction may wait for its controller before it is rolled back.
    """
    idle = f"-c idle_in_transaction_session_timeout={silence // timedelta(milliseconds=1)}"
    return create_engine(
        url,
        pool_size=10,
        max_overflow=20,
        pool_pre_ping=True,
        pool_timeout=POOL_TIMEOUT,
        hide_parameters=True,
        connect_args={"options": idle, **CONNECTION_TIMEOUTS},
    )


MIGRATION_SCRIPTS = Path(migrations.__file__).parent
MIGRATION_LOCK = 0x5CA7E26E  # any number that no other lock has


def migrate(engine: Engine, scripts: Path = MIGRATION_SCRIPTS) -> None:
    """Apply every revision the database does not have yet, all of them or none.

    Controllers that start together take turns; who comes later finds nothing left to do.

    Args:
        engine: The database; its role must be allowed to create tables.
        scripts: Directory with ``env.py`` and ``versions``.
    """
    config = Config()
    config.set_main_option("script_location", str(scripts).replace("%", "%%"))
    with engine.begin() as connection:
        connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": MIGRATION_LOCK})
        config.attributes["connection"] = connection
        command.upgrade(config, "head")


@cache
def newest_revision() -> str | None:
    """Return the newest revision this controller knows."""
    return ScriptDirectory(str(MIGRATION_SCRIPTS)).get_current_head()


def applied_revision(connection: Connection) -> str | None:
    """Return the revision a database has."""
    return MigrationContext.configure(connection).get_current_revision()


PG_SETTINGS = table("pg_settings", column("name"), column("setting"))
REPORTED_SETTINGS = ("server_version_num", "fsync", "full_page_writes", "synchronous_commit")


@dataclass(frozen=True, slots=True)
class PostgresServer:
    """What a database server says about itself.

    Attributes:
        version: As a number, such as 150018.
    """

    version: int
    settings: Mapping[str, str]


def describe_server(connection: Connection) -> PostgresServer:
    """Ask the server."""
    query = select(PG_SETTINGS.c.name, PG_SETTINGS.c.setting).where(
        PG_SETTINGS.c.name.in_(REPORTED_SETTINGS)
    )
    settings = {str(name): str(setting) for name, setting in connection.execute(query)}
    return PostgresServer(int(settings["server_version_num"]), settings)
