"""The database server itself: what it is and how it is set up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import Connection, column, select, table

SETTINGS = table("pg_settings", column("name"), column("setting"))
ASKED = ("server_version_num", "fsync", "full_page_writes", "synchronous_commit")


@dataclass(frozen=True, slots=True)
class Server:
    """What a database server says about itself.

    Attributes:
        version: As a number, such as 150018.
    """

    version: int
    settings: Mapping[str, str]


def describe(connection: Connection) -> Server:
    """Ask the server."""
    query = select(SETTINGS.c.name, SETTINGS.c.setting).where(SETTINGS.c.name.in_(ASKED))
    settings = {str(name): str(setting) for name, setting in connection.execute(query)}
    return Server(int(settings["server_version_num"]), settings)
