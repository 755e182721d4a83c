"""What all sessions of a job share: opening, reporting, SIGTERM and closing."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Protocol, Self

from scavenger.protocol import Directive, FinishReason, Progress
from scavenger.worker_env import WorkerEnv
from worker_agent.controller import ControllerClient
from worker_agent.heartbeat import Heartbeat, TrainingPhase
from worker_agent.session import Loggable
from worker_agent.state.progress import TrainingProgress
from worker_agent.telemetry.reporter import Reporter, spool_opener
from worker_agent.training.read_ahead import ReadAheadDetector
from worker_agent.training.recorder import StepRecorder

log = logging.getLogger(__name__)

FINISH_TIMEOUT, ABANDON_TIMEOUT = 3.5, 1.0  # seconds


class Closable(Protocol):
    """How a worker trains with others."""

    def close(self) -> None:
        """Let go of the others, who notice at once."""


class BaseSession(ABC):
    """One worker of a job.

    Attributes:
        clock: How far training has come.
        finished: How training ended for this worker; None while it trains.
        is_leaving: Whether somebody asked this process to end.

    Args:
        settings: Who this worker is.
    """

    strategy: Closable | None

    def __init__(self, settings: WorkerEnv) -> None:
        self.settings, self.process = settings, os.getpid()
        self.reporter = Reporter(
            ControllerClient(settings),
            settings.worker,
            self._is_directed,
            open_spool=spool_opener(settings),
        )
        self.heartbeat = Heartbeat(settings.heartbeat)
        self.logbook = StepRecorder()
        self.alternation = ReadAheadDetector()
        self.clock = TrainingProgress()
        self.finished: FinishReason | None = None
        self.is_over = False
        self.is_leaving = False
        self.boundary_at = 0.0
        self.drain: SigtermListener | None = None

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
        self.drain = SigtermListener(self._leave_soon)
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
            self.reporter.close(self._progress(), self.finished or "exhausted", FINISH_TIMEOUT)
            self.heartbeat.enter(TrainingPhase.OVER)
        else:
            self.reporter.leave(ABANDON_TIMEOUT)

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


class SigtermListener:
    """Listens for SIGTERM, unless the script does so itself.

    A process that the script forks inherits this; for it SIGTERM still means its end, or who starts
    and terminates it would wait for ever.

    Args:
        is_asked: Called when somebody asks this process to end.
    """

    def __init__(self, is_asked: Callable[[], None]) -> None:
        self.is_asked, self.process = is_asked, os.getpid()
        self.is_armed = (
            threading.current_thread() is threading.main_thread()
            and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        )
        if self.is_armed:
            signal.signal(signal.SIGTERM, self._hear)

    def disarm(self) -> None:
        """Let SIGTERM end the process again."""
        if self.is_armed:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() == self.process:
            self.is_asked()
            return
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)
