"""Health checks: whether this controller can work, and the gauges that monitoring scrapes.

A query that may hang runs once for all that wait for it (``SingleFlight``), so that a silent
database occupies one thread.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Generic, TypeVar

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector
from sqlalchemy import Engine, QueuePool
from sqlalchemy.exc import SQLAlchemyError

from service.api.metrics import InstallationSurvey, installation_gauges
from service.background import TaskHeartbeat
from service.db import clock, database, monitoring, sweeps
from service.observability import metrics

ResultT = TypeVar("ResultT")


class SingleFlight(Generic[ResultT]):
    """Asks on a thread of its own, one at a time, and keeps the answer for a while.

    Args:
        ask: Finds the answer.
        kept: Seconds for which an answer is good.
        clock: Tells seconds.
    """

    def __init__(
        self, ask: Callable[[], ResultT], kept: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._ask, self._kept, self._clock = ask, kept, clock
        self._turn = threading.Lock()
        self._asked: Future[ResultT] | None = None
        self._asked_at = 0.0

    def answer(self, patience: float) -> ResultT:
        """Return what was found, or raise what went wrong.

        Raises:
            TimeoutError: There is no answer yet; the question stays asked.
        """
        with self._turn:
            if self._asked is None or self._is_old(self._asked):
                self._asked, self._asked_at = Future(), self._clock()
                threading.Thread(target=self._find, args=(self._asked,), daemon=True).start()
            asked = self._asked
        return asked.result(patience)

    def _is_old(self, asked: Future[ResultT]) -> bool:
        return asked.done() and self._clock() - self._asked_at >= self._kept

    def _find(self, asked: Future[ResultT]) -> None:
        try:
            asked.set_result(self._ask())
        except Exception as error:  # noqa: BLE001, handed on to whoever asked
            asked.set_exception(error)


DATABASE_TIMEOUT = 1.0
RECONCILER_TASK, SWEEPER_TASK = BACKGROUND_TASKS = ("reconciler", "sweeper")


class HealthChecks:
    """What can be said about a controller without acting for any job.

    Args:
        engine: The database; it may be away.
        heartbeats: Of the parts of this controller that go round, by name.
        patience: Seconds to wait for the database before it counts as away.
    """

    def __init__(
        self,
        engine: Engine,
        heartbeats: Mapping[str, TaskHeartbeat],
        patience: float = DATABASE_TIMEOUT,
    ) -> None:
        self.engine, self.heartbeats, self.patience = engine, heartbeats, patience
        self._revision = SingleFlight(self._read_revision, kept=1.0)
        self._enquiry = SingleFlight(self._survey, kept=5.0)

    def failures(self) -> tuple[str, ...]:
        """Name what keeps this controller from working; nothing when it is ready."""
        return (*self._failures_of_database(), *self._failures_of_parts())

    def scrape(self) -> bytes:
        """Return what this controller did, and how things stand, in Prometheus' text format."""
        now = CollectorRegistry()
        now.register(ScrapeCollector(self))
        return generate_latest(metrics.REGISTRY) + generate_latest(now)

    def survey(self) -> InstallationSurvey | None:
        """Return how things stand, as of a few seconds ago; None without a database."""
        try:
            return self._enquiry.answer(self.patience)
        except (TimeoutError, SQLAlchemyError):
            return None

    def _failures_of_database(self) -> Iterator[str]:
        try:
            revision = self._revision.answer(self.patience)
        except (TimeoutError, SQLAlchemyError):
            yield "database"
            return
        if revision != database.newest_revision():
            yield "migrations"

    def _failures_of_parts(self) -> Iterator[str]:
        for name in BACKGROUND_TASKS:
            heartbeat = self.heartbeats.get(name)
            if heartbeat is None or not heartbeat.is_alive:
                yield name

    def _read_revision(self) -> str | None:
        with self.engine.connect() as connection:
            return database.applied_revision(connection)

    def _survey(self) -> InstallationSurvey:
        with self.engine.connect() as connection:
            newest = next(iter(sweeps.newest(connection, 1)), None)
            return InstallationSurvey(
                clock.read(connection), monitoring.read_totals(connection), newest
            )


@dataclass(frozen=True, slots=True)
class ScrapeCollector(Collector):
    """What is asked anew at each scrape."""

    vitals: HealthChecks

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """Yield the gauges; without a database only those of this controller itself."""
        survey = self.vitals.survey()
        yield GaugeMetricFamily(
            "scavenger_database_up",
            "1 if the database answers this controller, else 0.",
            int(survey is not None),
        )
        if (reconciler := self.vitals.heartbeats.get(RECONCILER_TASK)) is not None:
            yield GaugeMetricFamily(
                "scavenger_loop_lag_seconds",
                "Seconds since this controller finished its last pass over all jobs.",
                reconciler.lag,
            )
        if isinstance(self.vitals.engine.pool, QueuePool):
            yield GaugeMetricFamily(
                "scavenger_db_pool_in_use",
                "Connections to the database that are in use in this controller.",
                self.vitals.engine.pool.checkedout(),
            )
        if survey is not None:
            yield from installation_gauges(survey)
