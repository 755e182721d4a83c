"""`RankAggregator`: combines what all ranks measured, through the job's own store.

Training appends to a queue. Twice a second a background thread puts this rank's steps into the
store that the script's ranks met at, and the first rank combines them by iteration. No collective
is added, no step waits, and a row is exact however late it arrives.

All ranks stop for a restart after the same gradient reduction. Once every rank has acknowledged
the request, rank 0 writes the reduction's number into the store; none can finish that reduction
without rank 0, so all read it in time.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from worker_agent.launcher.step_records import (
    MeasuredStep,
    RankStep,
    combine_ranks,
    pack_rank_steps,
    unpack_rank_steps,
)
from worker_agent.launcher.step_timer import PendingStep
from worker_agent.step_clock import MAX_ARRIVING, ArrivalQueue

log = logging.getLogger(__name__)

AGGREGATION_PERIOD = 0.5
KEPT_ROUNDS = 120  # of a rank's rounds in the store, all of which the first rank has time to read
LEAVE_TIMEOUT = 2.0
DEVICE_TIMEOUT = 1.0  # for the device to finish the last steps
STORE_POLL = 0.01
STORE_TIMEOUT = 10.0

KEY_STOP_WANTED, KEY_ARMED, KEY_STOP_AT = "wanted", "armed", "stop at"
KEY_SAVED, KEY_GONE, KEY_LEAVING = "saved", "gone", "leaving"


class SharedStore(Protocol):
    """A key-value store that all ranks reach, such as PyTorch's."""

    def set(self, key: str, value: bytes) -> None: ...

    def get(self, key: str) -> bytes:
        """Return a value that is there."""

    def check(self, keys: Sequence[str]) -> bool:
        """Whether all keys are there."""

    def delete(self, key: str) -> None:
        """Delete a key; it need not be there."""


