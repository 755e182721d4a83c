"""`ElasticSession`: the session of a worker in a synchronous job.

Between two iterations it counts progress, passes measurements to the reporter, saves a
checkpoint when one is due, and moves to another generation when its membership says so. Inside
an iteration it does nothing.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scavenger.protocol import Directive, FinishReason, Hello, Progress, Regrouped, StopAtMetric
from scavenger.worker_env import WorkerEnv
from worker_agent.errors import StateRefused
from worker_agent.frameworks import (
    BatchSlice,
    ControlFlags,
    Framework,
    StepSummary,
    StrategyContext,
    TrainingStrategy,
    find_framework,
)
from worker_agent.heartbeat import TrainingPhase
from worker_agent.rendezvous.rendezvous import StoreRendezvous
from worker_agent.sampler import SampleOrder, SampleRange
from worker_agent.session import never_stop
from worker_agent.state.progress import TrainingProgress
from worker_agent.telemetry.reporter import CALM_INTERVAL, PROBING_INTERVAL
from worker_agent.training.base import BaseSession
from worker_agent.training.learning_rate import LearningRateFactor, update_noise
from worker_agent.training.membership import Membership

if TYPE_CHECKING:
    from worker_agent.state.checkpoints import Checkpointer

log = logging.getLogger(__name__)

CLOSE_TIMEOUT = 4.0  # seconds; with what closing the group takes, an exit is late by 5 at most


class ElasticSession(BaseSession):
    """The session of one worker of a job."""

    def __init__(self, settings: WorkerEnv, *, deterministic: bool = False) -> None:
        super().__init__(settings)
        self.is_deterministic = deterministic
        self.membership: Membership | None = None
        self.framework: Framework | None = None
        self.strategy: TrainingStrategy | None = None
        self.pace = LearningRateFactor()
        self.regrouped: Regrouped | None = None
        self.checkpointer = open_checkpointer(settings)

    @property
    def is_leader(self) -> bool:
        """Whether this worker has rank 0 in its generation."""
        is_first = self.membership is None or self.membership.rank == 0
        return is_first and self.finished != "released"

    @property
    def directive(self) -> Directive | None:
        """The generation this worker is in; None before the first."""
        return None if self.membership is None else self.membership.directive

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
        """Hook into the model, its optimizer and what else is to be carried."""
        worker = self.settings.worker
        self.framework = find_framework(model)
        meeting = StoreRendezvous(worker, self.settings.host, self._is_superseded)
        context = StrategyContext(
            name=self.settings.strategy,
            model=model,
            optimizer=optimizer,
            worker=worker,
            secret=self.settings.job_secret,
            micro_batches=micro_batches,
            carried=name_carried(scheduler, scaler, extra),
            is_abandoned=self._is_abandoned,
            on_work=self.alternation.work,
            restart=self._restart,
        )
        self.strategy = strategy = self.framework.strategy(meeting, context)
        self.membership = Membership(worker, strategy, self.reporter, self._wants_to_leave)

    def batches(
        self,
        dataset_size: int,
        global_batch: int,
        *,
        epochs: float,
        seed: int = 0,
        until: Callable[[], bool] = never_stop,
    ) -> Iterator[Any]:
        """Yield this worker's part of each batch until the job is done or it is released."""
        if self.strategy is None or self.membership is None:
            raise RuntimeError("call prepare(model, optimizer) before batches()")
        order = SampleOrder(dataset_size, seed)
        self.reporter.start(Hello(self.settings.worker, self.strategy.meeting.address))
        self.boundary_at = time.perf_counter()
        self.alternation.ask()
        self._go(self.membership.begin)
        try:
            while self.finished is None:
                yield from self._iteration(self.strategy, order)
                self._boundary(self.strategy, self.membership)
        except GeneratorExit:
            self.finished = self.finished or self._verdict(is_over=False)

    def _close(self, *, is_in_order: bool) -> None:
        end = time.monotonic() + CLOSE_TIMEOUT
        self._say_last_words(is_in_order=is_in_order)
        if self.checkpointer is not None:
            self.checkpointer.close(max(end - time.monotonic(), 0.0))
        if self.strategy is not None:
            self.strategy.close()

    # One iteration.

    def _iteration(self, strategy: TrainingStrategy, order: SampleOrder) -> Iterator[Any]:
        """Yield this worker's samples, in two halves when noise is measured alone."""
        config = self._now.config
        whole = SampleRange(self.clock.samples, config.global_batch)
        mine = whole.split(config.workers)[self._rank]
        parts = mine.split(2) if self._is_split(mine) else (mine,)
        assert self.framework is not None
        if self.regrouped is not None:
            self._entered(self.regrouped)
        for part in parts:
            slice_ = BatchSlice(
                part.count / mine.count, mine.count / whole.count, is_last=part is parts[-1]
            )
            strategy.begin(slice_, self._words())
            if self.is_deterministic:
                self.framework.seed(order.seed, part.start)
            yield self.alternation.hand(self.framework.to_batch(order.indices(part)))
            self.alternation.ask()

    def _words(self) -> ControlFlags:
        assert self.membership is not None
        factor = self.pace.wanted(self._now, self.clock)
        return ControlFlags(self.membership.announced, self.is_over, self.is_leaving, factor)

    def _is_split(self, mine: SampleRange) -> bool:
        every = self._now.split_every
        is_alone = self._now.config.workers == 1 and mine.count > 1
        return is_alone and every > 0 and self.clock.iteration % every == 0

    def _boundary(self, strategy: TrainingStrategy, membership: Membership) -> None:
        """Count the iteration, tell what it measured, and change generation if agreed."""
        if not strategy.end():
            self._go(membership.recover)
            return
        tally = strategy.tally()
        self._advance()
        self._record(tally)
        self._steer(strategy, tally)
        is_over = self._judge() or (tally is not None and tally.is_over)
        if is_over or self.clock.epochs >= self._now.stop.max_progress:
            self.finished = self._verdict(is_over)
        elif tally is not None and membership.is_announced(tally.announced):
            self._go(partial(membership.change, tally.announced))
        elif membership.is_fenced_out():
            self.finished = "released"
        elif leaving := self._leaving(tally):
            if len(leaving) == len(self._now.members):
                self._save(strategy)  # nobody is left to hand the state to
            self._go(partial(membership.part, leaving))
        # Who was released leads no more, and has no generation if it had stood by.
        if self.is_leader and self.checkpointer is not None and self.checkpointer.is_due():
            self._save(strategy)

    def _advance(self) -> None:
        self.clock = self.clock.after_iteration(self._now)
        self.heartbeat.beat(self.clock.iteration)

    def _save(self, strategy: TrainingStrategy) -> None:
        """Have a checkpoint written; one that cannot be taken is no reason to stop training."""
        if self.checkpointer is None or self._rank != 0:
            return
        try:
            self.checkpointer.write(strategy.snapshot(self.clock), self._now.generation)
        except StateRefused as error:
            log.warning("no checkpoint: %s", error)

    def _restart(self, state: Any, clock: TrainingProgress) -> TrainingProgress:
        """Go on from the newest checkpoint when no worker has a state to hand over."""
        snapshot = None if self.checkpointer is None else self.checkpointer.newest()
        if snapshot is None:
            return clock
        try:
            restored: TrainingProgress = state.restore(snapshot)
        except StateRefused as error:
            log.warning("the checkpoint is left alone, training begins anew: %s", error)
            return clock
        log.warning("training goes on from the checkpoint of iteration %d", restored.iteration)
        return restored

    def _steer(self, strategy: TrainingStrategy, tally: StepSummary | None) -> None:
        """Take over the learning rate's factor that all have agreed on."""
        now, clock = self._now, self.clock
        if tally is not None and self._rank == 0:
            clock = replace(clock, noise=update_noise(clock.noise, tally, now.config.global_batch))
        factor = self.pace.factor(now, clock, tally)
        strategy.scale_learning_rate(factor)
        self.clock = replace(clock, learning_rate_factor=factor)

    def _leaving(self, tally: StepSummary | None) -> tuple[int, ...]:
        """Return the ranks that leave at this boundary; who is alone has nobody to tell."""
        if self._now.config.workers == 1:
            return (0,) if self.is_leaving else ()
        return () if tally is None else tally.leaving

    def _judge(self) -> bool:
        """As leader, see whether the target is reached; True when nobody else need be told."""
        if self._rank == 0:
            self.is_over = self.is_over or self._has_reached_goal()
        return self.is_over and self._now.config.workers == 1

    def _verdict(self, is_over: bool) -> FinishReason:
        """Say how training ended; a follower believes the leader that it is over."""
        stop = self._now.stop
        if isinstance(stop, StopAtMetric):
            is_good = self._has_reached_goal() if self._rank == 0 else is_over
        else:
            is_good = self.clock.epochs >= stop.max_progress
        return "target" if is_good else "exhausted"

    def _has_reached_goal(self) -> bool:
        stop = self._now.stop
        if not isinstance(stop, StopAtMetric) or stop.metric not in self.logbook.metrics:
            return False
        return stop.reached(self.logbook.metrics[stop.metric])

    # Telemetry.

    def _record(self, tally: StepSummary | None) -> None:
        """Note the iteration; as leader, report the row that became complete.

        A follower tells where it stands only when what it logged became NaN: it may be the first.
        """
        step_time = self._next_step_time()
        self.logbook.read_tensors()
        has_changed, self.logbook.has_changed = self.logbook.has_changed, False
        if self._rank != 0:
            if has_changed:
                self.reporter.tell(self._progress())
            return
        generation, iteration = self._now.generation, self.clock.iteration
        row = self.logbook.record(generation, iteration, step_time, tally)
        if row is None or self._now.revision:  # no configuration that anybody asked for
            self.reporter.tell(self._progress())
            return
        self.reporter.record(row)
        self.reporter.tell(self._progress())
        if self.logbook.rows == self._now.report_after:
            self.reporter.flush()

    # Generations.

    @property
    def _now(self) -> Directive:
        assert self.membership is not None
        return self.membership.now

    @property
    def _rank(self) -> int:
        assert self.membership is not None
        return self.membership.rank

    def _go(self, move: Callable[[TrainingProgress, Progress], TrainingProgress]) -> None:
        """Let the membership move to another generation, and settle in there."""
        assert self.membership is not None
        before, directive = self.clock, self.directive
        self.heartbeat.enter(TrainingPhase.WAITING)
        self.clock = move(self.clock, self._progress())
        self.heartbeat.enter(TrainingPhase.TRAINING)
        if self.membership.is_released:
            self.finished = "released"
        elif self.directive is not directive:
            self._settle_in(self._now, lost=before.iteration - self.clock.iteration)

    def _settle_in(self, directive: Directive, lost: int) -> None:
        """Take over the generation's configuration."""
        assert self.strategy is not None
        self.logbook.turn()
        self.pace = LearningRateFactor(self.clock.learning_rate_factor, self.clock.epochs)
        self._steer(self.strategy, None)
        self.regrouped = Regrouped(directive.generation, 0.0, max(lost, 0))
        self.reporter.pace(PROBING_INTERVAL if directive.purpose == "probe" else CALM_INTERVAL)
        newest = self.reporter.newest
        if newest is not None:
            self._is_directed(newest)

    def _entered(self, regrouped: Regrouped) -> None:
        """The first iteration of a generation starts: say how long the change took."""
        pause, self.regrouped = self._next_step_time(), None
        news = replace(regrouped, pause=pause) if self._rank == 0 else None
        self.reporter.tell(self._progress(), regrouped=news)

    def _is_directed(self, directive: Directive) -> None:
        """Runs on the reporter's thread, with every Directive newer than all before."""
        if self.membership is not None:
            self.membership.announce(directive)

    def _is_superseded(self, directive: Directive) -> bool:
        return self.membership is not None and self.membership.is_superseded(directive)

    def _is_abandoned(self) -> bool:
        self.heartbeat.wait()
        return self.membership is not None and self.membership.is_abandoned()

    def _wants_to_leave(self) -> bool:
        return self.is_leaving


def open_checkpointer(settings: WorkerEnv) -> Checkpointer | None:
    """Return what keeps this job's checkpoints; None when none are wanted."""
    if settings.checkpoints is None:
        return None
    from worker_agent.state.checkpoints import Checkpointer  # needs safetensors

    every, keep = settings.checkpoint_every, settings.checkpoint_keep
    return Checkpointer(Path(settings.checkpoints), settings.job, every=every, keep=keep)


def name_carried(scheduler: Any, scaler: Any, extra: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Name what travels with the weights besides the optimizer."""
    named = {"scheduler": scheduler, "scaler": scaler, **(extra or {})}
    return {name: each for name, each in named.items() if each is not None}
