"""The controller as it is, in a process that may be killed; its time and its waits are the world's.

The loop, the sweeper, the leases and the database are the real ones. A wait asks the world
what comes next, so a minute takes as long as what happens in it.
"""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import traceback
from collections.abc import Callable
from datetime import datetime
from multiprocessing.connection import Connection as Pipe
from typing import Any

from pydantic_core import from_json
from sqlalchemy import Engine, event

from service.clouds.clouds import Clouds
from service.clouds.labels import ResourceLabels
from service.db import clock, controllers
from service.garbage_collection.collector import CollectorLoop, GarbageCollector
from service.reconciler.fleet import Fleet
from service.reconciler.loop import ReconcilerLoop
from service.reconciler.tick import Reconciler
from tests.builders import CONTACT
from tests.crash.crashline import Count, Executioner, Lines
from tests.crash.way import Ask, Way
from tests.fakecloud.provider import FakeCloudProvider

ACCOUNT, SECRET = "account", b"our secret"
DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG of prctl
FAILED = 3


class Nap:
    """What the loop takes for its news: it waits by asking what comes next."""

    def __init__(self, loop: ReconcilerLoop, rounds: CollectorLoop, ask: Ask) -> None:
        self.loop, self.rounds, self.ask = loop, rounds, ask

    def wait(self, timeout: float | None = None) -> bool:
        answer = self.ask("/nap", b"")
        assert answer is not None
        told = from_json(answer[2])
        # The world's time passes, not the loop's by which jobs rest: look at all of them.
        self.loop.nudge_all()
        self.loop.periodic.is_stopping = told["is_over"]
        if told["sweeps"] and not told["is_over"]:
            self.rounds.periodic.attempt()
        return False

    def set(self) -> None:
        pass

    def clear(self) -> None:
        pass


def control(engine: Engine, ask: Ask, now: datetime, lag: float, boot: float) -> None:
    """Be a controller until the world says that it is over."""
    clock.DATABASE_CLOCKS[engine] = clock.DatabaseClock(
        lambda: 0.0
    )  # the database's, and nothing passes between
    provider = FakeCloudProvider(
        "http://cloud", ACCOUNT, zone="ab", lag=lag, boot=boot, transport=Way(ask)
    )
    with engine.begin() as connection:
        resource_labels = ResourceLabels(controllers.installation_id(connection), SECRET)
    fleet = Fleet(engine, Clouds([provider]), CONTACT, resource_labels, stopwatch=lambda: 0.0)
    loop = ReconcilerLoop(Reconciler(fleet, now), seconds=lambda: 0.0)
    rounds = CollectorLoop(GarbageCollector(engine, provider, resource_labels))
    loop.periodic.wake_event = Nap(loop, rounds, ask)  # type: ignore[assignment]
    loop.periodic.run()
    loop.close()
    provider.close()


class Complaint(logging.Handler):
    """Sends what went wrong to the world, which lets nothing pass."""

    def __init__(self, send: Callable[[str], None]) -> None:
        super().__init__(logging.ERROR)
        self._send = send

    def emit(self, record: logging.LogRecord) -> None:
        self._send(logging.Formatter().format(record))


def become(
    pipe: Pipe[Any, Any],
    engine: Engine,
    watcher: Count | Executioner | None,
    arguments: tuple[datetime, float, float],
) -> None:
    """Turn this fork into a controller; never returns."""
    ctypes.CDLL(None).prctl(DIE_WITH_PARENT, signal.SIGKILL)
    engine.dispose(close=False)  # connections are the parent's
    log, code = logging.getLogger("service"), 0
    log.handlers, log.propagate = [Complaint(lambda text: pipe.send(("/log", text)))], False
    log.setLevel(logging.ERROR)

    def ask(path: str, body: bytes) -> Any:
        if watcher is not None and path != "/cloud/list":
            watcher.note()
        pipe.send((path, body))
        return pipe.recv()

    try:
        if watcher is not None:
            event.listen(engine, "commit", lambda _: watcher.note())
            watcher.start()
        control(engine, ask, *arguments)
        if isinstance(watcher, Count):
            pipe.send(("/counted", Lines(watcher.lines, watcher.effects)))
    except BaseException:  # noqa: BLE001 - each kind of it is told
        pipe.send(("/log", traceback.format_exc()))
        code = FAILED
    finally:
        os._exit(code)
