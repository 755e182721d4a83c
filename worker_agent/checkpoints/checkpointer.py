"""Checkpointer: writes snapshots on a thread of its own, one at a time, and never in the way.

The session asks whether a checkpoint is due, hands a snapshot over, and goes on training. What
fails is said once per cause and tried again next time.
"""

from __future__ import annotations

import errno
import logging
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from worker_agent.checkpoints import archive
from worker_agent.checkpoints.checkpoint import Origin
from worker_agent.strategies.snapshot import Snapshot

log = logging.getLogger(__name__)

WHAT_TO_DO = {
    errno.EEXIST: "another job has its checkpoints there: give each job a directory of its own",
    errno.ENOSPC: "the disk is full: free some of it",
    errno.EDQUOT: "the disk quota is used up: free some of it",
    errno.EACCES: "this process may not write there: change the directory's owner or mode",
    errno.EPERM: "this process may not write there: change the directory's owner or mode",
    errno.EROFS: "the file system is read-only: choose another",
    errno.EFBIG: "the file is larger than this process may write: raise its limit (ulimit -f)",
}


@dataclass(frozen=True, slots=True)
class Order:
    """One snapshot that is to be written."""

    snapshot: Snapshot
    origin: Origin


class Checkpointer:
    """Keeps the newest checkpoints of one job in a directory.

    Args:
        directory: Where they are; made when the first is written.
        job: Id of the job; checkpoints of others are left alone.
        every: Seconds from one to the next.
        keep: How many are kept.
    """

    def __init__(self, directory: Path, job: str, *, every: float, keep: int = 3) -> None:
        self.directory, self.job, self.every, self.keep = directory, job, every, keep
        self.taken_at = time.monotonic()
        self.waiting: Order | None = None
        self.is_writing = False
        self.is_closed = False
        self.said: set[object] = set()
        self.news = threading.Condition()
        self.thread: threading.Thread | None = None

    def is_due(self) -> bool:
        """Whether it is time for a snapshot, and the one before is on the disk."""
        is_time = time.monotonic() - self.taken_at >= self.every
        return is_time and not self.is_writing and self.waiting is None

    def write(self, snapshot: Snapshot, generation: int) -> None:
        """Have a snapshot written soon; it takes the place of one that still waits."""
        self.taken_at = time.monotonic()
        order = Order(snapshot, Origin(self.job, generation, time.time()))
        with self.news:
            replaced, self.waiting = self.waiting, order
            self._start()
            self.news.notify_all()
        if replaced is not None:
            replaced.snapshot.release()

    def newest(self) -> Snapshot | None:
        """Return the newest intact checkpoint; None when there is none to go on from."""
        try:
            found = archive.newest(self.directory, self.job)
        except OSError as error:
            log.warning("checkpoints in %s cannot be read: %s", self.directory, error)
            return None
        return None if found is None else found[0]

    def close(self, timeout: float) -> bool:
        """Give what is being written this many seconds to end; whether it did."""
        deadline = time.monotonic() + timeout
        with self.news:
            self.is_closed = True
            self.news.notify_all()
        if self.thread is not None:
            self.thread.join(max(deadline - time.monotonic(), 0.0))
        return self.thread is None or not self.thread.is_alive()

    def _start(self) -> None:
        if self.thread is None:
            self.thread = threading.Thread(target=self._work, name="checkpoints", daemon=True)
            self.thread.start()

    def _work(self) -> None:
        while (order := self._next()) is not None:
            try:
                self._write(order)
            finally:
                order.snapshot.release()
                self.is_writing = False

    def _next(self) -> Order | None:
        """Wait for the next order; None when there will be no more."""
        with self.news:
            self.news.wait_for(lambda: self.waiting is not None or self.is_closed)
            order, self.waiting = self.waiting, None
            self.is_writing = order is not None
            return order

    def _write(self, order: Order) -> None:
        try:
            order.snapshot.wait()
            archive.write(self.directory, order.snapshot, order.origin, keep=self.keep)
        except (OSError, ValueError, MemoryError, RuntimeError) as error:
            self._say(error)
        else:
            self.said.clear()

    def _say(self, error: Exception) -> None:
        """Log a failure, once until a checkpoint succeeds."""
        cause = error.errno if isinstance(error, OSError) else str(error)
        if cause in self.said:
            return
        self.said.add(cause)
        advice = WHAT_TO_DO.get(cause, str(error)) if isinstance(cause, int) else str(error)
        log.warning(
            "no checkpoint was written to %s: %s, or set SCAVENGER_CHECKPOINTS to another place."
            " Training goes on; it is tried again in %.0f s.",
            self.directory,
            advice,
            self.every,
        )
