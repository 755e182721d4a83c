"""Vitals: whether this controller can work, and how things stand, as monitoring reads it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector
from sqlalchemy import Engine, QueuePool
from sqlalchemy.exc import SQLAlchemyError

from service import meters
from service.api.enquiry import Enquiry
from service.api.gauges import Survey, gauges_of
from service.db import clock, figures, migrate, sweeps
from service.pulse import Pulse

PATIENCE = 1.0
RECONCILER, SWEEPER = PARTS = ("reconciler", "sweeper")


class Vitals:
    """What can be said about a controller without acting for any job.

    Args:
        engine: The database; it may be away.
        pulses: Of the parts of this controller that go round, by name.
        patience: Seconds to wait for the database before it counts as away.
    """

    def __init__(
        self, engine: Engine, pulses: Mapping[str, Pulse], patience: float = PATIENCE
    ) -> None:
        self.engine, self.pulses, self.patience = engine, pulses, patience
        self._revision = Enquiry(self._read_revision, kept=1.0)
        self._enquiry = Enquiry(self._survey, kept=5.0)

    def failures(self) -> tuple[str, ...]:
        """Name what keeps this controller from working; nothing when it is ready."""
        return (*self._failures_of_database(), *self._failures_of_parts())

    def scrape(self) -> bytes:
        """Return what this controller did, and how things stand, in Prometheus' text format."""
        now = CollectorRegistry()
        now.register(Gauges(self))
        return generate_latest(meters.REGISTRY) + generate_latest(now)

    def survey(self) -> Survey | None:
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
        if revision != migrate.newest():
            yield "migrations"

    def _failures_of_parts(self) -> Iterator[str]:
        for name in PARTS:
            pulse = self.pulses.get(name)
            if pulse is None or not pulse.is_alive:
                yield name

    def _read_revision(self) -> str | None:
        with self.engine.connect() as connection:
            return migrate.revision(connection)

    def _survey(self) -> Survey:
        with self.engine.connect() as connection:
            newest = next(iter(sweeps.newest(connection, 1)), None)
            return Survey(clock.ask(connection), figures.read(connection), newest)


@dataclass(frozen=True, slots=True)
class Gauges(Collector):
    """What is asked anew at each scrape."""

    vitals: Vitals

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """Yield the gauges; without a database only those of this controller itself."""
        survey = self.vitals.survey()
        yield GaugeMetricFamily(
            "scavenger_database_up",
            "1 if the database answers this controller, else 0.",
            int(survey is not None),
        )
        if (reconciler := self.vitals.pulses.get(RECONCILER)) is not None:
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
            yield from gauges_of(survey)
