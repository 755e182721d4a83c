"""Health checks: whether this controller can work, and the gauges that monitoring scrapes.

A query that may hang runs once for all that wait for it (``SingleFlight``), so that a silent
database occupies one thread.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from typing import Generic, TypeVar

from prometheus_client import generate_latest
from prometheus_client.core import GaugeMetricFamily
from sqlalchemy import Engine, QueuePool
from sqlalchemy.exc import SQLAlchemyError

from service.api.metrics import installation_gauges
from service.background import JointHeartbeat, TaskHeartbeat
from service.db import database, monitoring
from service.db.monitoring import InstallationTotals
from service.observability import metrics

ResultT = TypeVar("ResultT")


class SingleFlight(Generic[ResultT]):
    """Runs a query on a thread of its own, one at a time, and keeps the answer for a while.

    Args:
        ask: The query.
        ttl: Seconds for which an answer is valid.
        clock: Returns seconds.
    """

    def __init__(
        self, ask: Callable[[], ResultT], ttl: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._ask, self._ttl, self._clock = ask, ttl, clock
        self._lock = threading.Lock()
        self._future: Future[ResultT] | None = None
        self._started_at = 0.0

    def answer(self, timeout: float) -> ResultT:
        """Return the answer, or raise what the query raised.

        Raises:
            TimeoutError: There is no answer yet; the query goes on.
        """
        with self._lock:
            age = self._clock() - self._started_at
            if self._future is None or (self._future.done() and age >= self._ttl):
                self._future, self._started_at = Future(), self._clock()
                # A daemon: a database that hangs must not keep the controller from ending, as the
                # threads of an executor would.
                threading.Thread(target=self._run, args=(self._future,), daemon=True).start()
            future = self._future
        return future.result(timeout)

    def _run(self, future: Future[ResultT]) -> None:
        try:
            future.set_result(self._ask())
        except Exception as error:  # noqa: BLE001, raised again in each thread that waits
            future.set_exception(error)


DATABASE_TIMEOUT = 1.0  # seconds after which a silent database counts as away
RECONCILER_TASK, SWEEPER_TASK = BACKGROUND_TASKS = ("reconciler", "sweeper")


class HealthChecks:
    """Readiness and metrics of a controller.

    Args:
        engine: The database; it may be away.
        heartbeats: Of the background tasks of this controller, by name.
    """

    def __init__(
        self, engine: Engine, heartbeats: Mapping[str, TaskHeartbeat | JointHeartbeat]
    ) -> None:
        self.engine, self.heartbeats, self.timeout = engine, heartbeats, DATABASE_TIMEOUT
        self._revision = SingleFlight(self._read_revision, ttl=1.0)
        self._totals = SingleFlight(self._read_totals, ttl=5.0)

    def failures(self) -> tuple[str, ...]:
        """Name what keeps this controller from working; empty when it is ready."""
        failed = [
            name
            for name in BACKGROUND_TASKS
            if name not in self.heartbeats or not self.heartbeats[name].is_alive
        ]
        try:
            revision = self._revision.answer(self.timeout)
        except (TimeoutError, SQLAlchemyError):
            return ("database", *failed)
        is_current = revision == database.newest_revision()
        return (*failed,) if is_current else ("migrations", *failed)

    def scrape(self) -> bytes:
        """Return the metrics of process and installation in Prometheus' text format."""
        return generate_latest(metrics.REGISTRY) + metrics.render_families(self._gauges())

    def totals(self) -> InstallationTotals | None:
        """Return what the database said, at most seconds ago; None while it does not answer."""
        try:
            return self._totals.answer(self.timeout)
        except (TimeoutError, SQLAlchemyError):
            return None

    def _read_revision(self) -> str | None:
        with self.engine.connect() as connection:
            return database.applied_revision(connection)

    def _read_totals(self) -> InstallationTotals:
        with self.engine.connect() as connection:
            return monitoring.read_totals(connection)

    def _gauges(self) -> Iterator[GaugeMetricFamily]:
        """Yield the gauges that are read anew; without a database only those of this controller."""
        totals = self.totals()
        yield GaugeMetricFamily(
            "scavenger_database_up",
            "1 if the database answers this controller, else 0.",
            int(totals is not None),
        )
        if (reconciler := self.heartbeats.get(RECONCILER_TASK)) is not None:
            yield GaugeMetricFamily(
                "scavenger_loop_lag_seconds",
                "Seconds since this controller finished its last pass.",
                reconciler.lag,
            )
        if isinstance(self.engine.pool, QueuePool):
            yield GaugeMetricFamily(
                "scavenger_db_pool_in_use",
                "Connections to the database that are in use in this controller.",
                self.engine.pool.checkedout(),
            )
        if totals is not None:
            yield from installation_gauges(totals)
