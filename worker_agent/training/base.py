"""`JobSession`: what all sessions of a job share: opening, reporting, SIGTERM and closing."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from types import FrameType
from typing import Any, Generic, Self, TypeVar

from scavenger.protocol import Directive, FinishReason, Hello, Progress, StopAtMetric
from scavenger.worker_env import WorkerEnv
from worker_agent.frameworks import (
    AsynchronousStrategy,
    Framework,
    StrategyContext,
    TrainingStrategy,
)
from worker_agent.heartbeat import Heartbeat, TrainingPhase
from worker_agent.sampler import SampleOrder, SampleRange
from worker_agent.session import Loggable, Session
from worker_agent.state.bundles import open_bundles
from worker_agent.state.progress import TrainingProgress
from worker_agent.telemetry.reporter import open_reporter
from worker_agent.training.read_ahead import ReadAheadDetector
from worker_agent.training.recorder import StepRecorder

log = logging.getLogger(__name__)

FINISH_TIMEOUT, ABANDON_TIMEOUT = 3.5, 1.0


S = TypeVar("S", TrainingStrategy, AsynchronousStrategy)


class JobSession(Session, Generic[S]):
    """The session of one worker of a job, with a strategy of one of the two kinds.

    Attributes:
        finished: How training ended for this worker; None while it trains.
        is_leaving: Whether this process received SIGTERM.
        is_rehearsing: Whether the loop body runs without counting.

    Args:
        settings: Settings of this machine.
        deterministic: Whether random streams follow the position in the data.
    """

    def __init__(self, settings: WorkerEnv, *, deterministic: bool = False) -> None:
        super().__init__(deterministic=deterministic)
        self.settings, self.process = settings, os.getpid()
        self.strategy: S | None = None
        self.reporter = open_reporter(settings, self._on_directive)
        self.heartbeat = Heartbeat(settings.heartbeat)
        self.recorder = StepRecorder()
        self.read_ahead = ReadAheadDetector()
        self.finished: FinishReason | None = None
        self.is_leaving = self.is_rehearsing = False
        self.boundary_at = 0.0
        self.sigterm_listener: SigtermListener | None = None

    def log(self, **metrics: Loggable) -> None:
        """Record named values; tensors are read one iteration later, without waiting."""
        if self.is_rehearsing:
            return
        try:
            self.recorder.log(metrics, self.iteration + 1)
        except (TypeError, ValueError, RuntimeError) as error:
            log.warning("job.log: %s is not a number, skipped: %s", ", ".join(metrics), error)

    def __enter__(self) -> Self:
        """Open the session; the controller learns of it when training begins."""
        self.sigterm_listener = SigtermListener(self._leave_soon)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Report how training ended; the supervisor reports the exit code of a failing script.

        A process that the script has forked reports nothing: the session is its parent's.
        """
        # A forked data loader that exits must not end the session of its parent.
        if os.getpid() != self.process:
            return
        if self.sigterm_listener is not None:
            self.sigterm_listener.disarm()
        if self.strategy is not None:
            self._close(self.strategy, is_clean_exit=kind is None)

    def _attach(
        self,
        framework: Framework,
        model: Any,
        optimizer: Any,
        micro_batches: int,
        extra_state: Mapping[str, Any],
    ) -> None:
        self.strategy = self._open_strategy(
            framework,
            StrategyContext(
                name=self.settings.strategy,
                model=model,
                optimizer=optimizer,
                worker=self.settings.worker,
                secret=self.settings.job_secret,
                micro_batches=micro_batches,
                extra_state=extra_state,
                should_abort=self._should_abort,
                on_work=self.read_ahead.on_work,
                restore_checkpoint=self._restore_checkpoint,
                bundles=open_bundles(self.settings, self.reporter.controller),
                loss=self.sharing.loss,
            ),
        )

    def _batches(self, order: SampleOrder, *_: object) -> Iterator[Any]:
        if self.strategy is None:
            raise RuntimeError("call prepare(model, optimizer) before batches()")
        self.boundary_at = time.perf_counter()
        self.read_ahead.on_request()
        yield from self._rehearse_early(self.strategy, order)
        self._start(self.strategy)
        try:
            while self.finished is None:
                yield from self._iteration(self.strategy, order)
        except GeneratorExit:
            self.finished = self.finished or self._reason_to_break()

    def _rehearse_early(self, strategy: S, order: SampleOrder) -> Iterator[Any]:
        """Rehearse what this worker will probably be ordered, before it says hello."""
        yield from ()

    def _hand(self, order: SampleOrder, share: SampleRange) -> Iterator[Any]:
        """Yield a batch to the script, and notice that it asks for the next one."""
        assert self.framework is not None
        # In no variable here: the detector looks whether the script has dropped its batch.
        yield self.read_ahead.hand(self.framework.to_batch(order.indices(share)))
        self.read_ahead.on_request()

    # What the two kinds of session do in their own way.

    @property
    @abstractmethod
    def directive(self) -> Directive | None:
        """The generation this worker is in; None before the first."""

    @abstractmethod
    def _open_strategy(self, framework: Framework, context: StrategyContext) -> S:
        """Return the job's strategy, hooked into the model and its optimizer."""

    @abstractmethod
    def _start(self, strategy: S) -> None:
        """Say Hello to the controller, and wait for the first generation."""

    @abstractmethod
    def _iteration(self, strategy: S, order: SampleOrder) -> Iterator[Any]:
        """Yield this worker's samples of one iteration, and count what became of it."""

    @abstractmethod
    def _close(self, strategy: S, *, is_clean_exit: bool) -> None:
        """Leave the other workers and send the final report, in the order the strategy needs."""

    @abstractmethod
    def _should_abort(self) -> bool:
        """Whether what is waited for will never come; asked while a strategy waits."""

    def _restore_checkpoint(self, state: Any, progress: TrainingProgress) -> TrainingProgress:
        """Return the progress to go on from; called when no worker has state to hand over.

        By default there is no checkpoint: return progress unchanged.
        """
        return progress

    def _reason_to_break(self) -> FinishReason:
        """Return how training ended if the script leaves its loop."""
        return "exhausted"

    def _on_directive(self, directive: Directive) -> None:
        """Take a Directive that is newer than all before; runs on the reporter's thread."""

    # What they share.

    @property
    def _current_directive(self) -> Directive:
        if self.directive is None:
            raise RuntimeError("no generation was entered yet")
        return self.directive

    def _has_reached_goal(self) -> bool:
        """Whether the metric that the job waits for is where it should be."""
        stop = self._current_directive.stop
        if not isinstance(stop, StopAtMetric) or stop.metric not in self.recorder.metrics:
            return False
        return stop.reached(self.recorder.metrics[stop.metric])

    def _send_final_report(self, *, is_clean_exit: bool) -> None:
        """Send what is left, for a few seconds at most; the spool keeps the rest."""
        if is_clean_exit:
            self.reporter.close(self._message(), self.finished or "exhausted", FINISH_TIMEOUT)
            self.heartbeat.publish_phase(TrainingPhase.OVER)
        else:
            self.reporter.stop_without_final_report(ABANDON_TIMEOUT)

    def _hello(self, address: str) -> Hello:
        assert self.framework is not None
        return Hello(self.settings.worker, address, framework=self.framework.name)

    def _message(self) -> Progress:
        generation = 0 if self.directive is None else self.directive.generation
        message = self.progress.to_message(generation)
        odd = dict(self.recorder.not_finite)
        return replace(message, metrics=self.recorder.finite_metrics(), not_finite=odd)

    def _next_step_time(self) -> float:
        """Return the seconds since the boundary before; this is a boundary."""
        before, self.boundary_at = self.boundary_at, time.perf_counter()
        return self.boundary_at - before

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
