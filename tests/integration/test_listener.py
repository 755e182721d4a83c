"""News that a transaction announces wakes every controller of its database at once."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from queue import SimpleQueue

import pytest
from sqlalchemy import Engine, text

from service.background import PgListener
from service.clouds.clouds import Clouds
from service.clouds.labels import ResourceLabels
from service.db import jobs
from service.db.jobs import JOB_CHANGES_CHANNEL
from service.errors import NotificationsUndelivered
from service.reconciler import loop as looping
from service.reconciler.fleet import Fleet
from service.reconciler.loop import ReconcilerLoop
from service.reconciler.tick import Reconciler
from tests.builders import CONTACT, NOW, spec
from tests.controller_double import LONG
from tests.fakecloud.clock import RealClock
from tests.fakecloud.cloud import FakeCloud
from tests.fakecloud.machine import Description, Request
from tests.fakecloud.provider import FakeCloudProvider
from tests.fakecloud.server import CloudServer

HANG_UP = text(
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
    "WHERE datname = current_database() AND query ILIKE :words"
)


@contextmanager
def listener(engine: Engine) -> Iterator[SimpleQueue[str | None]]:
    """Run a listener that has heard nothing yet; the queue gets None when news may be missed."""
    heard: SimpleQueue[str | None] = SimpleQueue()
    one = PgListener(engine.url, heard.put, lambda: heard.put(None))
    one.start()
    try:
        assert heard.get(timeout=LONG) is None
        yield heard
    finally:
        one.stop()


def create_job(engine: Engine, name: str) -> None:
    with engine.begin() as connection:
        jobs.create(connection, name, spec(), NOW)


def test_all_controllers_hear_what_a_transaction_announced_once_it_is_committed(
    engine: Engine,
) -> None:
    with listener(engine) as first, listener(engine) as second:
        with suppress(ZeroDivisionError), engine.begin() as connection:
            jobs.create(connection, "job_1", spec(), NOW)
            raise ZeroDivisionError
        create_job(engine, "job_2")
        with engine.begin() as connection:
            jobs.request_cancel(connection, "job_2", NOW)
        for heard in (first, second):
            assert [heard.get(timeout=LONG) for _ in range(2)] == ["job_2", "job_2"]


def test_a_listener_whose_connection_broke_listens_again_and_says_so(engine: Engine) -> None:
    with listener(engine) as first, listener(engine) as second:
        with engine.connect() as connection:
            cut = connection.execute(HANG_UP, {"words": f"LISTEN {JOB_CHANGES_CHANNEL}%"}).all()
        assert len(cut) == 2
        for heard in (first, second):
            assert heard.get(timeout=LONG) is None, "something may have been missed"
        create_job(engine, "job_1")
        for heard in (first, second):
            assert heard.get(timeout=LONG) == "job_1"


def test_a_controller_whose_database_delivers_nothing_says_so(engine: Engine) -> None:
    """Like one behind a proxy that pools by transaction: it listens where no news is sent."""
    deaf = PgListener(engine.url.set(database="postgres"), lambda _: None, lambda: None)
    hears = PgListener(engine.url, lambda _: None, lambda: None)
    for one in (deaf, hears):
        one.start()
    try:
        hears.check_delivery(engine, LONG)
        with pytest.raises(NotificationsUndelivered, match="pools by session"):
            deaf.check_delivery(engine, 0.0)
    finally:
        for one in (deaf, hears):
            one.stop()


class Bed(threading.Event):
    """What the loop takes for its news; a test sees when the loop waits because there is none."""

    def __init__(self) -> None:
        super().__init__()
        self.is_used = threading.Event()

    def wait(self, timeout: float | None = None) -> bool:
        if not self.is_set():
            self.is_used.set()
        return super().wait(timeout)


class Watched(FakeCloud):
    """A cloud whose launch a test can wait for."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.has_launched = threading.Event()

    def launch(self, token: str, request: Request) -> tuple[Description, ...]:
        self.has_launched.set()
        return super().launch(token, request)


def test_a_job_that_one_controller_took_in_is_launched_by_another_at_once(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(looping, "PASS_INTERVAL", 3600.0)
    cloud = Watched(RealClock())
    with CloudServer(cloud) as server:
        provider = FakeCloudProvider(server.url, "ours")
        owner = ResourceLabels("ours", b"secret")
        fleet = Fleet(engine, Clouds([provider]), CONTACT, owner)
        loop = ReconcilerLoop(Reconciler(fleet, datetime.now(UTC)))
        loop.periodic.wake_event = bed = Bed()
        hears = PgListener(engine.url, loop.nudge, loop.nudge_all)
        hears.start()
        assert bed.wait(LONG), "it looks when it begins to listen"
        bed.is_used.clear()
        loop.start()
        try:
            assert bed.is_used.wait(LONG)
            create_job(engine, "job_1")
            assert cloud.has_launched.wait(LONG)
        finally:
            loop.stop()
            hears.stop()
            provider.close()
