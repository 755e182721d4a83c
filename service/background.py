"""Background work: periodic tasks, notifications between controllers, and maintenance.

Each task runs on a thread of its own. Notifications travel by LISTEN and NOTIFY: the transaction
that changes a job notifies them (`jobs.notify_job_changed`), a trigger one that records events, and
all controllers hear it once it is committed.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import repeat

import psycopg
from sqlalchemy import URL, Engine
from sqlalchemy.exc import SQLAlchemyError

from scavenger.schemas.prices import PriceView
from service.clouds.clouds import Clouds
from service.clouds.provider import LAUNCH_KEY_PATTERN, InstanceState, PriceSource, Provider
from service.db import clock, log_lines, packages, partitions, prices, sessions, vms, webhooks
from service.db.database import CONNECTION_TIMEOUTS
from service.db.jobs import EVENTS_CHANNEL, JOB_CHANGES_CHANNEL, notify_job_changed
from service.errors import CloudError, NotificationsUndelivered, UnknownPrice
from service.offers import SeenPrice

log = logging.getLogger(__name__)

RECONNECT_PAUSE = 0.5
STOP_CHECK_INTERVAL = 0.5
DELIVERY_TIMEOUT = 10.0
NO_JOB = ""  # announced to find out whether announcements arrive
MAINTENANCE_INTERVAL = 3600.0
PRICE_INTERVAL = 600.0
# A change of a spot price may be told minutes after it: later prices are not certain yet.
PRICE_DELAY = timedelta(minutes=5)
MAINTENANCE_STOP_TIMEOUT = 5.0


class TaskHeartbeat:
    """Tells when a periodic task last finished a round.

    Args:
        stale_after: Seconds after which a task without a beat counts as stuck.
        clock: Returns seconds.
    """

    def __init__(self, stale_after: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._stale_after, self._clock = stale_after, clock
        self._beaten_at = clock()

    def beat(self) -> None:
        """Note that a round was finished."""
        self._beaten_at = self._clock()

    @property
    def lag(self) -> float:
        """Seconds since the last round was finished, or since the start."""
        return self._clock() - self._beaten_at

    @property
    def is_alive(self) -> bool:
        """Whether the last round was finished recently."""
        return self.lag < self._stale_after


@dataclass(frozen=True, slots=True)
class JointHeartbeat:
    """The heartbeat of several tasks that do the same for different clouds."""

    heartbeats: Sequence[TaskHeartbeat]

    @property
    def lag(self) -> float:
        """Seconds since the slowest task finished a round."""
        return max(each.lag for each in self.heartbeats)

    @property
    def is_alive(self) -> bool:
        """Whether every task finished a round recently."""
        return all(each.is_alive for each in self.heartbeats)


class Periodic:
    """Repeats a piece of work on a thread of its own until it is stopped.

    A round that fails is logged, and the next one starts clean.

    Args:
        name: Name of the thread, and of the task in log lines.
        work: Does one round.
        pauses: Seconds after each round; ``wake`` cuts a pause short.
        stale_after: Seconds without a beat after which the task counts as stuck.
        stop_timeout: Seconds that ``stop`` waits for the running round. A round that takes longer
            keeps no process alive. None waits for its end.
        on_failure: Called when a round fails, which then counts as a beat all the same. Without
            it only a round that succeeded does.
    """

    def __init__(
        self,
        name: str,
        work: Callable[[], object],
        pauses: Iterable[float],
        *,
        stale_after: float = math.inf,
        stop_timeout: float | None = None,
        on_failure: Callable[[], object] | None = None,
    ) -> None:
        self.name, self.work, self.pauses = name, work, pauses
        self.wake_event = threading.Event()
        self.is_stopping = False
        self.heartbeat = TaskHeartbeat(stale_after)
        self._stop_timeout, self._on_failure = stop_timeout, on_failure
        self.thread = threading.Thread(target=self.run, name=name, daemon=stop_timeout is not None)

    def start(self) -> None:
        """Start the thread."""
        self.thread.start()

    def stop(self) -> None:
        """Begin no further round, and wait for the running one as long as the task allows."""
        self.is_stopping = True
        self.wake_event.set()
        self.thread.join(self._stop_timeout)

    def wake(self) -> None:
        """Begin the next round now."""
        self.wake_event.set()

    def run(self) -> None:
        """Do rounds until the task is stopped."""
        for pause in self.pauses:
            if self.is_stopping:
                return
            self.attempt()
            self.wake_event.wait(pause)
            self.wake_event.clear()

    def attempt(self) -> None:
        """Do one round and survive its failure."""
        try:
            self.work()
        except SQLAlchemyError as error:
            log.warning("%s: the database does not answer, trying again soon: %s", self.name, error)
        except CloudError as error:
            log.warning("%s: the cloud does not answer, trying again soon: %s", self.name, error)
        except Exception:  # an unforeseen error must not end the thread: its task would just stop
            log.exception("%s: the round failed, trying again soon", self.name)
        else:
            return self.heartbeat.beat()
        if self._on_failure is not None:
            self._on_failure()
            self.heartbeat.beat()
        return None


class PgListener:
    """Hears of which jobs there is news, over one connection, whichever controller wrote it.

    Args:
        url: The database. The connection is none of a pool's, as it waits most of the time.
        on_job_changed: Called with the job of which there is news.
        on_reconnect: Called after every reconnection: news of any job may have been missed.
        on_event: Called when there are new events.
    """

    def __init__(
        self,
        url: URL,
        on_job_changed: Callable[[str], object],
        on_reconnect: Callable[[], object],
        on_event: Callable[[], object] = lambda: None,
    ) -> None:
        # It never sends anything, so only keepalives find out that the database is gone.
        plain = url.set(drivername="postgresql").update_query_dict(
            {name: str(value) for name, value in CONNECTION_TIMEOUTS.items()}
        )
        self._address = plain.render_as_string(hide_password=False)
        self._on_job_changed, self._on_reconnect = on_job_changed, on_reconnect
        self._on_event = on_event
        self._has_heard = threading.Event()
        self._periodic = Periodic("listener", self._connect, repeat(RECONNECT_PAUSE))
        self.stop = self._periodic.stop

    def start(self) -> None:
        """Start the thread."""
        self._periodic.start()

    def check_delivery(self, engine: Engine, timeout: float = DELIVERY_TIMEOUT) -> None:
        """Make sure that news of the controller's own transactions is heard.

        Raises:
            NotificationsUndelivered: It is not. Jobs would rest for as long as an hour while there
                is news of them.
        """
        ends_at = time.monotonic() + timeout
        while not self._has_heard.wait(RECONNECT_PAUSE):
            if time.monotonic() > ends_at:
                raise NotificationsUndelivered(
                    "the database delivers no notifications (LISTEN and NOTIFY), by which "
                    "controllers hear of new jobs and reports: in --database-url name Postgres "
                    "itself, or a proxy that pools by session, not by transaction"
                )
            with engine.begin() as connection:
                notify_job_changed(connection, NO_JOB)

    def _connect(self) -> None:
        try:
            with psycopg.connect(self._address, autocommit=True) as connection:
                connection.execute(f"LISTEN {JOB_CHANGES_CHANNEL}; LISTEN {EVENTS_CHANNEL}")
                self._on_reconnect()
                while not self._periodic.is_stopping:
                    for news in connection.notifies(timeout=STOP_CHECK_INTERVAL):
                        self._has_heard.set()
                        if news.channel == EVENTS_CHANNEL:
                            self._on_event()
                        elif news.payload != NO_JOB:
                            self._on_job_changed(news.payload)
        except psycopg.Error as error:
            log.info("notification connection lost, reconnecting: %s", error)


class SpotPriceWatch:
    """Looks up what spot machines cost, so that the ledger books what the cloud bills.

    A look makes prices certain up to a few minutes before it. From then on a machine is booked at
    the price seen last, and reserved at the most that it may cost. What its disk and public address
    cost is added from the price book.

    Args:
        engine: The database.
        clouds: Where the machines are.
    """

    def __init__(self, engine: Engine, clouds: Clouds) -> None:
        self.engine, self.clouds = engine, clouds
        self.periodic = Periodic(
            "spot prices",
            self.look,
            repeat(PRICE_INTERVAL),
            stop_timeout=MAINTENANCE_STOP_TIMEOUT,
        )

    def look(self) -> None:
        """Look once, for every spot machine whose price is not certain up to its end."""
        with self.engine.connect() as connection:
            wanted = vms.spot_to_look_up(connection)
            book = prices.read_price_book(connection, self.clouds.priced_regions)
        for vm, since in wanted:
            if vm.cloud not in self.clouds:
                continue
            cloud = self.clouds[vm.cloud]
            try:
                beside = book.price_beside(cloud.traits.priced)
                seen = cloud.spot_prices(vm.zone, vm.machine_type, since)
            except (CloudError, UnknownPrice) as error:
                log.warning("%s stays at its on-demand price: %s", vm.id, error)
                continue
            with self.engine.begin() as connection:
                certain = clock.read(connection) - PRICE_DELAY
                known = [
                    SeenPrice(each.since, each.price_per_hour + beside)
                    for each in seen
                    if each.since <= certain
                ]
                # A row at that moment: up to it prices are known, and the next look goes on there.
                if known and since < certain:
                    looked = SeenPrice(certain, known[-1].price_per_hour)
                    vms.record_prices(connection, vm.id, [*known, looked])


class Maintenance:
    """Creates and drops partitions, and forgets what no job needs any more, once an hour.

    Args:
        engine: The database.
        keep: How long measured iterations are kept, code that no job names, and the files of ended
            machines.
        clouds: Where the machines are.
    """

    def __init__(self, engine: Engine, keep: timedelta, clouds: Clouds) -> None:
        self.engine, self.keep, self.clouds = engine, keep, clouds
        self.periodic = Periodic(
            "maintenance",
            self.run_once,
            repeat(MAINTENANCE_INTERVAL),
            stop_timeout=MAINTENANCE_STOP_TIMEOUT,
        )

    def start(self) -> None:
        """Create the partition of today, without which no report is stored; start the thread."""
        with self.engine.begin() as connection:
            partitions.create_ahead(connection)
        self.periodic.start()

    def stop(self) -> None:
        """End the thread."""
        self.periodic.stop()

    def run_once(self) -> None:
        """Tidy up partitions, code and machines that are long gone, and ask for prices."""
        with self.engine.begin() as connection:
            partitions.create_ahead(connection)
        with self.engine.begin() as connection:
            dropped = partitions.drop_older_than(connection, self.keep)
        if dropped:
            log.info("measured iterations are dropped up to %s", dropped[-1])
        with self.engine.begin() as connection:
            before = clock.read(connection) - self.keep
            deleted = packages.delete_unreferenced(connection, before)
        if deleted:
            log.info("archives of code that no job names are deleted: %d", deleted)
        with self.engine.begin() as connection:
            sessions.delete_ended(connection, clock.read(connection))
        with self.engine.begin() as connection:
            webhooks.delete_old_deliveries(connection, clock.read(connection) - self.keep)
        with self.engine.begin() as connection:
            lines = log_lines.delete_of_ended_jobs(connection, before)
        if lines:
            log.info("lines that jobs printed are deleted: %d", lines)
        for provider in self.clouds:
            try:
                self._forget(provider)
            except CloudError as error:
                log.warning("%s forgets no machine for now: %s", provider.name, error)
            self._refresh_prices(provider)

    def _forget(self, provider: Provider) -> None:
        """Forget machines that are gone and whose jobs ended long ago: no key comes back."""
        gone = [one for one in provider.list() if one.state is InstanceState.GONE]
        with self.engine.connect() as connection:
            # Strangers may carry any text as a launch key, also what Postgres cannot compare.
            keys = {one.launch_key for one in gone if LAUNCH_KEY_PATTERN.fullmatch(one.launch_key)}
            known = vms.by_launch_key(connection, keys)
            before = clock.read(connection) - self.keep
        for one in gone:
            row = known.get(one.launch_key)
            if row is not None and not row.is_alive and row.is_over_before(before):
                provider.forget(one.provider_id)

    def _refresh_prices(self, provider: Provider) -> None:
        """Store what a cloud now asks for the machine types that are in use."""
        if not isinstance(provider, PriceSource):
            return
        with self.engine.connect() as connection:
            types = prices.types_in_use(connection, provider.name)
            now = clock.read(connection)
        types |= {provider.traits.machine_type} - {""}
        told: list[PriceView] = []
        try:
            for price in provider.fetch_prices(types, now) if types else ():
                told.append(price)  # one by one: those before an error count
        except CloudError as error:
            log.warning("%s does not say all prices for now: %s", provider.name, error)
        with self.engine.begin() as connection:
            update = prices.store_prices(connection, told, now)
        for why in update.refused:
            log.warning("%s says a price that is not believed: %s", provider.name, why)
