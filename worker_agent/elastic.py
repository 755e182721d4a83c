"""Elastic: the session of one worker of a job; the iteration boundary is where it all happens.

Between two iterations the session counts progress, hands the measurements to the reporter, and
enters a new generation when the leader has announced one. Inside an iteration it does nothing.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import TracebackType
from typing import Any

from scavenger.protocol import (
    Directive,
    Finished,
    Hello,
    Progress,
    Regrouped,
    StopAtMetric,
)
from worker_agent.client import REPORT, ControllerClient
from worker_agent.errors import Broken
from worker_agent.logbook import Logbook
from worker_agent.sampler import SampleOrder, Share
from worker_agent.session import Loggable, never
from worker_agent.settings import AgentSettings
from worker_agent.strategies.strategy import Clock, Slice, Strategy, Tally, Words
from worker_agent.telemetry import AWAITING, CALM, PROBING, Reporter

log = logging.getLogger(__name__)

LAST_WORD = 5.0
POLL = 0.01


class Elastic:
    """The session of one worker of a job."""

    def __init__(self, settings: AgentSettings) -> None:
        self.settings = settings
        self.controller = ControllerClient(settings)
        self.reporter = Reporter(self.controller, settings.worker, self._is_directed)
        self.strategy: Strategy | None = None
        self.directive: Directive | None = None
        self.rank = 0
        self.clock = Clock()
        self.logbook = Logbook()
        self.announced = 0
        self.is_over = False
        self.is_broken = False
        self.is_leaving = False
        self.finished: Finished | None = None
        self.regrouped: Regrouped | None = None
        self.boundary_at = 0.0

    @property
    def is_leader(self) -> bool:
        """Whether this worker has rank 0 in its generation."""
        return self.rank == 0 and self.finished != "released"

    @property
    def iteration(self) -> int:
        """Iterations applied so far, over the whole job."""
        return self.clock.iteration

    @property
    def samples(self) -> int:
        """Samples consumed so far, over the whole job."""
        return self.clock.samples

    def prepare(self, model: Any, optimizer: Any, *, micro_batches: int = 1) -> None:
        """Hook into the model and its optimizer."""
        from worker_agent.strategies.all_reduce import AllReduce

        self.strategy = AllReduce(
            model,
            optimizer,
            host=self.settings.host,
            micro_batches=micro_batches,
            is_abandoned=self._is_abandoned,
            is_superseded=self._is_superseded,
        )

    def log(self, **metrics: Loggable) -> None:
        """Note named values; a tensor is read one iteration later, when it is surely there."""
        self.logbook.log(metrics)

    def batches(
        self,
        dataset_size: int,
        global_batch: int,
        *,
        epochs: float,
        seed: int = 0,
        until: Callable[[], bool] = never,
    ) -> Iterator[Any]:
        """Yield this worker's part of each batch until the job is done or it is released."""
        if self.strategy is None:
            raise RuntimeError("call prepare(model, optimizer) before batches()")
        order = SampleOrder(dataset_size, seed)
        self.reporter.start(Hello(self.settings.worker, self.strategy.address))
        self.boundary_at = time.perf_counter()
        self._enter(self._await_directive(newer_than=0))
        try:
            while self.finished is None:
                yield from self._iteration(self.strategy, order)
                self._boundary(self.strategy)
        except GeneratorExit:
            self.finished = self.finished or self._verdict(is_over=False)

    def __enter__(self) -> Elastic:
        """Open the session; the controller hears of it when training begins."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Tell the controller how training ended; a failing script is told by its exit code."""
        if kind is None and self.strategy is not None:
            finished = self.finished or "exhausted"
            undelivered = self.reporter.close(self._progress(), finished, LAST_WORD)
            if undelivered is not None:
                self.settings.leave_last_report(REPORT.dump_json(undelivered))
            self.strategy.close()

    # One iteration.

    def _iteration(self, strategy: Strategy, order: SampleOrder) -> Iterator[Any]:
        """Yield this worker's samples, in two halves when noise is measured alone."""
        config = self._now.config
        whole = Share(self.clock.samples, config.global_batch)
        mine = whole.split(config.workers)[self.rank]
        parts = mine.split(2) if self._is_split(mine) else (mine,)
        if self.regrouped is not None:
            self._entered(self.regrouped)
        for part in parts:
            slice_ = Slice(
                part.count / mine.count, mine.count / whole.count, is_last=part is parts[-1]
            )
            strategy.begin(slice_, self._words())
            yield strategy.to_batch(order.indices(part))

    def _words(self) -> Words:
        factor = self.clock.learning_rate_factor
        return Words(self.announced, self.is_over, self.is_leaving, factor)

    def _is_split(self, mine: Share) -> bool:
        every = self._now.split_every
        is_alone = self._now.config.workers == 1 and mine.count > 1
        return is_alone and every > 0 and self.clock.iteration % every == 0

    def _boundary(self, strategy: Strategy) -> None:
        """Count the iteration, tell what it measured, and change generation if agreed."""
        if not strategy.end():
            self._recover()
            return
        tally = strategy.tally()
        self._advance()
        self._record(tally)
        is_over = self._judge() or (tally is not None and tally.is_over)
        if is_over or self.clock.epochs >= self._now.stop.max_progress:
            self.finished = self._verdict(is_over)
        elif tally is not None and tally.announced > self._now.generation:
            self._change(strategy, tally.announced)

    def _advance(self) -> None:
        now, clock = self._now, self.clock
        self.clock = replace(
            clock,
            iteration=clock.iteration + 1,
            samples=clock.samples + now.config.global_batch,
            epochs=clock.epochs + now.progress_per_iteration,
        )

    def _judge(self) -> bool:
        """As leader, see whether the target is reached; True when nobody else need be told."""
        if self.rank == 0:
            self.is_over = self.is_over or self._has_reached_goal()
        return self.is_over and self._now.config.workers == 1

    def _verdict(self, is_over: bool) -> Finished:
        """Say how training ended; a follower believes the leader that it is over."""
        stop = self._now.stop
        if isinstance(stop, StopAtMetric):
            is_good = self._has_reached_goal() if self.rank == 0 else is_over
        else:
            is_good = self.clock.epochs >= stop.max_progress
        return "target" if is_good else "exhausted"

    def _has_reached_goal(self) -> bool:
        stop = self._now.stop
        if not isinstance(stop, StopAtMetric) or stop.metric not in self.logbook.metrics:
            return False
        return stop.reached(self.logbook.metrics[stop.metric])

    # Telemetry.

    def _record(self, tally: Tally | None) -> None:
        """Note the iteration; as leader, report the row that became complete."""
        now = time.perf_counter()
        step_time, self.boundary_at = now - self.boundary_at, now
        self.logbook.read_tensors()
        if self.rank != 0:
            return
        generation, iteration = self._now.generation, self.clock.iteration
        row = self.logbook.record(generation, iteration, step_time, tally)
        if row is None:
            return
        self.reporter.record(row)
        self.reporter.tell(self._progress())
        if self.logbook.rows == self._now.report_after:
            self.reporter.flush()

    def _progress(self) -> Progress:
        generation = 0 if self.directive is None else self.directive.generation
        clock, metrics = self.clock, self.logbook.finite_metrics()
        return Progress(generation, clock.iteration, clock.samples, clock.epochs, metrics)

    # Generations.

    @property
    def _now(self) -> Directive:
        assert self.directive is not None
        return self.directive

    def _is_directed(self, directive: Directive) -> None:
        """Runs on the reporter's thread: as leader, prepare the newcomers, then announce."""
        current, strategy = self.directive, self.strategy
        if current is None or strategy is None or self.rank != 0 or self.is_broken:
            return
        known = {member.worker for member in current.members}
        newcomers = tuple(m.address for m in directive.members if m.worker not in known)
        try:
            strategy.push(directive, newcomers)
        except Broken as error:
            log.warning("generation %d is refused: %s", directive.generation, error)
            self.reporter.refuse(directive.generation)
            return
        self.announced = directive.generation

    def _await_directive(self, newer_than: int) -> Directive:
        """Wait until the controller or a leader names this worker in a newer generation."""
        self.reporter.pace(AWAITING)
        while True:
            directive = self._newest()
            if directive is not None and self._concerns_me(directive, newer_than):
                return directive
            time.sleep(POLL)

    def _concerns_me(self, directive: Directive, newer_than: int) -> bool:
        """Whether a Directive is new and names this worker, or leaves a former member out."""
        is_named = directive.rank_of(self.settings.worker) is not None
        return directive.generation > newer_than and (is_named or newer_than > 0)

    def _newest(self) -> Directive | None:
        """Return the newest Directive the controller sent or a leader pushed."""
        assert self.strategy is not None
        told = [d for d in (self.reporter.newest, self.strategy.called()) if d is not None]
        return max(told, key=lambda directive: directive.generation, default=None)

    def _is_superseded(self, generation: int) -> bool:
        """Whether a generation that is waited for will not come."""
        newest = self._newest()
        return newest is not None and newest.generation > generation

    def _change(self, strategy: Strategy, generation: int) -> None:
        """Leave this generation for the announced one."""
        try:
            directive = strategy.told(generation)
        except Broken:
            self._recover()
            return
        self._enter(directive)

    def _recover(self) -> None:
        """The collective failed: wait for a generation without the lost, then redo."""
        self.is_broken = True
        self.reporter.tell(self._progress(), broken=self._now.generation)
        self._enter(self._await_directive(newer_than=self._now.generation))

    def _enter(self, directive: Directive) -> None:
        """Join a generation; tries later ones until one can be formed."""
        assert self.strategy is not None
        before = self.clock
        is_new = self.directive is None
        while True:
            rank = directive.rank_of(self.settings.worker)
            if rank is None:
                self.finished = "released"
                return
            try:
                self.clock = self.strategy.join(directive, rank, self.clock, is_new=is_new)
                break
            except Broken as error:
                log.warning("%s", error)
                self.reporter.tell(self._progress(), broken=directive.generation)
                directive = self._await_directive(newer_than=directive.generation)
        self._settle_in(directive, rank, lost=before.iteration - self.clock.iteration)

    def _settle_in(self, directive: Directive, rank: int, lost: int) -> None:
        """Take over the generation's configuration."""
        assert self.strategy is not None
        self.directive, self.rank = directive, rank
        self.is_broken = False
        self.announced = directive.generation
        self.logbook.turn()
        factor = directive.learning_rate.factor(directive.config.global_batch)
        self.strategy.scale_learning_rate(factor)
        self.clock = replace(self.clock, learning_rate_factor=factor)
        self.regrouped = Regrouped(directive.generation, 0.0, max(lost, 0))
        self.reporter.pace(PROBING if directive.purpose == "probe" else CALM)
        newest = self.reporter.newest
        if newest is not None and newest.generation > directive.generation:
            self._is_directed(newest)

    def _entered(self, regrouped: Regrouped) -> None:
        """The first iteration of a generation starts: say how long the change took."""
        now = time.perf_counter()
        pause, self.boundary_at = now - self.boundary_at, now
        self.regrouped = None
        news = replace(regrouped, pause=pause) if self.rank == 0 else None
        self.reporter.tell(self._progress(), regrouped=news)

    def _is_abandoned(self) -> bool:
        """Whether the collective that is waited for will never end."""
        newest, current = self.reporter.newest, self.directive
        if newest is None or current is None:
            return False
        return newest.repairs and newest.generation > current.generation
