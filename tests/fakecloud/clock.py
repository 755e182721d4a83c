"""Clock: what time it is for a fake cloud, told by a test or by the computer."""

from __future__ import annotations

import threading
import time
from typing import Protocol


class Clock(Protocol):
    """Seconds since it began; it never goes back."""

    def now(self) -> float:
        """Return the seconds."""

    def advance(self, seconds: float) -> float:
        """Jump ahead; return the new time."""

    def wait(self, seconds: float) -> None:
        """Return when so many seconds have passed."""


class VirtualClock:
    """Moves only when it is told to."""

    def __init__(self) -> None:
        self._now = 0.0
        self._moved = threading.Condition()

    def now(self) -> float:
        with self._moved:
            return self._now

    def advance(self, seconds: float) -> float:
        require_ahead(seconds)
        with self._moved:
            self._now += seconds
            self._moved.notify_all()
            return self._now

    def wait(self, seconds: float) -> None:
        with self._moved:
            end = self._now + seconds
            self._moved.wait_for(lambda: self._now >= end)


class RealClock:
    """Moves as time does, and jumps when it is told to."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._moved = threading.Condition()

    def now(self) -> float:
        return time.monotonic() - self._began

    def advance(self, seconds: float) -> float:
        require_ahead(seconds)
        with self._moved:
            self._began -= seconds
            self._moved.notify_all()
        return self.now()

    def wait(self, seconds: float) -> None:
        end = self.now() + seconds
        with self._moved:
            while (left := end - self.now()) > 0:
                self._moved.wait(left)


def require_ahead(seconds: float) -> None:
    """Raise ValueError for a jump back, or to nowhere."""
    if not 0 <= seconds < float("inf"):
        raise ValueError(f"seconds must be finite and not negative, got {seconds}")
