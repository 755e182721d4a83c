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

FINISH_TIMEOUT, ABANDON_TIMEOUT = 3.5, 1.0


class Closable(Protocol):
    """The part of a training strategy that every session needs."""

    def close(self) -> None:
        """Close the connections, so that other workers notice at once."""


class BaseSession(ABC):
    """One worker of a job.

    Attributes:
        progress: Progress of training.
        finished: How training ended for this worker; None while it trains.
        is_leaving: Whether this process received SIGTERM.

    Args:
        settings: Settings of this machine.
    """

    strategy: Closable | None

    def __init__(self, settings: WorkerEnv) -> None:
        self.settings, self.process = settings, os.getpid()
        self.reporter = Reporter(
            ControllerClient(settings),
            settings.worker,
            self._on_directive,
            open_spool=spool_opener(settings),
        )
        self.heartbeat = Heartbeat(settings.heartbeat)
        self.recorder = StepRecorder()
        self.read_ahead = ReadAheadDetector()
        self.progress = TrainingProgress()
        self.finished: FinishReason | None = None
        self.is_over = False
        self.is_leaving = False
        self.boundary_at = 0.0
        self.drain: SigtermListener | None = None

    @property
    def iteration(self) -> int:
        return self.progress.iteration

    @property
    def samples(self) -> int:
        return self.progress.samples

    def log(self, **metrics: Loggable) -> None:
        """Record named values; tensors are read one iteration later, without waiting."""
        present = self.progress.iteration + 1
        try:
            self.recorder.log(metrics, present)
        except (TypeError, ValueError, RuntimeError) as error:
            log.warning("job.log: %s is not a number, skipped: %s", ", ".join(metrics), error)

    def __enter__(self) -> Self:
        """Open the session; the controller learns of it when training begins."""
        self.drain = SigtermListener(self._leave_soon)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Report how training ended; the supervisor reports the exit code of a failing script.

        A process that the script has forked reports nothing: the session is its parent's.
        """
        # A forked data loader that exits must not end the session of its parent.
        if os.getpid() != self.process:
            return
        if self.drain is not None:
            self.drain.disarm()
        if self.strategy is not None:
            self._close(is_in_order=kind is None)

    @abstractmethod
    def _close(self, *, is_in_order: bool) -> None:
        """Leave the other workers and send the final report, in the order the strategy needs."""

    def _send_final_report(self, *, is_in_order: bool) -> None:
        """Send what is left, for a few seconds at most; the spool keeps the rest."""
        if is_in_order:
            self.reporter.close(self._message(), self.finished or "exhausted", FINISH_TIMEOUT)
            self.heartbeat.enter(TrainingPhase.OVER)
        else:
            self.reporter.leave(ABANDON_TIMEOUT)

    def _message(self) -> Progress:
        generation = 0 if self.directive is None else self.directive.generation
        progress, recorder = self.progress, self.recorder
        metrics, odd = recorder.finite_metrics(), dict(recorder.not_finite)
        return Progress(
            generation, progress.iteration, progress.samples, progress.epochs, metrics, odd
        )

    def _next_step_time(self) -> float:
        """Return the seconds since the boundary before; this is a boundary."""
        before, self.boundary_at = self.boundary_at, time.perf_counter()
        return self.boundary_at - before

    @property
    @abstractmethod
    def directive(self) -> Directive | None:
        """The generation this worker is in; None before the first."""

    def _on_directive(self, directive: Directive) -> None:  # noqa: B027 optional to override
        """Take a Directive that is newer than all before; runs on the reporter's thread."""

    def _leave_soon(self) -> None:
        """Leave the other workers at the next boundary, because of SIGTERM."""
        self.is_leaving = True


class SigtermListener:
    """Handles SIGTERM, unless the script has a handler of its own.

    A process that the script forks inherits the handler; SIGTERM must still end it, because the
    script that terminates it would wait for ever.

    Args:
        on_signal: Called on SIGTERM.
    """

    def __init__(self, on_signal: Callable[[], None]) -> None:
        self.on_signal, self.process = on_signal, os.getpid()
        self.is_armed = (
            threading.current_thread() is threading.main_thread()
            and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        )
        if self.is_armed:
            signal.signal(signal.SIGTERM, self._handle)

    def disarm(self) -> None:
        """Restore the default action of SIGTERM."""
        if self.is_armed:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() == self.process:
            self.on_signal()
            return
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)
