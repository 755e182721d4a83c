"""Exchange: a background thread that joins what all ranks measured, through the job's own store.

Training appends to a queue. Twice a second each rank puts what it has into the store that
``torch.distributed`` met at, and the first rank joins it by iteration. No collective is added, no
step waits, and a row is exact however late it comes.

The same store agrees on where to stop for a restart, by causality instead of time: once every rank
is armed it looks into the store at each boundary; the first rank writes "after the next reduction"
at a boundary of its own, and nobody can pass that reduction without it.
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

from worker_agent.hooks.rows import Measured, Part, join, pack, unpack
from worker_agent.hooks.watch import Unread

log = logging.getLogger(__name__)

PERIOD = 0.5
KEPT = 120  # a rank's rounds in the store that the first rank has time to read
QUEUE = 10_000
LAST_WORDS = 2.0
POLL = 0.01
PATIENCE = timedelta(seconds=10)

WANTED, ARMED, STOP_AT, SAVED, GONE = ("wanted", "armed", "stop at", "saved", "gone")
LEAVING = "leaving"


class Exchange:
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
        on_row: Callable[[Measured], None],
        wish: Path | None,
    ) -> None:
        self.rank, self.workers, self.on_row, self.wish = rank, workers, on_row, wish
        self.met_at = store
        self.store: Store | None = None
        self.queue: deque[Unread] = deque(maxlen=QUEUE)
        self.rounds = [0] * workers
        self.parts: dict[int, dict[int, Part]] = {}
        self.is_armed = self.may_stop = False
        self.stop_at: int | None = None
        self.closing = threading.Event()
        self.thread = threading.Thread(target=self._run, name="scavenger-hooks", daemon=True)
        self.thread.start()

    def close(self) -> None:
        """Join what there is, for a moment at most, and let go of the store."""
        self.closing.set()
        self.thread.join(LAST_WORDS + 2 * PERIOD)
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
            store.set(STOP_AT, str(self.stop_at))
        elif store.check([STOP_AT]):
            self.stop_at = int(store.get(STOP_AT))

    def _part_from_others(self, store: Store) -> None:
        with suppress(RuntimeError):  # whoever served the store is gone already
            if self.rank == 0:
                store.set(SAVED, "")
                others = [f"{GONE}/{rank}" for rank in range(1, self.workers)]
                wait(lambda: store.check(others), PATIENCE.total_seconds())
            else:
                wait(lambda: store.check([SAVED]), 6 * PATIENCE.total_seconds())
                store.set(f"{GONE}/{self.rank}", "")

    # The thread.

    def _run(self) -> None:
        try:
            # Whoever holds the script's own store keeps it alive after the script let it go.
            met_at, self.met_at = self.met_at, None
            self.store = None if met_at is None else own_connection(met_at)
            del met_at
            while not self.closing.wait(PERIOD):
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
                self.on_row(join([part]))
        elif self.rank == 0:
            self._lead(self.store, fresh)
        else:
            self._follow(self.store, fresh)

    def _take(self) -> list[Part]:
        fresh = []
        while self.queue and self.queue[0].is_there():
            fresh.append(self.queue.popleft().read())
        return fresh

    def _is_wished(self) -> bool:
        return self.wish is not None and self.wish.exists()

    def _lead(self, store: Store, fresh: list[Part]) -> None:
        """As first rank, join what the others have put there, and arm all for a stop."""
        self._note(0, fresh)
        for rank in range(1, self.workers):
            while store.check([key := f"{rank}/{self.rounds[rank]}"]):
                self._note(rank, unpack(store.get(key)))
                self.rounds[rank] += 1
        if not self.is_armed and self._is_wished():
            store.set(WANTED, "")
            self.is_armed = True
        others = [f"{ARMED}/{rank}" for rank in range(1, self.workers)]
        self.may_stop = self.is_armed and store.check(others)

    def _follow(self, store: Store, fresh: list[Part]) -> None:
        """Put what this rank saw where the first rank reads it."""
        if fresh:
            mine = self.rounds[self.rank]
            put: Any = store.set  # its stub knows no bytes
            put(f"{self.rank}/{mine}", pack(fresh))
            store.delete_key(f"{self.rank}/{mine - KEPT}")
            self.rounds[self.rank] = mine + 1
        if not self.is_armed and store.check([WANTED]):
            self.is_armed = True
            store.set(f"{ARMED}/{self.rank}", "")

    def _note(self, rank: int, parts: list[Part]) -> None:
        """Keep a rank's parts; an iteration that all ranks have told of becomes a row."""
        for part in parts:
            told = self.parts.setdefault(part.iteration, {})
            told[rank] = part
            if len(told) == self.workers:
                del self.parts[part.iteration]
                self.on_row(join([told[each] for each in range(self.workers)]))
        while len(self.parts) > QUEUE:
            del self.parts[next(iter(self.parts))]

    def _take_leave(self, store: Store) -> None:
        """Say that nothing more will come; as first rank, wait a moment for what the others say."""
        store.set(f"{LEAVING}/{self.rank}", "")
        if self.rank == 0:
            everyone = [f"{LEAVING}/{rank}" for rank in range(self.workers)]
            wait(lambda: store.check(everyone), LAST_WORDS)
            self._lead(store, [])


def own_connection(store: Store) -> Store:
    """Connect once more: whoever waits in the script's own connection must not hold up ours."""
    connect: Any = store
    own: Store = connect.clone()
    own.set_timeout(PATIENCE)
    return PrefixStore("scavenger", own)


def wait(is_there: Callable[[], bool], seconds: float) -> bool:
    """Wait until something is there, at most so long; returns whether it is."""
    end = time.monotonic() + seconds
    while not (found := is_there()) and time.monotonic() < end:
        time.sleep(POLL)
    return found
