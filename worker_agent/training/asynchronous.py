"""`AsynchronousSession`: a worker of a Downpour or Sandblaster job, which waits for no other.

There are no shared iteration boundaries and no generations that fence one another. A worker
takes samples, trains on them at its own pace, and polls the newest Directive. A worker starts
when a Directive lists it and stops when one no longer does.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator
from typing import Any

from scavenger.measurement.steps import StepRow
from scavenger.protocol import Directive, FinishReason, Regrouped, StopAtMetric
from worker_agent.errors import GenerationBroken
from worker_agent.frameworks import (
    AsynchronousStrategy,
    AsynchronousUpdate,
    Framework,
    StrategyContext,
)
from worker_agent.heartbeat import TrainingPhase
from worker_agent.sampler import SampleOrder, SampleRange
from worker_agent.state.progress import TrainingProgress
from worker_agent.telemetry.metrics import smooth_staleness
from worker_agent.telemetry.reporter import DEFAULT_REPORT_INTERVAL, WAITING_REPORT_INTERVAL
from worker_agent.training.base import JobSession

log = logging.getLogger(__name__)

DIRECTIVE_POLL = 0.02
SERVER_LOSS_TIMEOUT = 2.0  # seconds without the servers after which the controller is told


class AsynchronousSession(JobSession[AsynchronousStrategy]):
    """The session of one worker of a Downpour or Sandblaster job.

    Attributes:
        current: The Directive that this worker follows; None before the first.
        shares: Shares of samples that this worker has trained on.
    """

    current: Directive | None = None
    shares = 0

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

    def _open_strategy(
        self, framework: Framework, context: StrategyContext
    ) -> AsynchronousStrategy:
        if context.extra_state:
            log.warning("%s: scheduler, scaler and extra stay each worker's own", context.name)
        strategy = framework.asynchronous_strategy(context)
        self.model_steps = strategy.model_steps or self.model_steps
        return strategy

    def _batches(self, order: SampleOrder, *others: Any) -> Iterator[Any]:
        if self.strategy is not None:
            self.strategy.dataset_size = order.dataset_size
        yield from super()._batches(order, *others)

    def _start(self, strategy: AsynchronousStrategy) -> None:
        """Wait until a Directive names this worker."""
        self.reporter.start(self._hello(f"{self.settings.host}:0"))
        self.reporter.set_interval(WAITING_REPORT_INTERVAL)
        self.heartbeat.publish_phase(TrainingPhase.WAITING)
        while self.directive is None and self.finished is None:
            self._follow(strategy)
            time.sleep(DIRECTIVE_POLL)
        self.heartbeat.publish_phase(TrainingPhase.TRAINING)
        self.reporter.set_interval(DEFAULT_REPORT_INTERVAL)

    def _close(self, strategy: AsynchronousStrategy, *, is_clean_exit: bool) -> None:
        strategy.close()  # the samples it had taken are handed to others at once
        self._send_final_report(is_clean_exit=is_clean_exit)

    # One iteration.

    def _iteration(self, strategy: AsynchronousStrategy, order: SampleOrder) -> Iterator[Any]:
        """Train on one share of samples, if there is one, and count what became of it."""
        self._follow(strategy)
        if self.finished is not None:
            return
        share = self._take(strategy)
        if share is None:
            return
        strategy.begin(share, share.count / self._local_batch)
        yield from self._hand(order, share)
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
            self._set_progress(strategy.version, handed.samples_used)
            self.finished = self._finish_reason(has_converged=handed.has_converged)
        elif handed.share is None:
            self.heartbeat.count_wait()
            time.sleep(DIRECTIVE_POLL)  # others still train on the last samples, and may die of it
        return handed.share

    def _check_target(self, strategy: AsynchronousStrategy) -> None:
        """As leader, check whether the target is reached, and tell the other workers."""
        if not self.is_leader or not self._has_reached_goal():
            return
        try:
            strategy.finish()
            strategy.flush()
        except GenerationBroken:
            log.warning("the others do not hear from the servers that the target is reached")
        self.finished = "target"

    def _finish_reason(self, *, has_converged: bool) -> FinishReason:
        """Say how training ended, once no samples are handed out any more."""
        if self.progress.samples < self._limit and not has_converged:
            return "target"  # the leader has said so
        if has_converged and self.recorder.not_finite:
            return "exhausted"  # nothing was minimised
        return "exhausted" if isinstance(self._current_directive.stop, StopAtMetric) else "target"

    # Telemetry.

    def _record(self, update: AsynchronousUpdate) -> None:
        """Note the iteration; as leader, report it."""
        self.recorder.read_tensors()
        self._set_progress(update.version, update.samples_used)
        self.shares += 1
        self.heartbeat.beat(self.shares)  # the version may stay for long
        if update.staleness is not None:
            metrics = self.recorder.metrics
            metrics["staleness"] = smooth_staleness(metrics.get("staleness"), update.staleness)
        if self.is_leader and update.ends_iteration:
            self.reporter.record(self._row(update, self._next_step_time()))
        self.reporter.update_progress(self._message())

    def _row(self, update: AsynchronousUpdate, step_time: float) -> StepRow:
        """Return this worker's own iteration; there is no mean gradient to compare norms with."""
        return StepRow(
            generation=self._current_directive.generation,
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

    def _set_progress(self, version: int, samples_used: int) -> None:
        """Take over how far all workers have come."""
        samples = max(samples_used, self.progress.samples)
        directive = self._current_directive
        per_sample = directive.progress_per_iteration / directive.config.global_batch
        self.progress = TrainingProgress(version, samples, samples * per_sample)

    # What the controller wants.

    @property
    def _local_batch(self) -> int:
        config = self._current_directive.config
        return max(1, config.global_batch // config.workers)

    @property
    def _limit(self) -> int:
        """Samples after which training ends."""
        directive = self._current_directive
        iterations = directive.stop.max_progress / directive.progress_per_iteration
        samples = iterations * directive.config.global_batch
        return math.ceil(round(samples, 3))  # 4311.000000001 is 4311

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
        news = Regrouped(newest.generation, 0.0, 0) if self.is_leader else None
        self.reporter.update_progress(self._message(), regrouped=news)

    def _leave(self, strategy: AsynchronousStrategy) -> None:
        """Hand over what is not pushed yet, and stop."""
        try:
            strategy.flush()
        except GenerationBroken as error:
            log.debug("what was not pushed is trained on by others: %s", error)
        self.finished = "released"

    def _reconnect(self, strategy: AsynchronousStrategy) -> None:
        """Reach the servers again; after a while the controller is told that they are lost."""
        report_at = time.monotonic() + SERVER_LOSS_TIMEOUT
        self.heartbeat.publish_phase(TrainingPhase.WAITING)
        while not self.is_leaving:
            newest = self.reporter.newest or self._current_directive
            if newest.rank_of(self.settings.worker) is None:
                break
            known = (self._current_directive, newest)
            self.current = current = max(known, key=lambda each: each.generation)
            try:
                strategy.connect(current, self.progress, is_new=False)
                break
            except GenerationBroken as error:
                log.debug("%s", error)
            if time.monotonic() > report_at:
                self.reporter.update_progress(self._message(), broken=current.generation)
                report_at = math.inf
            time.sleep(DIRECTIVE_POLL)
        self.heartbeat.publish_phase(TrainingPhase.TRAINING)

    def _should_abort(self) -> bool:
        """Whether what is waited for never comes, or this worker is to end.

        Either the server is replaced, or a server waits to be filled by the leader, which is lost,
        and this worker is the leader now.
        """
        newest, current = self.reporter.newest, self.directive
        if newest is None or current is None:
            return self.is_leaving
        me = self.settings.worker
        is_promoted = newest.rank_of(me) == 0 and current.rank_of(me) != 0
        return self.is_leaving or is_promoted or newest.servers != current.servers
