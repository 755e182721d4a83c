"""A device that computes behind its host: streams, and events that happen when a stream gets there.

It obeys the contract of ``torch.cuda.Event`` as far as the agent may use it. There is no
``synchronize``: a host that waited would fail.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import torch

from worker_agent.pytorch import device_clock
from worker_agent.pytorch.device_clock import EventPool


class FakeStream:
    """Does what it is given in order, when it is told to.

    Attributes:
        now: Milliseconds on the device.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self.queued: deque[tuple[FakeEvent, int] | float] = deque()

    def compute(self, milliseconds: float) -> None:
        """Queue work."""
        self.queued.append(milliseconds)

    def advance(self, items: int) -> None:
        """Do the next items."""
        for _ in range(min(items, len(self.queued))):
            item = self.queued.popleft()
            if isinstance(item, float):
                self.now += item
            else:
                event, turn = item
                event.happens(turn, self.now)


class FakeEvent:
    """An event of a stream; one that is lost never happens.

    Attributes:
        queries: How often the host has asked.
    """

    def __init__(self) -> None:
        self.turn = self.queries = 0
        self.at: float | None = None
        self.is_lost = False

    def record(self, stream: FakeStream) -> None:
        self.turn, self.at, self.is_lost = self.turn + 1, None, False
        stream.queued.append((self, self.turn))

    def happens(self, turn: int, at: float) -> None:
        if turn == self.turn and not self.is_lost:
            self.at = at

    def query(self) -> bool:
        self.queries += 1
        return self.at is not None

    def elapsed_time(self, end_event: FakeEvent) -> float:
        if self.at is None or end_event.at is None:
            raise RuntimeError("an event was read before it has happened")
        return end_event.at - self.at


class FakeDevice:
    """One stream and its events.

    Attributes:
        events: All that were made.
    """

    def __init__(self) -> None:
        self.stream = FakeStream()
        self.events: list[FakeEvent] = []
        self.pool = EventPool(self._make, lambda: self.stream)

    def _make(self) -> FakeEvent:
        self.events.append(FakeEvent())
        return self.events[-1]


class LaggingStream(FakeStream):
    """Does an item once some more were queued; each event takes a second."""

    def __init__(self, lag: int) -> None:
        super().__init__()
        self.queued = _Lagging(self, lag)


class _Lagging(deque):  # type: ignore[type-arg]
    def __init__(self, stream: LaggingStream, lag: int) -> None:
        super().__init__()
        self.stream, self.lag = stream, lag

    def append(self, item: tuple[FakeEvent, int] | float) -> None:
        super().append(item)
        while len(self) > self.lag:
            self.stream.now += 1000.0
            self.stream.advance(1)


@contextmanager
def lagging_devices(lag: int) -> Iterator[None]:
    """Let every thread of this process train as on a device of its own, so many events behind."""
    streams = threading.local()

    def current_stream() -> LaggingStream:
        if not hasattr(streams, "own"):
            streams.own = LaggingStream(lag)
        stream: LaggingStream = streams.own
        return stream

    pool = EventPool(FakeEvent, current_stream)

    def event_pool(_: torch.device) -> EventPool:
        return pool

    with patch.object(device_clock, "event_pool", event_pool):
        yield
