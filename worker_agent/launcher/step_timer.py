"""`StepTimer`: follows the iterations of one training process and never makes it wait.

The framework's hooks call it; after each optimizer step it emits a `PendingStep`, whose norms and
times may still be on their way from the device and are read once they have arrived.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, ParamSpec, Protocol

from worker_agent.launcher.step_records import RankStep
from worker_agent.step_clock import HostClock, Mark, StepClock

log = logging.getLogger(__name__)
P = ParamSpec("P")

MIXED_BEFORE_WARNING = 20
MIXED_WARNING = (
    "scavenger: the noise goes unmeasured: gradients are averaged several times per step; wrap "
    "all backward passes of a step but the last in model.no_sync(), which is faster too"
)


@dataclass(slots=True)
class RunningIteration:
    """What the hooks have seen of the iteration that runs; norms are the framework's tensors.

    Attributes:
        forward_at: When its first forward pass began.
        ready_at: When its last local gradient was there.
        done_at: When all gradients were averaged.
        waits: When averaging kept the process waiting before ``ready_at``: beginnings and ends.
        samples: Samples its forward passes saw.
        local_norms: ||·|| of pieces of this rank's gradient, on the device.
        mean_norms: ||·|| of this rank's pieces of the averaged gradient, on the device.
        loss_scale: Factor of the script's loss, on the device.
        is_mixed: Whether gradients were averaged more than once, so that the last average is not
            of gradients that the ranks computed by themselves.
    """

    forward_at: Mark | None = None
    ready_at: Mark | None = None
    done_at: Mark | None = None
    waits: list[tuple[Mark, Mark]] = field(default_factory=list)
    samples: int = 0
    local_norms: list[Any] = field(default_factory=list)
    mean_norms: list[Any] = field(default_factory=list)
    loss_scale: Any = None
    is_mixed: bool = False


class Reading(Protocol):
    """Squared norms on their way from the device to the host: local, then of the mean gradient."""

    def is_there(self) -> bool:
        """Whether ``read`` would return without waiting."""

    def read(self) -> list[float]: ...


@dataclass(frozen=True, slots=True)
class StepMarks:
    """When one rank's step was where.

    Attributes:
        clock: What made the marks.
        began_at: The end of the step before.
        forward_at: The beginning of its first forward pass.
        ready_at: When its last local gradient was there.
        done_at: When all gradients were averaged; None if they were not.
        ended_at: When the optimizer had stepped.
        waits: When averaging kept the process waiting before ``ready_at``: beginnings and ends.
    """

    clock: StepClock
    began_at: Mark
    forward_at: Mark
    ready_at: Mark
    done_at: Mark | None
    ended_at: Mark
    waits: list[tuple[Mark, Mark]]

    def are_there(self) -> bool:
        """Whether the times can be read."""
        if not self.clock.is_late:
            return True
        marks = [self.ended_at, self.began_at, self.forward_at, self.ready_at]
        marks += [mark for wait in self.waits for mark in wait]
        marks += [] if self.done_at is None else [self.done_at]
        return all(map(self.clock.is_there, marks))

    def read(self) -> tuple[float, float, float]:
        """Return the seconds of computing, of exposed synchronisation, and of the whole step."""
        seconds = self.clock.seconds
        blocked = sum((seconds(*wait) for wait in self.waits), 0.0)
        exposed = 0.0 if self.done_at is None else seconds(self.ready_at, self.done_at)
        compute_time = seconds(self.forward_at, self.ready_at) - blocked
        return max(compute_time, 0.0), blocked + exposed, seconds(self.began_at, self.ended_at)


@dataclass(frozen=True, slots=True)
class PendingStep:
    """A rank's step whose norms and times may still be on the device.

    Attributes:
        iteration: Optimizer steps of this process so far, this one included.
        samples: Samples this rank's forward passes saw.
        marks: Its times.
        reading: Its norms; None if it has none.
    """

    iteration: int
    samples: int
    marks: StepMarks
    reading: Reading | None

    def is_there(self) -> bool:
        return self.marks.are_there() and (self.reading is None or self.reading.is_there())

    def read(self) -> RankStep:
        local, mean = (math.nan, math.nan) if self.reading is None else self.reading.read()
        compute_time, sync_time, step_time = self.marks.read()
        return RankStep(
            self.iteration, self.samples, local, mean, compute_time, sync_time, step_time
        )


class StepTimer:
    """Follows the iterations of this process.

    Attributes:
        iteration: Optimizer steps so far.
        reductions: Averaged gradients so far, equal on all ranks at the same place of training.
        is_on: False after an unexpected error: measuring has ended.
        was_ever_averaged: Whether a gradient of this process was ever averaged with others.
        clock: What marks the moments of the steps.

    Args:
        on_part: Takes every step; called in the training thread, so it must not wait.
        read_norms: Starts to read an iteration's norms; returns None if it has none.
    """

    def __init__(
        self,
        on_part: Callable[[PendingStep], None],
        read_norms: Callable[[RunningIteration], Reading | None],
    ) -> None:
        self.on_part, self.read_norms = on_part, read_norms
        self.iteration = 0
        self.reductions = 0
        self.is_on = True
        self.was_ever_averaged = False
        self.mixed = 0
        self.clock: StepClock = HostClock()
        self.current = RunningIteration()
        self.ended_at: Mark | None = None

    def use_clock(self, clock: StepClock) -> None:
        """Mark moments by the clock of the first device that is seen, from this iteration on."""
        if clock.is_late and not self.clock.is_late:
            self.clock, self.ended_at = clock, None
            self.current = RunningIteration()

    def forward_starts(self, samples: int) -> None:
        """A training forward pass begins."""
        if self.current.forward_at is None:
            self.current.forward_at = self.clock.start()
        self.current.samples += samples

    def backward_starts(self) -> None:
        """The first gradients of an averaged backward pass are there."""
        current = self.current
        if current.done_at is None or current.ready_at is None:
            return
        current.waits.append((current.ready_at, current.done_at))
        current.done_at = None
        current.is_mixed = True
        self.mixed += 1
        if self.mixed == MIXED_BEFORE_WARNING:
            log.warning(MIXED_WARNING)

    def gradients_are_ready(self) -> None:
        """The last local gradient of the iteration is there."""
        self.current.ready_at = self.clock.mark()

    def gradients_are_averaged(self) -> None:
        """All gradients of the iteration are averaged."""
        self.current.done_at = self.clock.mark()
        self.reductions += 1
        self.was_ever_averaged = True

    def step_ends(self) -> None:
        """An optimizer has stepped: the iteration ends if its gradients were averaged."""
        current = self.current
        if current.done_at is None and self.was_ever_averaged:
            return
        began_at = current.forward_at if self.ended_at is None else self.ended_at
        self.ended_at = self.clock.mark()
        self.iteration += 1
        self.current = RunningIteration()
        if began_at is not None:  # unknown for the first step of a loop without DDP
            marks = self._marks_of(current, began_at, self.ended_at)
            reading = self.read_norms(current)
            self.on_part(PendingStep(self.iteration, current.samples, marks, reading))

    def guarded(self, hook: Callable[P, Any]) -> Callable[P, None]:
        """Return a hook whose first exception ends the measuring and never reaches the script."""

        @wraps(hook)
        def call(*arguments: P.args, **options: P.kwargs) -> None:
            if not self.is_on:
                return
            try:
                hook(*arguments, **options)
            except Exception:
                self.is_on = False
                log.exception("scavenger: measuring stopped; training goes on unmeasured")

        return call

    def _marks_of(self, current: RunningIteration, began_at: Mark, ended_at: Mark) -> StepMarks:
        return StepMarks(
            clock=self.clock,
            began_at=began_at,
            forward_at=began_at if current.forward_at is None else current.forward_at,
            ready_at=ended_at if current.ready_at is None else current.ready_at,
            done_at=current.done_at,
            ended_at=ended_at,
            waits=current.waits,
        )
