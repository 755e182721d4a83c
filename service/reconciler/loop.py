"""The loop: one pass over all jobs whenever there is news, and now and then anyway.

One controller at a time reconciles, held by an advisory lock; a job whose tick fails rests and is
tried again, and the others go on.
"""

from __future__ import annotations

import logging
import threading
import time
from datetime import UTC, datetime

from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import InterfaceError, OperationalError, SQLAlchemyError

from service.db import jobs
from service.reconciler.tick import Reconciler

log = logging.getLogger(__name__)

INTERVAL = 0.5
REST = 5.0
MOST_TICKS = 20
LOCK = 0x5CA7E26F


class Loop:
    """Runs ticks on a thread of its own until it is stopped."""

    def __init__(self, reconciler: Reconciler) -> None:
        self.reconciler = reconciler
        self.engine: Engine = reconciler.engine
        self.news = threading.Event()
        self.is_stopping = False
        self.resting: dict[str, float] = {}
        self.said: dict[str, str] = {}
        self.thread = threading.Thread(target=self._run, name="reconciler")

    def start(self) -> None:
        """Start the thread."""
        self.thread.start()

    def stop(self) -> None:
        """Finish the running tick and end; machines and training go on."""
        self.is_stopping = True
        self.news.set()
        self.thread.join()

    def nudge(self) -> None:
        """Look at all jobs soon."""
        self.news.set()

    def _run(self) -> None:
        while not self.is_stopping:
            try:
                # A connection of its own: the lock goes when it does, never back into the pool.
                with self.engine.connect() as connection:
                    connection.detach()
                    self._reconcile_while_held(connection)
            except SQLAlchemyError as error:
                log.warning("the database does not answer, looking again soon: %s", error)
                self._wait()

    def _wait(self) -> None:
        self.news.wait(INTERVAL)
        self.news.clear()

    def _reconcile_while_held(self, connection: Connection) -> None:
        """Make passes as long as this controller holds the lock."""
        held = text("SELECT pg_try_advisory_lock(:lock)")
        is_held = connection.execute(held, {"lock": LOCK}).scalar()
        connection.commit()
        while is_held and not self.is_stopping:
            self._pass(connection)
            self._wait()
        self._wait()

    def _pass(self, connection: Connection) -> None:
        waiting = jobs.needing_attention(connection)
        connection.commit()
        for job in waiting:
            if self.resting.get(job, 0.0) <= time.monotonic() and not self.is_stopping:
                self._attend(job)

    def _attend(self, job: str) -> None:
        """Tick until there is nothing to do; a failing job rests, the others go on."""
        try:
            for _ in range(MOST_TICKS):
                said = self.reconciler.tick(job, datetime.now(UTC))
                if said == self.said.get(job):
                    return
                self.said[job] = said
                log.info("%s: %s", job, said)
        except (OperationalError, InterfaceError):
            raise
        except Exception:
            self.resting[job] = time.monotonic() + REST
            log.exception("%s: tick failed, resting for %.0f s", job, REST)
