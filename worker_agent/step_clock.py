"""Times of steps and values that may be known late: `StepClock` and `ArrivalQueue`.

A GPU computes long after the host has queued its work, so a moment of the host says nothing about
the device. A clock therefore gives marks, whose distance is read once they are there. On a CPU
they are there at once. Hooks of ``agent run``, sessions and logged metrics all hold what is still
on its way in an `ArrivalQueue`; none of them waits.
"""

from __future__ import annotations

import time
from collections import deque
from typing import Any, Generic, Protocol, TypeVar

# A device finishes its work in order, up to what two streams of it may differ by.
LATEST_ARRIVAL = 16
MAX_ARRIVING = 10_000

Mark = Any  # a moment, as the clock that made it knows it


class StepClock(Protocol):
    """Marks the moments of training steps where they are computed.

    Attributes:
        is_late: Whether the host may be there before the moment has come.
    """

    is_late: bool

    def start(self) -> Mark:
        """Return a mark of the work that is queued next, and follow the queue it goes to."""

    def mark(self) -> Mark:
        """Return a mark after all work that was queued so far; never waits."""

    def is_there(self, mark: Mark) -> bool:
        """Whether the moment has come; never waits."""

    def seconds(self, since: Mark, until: Mark) -> float:
        """Return the seconds between two marks, both of which are there."""


class HostClock:
    """Marks moments of the host, as they are for work that the host computes itself."""

    is_late = False
    start = staticmethod(time.perf_counter)
    mark = staticmethod(time.perf_counter)

    def is_there(self, mark: Mark) -> bool:
        return True

    def seconds(self, since: Mark, until: Mark) -> float:
        seconds: float = until - since
        return seconds


class Arriving(Protocol):
    """Something that may still be on its way from a device."""

    def is_there(self) -> bool:
        """Whether it can be read without waiting."""


A = TypeVar("A", bound=Arriving)


class ArrivalQueue(Generic[A]):
    """Gives out what arrives late, in the order in which it was put in, and never waits.

    What is not there when the `LATEST_ARRIVAL`-th after it is, never will be, because its device
    has lost it; it is dropped, as is the oldest of more than `MAX_ARRIVING`.
    """

    def __init__(self) -> None:
        self.waiting: deque[A] = deque(maxlen=MAX_ARRIVING)

    def put(self, value: A) -> None:
        """Add what comes after all before; on any thread."""
        self.waiting.append(value)

    def take(self) -> list[A]:
        """Return what is there, up to the first that is not; on one thread only."""
        arrived = []
        while self.waiting:
            first = self.waiting[0]
            if first.is_there():
                arrived.append(first)
            elif not self._is_lost(first):
                break
            self.waiting.popleft()
        return arrived

    def take_last(self) -> list[A]:
        """Return all that is there, and give up the rest."""
        last = list(self.waiting)
        self.waiting.clear()
        return [each for each in last if each.is_there()]

    def _is_lost(self, first: A) -> bool:
        if len(self.waiting) <= LATEST_ARRIVAL or not self.waiting[LATEST_ARRIVAL].is_there():
            return False
        return not first.is_there()  # it may have arrived since it was asked
