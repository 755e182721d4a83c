"""Participant: what the sessions of all workers of a job share: how they begin, speak and end."""

from __future__ import annotations

import logging
import os
import time
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Protocol, Self

from scavenger.protocol import Directive, Finished, Progress
from worker_agent.client import ControllerClient
from worker_agent.heartbeat import Heartbeat, Phase
from worker_agent.session import Loggable
from worker_agent.sessions.alternation import Alternation
from worker_agent.sessions.drain import Drain
from worker_agent.sessions.logbook import Logbook
from worker_agent.settings import AgentSettings
from worker_agent.strategies.strategy import Clock
from worker_agent.telemetry.reporter import Reporter, spool_opener

log = logging.getLogger(__name__)

MOST_TO_TELL, MOST_TO_LEAVE = 3.5, 1.0  # seconds


class Closable(Protocol):
    """How a worker trains with others."""

    def close(self) -> None:
        """Let go of the others, who notice at once."""


class Participant(ABC):
    """One worker of a job.

    Attributes:
        clock: How far training has come.
        finished: How training ended for this worker; None while it trains.
        is_leaving: Whether somebody asked this process to end.

    Args:
        settings: Who this worker is.
    """

    strategy: Closable | None

    def __init__(self, settings: AgentSettings) -> None:
        self.settings, self.process = settings, os.getpid()
        self.reporter = Reporter(
            ControllerClient(settings),
            settings.worker,
            self._is_directed,
            open_spool=spool_opener(settings),
        )
        self.heartbeat = Heartbeat(settings.heartbeat)
        self.logbook = Logbook()
        self.alternation = Alternation()
        self.clock = Clock()
        self.finished: Finished | None = None
        self.is_over = False
        self.is_leaving = False
        self.boundary_at = 0.0
        self.drain: Drain | None = None

    @property
    def iteration(self) -> int:
        """Iterations applied so far, by all workers."""
        return self.clock.iteration

    @property
    def samples(self) -> int:
        """Samples whose gradients have been applied, by all workers."""
        return self.clock.samples

    def log(self, **metrics: Loggable) -> None:
        """Note named values; a tensor is read one iteration later, when it is surely there."""
        present = self.clock.iteration + 1
        try:
            self.logbook.log(metrics, present)
        except (TypeError, ValueError, RuntimeError) as error:
            log.warning("job.log: %s is no number and is left out: %s", ", ".join(metrics), error)

    def __enter__(self) -> Self:
        """Open the session; the controller hears of it when training begins."""
        self.drain = Drain(self._leave_soon)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Tell the controller how training ended; a failing script is told by its exit code.

        A process that the script has forked leaves without a word: the session is its parent's.
        """
        if os.getpid() != self.process:
            return
        if self.drain is not None:
            self.drain.disarm()
        if self.strategy is not None:
            self._close(is_in_order=kind is None)

    @abstractmethod
    def _close(self, *, is_in_order: bool) -> None:
        """Leave the others and say the last words, in the order this kind of training needs."""

    def _say_last_words(self, *, is_in_order: bool) -> None:
        """Send what is left to be said, for a moment at most; the spool keeps the rest."""
        if is_in_order:
            self.reporter.close(self._progress(), self.finished or "exhausted", MOST_TO_TELL)
            self.heartbeat.enter(Phase.OVER)
        else:
            self.reporter.leave(MOST_TO_LEAVE)

    def _progress(self) -> Progress:
        generation = 0 if self.directive is None else self.directive.generation
        clock, logbook = self.clock, self.logbook
        metrics, odd = logbook.finite_metrics(), dict(logbook.not_finite)
        return Progress(generation, clock.iteration, clock.samples, clock.epochs, metrics, odd)

    def _next_step_time(self) -> float:
        """Return the seconds since the boundary before; this is a boundary."""
        before, self.boundary_at = self.boundary_at, time.perf_counter()
        return self.boundary_at - before

    @property
    @abstractmethod
    def directive(self) -> Directive | None:
        """The generation this worker is in; None before the first."""

    def _is_directed(self, directive: Directive) -> None:  # noqa: B027 not all need to act at once
        """Runs on the reporter's thread, with every Directive newer than all before."""

    def _leave_soon(self) -> None:
        """Somebody asked this process to end: it leaves the others at the next boundary."""
        self.is_leaving = True
