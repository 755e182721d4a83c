"""Courier: makes the calls to a cloud, so that nobody waits for a slow one but the job it is for.

A cloud may take minutes to answer. Whoever decides goes on meanwhile with other jobs, and comes
back to this one when its calls are over: a job has one trip at a time, so its effects keep their
order, and what a trip finds out it writes down itself, under the lease it was sent with. It says
of its logs and spans what its sender would.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future, wait
from contextvars import Context, copy_context
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue

from service import meters

Call = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Trip:
    """All that one job wants of its cloud now.

    Attributes:
        calls: What to do, one after the other.
        context: What its sender would say of logs and spans.
        end: What came of it.
    """

    calls: SimpleQueue[Call]
    context: Context
    end: Future[None]


class Courier:
    """Makes calls on a few threads; on none, at once and on its sender's.

    All trips are sent by one thread. The courier's own threads are daemons: a call that hangs keeps
    no process alive, and what it did is found out as after a crash. Trips take turns, call by call.

    Args:
        threads: How many calls may be under way at once.
        name: What it is sent for, in one word.
    """

    def __init__(self, threads: int = 0, name: str = "jobs") -> None:
        self._threads = threads
        self._sent: dict[str, Trip] = {}
        self._queue: SimpleQueue[Trip | None] = SimpleQueue()
        self._heard: Call = lambda: None
        self._is_closing = False
        self._calling: dict[int, float] = {}
        for number in range(threads):
            work = partial(self._work, number)
            threading.Thread(target=work, name=f"{name}-{number}", daemon=True).start()
        if threads:
            meters.TRIPS.labels(name).set_function(self._under_way)
            meters.CALL_AGE.labels(name).set_function(self._age)

    def tell(self, heard: Call) -> None:
        """Name what is called whenever a trip is over."""
        self._heard = heard

    def send(self, job: str, calls: Sequence[Call]) -> None:
        """Have calls made, one after the other; the first that raises is the last.

        Args:
            job: Whose trip it is; it must be back from its last one.
            calls: What to do.
        """
        if self._threads == 0:
            for call in calls:
                call()
        elif calls:
            if job in self._sent:
                raise ValueError(f"{job} is not back from its last trip: ask is_back first")
            trip = Trip(SimpleQueue(), copy_context(), Future())
            for call in calls:
                trip.calls.put(call)
            self._sent[job] = trip
            self._queue.put(trip)

    def is_back(self, job: str, patience: float = 0.0) -> bool:
        """Whether a job has no trip under way, waiting for its end for so many seconds.

        Raises:
            Exception: What its trip raised, once.
        """
        trip = self._sent.get(job)
        if trip is None:
            return True
        if not wait([trip.end], patience).done:
            return False
        del self._sent[job]
        trip.end.result()
        return True

    def keep(self, jobs: Collection[str]) -> None:
        """Let go of what came of the trips of all other jobs: nobody will ask."""
        for job in self._sent.keys() - set(jobs):
            if self._sent[job].end.done():
                del self._sent[job]

    def close(self, patience: float) -> None:
        """Begin no further call, and let those that are under way end for so many seconds."""
        self._is_closing = True
        for _ in range(self._threads):
            self._queue.put(None)
        wait([trip.end for trip in self._sent.values()], patience)

    def _work(self, number: int) -> None:
        for trip in iter(self._queue.get, None):
            self._calling[number] = time.monotonic()
            try:
                if not self._is_closing:
                    trip.context.run(trip.calls.get_nowait())
            except Exception as error:  # noqa: BLE001 raised again where is_back is asked
                trip.end.set_exception(error)
            else:
                if not (self._is_closing or trip.calls.empty()):
                    self._queue.put(trip)
                    continue
                trip.end.set_result(None)
            finally:
                del self._calling[number]
            self._heard()

    def _under_way(self) -> int:
        return sum(not trip.end.done() for trip in tuple(self._sent.values()))

    def _age(self) -> float:
        """Seconds since the oldest call began that has not ended."""
        now = time.monotonic()
        return max((now - began for began in tuple(self._calling.values())), default=0.0)
