"""Looks into a worker's spool beside the process that writes it."""

from __future__ import annotations

import sqlite3
from contextlib import closing, suppress
from pathlib import Path

from worker_agent.telemetry.spool import ROWS_FILE


def rows_on_disk(directory: Path) -> int:
    """Return how many rows a spool holds."""
    return _ask(directory, "SELECT sum(rows) FROM reports")


def next_sequence_on_disk(directory: Path) -> int:
    """Return the number of the row after the last one that was written."""
    return _ask(directory, "SELECT following FROM stream")


def _ask(directory: Path, query: str) -> int:
    with suppress(sqlite3.OperationalError):  # it is not there yet
        address = f"file:{directory / ROWS_FILE}?mode=ro"
        with closing(sqlite3.connect(address, uri=True)) as database:
            found = database.execute(query).fetchone()
            return int(found[0] or 0) if found else 0
    return 0
