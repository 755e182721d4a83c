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
from dataclasses import dataclass, replace
from datetime import datetime
from multiprocessing.connection import Connection as Pipe
from typing import Any

from pydantic_core import from_json, to_json
from sqlalchemy import Engine, event

from service.clouds.clouds import Clouds
from service.clouds.labels import ResourceLabels
from service.clouds.provider import Provider
from service.db import clock, controllers
from service.garbage_collection.collector import CollectorLoop, GarbageCollector
from service.reconciler.fleet import Fleet
from service.reconciler.loop import ReconcilerLoop
from service.reconciler.tick import Reconciler
from tests.builders import CONTACT
from tests.crash.crashline import Count, Executioner, Lines
from tests.crash.way import Ask, Way
from tests.fakecloud.emulator import Emulator, Tap
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


class Wait:
    """Time that passes while a provider waits for its cloud; none passes otherwise."""

    def __init__(self, ask: Ask) -> None:
        self._ask, self._passed = ask, 0.0

    def wait(self, seconds: float) -> None:
        self._ask("/wait", to_json(seconds))
        self._passed += seconds

    def now(self) -> float:
        return self._passed


@dataclass(frozen=True, slots=True)
class Beginning:
    """What a controller has to know to begin.

    Attributes:
        lag: Seconds for which lists may lag, where the fake cloud is called as it is.
        boot: Seconds until a machine is there, or never will be, in the same case.
        emulator: Plays the cloud; None for the fake cloud as it is.
    """

    now: datetime
    lag: float
    boot: float
    emulator: Emulator | None = None


def control(
    engine: Engine,
    ask: Ask,
    beginning: Beginning,
    note: Callable[[], object] = lambda: None,
) -> None:
    """Be a controller until the world says that it is over.

    Args:
        engine: The database, in virtual time.
        ask: Asks the world.
        beginning: What it knows.
        note: Called before each request that may begin or end a machine of an emulated cloud.
    """
    wait = Wait(ask)
    # The database's, between whose readings only waits take time.
    clock.DATABASE_CLOCKS[engine] = clock.DatabaseClock(wait.now)
    provider = open_provider(beginning, ask, wait, note)
    with engine.begin() as connection:
        resource_labels = ResourceLabels(controllers.installation_id(connection), SECRET)
    contact = replace(CONTACT, agent="a" * 64)
    fleet = Fleet(engine, Clouds([provider]), contact, resource_labels, stopwatch=wait.now)
    loop = ReconcilerLoop(Reconciler(fleet, beginning.now), seconds=lambda: 0.0)
    rounds = CollectorLoop(GarbageCollector(engine, provider, resource_labels))
    loop.periodic.wake_event = Nap(loop, rounds, ask)  # type: ignore[assignment]
    loop.periodic.run()
    loop.close()


def open_provider(
    beginning: Beginning, ask: Ask, wait: Wait, note: Callable[[], object]
) -> Provider:
    """Return a provider as a controller that starts opens it."""
    emulator = beginning.emulator
    if emulator is None:
        lag, boot = beginning.lag, beginning.boot
        return FakeCloudProvider(
            "http://cloud", ACCOUNT, zone="ab", lag=lag, boot=boot, transport=Way(ask)
        )
    emulator.tap = Tap(
        before=lambda is_change: note() if is_change else None,
        wait=wait.wait,
        stopwatch=wait.now,
    )
    return emulator.open()


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
    beginning: Beginning,
) -> None:
    """Turn this fork into a controller; never returns."""
    ctypes.CDLL(None).prctl(DIE_WITH_PARENT, signal.SIGKILL)
    engine.dispose(close=False)  # connections are the parent's
    log, code = logging.getLogger("service"), 0
    log.handlers, log.propagate = [Complaint(lambda text: pipe.send(("/log", text)))], False
    log.setLevel(logging.ERROR)

    def note() -> None:
        if watcher is not None:
            watcher.note()

    def ask(path: str, body: bytes) -> Any:
        if path != "/cloud/list":
            note()
        pipe.send((path, body))
        return pipe.recv()

    try:
        if watcher is not None:
            event.listen(engine, "commit", lambda _: watcher.note())
            watcher.start()
        control(engine, ask, beginning, note)
        if isinstance(watcher, Count):
            pipe.send(("/counted", Lines(watcher.lines, watcher.effects)))
    except BaseException:  # noqa: BLE001 - each kind of it is told
        pipe.send(("/log", traceback.format_exc()))
        code = FAILED
    finally:
        os._exit(code)
