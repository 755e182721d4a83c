"""PassingClock: a virtual clock on which a wait makes the time pass."""

from __future__ import annotations

from datetime import datetime, timedelta

from tests.builders import NOW


class PassingClock:
    """Moves when it is told to, or when a caller waits; it counts whole microseconds.

    So a span between two moments is exact, and a machine that was paid for an hour ran for an hour.
    """

    def __init__(self) -> None:
        self._passed = timedelta(0)

    def now(self) -> float:
        return self._passed.total_seconds()

    def moment(self) -> datetime:
        """Return what a calendar shows."""
        return NOW + self._passed

    def advance(self, seconds: float) -> float:
        self._passed += timedelta(seconds=max(seconds, 0.0))
        return self.now()

    def wait(self, seconds: float) -> None:
        self.advance(seconds)
