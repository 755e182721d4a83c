"""`RankAggregator`: combines what all ranks measured, through the job's own store.

Training appends to a queue. A background thread puts twice a second its steps into the store
that the script's ranks met at, and the first rank combines them by iteration. No collective is
added, no step waits, and a row is exact however late it arrives.

The same store agrees on where to stop for a restart, by causality instead of time: once every
rank is armed it looks into the store at each boundary; the first rank writes "after the next
reduction" at a boundary of its own, and no rank can pass that reduction without it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

from torch._C._distributed_c10d import PrefixStore, Store

from worker_agent.launcher.step_records import (
    MeasuredStep,
    RankStep,
    combine_ranks,
    pack_rank_steps,
    unpack_rank_steps,
)
from worker_agent.launcher.step_timer import PendingStep

log = logging.getLogger(__name__)

AGGREGATION_PERIOD = 0.5
KEPT_ROUNDS = 120  # a rank's rounds in the store that the first rank has time to read
MAX_QUEUED_STEPS = 10_000
LEAVE_TIMEOUT = 2.0
STORE_POLL = 0.01
STORE_TIMEOUT = timedelta(seconds=10)

KEY_STOP_WANTED, KEY_ARMED, KEY_STOP_AT, KEY_SAVED, KEY_GONE = (
    "wanted",
    "armed",
    "stop at",
    "saved",
    "gone",
)
KEY_LEAVING = "leaving"


class RankAggregator:
    """Joins the parts of all ranks into rows.

    Attributes:
        is_armed: Whether a stop was asked for and all ranks must look for it.

    Args:
        rank: This rank of ``workers``.
        store: The store all ranks share, or None for one rank alone.
        on_row: Takes every row on the first rank, on the thread of the exchange.
        wish: File whose existence asks for a stop; only the first rank looks.
    """

    def __init__(
        self,
        rank: int,
        workers: int,
        store: Store | None,
        on_row: Callable[[MeasuredStep], None],
        wish: Path | None,
    ) -> None:
        self.rank, self.workers, self.on_row, self.wish = rank, workers, on_row, wish
        self.met_at = store
        self.store: Store | None = None
        self.queue: deque[PendingStep] = deque(maxlen=MAX_QUEUED_STEPS)
        self.rounds = [0] * workers
        self.parts: dict[int, dict[int, RankStep]] = {}
        self.is_armed = self.may_stop = False
        self.stop_at: int | None = None
        self.closing = threading.Event()
        self.thread = threading.Thread(target=self._run, name="scavenger-hooks", daemon=True)
        self.thread.start()

    def close(self) -> None:
        """Join what there is, for a moment at most, and let go of the store."""
        self.closing.set()
        self.thread.join(LEAVE_TIMEOUT + 2 * AGGREGATION_PERIOD)
        if not self.thread.is_alive():
            self.store = None

    # Where to stop: called in the training thread, at boundaries.

    def is_time_to_stop(self, reductions: int) -> bool:
        """Whether all ranks stop here; asks the store only once a stop is wanted."""
        if not self.is_armed:
            return False
        if self.store is None:
            return True
        if self.stop_at is None:
            self._look_for_stop(self.store, reductions)
        return self.stop_at is not None and reductions >= self.stop_at

    def leave_after(self, save: Callable[[], None]) -> None:
        """Let the first rank save; the others are gone from the store before it is."""
        try:
            if self.rank == 0:
                save()
        finally:
            if self.store is not None:
                self._part_from_others(self.store)

    def _look_for_stop(self, store: Store, reductions: int) -> None:
        if self.rank == 0 and self.may_stop:
            self.stop_at = reductions + 1
            store.set(KEY_STOP_AT, str(self.stop_at))
        elif store.check([KEY_STOP_AT]):
            self.stop_at = int(store.get(KEY_STOP_AT))

    def _part_from_others(self, store: Store) -> None:
        with suppress(RuntimeError):  # whoever served the store is gone already
            if self.rank == 0:
                store.set(KEY_SAVED, "")
                others = [f"{KEY_GONE}/{rank}" for rank in range(1, self.workers)]
                wait_until(lambda: store.check(others), STORE_TIMEOUT.total_seconds())
            else:
                wait_until(lambda: store.check([KEY_SAVED]), 6 * STORE_TIMEOUT.total_seconds())
                store.set(f"{KEY_GONE}/{self.rank}", "")

    # The thread.

    def _run(self) -> None:
        try:
            # Whoever holds the script's own store keeps it alive after the script let it go.
            met_at, self.met_at = self.met_at, None
            self.store = None if met_at is None else open_own_connection(met_at)
            del met_at
            while not self.closing.wait(AGGREGATION_PERIOD):
                self._turn()
            self._turn()
            if self.store is not None:
                self._take_leave(self.store)
        except Exception:
            log.exception("scavenger: rows are no longer joined; training goes on unmeasured")

    def _turn(self) -> None:
        fresh = self._take()
        if self.store is None:
            self.is_armed = self._is_wished()
            for part in fresh:
                self.on_row(combine_ranks([part]))
        elif self.rank == 0:
            self._lead(self.store, fresh)
        else:
            self._follow(self.store, fresh)

    def _take(self) -> list[RankStep]:
        fresh = []
        while self.queue and self.queue[0].is_there():
            fresh.append(self.queue.popleft().read())
        return fresh

    def _is_wished(self) -> bool:
        return self.wish is not None and self.wish.exists()

    def _lead(self, store: Store, fresh: list[RankStep]) -> None:
        """As first rank, join what the others have put there, and arm all for a stop."""
        self._note(0, fresh)
        for rank in range(1, self.workers):
            while store.check([key := f"{rank}/{self.rounds[rank]}"]):
                self._note(rank, unpack_rank_steps(store.get(key)))
                self.rounds[rank] += 1
        if not self.is_armed and self._is_wished():
            store.set(KEY_STOP_WANTED, "")
            self.is_armed = True
        others = [f"{KEY_ARMED}/{rank}" for rank in range(1, self.workers)]
        self.may_stop = self.is_armed and store.check(others)

    def _follow(self, store: Store, fresh: list[RankStep]) -> None:
        """Put what this rank saw where the first rank reads it."""
        if fresh:
            mine = self.rounds[self.rank]
            put: Any = store.set  # its stub knows no bytes
            put(f"{self.rank}/{mine}", pack_rank_steps(fresh))
            store.delete_key(f"{self.rank}/{mine - KEPT_ROUNDS}")
            self.rounds[self.rank] = mine + 1
        if not self.is_armed and store.check([KEY_STOP_WANTED]):
            self.is_armed = True
            store.set(f"{KEY_ARMED}/{self.rank}", "")

    def _note(self, rank: int, parts: list[RankStep]) -> None:
        """Keep a rank's parts; an iteration that all ranks have told of becomes a row."""
        for part in parts:
            told = self.parts.setdefault(part.iteration, {})
            told[rank] = part
            if len(told) == self.workers:
                del self.parts[part.iteration]
                self.on_row(combine_ranks([told[each] for each in range(self.workers)]))
        while len(self.parts) > MAX_QUEUED_STEPS:
            del self.parts[next(iter(self.parts))]

    def _take_leave(self, store: Store) -> None:
        """Say that nothing more will come; as first rank, wait a moment for what the others say."""
        store.set(f"{KEY_LEAVING}/{self.rank}", "")
        if self.rank == 0:
            everyone = [f"{KEY_LEAVING}/{rank}" for rank in range(self.workers)]
            wait_until(lambda: store.check(everyone), LEAVE_TIMEOUT)
            self._lead(store, [])


def open_own_connection(store: Store) -> Store:
    """Connect once more: whoever waits in the script's own connection must not hold up ours."""
    connect: Any = store
    own: Store = connect.clone()
    own.set_timeout(STORE_TIMEOUT)
    return PrefixStore("scavenger", own)


def wait_until(is_there: Callable[[], bool], seconds: float) -> bool:
    """Wait until something is there, at most so long; returns whether it is."""
    end = time.monotonic() + seconds
    while not (found := is_there()) and time.monotonic() < end:
        time.sleep(STORE_POLL)
    return found