class RankAggregator:
    """Combines the steps of all ranks into rows.

    Attributes:
        is_armed: Whether a stop was requested, so that all ranks must look for it.

    Args:
        rank: This rank of ``workers``.
        connect: Connects to the store that all ranks share; None for one rank alone. Called once,
            on the aggregator's thread.
        on_row: Takes every row on the first rank, on the aggregator's thread.
        stop_request: File whose existence requests a stop; only the first rank looks for it.
    """

    def __init__(
        self,
        rank: int,
        workers: int,
        connect: Callable[[], SharedStore] | None,
        on_row: Callable[[MeasuredStep], None],
        stop_request: Path | None,
    ) -> None:
        self.rank, self.workers, self.on_row = rank, workers, on_row
        self.stop_request, self.connect = stop_request, connect
        self.store: SharedStore | None = None
        self.queue: ArrivalQueue[PendingStep] = ArrivalQueue()
        self.rounds = [0] * workers
        self.parts: dict[int, dict[int, RankStep]] = {}
        self.is_armed = self.may_stop = False
        self.stop_at: int | None = None
        self.closing = threading.Event()
        # A daemon thread: a script that never closes its process group must still be able to exit.
        self.thread = threading.Thread(target=self._run, name="scavenger-hooks", daemon=True)
        self.thread.start()

    def close(self) -> None:
        """Combine what is queued, for a few seconds at most, and release the store."""
        self.closing.set()
        self.thread.join(LEAVE_TIMEOUT + DEVICE_TIMEOUT + 2 * AGGREGATION_PERIOD)
        if not self.thread.is_alive():
            self.store = None

    # Where to stop: called in the training thread, at boundaries.

    def is_time_to_stop(self, reductions: int) -> bool:
        """Whether all ranks stop here; reads the store only once a stop is requested."""
        if not self.is_armed:
            return False
        if self.store is None:
            return True
        if self.stop_at is None:
            if self.rank == 0 and self.may_stop:
                # No rank can pass that reduction without this one, so all ranks read the key in
                # time.
                self.stop_at = reductions + 1
                self.store.set(KEY_STOP_AT, str(self.stop_at).encode())
            elif self.store.check([KEY_STOP_AT]):
                self.stop_at = int(self.store.get(KEY_STOP_AT))
        return self.stop_at is not None and reductions >= self.stop_at

    def leave_after(self, save: Callable[[], None]) -> None:
        """Let the first rank save; it ends last, because its process may serve the store."""
        try:
            if self.rank == 0:
                save()
        finally:
            if self.store is not None:
                self._part_from_others(self.store)

    def _part_from_others(self, store: SharedStore) -> None:
        with suppress(RuntimeError):  # the process that served the store is gone already
            if self.rank == 0:
                store.set(KEY_SAVED, b"")
                others = [f"{KEY_GONE}/{rank}" for rank in range(1, self.workers)]
                wait_until(lambda: store.check(others), STORE_TIMEOUT)
            else:
                wait_until(lambda: store.check([KEY_SAVED]), 6 * STORE_TIMEOUT)
                store.set(f"{KEY_GONE}/{self.rank}", b"")

    # The thread.

    def _run(self) -> None:
        try:
            # The script's own store must not be kept alive after the script has dropped it.
            connect, self.connect = self.connect, None
            self.store = None if connect is None else connect()
            del connect
            while not self.closing.wait(AGGREGATION_PERIOD):
                self._exchange(self._take())
            self._exchange(self._take_last())
            if self.store is not None:
                self._leave(self.store)
        except Exception:
            log.exception("scavenger: rows are no longer combined; training goes on unmeasured")

    def _take(self) -> list[RankStep]:
        """Return the steps that the device has finished since the last call."""
        return [step.read() for step in self.queue.take()]

    def _take_last(self) -> list[RankStep]:
        """Return the last steps, once the script has queued all its work."""
        finished: list[RankStep] = []

        def is_all_there() -> bool:
            finished.extend(self._take())
            return not self.queue.waiting

        wait_until(is_all_there, DEVICE_TIMEOUT)
        return finished + [step.read() for step in self.queue.take_last()]

    def _exchange(self, fresh: list[RankStep]) -> None:
        if self.store is None:
            self.is_armed = self._is_stop_requested()
            for part in fresh:
                self.on_row(combine_ranks([part]))
        elif self.rank == 0:
            self._lead(self.store, fresh)
        else:
            self._follow(self.store, fresh)

    def _is_stop_requested(self) -> bool:
        return self.stop_request is not None and self.stop_request.exists()

    def _lead(self, store: SharedStore, fresh: list[RankStep]) -> None:
        """As first rank, combine what the others have put there, and arm all for a stop."""
        self._add(0, fresh)
        for rank in range(1, self.workers):
            while store.check([key := f"{rank}/{self.rounds[rank]}"]):
                self._add(rank, unpack_rank_steps(store.get(key)))
                self.rounds[rank] += 1
        if not self.is_armed and self._is_stop_requested():
            store.set(KEY_STOP_WANTED, b"")
            self.is_armed = True
        others = [f"{KEY_ARMED}/{rank}" for rank in range(1, self.workers)]
        self.may_stop = self.is_armed and store.check(others)

    def _follow(self, store: SharedStore, fresh: list[RankStep]) -> None:
        """Put what this rank saw where the first rank reads it."""
        if fresh:
            mine = self.rounds[self.rank]
            store.set(f"{self.rank}/{mine}", pack_rank_steps(fresh))
            # The store has no expiry, and a long job would fill the memory of its server.
            store.delete(f"{self.rank}/{mine - KEPT_ROUNDS}")
            self.rounds[self.rank] = mine + 1
        if not self.is_armed and store.check([KEY_STOP_WANTED]):
            self.is_armed = True
            store.set(f"{KEY_ARMED}/{self.rank}", b"")

    def _add(self, rank: int, parts: list[RankStep]) -> None:
        """Keep a rank's parts; an iteration becomes a row once all ranks have reported it."""
        for part in parts:
            known = self.parts.setdefault(part.iteration, {})
            known[rank] = part
            if len(known) == self.workers:
                del self.parts[part.iteration]
                self.on_row(combine_ranks([known[each] for each in range(self.workers)]))
        while len(self.parts) > MAX_ARRIVING:
            del self.parts[next(iter(self.parts))]

    def _leave(self, store: SharedStore) -> None:
        """Announce that nothing more will come; the first rank waits for the others' last parts."""
        store.set(f"{KEY_LEAVING}/{self.rank}", b"")
        if self.rank == 0:
            everyone = [f"{KEY_LEAVING}/{rank}" for rank in range(self.workers)]
            wait_until(lambda: store.check(everyone), LEAVE_TIMEOUT)
            self._lead(store, [])


def wait_until(is_there: Callable[[], bool], seconds: float) -> None:
    """Wait for a condition, at most so long."""
    end = time.monotonic() + seconds
    while not is_there() and time.monotonic() < end:
        time.sleep(STORE_POLL)
