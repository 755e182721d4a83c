"""Runs cloud calls on a thread pool, one batch per job at a time.

A slow cloud delays only the job that waits for it. A call may take minutes. The reconciler goes on
with other jobs and comes back when the batch is done. Because a job has one batch at a time, its
effects keep their order. A call writes its result itself, under the lease it was submitted with.
Log context and trace are inherited from the submitter.
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

from service.observability import metrics

CloudCall = Callable[[], None]


@dataclass(frozen=True, slots=True)
class CloudBatch:
    """The cloud calls of one job.

    Attributes:
        job: Whose batch it is.
        calls: Run one after the other; the first that raises is the last.
        context: Log context and trace of the submitter.
        end: Done when the last call is; holds what a call raised.
    """

    job: str
    calls: SimpleQueue[CloudCall]
    context: Context
    end: Future[None]


class CloudExecutor:
    """Runs batches of calls on a few threads, or at once on the submitter's if there are none.

    One thread submits all batches. The executor's threads are daemons: a call that hangs keeps no
    process alive, and the next controller finds out what it did, as after a crash. Batches take
    turns, call by call.

    Args:
        threads: Number of calls that may run at once.
        name: Label of the executor in metrics and thread names.
    """

    def __init__(self, threads: int = 0, name: str = "jobs") -> None:
        self._threads = threads
        # Only the submitting thread changes it, so it needs no lock.
        self._sent: dict[str, CloudBatch] = {}
        self._queue: SimpleQueue[CloudBatch | None] = SimpleQueue()
        self._on_done: Callable[[str], object] = lambda _: None
        self._is_closing = False
        self._calling: dict[int, float] = {}
        for number in range(threads):
            work = partial(self._work, number)
            threading.Thread(target=work, name=f"{name}-{number}", daemon=True).start()
        if threads:
            metrics.PENDING_CLOUD_BATCHES.labels(name).set_function(self._under_way)
            metrics.CLOUD_CALL_AGE.labels(name).set_function(self._age)

    def call_when_done(self, on_done: Callable[[str], object]) -> None:
        self._on_done = on_done

    def submit(self, job: str, calls: Sequence[CloudCall]) -> None:
        """Submit calls that run one after the other; the first that raises is the last.

        Args:
            job: The job; its last batch must be finished.
            calls: What to run.
        """
        if self._threads == 0:
            for call in calls:
                call()
            if calls:
                self._on_done(job)
        elif calls:
            if job in self._sent:
                raise ValueError(f"{job} has an unfinished batch: ask is_finished first")
            batch = CloudBatch(job, SimpleQueue(), copy_context(), Future())
            for call in calls:
                batch.calls.put(call)
            self._sent[job] = batch
            self._queue.put(batch)

    def is_finished(self, job: str, timeout: float = 0.0) -> bool:
        """Whether a job has no batch under way, after waiting for its end for so many seconds.

        Raises:
            Exception: What a call of the batch raised, once.
        """
        batch = self._sent.get(job)
        if batch is None:
            return True
        if not wait([batch.end], timeout).done:
            return False
        del self._sent[job]
        batch.end.result()
        return True

    def forget_all_but(self, jobs: Collection[str]) -> None:
        """Forget the results of all other jobs, which no caller will ask for."""
        for job in self._sent.keys() - set(jobs):
            if self._sent[job].end.done():
                del self._sent[job]

    def close(self, timeout: float) -> None:
        """Begin no further call, and wait for the running ones for so many seconds."""
        self._is_closing = True
        for _ in range(self._threads):
            self._queue.put(None)
        wait([batch.end for batch in self._sent.values()], timeout)

    def _work(self, number: int) -> None:
        for batch in iter(self._queue.get, None):
            self._calling[number] = time.monotonic()
            try:
                if not self._is_closing:
                    batch.context.run(batch.calls.get_nowait())
            except Exception as error:  # noqa: BLE001 raised again where is_finished is asked
                batch.end.set_exception(error)
            else:
                if not (self._is_closing or batch.calls.empty()):
                    self._queue.put(batch)
                    continue
                batch.end.set_result(None)
            finally:
                del self._calling[number]
            self._on_done(batch.job)

    def _under_way(self) -> int:
        return sum(not batch.end.done() for batch in tuple(self._sent.values()))

    def _age(self) -> float:
        """Seconds since the oldest call began that has not ended."""
        now = time.monotonic()
        return max((now - began for began in tuple(self._calling.values())), default=0.0)


class CloudExecutors:
    """One executor for each cloud, so that a cloud that hangs holds no thread of another.

    One thread submits all batches. A job may have a batch under way in each of several clouds.

    Args:
        threads: Number of calls that may run at once in one cloud; 0 runs them at once.
    """

    def __init__(self, threads: int = 0) -> None:
        self._threads = threads
        self._executors: dict[str, CloudExecutor] = {}
        self._on_done: Callable[[str], object] = lambda _: None

    def call_when_done(self, on_done: Callable[[str], object]) -> None:
        """Call this with the job whenever a batch of it has ended."""
        self._on_done = on_done
        for executor in self._executors.values():
            executor.call_when_done(on_done)

    def submit(self, job: str, cloud: str, calls: Sequence[CloudCall]) -> None:
        """Submit calls to a cloud; see `CloudExecutor.submit`."""
        if cloud not in self._executors:
            self._executors[cloud] = CloudExecutor(self._threads, f"jobs-{cloud}")
            self._executors[cloud].call_when_done(self._on_done)
        self._executors[cloud].submit(job, calls)

    def is_finished(self, job: str) -> bool:
        """Whether a job has no batch under way in any cloud.

        Raises:
            Exception: What a call of a batch raised, once.
        """
        return all(executor.is_finished(job) for executor in self._executors.values())

    def forget_all_but(self, jobs: Collection[str]) -> None:
        """Forget the results of all other jobs, which no caller will ask for."""
        for executor in self._executors.values():
            executor.forget_all_but(jobs)

    def close(self, timeout: float) -> None:
        """Begin no further call, and wait for the running ones for so many seconds in all."""
        ends_at = time.monotonic() + timeout
        for executor in self._executors.values():
            executor.close(max(ends_at - time.monotonic(), 0.0))
