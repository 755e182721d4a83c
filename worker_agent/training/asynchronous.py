"""`AsynchronousSession`: the session of a worker in a Downpour job; no worker waits for another.

There are no shared iteration boundaries and no generations that fence one another. A worker
takes samples, trains on them at its own pace, and polls the newest Directive. A worker starts
when a Directive lists it and stops when one no longer does.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from scavenger.measurement.steps import StepRow
from scavenger.protocol import Directive, FinishReason, Hello, Regrouped, StopAtMetric
from scavenger.worker_env import WorkerEnv
from worker_agent.errors import GenerationBroken
from worker_agent.frameworks import (
    AsynchronousStrategy,
    AsynchronousUpdate,
    Framework,
    StrategyContext,
    find_framework,
)
from worker_agent.heartbeat import TrainingPhase
from worker_agent.sampler import SampleOrder, SampleRange
from worker_agent.session import never_stop
from worker_agent.state.progress import TrainingProgress
from worker_agent.telemetry.reporter import AWAITING_INTERVAL, CALM_INTERVAL
from worker_agent.training.base import BaseSession

log = logging.getLogger(__name__)

DIRECTIVE_POLL = 0.02
SERVER_LOSS_TIMEOUT = 2.0  # seconds without the servers after which the controller is told
STALENESS_MEMORY = 0.9  # of the smoothed staleness, per push


class AsynchronousSession(BaseSession):
    """The session of one worker of a Downpour job.

    Args:
        settings: Who this worker is.
    """

    def __init__(self, settings: WorkerEnv) -> None:
        super().__init__(settings)
        self.framework: Framework | None = None
        self.strategy: AsynchronousStrategy | None = None
        self.current: Directive | None = None

    @property
    def directive(self) -> Directive | None:
        """The Directive that this worker follows; None before the first."""
        return self.current

    @property
    def is_leader(self) -> bool:
        """Whether this worker comes first in the newest Directive."""
        if self.directive is None:
            return self.finished is None
        is_first = self.directive.rank_of(self.settings.worker) == 0
        return is_first and self.finished != "released"

    def prepare(
        self,
        model: Any,
        optimizer: Any,
        *,
        micro_batches: int = 1,
        scheduler: Any = None,
        scaler: Any = None,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        """Hook into the model and its optimizer; nothing else travels between these workers.

        Raises:
            UnsupportedServerOptimizer: The optimizer is not one that Downpour SGD converges with.
        """
        if scheduler or scaler or extra:
            log.warning("downpour: scheduler, scaler and extra stay each worker's own")
        self.framework = find_framework(model)
        context = StrategyContext(
            name=self.settings.strategy,
            model=model,
            optimizer=optimizer,
            worker=self.settings.worker,
            secret=self.settings.job_secret,
            micro_batches=micro_batches,
            is_abandoned=self._is_abandoned,
            on_work=self.read_ahead.work,
        )
        self.strategy = self.framework.asynchronous_strategy(context)

    def batches(
        self,
        dataset_size: int,
        global_batch: int,
        *,
        epochs: float,
        seed: int = 0,
        until: Callable[[], bool] = never_stop,
    ) -> Iterator[Any]:
        """Yield samples that no other worker has, until all are used or this worker is released."""
        if self.strategy is None:
            raise RuntimeError("call prepare(model, optimizer) before batches()")
        self.reporter.start(Hello(self.settings.worker, f"{self.settings.host}:0"))
        order = SampleOrder(dataset_size, seed)
        self.boundary_at = time.perf_counter()
        self.read_ahead.ask()
        self._await_directive()
        try:
            while self.finished is None:
                yield from self._iteration(self.strategy, order)
        except GeneratorExit:
            self.finished = self.finished or "exhausted"

    def _close(self, *, is_in_order: bool) -> None:
        if self.strategy is not None:
            self.strategy.close()  # the samples it had taken are handed to others at once
        self._send_final_report(is_in_order=is_in_order)

    # One iteration.

    def _iteration(self, strategy: AsynchronousStrategy, order: SampleOrder) -> Iterator[Any]:
        """Yield one share of samples, if there is one, and count what became of it."""
        self._follow(strategy)
        if self.finished is not None:
            return
        share = self._take(strategy)
        if share is None:
            return
        strategy.begin(share, share.count / self._local_batch)
        assert self.framework is not None
        yield self.read_ahead.hand(self.framework.to_batch(order.indices(share)))
        self.read_ahead.ask()
        update = strategy.end()
        if update is None:
            self._reconnect(strategy)
            return
        self._record(update)
        self._check_target(strategy)

    def _take(self, strategy: AsynchronousStrategy) -> SampleRange | None:
        """Take samples; None when there are none for now, or none ever again."""
        try:
            handed = strategy.take(self._local_batch, self._limit)
            if handed.share is None:
                strategy.flush()  # samples that were not pushed are not used
        except GenerationBroken:
            self._reconnect(strategy)
            return None
        if handed.is_over:
            self._set_progress(strategy.version, handed.done)
            self.finished = self._finish_reason()
        elif handed.share is None:
            time.sleep(DIRECTIVE_POLL)  # others still train on the last samples, and may die of it
        return handed.share

    def _check_target(self, strategy: AsynchronousStrategy) -> None:
        """As leader, check whether the target is reached, and tell the other workers."""
        stop = self._now.stop
        if not self.is_leader or not isinstance(stop, StopAtMetric):
            return
        value = self.recorder.metrics.get(stop.metric)
        if value is None or not stop.reached(value):
            return
        self.is_over = True
        try:
            strategy.finish()
            strategy.flush()
        except GenerationBroken:
            log.warning("the others do not hear from the servers that the target is reached")
        self.finished = "target"

    def _finish_reason(self) -> FinishReason:
        """Say how training ended, once no samples are handed out any more."""
        if self.progress.samples < self._limit:
            return "target"  # the leader has said so
        return "exhausted" if isinstance(self._now.stop, StopAtMetric) else "target"

    # Telemetry.

    def _record(self, update: AsynchronousUpdate) -> None:
        """Note the iteration; as leader, report it."""
        step_time = self._next_step_time()
        self.recorder.read_tensors()
        self._set_progress(update.version, update.done)
        self.heartbeat.beat(update.version)
        if update.staleness is not None:
            self._note_staleness(update.staleness)
        if self.is_leader:
            self.reporter.record(self._row(update, step_time))
        self.reporter.tell(self._message())

    def _row(self, update: AsynchronousUpdate, step_time: float) -> StepRow:
        """Return this worker's own iteration; there is no mean gradient to compare norms with."""
        return StepRow(
            generation=self._now.generation,
            iteration=update.version,
            shards=1,
            local_norm_sq=None,
            mean_norm_sq=None,
            compute_time=update.compute_time,
            sync_time=update.sync_time,
            step_time=step_time,
            loss=self.recorder.metrics.get("loss"),
            mean_compute_time=update.compute_time,
            fastest_compute_time=update.compute_time,
        )

    def _note_staleness(self, staleness: int) -> None:
        before = self.recorder.metrics.get("staleness", float(staleness))
        self.recorder.metrics["staleness"] = (
            STALENESS_MEMORY * before + (1 - STALENESS_MEMORY) * staleness
        )

    def _set_progress(self, version: int, done: int) -> None:
        """Take over how far all workers have come."""
        samples = max(done, self.progress.samples)
        per_sample = self._now.progress_per_iteration / self._now.config.global_batch
        self.progress = TrainingProgress(version, samples, samples * per_sample)

    # What the controller wants.

    @property
    def _now(self) -> Directive:
        if self.directive is None:
            raise RuntimeError("no Directive has come yet")
        return self.directive

    @property
    def _local_batch(self) -> int:
        config = self._now.config
        return max(1, config.global_batch // config.workers)

    @property
    def _limit(self) -> int:
        """Samples after which training ends."""
        now = self._now
        iterations = now.stop.max_progress / now.progress_per_iteration
        return math.ceil(round(iterations * now.config.global_batch, 3))  # 4311.000000001 is 4311

    def _await_directive(self) -> None:
        """Wait until a Directive names this worker."""
        assert self.strategy is not None
        self.reporter.pace(AWAITING_INTERVAL)
        self.heartbeat.enter(TrainingPhase.WAITING)
        while self.directive is None and self.finished is None:
            self._follow(self.strategy)
            time.sleep(DIRECTIVE_POLL)
        self.heartbeat.enter(TrainingPhase.TRAINING)
        self.reporter.pace(CALM_INTERVAL)

    def _follow(self, strategy: AsynchronousStrategy) -> None:
        """Do what the newest Directive says, from the next share on."""
        if self.is_leaving:
            self._leave(strategy)
            return
        newest, current = self.reporter.newest, self.directive
        if newest is None or (current is not None and newest.generation <= current.generation):
            return
        if newest.rank_of(self.settings.worker) is None:
            if current is not None:
                self._leave(strategy)
            return
        self.current = newest
        try:
            strategy.connect(newest, self.progress, is_new=current is None)
        except GenerationBroken as error:
            log.warning("%s", error)
            self._reconnect(strategy)
        self._report_entry(newest)

    def _report_entry(self, directive: Directive) -> None:
        """Say that this worker trains as it is told."""
        news = Regrouped(directive.generation, 0.0, 0) if self.is_leader else None
        self.reporter.tell(self._message(), regrouped=news)

    def _leave(self, strategy: AsynchronousStrategy) -> None:
        """Hand over what is not pushed yet, and stop."""
        try:
            strategy.flush()
        except GenerationBroken as error:
            log.debug("what was not pushed is trained on by others: %s", error)
        self.finished = "released"

    def _reconnect(self, strategy: AsynchronousStrategy) -> None:
        """Reach the servers again; after a while the controller is told that they are lost."""
        patience = time.monotonic() + SERVER_LOSS_TIMEOUT
        self.heartbeat.enter(TrainingPhase.WAITING)
        while not self.is_leaving:
            newest = self.reporter.newest or self._now
            if newest.rank_of(self.settings.worker) is None:
                break
            self.current = current = max(self._now, newest, key=lambda each: each.generation)
            try:
                strategy.connect(current, self.progress, is_new=False)
                break
            except GenerationBroken as error:
                log.debug("%s", error)
            if time.monotonic() > patience:
                self.reporter.tell(self._message(), broken=current.generation)
                patience = math.inf
            time.sleep(DIRECTIVE_POLL)
        self.heartbeat.enter(TrainingPhase.TRAINING)

    def _is_abandoned(self) -> bool:
        """Whether the server that is waited for is replaced, or this worker is to end."""
        newest, current = self.reporter.newest, self.directive
        has_moved = newest and current and newest.servers != current.servers
        return self.is_leaving or bool(has_moved)
