"""Brings the schema of a database up to date when a controller starts."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, text

import migrations

SCRIPTS = Path(migrations.__file__).parent
LOCK = 0x5CA7E26E  # any number, as long as nobody else takes it


def migrate(engine: Engine, scripts: Path = SCRIPTS) -> None:
    """Apply every revision the database does not have yet, all of them or none.

    Controllers that start together take turns; who comes later finds nothing left to do.

    Args:
        engine: The database; its role must be allowed to create tables.
        scripts: Directory with ``env.py`` and ``versions``.
    """
    config = Config()
    config.set_main_option("script_location", str(scripts).replace("%", "%%"))
    with engine.begin() as connection:
        connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": LOCK})
        config.attributes["connection"] = connection
        command.upgrade(config, "head")


@cache
def newest(scripts: Path = SCRIPTS) -> str | None:
    """Return the newest revision this controller knows."""
    return ScriptDirectory(str(scripts)).get_current_head()


def revision(connection: Connection) -> str | None:
    """Return the revision a database has."""
    return MigrationContext.configure(connection).get_current_revision()
