"""Rounds: one sweep after the other, on a thread of its own, so that a slow cloud delays no job."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from datetime import timedelta
from itertools import chain, repeat

from sqlalchemy.exc import SQLAlchemyError

from service import meters
from service.db import clock
from service.errors import CloudError
from service.pulse import Pulse
from service.reconciler.sweeper import Sweeper
from service.reconciler.verdict import Verdict

log = logging.getLogger(__name__)

FIRST, SOON, LATER = 20, 10.0, 30.0
PATIENCE = 3 * LATER
FAREWELL = 5.0


class Rounds:
    """Sweeps until it is stopped."""

    def __init__(self, sweeper: Sweeper) -> None:
        self.sweeper = sweeper
        self.said: str | None = None
        self.pulse = Pulse(PATIENCE)
        self.stopping = threading.Event()
        self.thread = threading.Thread(target=self._run, name="sweeper", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self.thread.start()

    def stop(self) -> None:
        """End, and finish the running sweep if its cloud answers soon."""
        self.stopping.set()
        self.thread.join(FAREWELL)

    def _run(self) -> None:
        for pause in pauses():
            self._attempt(pause)
            self.pulse.beat()
            if self.stopping.wait(pause):
                return

    def _attempt(self, pause: float) -> None:
        """Sweep once; whatever went wrong, the next sweep starts clean."""
        try:
            self._sweep(pause)
        except (CloudError, SQLAlchemyError) as error:
            meters.SWEEPS.labels("failed").inc()
            log.warning("no sweep now: %s", error)
        except Exception:  # without it a mistake would end all sweeps, and nobody would notice
            meters.SWEEPS.labels("failed").inc()
            log.exception("the sweep failed")

    def _sweep(self, pause: float) -> None:
        with self.sweeper.engine.connect() as connection:
            now = clock.ask(connection)
        verdict = self.sweeper.sweep(now, timedelta(seconds=pause))
        if verdict is not None:
            meters.SWEEPS.labels(result_of(verdict)).inc()
        if verdict is not None and verdict.tripped != self.said:
            self.said = verdict.tripped
            if self.said is not None:
                log.warning(
                    "%s; nothing is ended until: scavenger admin sweep --confirm", self.said
                )


def result_of(verdict: Verdict) -> str:
    """Return the word for what came of a sweep."""
    if verdict.tripped is not None:
        return "held"
    return "ended" if verdict.ended else "clean"


def pauses() -> Iterator[float]:
    """Return the seconds between sweeps: short ones first, for what a crash left behind."""
    return chain(repeat(SOON, FIRST), repeat(LATER))
