"""Courier: makes the calls to a cloud, so that nobody waits for a slow one but the job it is for.

A cloud may take minutes to answer. Whoever decides goes on meanwhile with other jobs, and comes
back to this one when its calls are over: a job has one trip at a time, so its effects keep their
order, and what a trip finds out it writes down itself, under the lease it was sent with. It says
of its logs and spans what its sender would.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from contextvars import Context, copy_context
from queue import SimpleQueue

from service import meters

Call = Callable[[], None]
Trip = tuple[Future[None], Sequence[Call], Context]


class Courier:
    """Makes calls on a few threads; on none, at once and on its sender's.

    One thread sends all trips. Those of the courier are daemons: one that hangs keeps no process
    alive, and what it did is found out as after a crash.

    Args:
        threads: How many trips may be under way at once.
    """

    def __init__(self, threads: int = 0) -> None:
        self._threads = threads
        self._sent: dict[str, Future[None]] = {}
        self._queue: SimpleQueue[Trip | None] = SimpleQueue()
        self._heard: Call = lambda: None
        self._is_closing = False
        for number in range(threads):
            threading.Thread(target=self._work, name=f"courier-{number}", daemon=True).start()

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
            future: Future[None] = Future()
            self._sent[job] = future
            meters.CALLS_OPEN.inc()
            self._queue.put((future, calls, copy_context()))

    def is_back(self, job: str, patience: float = 0.0) -> bool:
        """Whether a job has no trip under way, waiting for its end for so many seconds.

        Raises:
            Exception: What its trip raised, once.
        """
        future = self._sent.get(job)
        if future is None:
            return True
        if not wait([future], patience).done:
            return False
        del self._sent[job]
        future.result()
        return True

    def close(self, patience: float) -> None:
        """Begin no further call, and let those that are under way end for so many seconds."""
        self._is_closing = True
        for _ in range(self._threads):
            self._queue.put(None)
        wait(tuple(self._sent.values()), patience)

    def _work(self) -> None:
        for future, calls, context in iter(self._queue.get, None):
            try:
                for call in calls:
                    if not self._is_closing:
                        context.run(call)
            except Exception as error:  # noqa: BLE001 raised again where is_back is asked
                future.set_exception(error)
            else:
                future.set_result(None)
            meters.CALLS_OPEN.dec()
            self._heard()
