"""`StepTimer`: follows the iterations of one training process and never makes it wait.

The framework's hooks call it; after each optimizer step it emits a `PendingStep`, whose values
may still be on the device and are read once they have arrived.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import wraps
from typing import Any, ParamSpec, Protocol

from worker_agent.launcher.step_records import RankStep

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
        blocked: Seconds before ``ready_at`` that averaging kept the process waiting.
        samples: Samples its forward passes saw.
        local_norms: ||·|| of pieces of this rank's gradient, on the device.
        mean_norms: ||·|| of this rank's pieces of the averaged gradient, on the device.
        loss_scale: Factor of the script's loss, on the device.
        is_mixed: Whether gradients were averaged more than once, so that the last average is not
            of gradients that the ranks computed by themselves.
    """

    forward_at: float | None = None
    ready_at: float | None = None
    done_at: float | None = None
    blocked: float = 0.0
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
class PendingStep:
    """A rank's step whose norms are still on the device; without a reading it has no norms."""

    part: RankStep
    reading: Reading | None

    def is_there(self) -> bool:
        return self.reading is None or self.reading.is_there()

    def read(self) -> RankStep:
        """Return the step with its norms."""
        if self.reading is None:
            return self.part
        local, mean = self.reading.read()
        return replace(self.part, local_norm_sq=local, share_of_mean_norm_sq=mean)


class StepTimer:
    """Follows the iterations of this process.

    Attributes:
        iteration: Optimizer steps so far.
        reductions: Averaged gradients so far, equal on all ranks at the same place of training.
        is_on: False after an unexpected error: measuring has ended.
        was_ever_averaged: Whether a gradient of this process was ever averaged with others.

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
        self.current = RunningIteration()
        self.ended_at: float | None = None

    def forward_starts(self, samples: int) -> None:
        """A training forward pass begins."""
        if self.current.forward_at is None:
            self.current.forward_at = time.perf_counter()
        self.current.samples += samples

    def backward_starts(self) -> None:
        """The first gradients of an averaged backward pass are there."""
        current = self.current
        if current.done_at is None or current.ready_at is None:
            return
        current.blocked += current.done_at - current.ready_at
        current.done_at = None
        current.is_mixed = True
        self.mixed += 1
        if self.mixed == MIXED_BEFORE_WARNING:
            log.warning(MIXED_WARNING)

    def gradients_are_ready(self) -> None:
        """The last local gradient of the iteration is there."""
        self.current.ready_at = time.perf_counter()

    def gradients_are_averaged(self) -> None:
        """All gradients of the iteration are averaged."""
        self.current.done_at = time.perf_counter()
        self.reductions += 1
        self.was_ever_averaged = True

    def step_ends(self) -> None:
        """An optimizer has stepped: the iteration ends if its gradients were averaged."""
        current = self.current
        if current.done_at is None and self.was_ever_averaged:
            return
        began_at = current.forward_at if self.ended_at is None else self.ended_at
        self.ended_at = time.perf_counter()
        self.iteration += 1
        self.current = RunningIteration()
        if began_at is not None:  # unknown for the first step of a loop without DDP
            part = self._to_part(current, began_at, self.ended_at)
            self.on_part(PendingStep(part, self.read_norms(current)))

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

    def _to_part(self, current: RunningIteration, began_at: float, ended_at: float) -> RankStep:
        ready_at = ended_at if current.ready_at is None else current.ready_at
        forward_at = began_at if current.forward_at is None else current.forward_at
        exposed = 0.0 if current.done_at is None else current.done_at - ready_at
        return RankStep(
            iteration=self.iteration,
            samples=current.samples,
            local_norm_sq=math.nan,
            share_of_mean_norm_sq=math.nan,
            compute_time=max(ready_at - forward_at - current.blocked, 0.0),
            sync_time=current.blocked + exposed,
            step_time=ended_at - began_at,
        )
