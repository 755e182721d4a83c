"""Errands: calls to a cloud for one job after the other, so that nobody else waits for a slow one.

A cloud may take minutes to answer. Whoever decides goes on meanwhile with other jobs, and comes
back to this one when its errand is over: a job has one errand at a time, so its effects keep their
order, and what an errand finds out it writes down itself, under the lease it was sent with. It says
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
Errand = tuple[Future[None], Sequence[Call], Context]


class Errands:
    """Carries errands out on a few threads; on none, at once and by whoever sends them.

    One thread sends them all. The threads are daemons: an errand that hangs keeps no process
    alive, and what it did is found out as after a crash.

    Args:
        threads: How many errands may be under way at once.
    """

    def __init__(self, threads: int = 0) -> None:
        self._threads = threads
        self._sent: dict[str, Future[None]] = {}
        self._queue: SimpleQueue[Errand | None] = SimpleQueue()
        self._heard: Call = lambda: None
        self._is_closing = False
        for number in range(threads):
            threading.Thread(target=self._work, name=f"errands-{number}", daemon=True).start()

    def tell(self, heard: Call) -> None:
        """Name what is called whenever an errand is over."""
        self._heard = heard

    def send(self, job: str, calls: Sequence[Call]) -> None:
        """Have calls made, one after the other; the first that raises is the last.

        Args:
            job: Whose errand it is; its last one must be over.
            calls: What to do.
        """
        if self._threads == 0:
            for call in calls:
                call()
        elif calls:
            if job in self._sent:
                raise ValueError(f"an errand of {job} is not over yet: ask is_over first")
            future: Future[None] = Future()
            self._sent[job] = future
            meters.ERRANDS.inc()
            self._queue.put((future, calls, copy_context()))

    def is_over(self, job: str, patience: float = 0.0) -> bool:
        """Whether a job has no errand, waiting for its end for so many seconds.

        Raises:
            Exception: What its errand raised, once.
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
            except Exception as error:  # noqa: BLE001 raised again where is_over is asked
                future.set_exception(error)
            else:
                future.set_result(None)
            meters.ERRANDS.dec()
            self._heard()
