"""Clock: the database's time, which all controllers share, told without asking it every time.

Whoever compares moments that several computers wrote down needs one clock for all of them. It is
asked now and then; in between a controller counts seconds by a clock that nobody sets.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, Engine, func, select

Seconds = Callable[[], float]


class Clock:
    """The time of one database, as one process knows it.

    Args:
        seconds: Tells seconds since any moment, and is never set.
    """

    def __init__(self, seconds: Seconds = time.monotonic) -> None:
        self._seconds = seconds
        self._origin: datetime | None = None

    @property
    def is_set(self) -> bool:
        """Whether the database was ever asked."""
        return self._origin is not None

    def now(self) -> datetime:
        """Return the time; the database must have been asked for it once."""
        assert self._origin is not None
        return self._origin + timedelta(seconds=self._seconds())

    def compare(self, ask: Callable[[], datetime]) -> None:
        """Ask for the time, and believe what is told as far as it contradicts what is known.

        The answer was true at some moment between question and answer, so a slow one tells little.
        """
        asked = timedelta(seconds=self._seconds())
        told = ask()
        heard = timedelta(seconds=self._seconds())
        earliest, latest = told - heard, told - asked
        known = self._origin or earliest + (latest - earliest) / 2
        self._origin = min(max(known, earliest), latest)


CLOCKS: WeakKeyDictionary[Engine, Clock] = WeakKeyDictionary()


def now(engine: Engine) -> datetime:
    """Return the time of a database, which is asked for it the first time only."""
    clock = clock_of(engine)
    if not clock.is_set:
        with engine.connect() as connection:
            compare(connection)
    return clock.now()


def compare(connection: Connection) -> None:
    """Compare the clock with the database's own; to be done every few seconds."""
    clock_of(connection.engine).compare(lambda: ask(connection))


def ask(connection: Connection) -> datetime:
    """Ask the database what time it is."""
    moment: datetime = connection.execute(select(func.clock_timestamp())).scalar_one()
    return moment


def wall() -> datetime:
    """Return what this computer's own clock says, by which nothing is decided."""
    return datetime.now(UTC)


def clock_of(engine: Engine) -> Clock:
    """Return the clock of a database."""
    return CLOCKS.setdefault(engine, Clock())
