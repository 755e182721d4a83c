"""`ElasticSession`: the session of a worker in a synchronous job.

Between two iterations it counts progress, passes measurements to the reporter, saves a
checkpoint when one is due, and moves to another generation when its membership says so. Inside
an iteration it does nothing.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from scavenger.layout import Layout
from scavenger.protocol import (
    MAX_STACK_CHECKS,
    Directive,
    FinishReason,
    Progress,
    Regrouped,
    StopAtMetric,
)
from scavenger.stack import Stack
from scavenger.worker_env import WorkerEnv
from worker_agent.errors import LayoutChanged, StateRefused
from worker_agent.frameworks import (
    BatchSlice,
    ControlFlags,
    Framework,
    StepSummary,
    StrategyContext,
    TrainingStrategy,
)
from worker_agent.heartbeat import TrainingPhase
from worker_agent.rendezvous.rendezvous import StoreRendezvous
from worker_agent.sampler import SampleOrder, SampleRange
from worker_agent.state.bucket import open_bucket
from worker_agent.state.progress import TrainingProgress
from worker_agent.telemetry.reporter import DEFAULT_REPORT_INTERVAL, PROBING_REPORT_INTERVAL
from worker_agent.training.base import JobSession
from worker_agent.training.learning_rate import LearningRateFactor, update_noise
from worker_agent.training.membership import Membership
from worker_agent.training.worker_processes import (
    EndRestoring,
    LeadingStrategy,
    share_model,
)
from worker_agent.transport.process_link import FollowerLinks

if TYPE_CHECKING:
    from worker_agent.state.checkpoints import Checkpointer

log = logging.getLogger(__name__)

EXIT_STARTS_AGAIN = 75
SAVE_TIMEOUT = 120.0  # for a checkpoint that a change of layout waits for
CLOSE_TIMEOUT = 4.0  # with the time to close the group, an exit is at most 5 s late


class ElasticSession(JobSession[TrainingStrategy]):
    """The session of one worker of a job."""

    def __init__(self, settings: WorkerEnv, *, deterministic: bool = False) -> None:
        super().__init__(settings, deterministic=deterministic)
        self.membership: Membership | None = None
        self.is_over = False  # as leader: whether the target is reached
        self.learning_rate = LearningRateFactor()
        self.regrouped: Regrouped | None = None
        self.checkpointer = open_checkpointer(settings, self.reporter.controller)

    @property
    def is_leader(self) -> bool:
        """Whether this worker has rank 0 in its generation."""
        is_first = self.membership is None or self.membership.rank == 0
        return is_first and self.finished != "released"

    @property
    def directive(self) -> Directive | None:
        return None if self.membership is None else self.membership.directive

    def _open_strategy(self, framework: Framework, context: StrategyContext) -> TrainingStrategy:
        rendezvous = StoreRendezvous(context.worker, self.settings.host, self._is_superseded)
        strategy = self._make_strategy(framework, rendezvous, context)
        can_start_again = self.settings.next_layout is not None
        self.membership = Membership(
            context.worker,
            strategy,
            self.reporter,
            lambda: self.is_leaving,
            save=partial(self._save_now, strategy),
            layout=self.settings.layout if can_start_again else "",
        )
        return strategy

    def _make_strategy(
        self, framework: Framework, rendezvous: StoreRendezvous, context: StrategyContext
    ) -> TrainingStrategy:
        """Return the job's strategy, which leads the other processes of this worker, if any."""
        processes = Layout.parse(self.settings.layout).processes
        if processes == 1:
            return framework.strategy(rendezvous, context)
        shared = share_model(self.settings, self.sharing)
        followers = shared.link
        assert isinstance(followers, FollowerLinks)

        def restore(state: Any, progress: TrainingProgress) -> TrainingProgress:
            reached = context.restore_checkpoint(state, progress)
            followers.send(EndRestoring(reached))
            return reached

        mine = replace(context, shared=shared, restore_checkpoint=restore)
        own = framework.strategy(rendezvous, mine)
        self.model_steps = own.model_steps
        return LeadingStrategy(own, followers)

    def _start(self, strategy: TrainingStrategy) -> None:
        self.reporter.start(self._hello(strategy.rendezvous.address))
        self._change_generation(self._members.begin)

    def _close(self, strategy: TrainingStrategy, *, is_clean_exit: bool) -> None:
        end = time.monotonic() + CLOSE_TIMEOUT
        self._send_final_report(is_clean_exit=is_clean_exit)
        if self.checkpointer is not None:
            self.checkpointer.close(max(end - time.monotonic(), 0.0))
        strategy.close()

    # One iteration.

    def _iteration(self, strategy: TrainingStrategy, order: SampleOrder) -> Iterator[Any]:
        """Train on this worker's samples, in two halves if one worker alone measures noise."""
        config = self._current_directive.config
        whole = SampleRange(self.progress.samples, config.global_batch)
        mine = whole.split(config.workers)[self._rank]
        parts = mine.split(2) if self._is_split(mine) else (mine,)
        yield from self._rehearse(strategy, order, mine)
        if self.regrouped is not None:
            self._report_entry(self.regrouped)
        # With one worker, two halves of a batch are the two shards that noise needs (Eq. 2).
        for part in parts:
            slice_ = BatchSlice(
                part.count / mine.count, mine.count / whole.count, part is parts[-1], part
            )
            strategy.begin(slice_, self._flags())
            if self.is_deterministic and self.framework is not None:
                self.framework.seed(order.seed, part.start)
            yield from self._hand(order, part)
        self._boundary(strategy, self._members)

    def _rehearse(
        self, strategy: TrainingStrategy, order: SampleOrder, mine: SampleRange
    ) -> Iterator[Any]:
        """Let the script run its loop body once without counting it, if its stack is new."""
        if (rehearsals := strategy.rehearsals) is None:
            return
        halves = mine.split(2) if self._may_split(mine) else ()
        rehearsal = rehearsals.due([part.count for part in (mine, *halves)])
        if rehearsal is not None:
            yield from self._run_rehearsal(rehearsal, order, mine)

    def _rehearse_early(self, strategy: TrainingStrategy, order: SampleOrder) -> Iterator[Any]:
        batch, rehearsals = self.settings.local_batch, strategy.rehearsals
        if batch == 0 or rehearsals is None:
            return
        rehearsal = rehearsals.due([batch], Stack.parse(self.settings.stack))
        if rehearsal is not None:
            yield from self._run_rehearsal(rehearsal, order, SampleRange(0, batch))

    def _run_rehearsal(
        self, rehearsal: AbstractContextManager[None], order: SampleOrder, share: SampleRange
    ) -> Iterator[Any]:
        self.heartbeat.publish_phase(TrainingPhase.WAITING)
        self.is_rehearsing = True
        try:
            with rehearsal:
                yield from self._hand(order, share)
        finally:
            self.is_rehearsing = False
            self.heartbeat.publish_phase(TrainingPhase.TRAINING)

    def _flags(self) -> ControlFlags:
        factor = self.learning_rate.leader_factor(self._current_directive, self.progress)
        return ControlFlags(
            self._members.announced_generation, self.is_over, self.is_leaving, factor
        )

    def _is_split(self, mine: SampleRange) -> bool:
        every = self._current_directive.split_every
        return self._may_split(mine) and self.progress.iteration % every == 0

    def _may_split(self, mine: SampleRange) -> bool:
        directive = self._current_directive
        layout = Layout.parse(self.settings.layout)
        is_cut = layout.has_noise_of_parts or layout.is_asynchronous
        is_alone = directive.config.workers == 1 and not is_cut
        return is_alone and mine.count > 1 and directive.split_every > 0

    def _boundary(self, strategy: TrainingStrategy, membership: Membership) -> None:
        """Count the iteration, report its measurements, and change generation if agreed."""
        if not strategy.end():
            self._change_generation(membership.recover)
            return
        summary = strategy.previous_summary
        # The summary is of the iteration before: reading the present one would wait for the device.
        self.progress = self.progress.after_iteration(self._current_directive)
        self.heartbeat.beat(self.iteration)
        self._record(summary)
        self._apply_learning_rate(strategy, summary)
        is_over = self._check_target() or (summary is not None and summary.is_over)
        if is_over or self.progress.epochs >= self._current_directive.stop.max_progress:
            self.finished = self._finish_reason(is_over)
        elif summary is not None and membership.is_newer_generation(summary.announced_generation):
            self._change_generation(partial(membership.change, summary.announced_generation))
        # Checked last: a worker with peers learns of it by its collective, which fails.
        elif membership.is_fenced_out():
            self.finished = "released"
        elif leaving := self._leaving_ranks(summary):
            if len(leaving) == len(self._current_directive.members):
                self._save(strategy)  # no worker remains that could take the state
            self._change_generation(partial(membership.drop_leaving_members, leaving))
        # A released worker leads no more, and has no generation if it stood by.
        if self.is_leader and self.checkpointer is not None and self.checkpointer.is_due():
            self._save(strategy)

    def _save(self, strategy: TrainingStrategy) -> None:
        """Write a checkpoint in the background; training goes on if the state cannot be saved."""
        if self.checkpointer is None or self._rank != 0:
            return
        try:
            snapshot = strategy.snapshot(self.progress)
            self.checkpointer.submit(snapshot, self._current_directive.generation)
        except StateRefused as error:
            log.warning("no checkpoint: %s", error)

    def _save_now(self, strategy: TrainingStrategy) -> bool:
        """Write a checkpoint, and wait for it; whether training can go on from it."""
        if self.checkpointer is None:
            return False
        try:
            snapshot = strategy.snapshot(self.progress)
        except StateRefused as error:
            log.warning("no checkpoint: %s", error)
            return False
        generation = self._current_directive.generation
        return self.checkpointer.save(snapshot, generation, SAVE_TIMEOUT)

    def _start_again(self, layout: str) -> NoReturn:
        """End this process at once, so that its machine starts the worker in another layout.

        The script's own end must not run: its training is not over.
        """
        assert self.settings.next_layout is not None
        log.warning("scavenger: training starts again with %s", layout)
        self._send_final_report(is_clean_exit=False)
        try:
            Path(self.settings.next_layout).write_text(layout)
        except OSError as error:  # no exit code may end the job for that: started again, it retries
            log.warning("scavenger: the next layout cannot be written down: %s", error)
            os.kill(os.getpid(), signal.SIGKILL)
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        os._exit(EXIT_STARTS_AGAIN)

    def _restore_checkpoint(self, state: Any, progress: TrainingProgress) -> TrainingProgress:
        if self.checkpointer is None:
            return progress
        return self.checkpointer.restore(state.restore) or progress

    def _apply_learning_rate(self, strategy: TrainingStrategy, summary: StepSummary | None) -> None:
        """Apply the learning-rate factor that all workers have agreed on."""
        directive, progress = self._current_directive, self.progress
        if summary is not None and self._rank == 0:
            noise = progress.noise
            for measured in summary.measured:
                noise = update_noise(noise, measured, directive.config.global_batch)
            progress = replace(progress, noise=noise)
        factor = self.learning_rate.factor(directive, progress, summary)
        strategy.scale_learning_rate(factor)
        self.progress = replace(progress, learning_rate_factor=factor)

    def _leaving_ranks(self, summary: StepSummary | None) -> tuple[int, ...]:
        """Return the ranks that leave at this boundary; a worker alone agrees with itself."""
        if self._current_directive.config.workers == 1:
            return (0,) if self.is_leaving else ()
        return () if summary is None else summary.leaving

    def _check_target(self) -> bool:
        """As leader, check whether the target is reached; True if no other worker must be told."""
        if self._rank == 0:
            self.is_over = self.is_over or self._has_reached_goal()
        return self.is_over and self._current_directive.config.workers == 1

    def _finish_reason(self, is_over: bool) -> FinishReason:
        """Return how training ended; a follower trusts the leader that the target is reached."""
        stop = self._current_directive.stop
        if isinstance(stop, StopAtMetric):
            is_reached = self._has_reached_goal() if self._rank == 0 else is_over
        else:
            is_reached = self.progress.epochs >= stop.max_progress
        return "target" if is_reached else "exhausted"

    def _reason_to_break(self) -> FinishReason:
        return self._finish_reason(is_over=False)

    # Telemetry.

    def _record(self, summary: StepSummary | None) -> None:
        """Record the iteration; as leader, report the rows that became complete.

        A follower reports its progress only when a metric became NaN: it may be the first to know.
        """
        step_time = self._next_step_time()
        if self._current_directive.nan_guard and self.strategy is not None:
            skipped = self.strategy.skipped_steps
            if skipped is not None:
                self.recorder.log({"skipped_steps": skipped}, self.progress.iteration)
        if self.model_steps is not None and self.model_steps.staleness is not None:
            self.recorder.metrics["staleness"] = float(self.model_steps.staleness)
        self.recorder.read_tensors()
        has_changed, self.recorder.has_changed = self.recorder.has_changed, False
        if self._rank != 0:
            if has_changed:
                self.reporter.update_progress(self._message())
            return
        generation, iteration = self._current_directive.generation, self.progress.iteration
        rows_before = self.recorder.rows
        rows = self.recorder.record(generation, iteration, step_time, summary)
        # After a repair the workers train in a configuration that the controller did not choose.
        if self._current_directive.revision:
            rows = []
        for row in rows:
            self.reporter.record(row)
        self.reporter.update_progress(self._message())
        wanted = self._current_directive.report_after
        if rows and rows_before < wanted <= self.recorder.rows:
            self.reporter.flush()

    # Generations.

    @property
    def _members(self) -> Membership:
        assert self.membership is not None
        return self.membership

    @property
    def _rank(self) -> int:
        return self._members.rank

    def _change_generation(
        self, move: Callable[[TrainingProgress, Progress], TrainingProgress]
    ) -> None:
        """Let the membership move to another generation, and apply its configuration."""
        before, directive = self.progress, self.directive
        self.heartbeat.publish_phase(TrainingPhase.WAITING)
        try:
            self.progress = move(self.progress, self._message())
        except LayoutChanged as change:
            self._start_again(change.layout)
        self.heartbeat.publish_phase(TrainingPhase.TRAINING)
        if self._members.is_released:
            self.finished = "released"
        elif self.directive is not directive:
            lost = before.iteration - self.progress.iteration
            self._apply_generation(self._current_directive, lost)

    def _apply_generation(self, directive: Directive, lost: int) -> None:
        assert self.strategy is not None
        self.recorder.start_generation()
        # The factor warms up from where it stands, not from 1: a resize during warm-up is no
        # restart.
        self.learning_rate = LearningRateFactor(
            self.progress.learning_rate_factor, self.progress.epochs
        )
        self._apply_learning_rate(self.strategy, None)
        self.regrouped = Regrouped(directive.generation, 0.0, max(lost, 0))
        is_probe = directive.purpose == "probe"
        interval = PROBING_REPORT_INTERVAL if is_probe else DEFAULT_REPORT_INTERVAL
        self.reporter.set_interval(interval)
        # A Directive that came during the change was not announced, since there was no leader then.
        newest = self.reporter.newest
        if newest is not None:
            self._on_directive(newest)

    def _report_entry(self, regrouped: Regrouped) -> None:
        """As the first iteration of a generation starts, report how long the change took."""
        pause, self.regrouped = self._next_step_time(), None
        news = replace(regrouped, pause=pause) if self._rank == 0 else None
        self.reporter.update_progress(self._message(), regrouped=news)

    def _message(self) -> Progress:
        message = super()._message()
        rehearsals = None if self.strategy is None else self.strategy.rehearsals
        if rehearsals is None or not rehearsals.checks:
            return message
        return replace(message, stack_checks=tuple(rehearsals.checks)[:MAX_STACK_CHECKS])

    def _on_directive(self, directive: Directive) -> None:
        if self.membership is not None:
            self.membership.announce(directive)

    def _is_superseded(self, directive: Directive) -> bool:
        return self.membership is not None and self.membership.is_superseded(directive)

    def _should_abort(self) -> bool:
        self.heartbeat.count_wait()
        return self.membership is not None and self.membership.should_abort()


def open_checkpointer(settings: WorkerEnv, controller: object) -> Checkpointer | None:
    """Return the job's checkpointer; None if the job wants no checkpoints."""
    if settings.checkpoints is None:
        return None
    from worker_agent.state.checkpoints import Checkpointer  # needs safetensors

    bucket = open_bucket(settings, controller)
    return Checkpointer.from_settings(Path(settings.checkpoints), settings, bucket)
