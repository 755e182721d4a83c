"""`DeviceClock`: times of what a GPU computes, by events in its stream; the host never waits.

An event is recorded where the host clock would be read. The device notes the time when its stream
gets there, and the host reads it some steps later. Waiting for it would empty the queue that keeps
the device at work.

Only `make_clock` and `event_pool` know PyTorch's events; all else works with anything that records,
tells whether it has happened, and measures the time between two.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Protocol

import torch
from torch import Tensor

from worker_agent.step_clock import HostClock, StepClock

MILLISECONDS = 1000  # in a second


class DeviceEvent(Protocol):
    """A moment in a stream of a device, as ``torch.cuda.Event`` is."""

    def record(self, stream: Any) -> None:
        """Happen when the stream has done what it holds; a former moment is forgotten."""

    def query(self) -> bool:
        """Whether it has happened; raises RuntimeError if the device has failed."""

    def elapsed_time(self, end_event: Any) -> float:
        """Return the milliseconds to a later event; both have happened."""


class EventPool:
    """Events of one device, used again once no mark is left of them.

    Args:
        make_event: Returns a new event.
        current_stream: Returns the stream that this thread queues work to.
    """

    def __init__(
        self, make_event: Callable[[], DeviceEvent], current_stream: Callable[[], Any]
    ) -> None:
        self.make_event, self.current_stream = make_event, current_stream
        self.spare: list[DeviceEvent] = []
        # A compiled model would take the events of its forward hooks into its graph.
        untraced: Any = torch.compiler.disable
        self.record: Callable[..., DeviceMark] = untraced(self._record)

    def _record(self, stream: Any = None) -> DeviceMark:
        """Record an event in a stream; by default, in the current one."""
        try:
            event = self.spare.pop()
        except IndexError:
            event = self.make_event()
        event.record(self.current_stream() if stream is None else stream)
        return DeviceMark(event, self.spare)


class DeviceMark:
    """A recorded event, which goes back to its pool with the last reference to this mark."""

    __slots__ = ("event", "has_come", "spare")

    def __init__(self, event: DeviceEvent, spare: list[DeviceEvent]) -> None:
        self.event, self.spare, self.has_come = event, spare, False

    def is_there(self) -> bool:
        if not self.has_come:
            try:
                self.has_come = self.event.query()
            except RuntimeError:  # the script gets the same error, and ends by it
                return False
        return self.has_come

    def __del__(self) -> None:
        self.spare.append(self.event)


class DeviceClock:
    """A `StepClock` of one device.

    A step is followed in the stream that its forward pass began in, because communication has
    streams of its own: the step waits for it only where its own stream does.
    """

    is_late = True

    def __init__(self, events: EventPool) -> None:
        self.events = events
        self.stream: Any = None

    def start(self) -> DeviceMark:
        self.stream = self.events.current_stream()
        return self.mark()

    def mark(self) -> DeviceMark:
        return self.events.record(self.stream)

    def is_there(self, mark: DeviceMark) -> bool:
        return mark.is_there()

    def seconds(self, since: DeviceMark, until: DeviceMark) -> float:
        return since.event.elapsed_time(until.event) / MILLISECONDS


class DeviceValues:
    """Values on their way from their device to the host, queued behind what computes them.

    Args:
        values: Some numbers in one tensor.
    """

    def __init__(self, values: Tensor) -> None:
        # PyTorch puts this copy into pinned memory: into other memory it would wait.
        self._values = values.detach().to("cpu", non_blocking=True)
        events = event_pool(values.device)
        self._copied = None if events is None else events.record()

    def is_there(self) -> bool:
        return self._copied is None or self._copied.is_there()

    def read(self) -> list[float]:
        """Return the numbers, which are there."""
        values: list[float] = self._values.reshape(-1).tolist()
        return values

    def __float__(self) -> float:
        (value,) = self.read()
        return value


def send_to_host(value: Tensor) -> Tensor | DeviceValues:
    """Return a number that ``float()`` reads later, of a tensor without its graph."""
    is_here = event_pool(value.device) is None or value.numel() != 1
    return value.detach() if is_here else DeviceValues(value)


HOST_CLOCK = HostClock()


def make_clock(device: torch.device) -> StepClock:
    """Return a clock for what this device computes; the host's for a CPU."""
    events = event_pool(device)
    return HOST_CLOCK if events is None else DeviceClock(events)


@cache
def event_pool(device: torch.device) -> EventPool | None:
    """Return the events of a device; None where the host computes, or there are no such events."""
    if device.type == "cpu":
        return None
    module: Any = torch.get_device_module(device)
    if not hasattr(module, "Event") or not hasattr(module, "current_stream"):
        return None
    return EventPool(
        lambda: module.Event(enable_timing=True), lambda: module.current_stream(device)
    )
