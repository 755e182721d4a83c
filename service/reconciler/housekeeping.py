"""Housekeeping: makes room for what will be measured, and lets go of what nobody looks at any more.

On a thread of its own, since nothing waits for it.
"""

from __future__ import annotations

import logging
import threading
from datetime import timedelta

from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from service.clouds.provider import LAUNCH_KEY, InstanceState, Provider
from service.db import clock, partitions, vms
from service.errors import CloudError

log = logging.getLogger(__name__)

PAUSE = 3600.0
FAREWELL = 5.0
KEEP_WHOLE = timedelta(days=7)


class Housekeeping:
    """Tends the partitions, and what is left of machines, until it is stopped.

    Args:
        engine: The database.
        keep: How long measured iterations are kept, and what machines leave behind; statistics stay
            for ever.
        provider: Where the machines are.
    """

    def __init__(self, engine: Engine, keep: timedelta, provider: Provider) -> None:
        self.engine, self.keep, self.provider = engine, keep, provider
        self.stopping = threading.Event()
        self.thread = threading.Thread(target=self._run, name="housekeeping", daemon=True)

    def start(self) -> None:
        """Make sure that what is measured now can be stored, and start the thread."""
        with self.engine.begin() as connection:
            partitions.prepare(connection)
        self.thread.start()

    def stop(self) -> None:
        """End, and finish what is begun if that takes no time."""
        self.stopping.set()
        self.thread.join(FAREWELL)

    def tend(self) -> None:
        """Make partitions ahead, drop those that are past, and thin what is old."""
        with self.engine.begin() as connection:
            partitions.prepare(connection)
        with self.engine.begin() as connection:
            dropped = partitions.drop(connection, self.keep)
        if dropped:
            log.info("measured iterations are dropped up to %s", dropped[-1])
        while not self.stopping.is_set() and self._thin():
            pass
        self._forget()

    def _thin(self) -> bool:
        with self.engine.begin() as connection:
            return partitions.thin(connection, KEEP_WHOLE)

    def _forget(self) -> None:
        """Let go of machines that are gone, and whose jobs ended long ago: no key comes back."""
        gone = [one for one in self.provider.list() if one.state is InstanceState.GONE]
        with self.engine.connect() as connection:
            keys = {one.launch_key for one in gone if LAUNCH_KEY.fullmatch(one.launch_key)}
            known = vms.of_keys(connection, keys)
            before = clock.ask(connection) - self.keep
        for one in gone:
            row = known.get(one.launch_key)
            if row is not None and not row.is_alive and row.is_over_before(before):
                self.provider.forget(one.provider_id)

    def _run(self) -> None:
        while not self.stopping.is_set():
            try:
                self.tend()
            except (SQLAlchemyError, CloudError) as error:
                log.warning("no housekeeping now: %s", error)
            except Exception:  # without it a mistake would end it, and nobody would notice
                log.exception("the housekeeping failed")
            self.stopping.wait(PAUSE)
