"""The database's time, which all controllers share, without a query for every reading.

Moments that several computers write down must come from one clock. The database is asked every few
seconds; in between the controller counts seconds with its monotonic clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, Engine, func, select

Stopwatch = Callable[[], float]


class DatabaseClock:
    """The time of one database, as one process knows it.

    Args:
        seconds: Tells seconds since any moment, and is never set.
    """

    def __init__(self, seconds: Stopwatch = time.monotonic) -> None:
        self._seconds = seconds
        self._origin: datetime | None = None

    @property
    def is_set(self) -> bool:
        return self._origin is not None

    def now(self) -> datetime:
        """Return the time; the database must have been asked for it once."""
        assert self._origin is not None
        return self._origin + timedelta(seconds=self._seconds())

    def compare(self, ask: Callable[[], datetime]) -> None:
        """Ask for the time, and move the clock only as far as the answer proves it wrong.

        The answer was true at some moment between question and answer, so a slow one tells little.
        """
        asked = timedelta(seconds=self._seconds())
        answer = ask()
        answered = timedelta(seconds=self._seconds())
        earliest, latest = answer - answered, answer - asked
        known = self._origin or earliest + (latest - earliest) / 2
        self._origin = min(max(known, earliest), latest)


DATABASE_CLOCKS: WeakKeyDictionary[Engine, DatabaseClock] = WeakKeyDictionary()


def now(engine: Engine) -> datetime:
    """Return the time of a database, which is asked for it the first time only."""
    clock = clock_of(engine)
    if not clock.is_set:
        with engine.connect() as connection:
            synchronize(connection)
    return clock.now()


def synchronize(connection: Connection) -> None:
    """Compare the clock with the database's own; to be done every few seconds."""
    clock_of(connection.engine).compare(lambda: read(connection))


def read(connection: Connection) -> datetime:
    """Ask the database what time it is."""
    moment: datetime = connection.execute(select(func.clock_timestamp())).scalar_one()
    return moment


def local_time() -> datetime:
    """Return what this computer's own clock says, by which nothing is decided."""
    return datetime.now(UTC)


def clock_of(engine: Engine) -> DatabaseClock:
    """Return the clock of a database."""
    return DATABASE_CLOCKS.setdefault(engine, DatabaseClock())
