"""What one controller hears wakes the others of its database at once."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest
from sqlalchemy import Engine, text

from service.background import NOTIFY_CHANNEL, PgListener
from service.clouds.labels import ResourceLabels
from service.clouds.storage import CheckpointStorage
from service.db import jobs
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
def messenger(engine: Engine) -> Iterator[tuple[PgListener, threading.Event]]:
    """Run one that listens already, and that has heard nothing since."""
    heard = threading.Event()
    one = PgListener(engine.url, lambda _: heard.set(), heard.set)
    one.start()
    try:
        assert heard.wait(LONG)
        heard.clear()
        yield one, heard
    finally:
        one.stop()


def test_the_others_hear_what_one_spreads_and_it_does_not_hear_itself(engine: Engine) -> None:
    with (
        messenger(engine) as (one, told),
        messenger(engine) as (_, first),
        messenger(engine) as (other, second),
    ):
        one.notify()
        assert first.wait(LONG)
        assert second.wait(LONG)
        assert not told.is_set()
        other.notify()
        assert told.wait(LONG)


def test_one_whose_connection_broke_listens_again_and_looks_at_once(engine: Engine) -> None:
    with messenger(engine) as (one, told), messenger(engine) as (_, heard):
        with engine.connect() as connection:
            cut = connection.execute(HANG_UP, {"words": f"LISTEN {NOTIFY_CHANNEL}%"}).all()
        assert len(cut) == 2
        assert heard.wait(LONG), "something may have been missed"
        assert told.wait(LONG)
        heard.clear()
        one.notify()
        assert heard.wait(LONG)


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
    with CloudServer(cloud) as server, messenger(engine) as (other, _):
        provider = FakeCloudProvider(server.url, "ours")
        owner = ResourceLabels("ours", b"secret")
        fleet = Fleet(engine, provider, CONTACT, CheckpointStorage(Path("/nowhere")), owner)
        loop = ReconcilerLoop(Reconciler(fleet, datetime.now(UTC)))
        loop.periodic.news = bed = Bed()
        hears = PgListener(engine.url, loop.nudge, loop.nudge_all)
        hears.start()
        assert bed.wait(LONG), "it looks when it begins to listen"
        bed.is_used.clear()
        loop.start()
        try:
            assert bed.is_used.wait(LONG)
            with engine.begin() as connection:
                jobs.create(connection, "job_1", spec(), NOW)
            other.notify()
            assert cloud.has_launched.wait(LONG)
        finally:
            loop.stop()
            hears.stop()
            provider.close()
