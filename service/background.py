"""Background work: heartbeats, notifications between controllers, and maintenance.

Each runs on a thread of its own. Notifications travel by LISTEN and NOTIFY; they are only hints:
the reconciler also polls.
"""

from __future__ import annotations

import logging
import selectors
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta

import psycopg
from sqlalchemy import URL, Engine
from sqlalchemy.exc import SQLAlchemyError

from service.clouds.provider import LAUNCH_KEY_PATTERN, InstanceState, Provider
from service.db import clock, partitions, vms
from service.errors import CloudError


class TaskHeartbeat:
    """The beat of something that goes round for ever.

    Args:
        patience: Seconds without a beat after which it counts as standing still.
        clock: Tells seconds.
    """

    def __init__(self, patience: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._patience, self._clock = patience, clock
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
        """Whether the last round was recently."""
        return self.lag < self._patience


log = logging.getLogger(__name__)

NOTIFY_CHANNEL = "scavenger_news"
RECONNECT_PAUSE = 0.5
CONNECT_TIMEOUT = "5"


class PgListener:
    """Hears the news of others and spreads one's own, over one connection on one thread.

    Args:
        url: The database; the connection is none of a pool's, as it waits most of the time.
        wake: Called when others have news, or may have had some while nobody listened.
    """

    def __init__(self, url: URL, wake: Callable[[], None]) -> None:
        plain = url.set(drivername="postgresql").update_query_dict(
            {"connect_timeout": CONNECT_TIMEOUT}
        )
        self._address = plain.render_as_string(hide_password=False)
        self._wake = wake
        self._stopping = threading.Event()
        self._bell, self._rope = socket.socketpair()
        self._rope.setblocking(False)
        self._thread = threading.Thread(target=self._run, name="messenger")

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Hang up and end."""
        self._stopping.set()
        self.notify()
        self._thread.join()
        self._bell.close()
        self._rope.close()

    def notify(self) -> None:
        """Let the others know soon that there is news; what is told at once is told once."""
        with suppress(BlockingIOError):  # it rings so many times already
            self._rope.send(b"!")

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                with psycopg.connect(self._address, autocommit=True) as line:
                    self._listen(line)
            except psycopg.Error as error:
                log.info("no news of other controllers for a while: %s", error)
                self._stopping.wait(RECONNECT_PAUSE)

    def _listen(self, line: psycopg.Connection) -> None:
        """Pass news on in both directions until the connection breaks or it is enough."""
        line.execute(f"LISTEN {NOTIFY_CHANNEL}")
        self._wake()
        with selectors.DefaultSelector() as selector:
            selector.register(line, selectors.EVENT_READ)
            selector.register(self._bell, selectors.EVENT_READ)
            while not self._stopping.is_set():
                ready = {key.fileobj for key, _ in selector.select()}
                if self._bell in ready:
                    self._bell.recv(4096)
                    line.execute(f"NOTIFY {NOTIFY_CHANNEL}")
                mine = line.info.backend_pid
                if any(news.pid != mine for news in line.notifies(timeout=0)):
                    self._wake()


MAINTENANCE_INTERVAL = 3600.0
MAINTENANCE_STOP_TIMEOUT = 5.0
KEEP_EVERY_ROW = timedelta(days=7)


class Maintenance:
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
            partitions.create_ahead(connection)
        self.thread.start()

    def stop(self) -> None:
        """End, and finish what is begun if that takes no time."""
        self.stopping.set()
        self.thread.join(MAINTENANCE_STOP_TIMEOUT)

    def run_once(self) -> None:
        """Make partitions ahead, drop those that are past, and thin what is old."""
        with self.engine.begin() as connection:
            partitions.create_ahead(connection)
        with self.engine.begin() as connection:
            dropped = partitions.drop_older_than(connection, self.keep)
        if dropped:
            log.info("measured iterations are dropped up to %s", dropped[-1])
        while not self.stopping.is_set() and self._thin():
            pass
        self._forget()

    def _thin(self) -> bool:
        with self.engine.begin() as connection:
            return partitions.thin(connection, KEEP_EVERY_ROW)

    def _forget(self) -> None:
        """Let go of machines that are gone, and whose jobs ended long ago: no key comes back."""
        gone = [one for one in self.provider.list() if one.state is InstanceState.GONE]
        with self.engine.connect() as connection:
            keys = {one.launch_key for one in gone if LAUNCH_KEY_PATTERN.fullmatch(one.launch_key)}
            known = vms.by_launch_key(connection, keys)
            before = clock.read(connection) - self.keep
        for one in gone:
            row = known.get(one.launch_key)
            if row is not None and not row.is_alive and row.is_over_before(before):
                self.provider.forget(one.provider_id)

    def _run(self) -> None:
        while not self.stopping.is_set():
            try:
                self.run_once()
            except (SQLAlchemyError, CloudError) as error:
                log.warning("no housekeeping now: %s", error)
            except Exception:  # without it a mistake would end it, and nobody would notice
                log.exception("the housekeeping failed")
            self.stopping.wait(MAINTENANCE_INTERVAL)
