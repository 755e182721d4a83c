"""`StepTimer`: follows the iterations of one training process and never makes it wait.

The framework's hooks call it; after each optimizer step it emits a `PendingStep`, whose values
may still be on the device and are read once they have arrived.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import wraps
from typing import Any, ParamSpec

import torch
from torch import Tensor

from worker_agent.launcher.step_records import RankStep

log = logging.getLogger(__name__)
P = ParamSpec("P")

HALF_PRECISION = (torch.float16, torch.bfloat16)
MIXED_BEFORE_WARNING = 20
MIXED_WARNING = (
    "scavenger: the noise goes unmeasured: gradients are averaged several times per step; wrap "
    "all backward passes of a step but the last in model.no_sync(), which is faster too"
)


@dataclass(slots=True)
class RunningIteration:
    """What has been seen of the iteration that runs.

    Attributes:
        forward_at: When its first forward pass began.
        ready_at: When its last local gradient was there.
        done_at: When all gradients were averaged.
        blocked: Seconds before ``ready_at`` that averaging kept the process waiting.
        samples: Samples its forward passes saw.
        local_norms: ||·|| of pieces of this rank's gradient, on the device.
        mean_norms: ||·|| of this rank's pieces of the averaged gradient, on the device.
        loss_scale: What the script multiplied its loss with, on the device.
        is_mixed: Whether gradients were averaged more than once, so that what is averaged last is
            not what the ranks computed by themselves.
    """

    forward_at: float | None = None
    ready_at: float | None = None
    done_at: float | None = None
    blocked: float = 0.0
    samples: int = 0
    local_norms: list[Tensor] = field(default_factory=list)
    mean_norms: list[Tensor] = field(default_factory=list)
    loss_scale: Tensor | None = None
    is_mixed: bool = False


class DeviceReading:
    """Values on their way from the device to the host."""

    def __init__(self, values: Tensor) -> None:
        self._values = values.to("cpu", non_blocking=True)
        self._event: Any = None
        if values.is_cuda:
            event: Any = torch.cuda.Event
            self._event = event()
            self._event.record()

    def is_there(self) -> bool:
        """Whether reading would not wait."""
        return self._event is None or bool(self._event.query())

    def read(self) -> list[float]:
        """Return the values."""
        values: list[float] = self._values.tolist()
        return values


@dataclass(frozen=True, slots=True)
class PendingStep:
    """A part whose norms are still on their way; without a reading it has none."""

    part: RankStep
    reading: DeviceReading | None

    def is_there(self) -> bool:
        """Whether reading would not wait."""
        return self.reading is None or self.reading.is_there()

    def read(self) -> RankStep:
        """Return the part with its norms."""
        if self.reading is None:
            return self.part
        local, mean = self.reading.read()
        return replace(self.part, local_norm_sq=local, share_of_mean_norm_sq=mean)


class StepTimer:
    """Follows the iterations of this process.

    Attributes:
        iteration: Optimizer steps so far.
        reductions: Averaged gradients so far, equal on all ranks at the same place of training.
        is_on: False once something unforeseen happened: nothing is measured any more.
        is_averaged: Whether some gradient of this process was ever averaged with others.

    Args:
        on_part: Takes every part; called in the training thread, so it must not wait.
    """

    def __init__(self, on_part: Callable[[PendingStep], None]) -> None:
        self.on_part = on_part
        self.iteration = 0
        self.reductions = 0
        self.is_on = True
        self.is_averaged = False
        self.mixed = 0
        self.now = RunningIteration()
        self.ended_at: float | None = None

    def forward_starts(self, samples: int) -> None:
        """A training forward pass begins."""
        if self.now.forward_at is None:
            self.now.forward_at = time.perf_counter()
        self.now.samples += samples

    def backward_starts(self) -> None:
        """The first gradients of an averaged backward pass are there."""
        now = self.now
        if now.done_at is None or now.ready_at is None:
            return
        now.blocked += now.done_at - now.ready_at
        now.done_at = None
        now.is_mixed = True
        self.mixed += 1
        if self.mixed == MIXED_BEFORE_WARNING:
            log.warning(MIXED_WARNING)

    def gradients_are_ready(self) -> None:
        """The last local gradient of the iteration is there."""
        self.now.ready_at = time.perf_counter()

    def gradients_are_averaged(self) -> None:
        """All gradients of the iteration are averaged."""
        self.now.done_at = time.perf_counter()
        self.reductions += 1
        self.is_averaged = True

    def step_ends(self) -> None:
        """An optimizer has stepped: the iteration ends if its gradients were averaged."""
        now = self.now
        if now.done_at is None and self.is_averaged:
            return
        began_at = now.forward_at if self.ended_at is None else self.ended_at
        self.ended_at = time.perf_counter()
        self.iteration += 1
        self.now = RunningIteration()
        if began_at is not None:  # nobody knows when a loop without DDP began its first step
            part = self._to_part(now, began_at, self.ended_at)
            self.on_part(PendingStep(part, start_reading(now)))

    def _to_part(self, now: RunningIteration, began_at: float, ended_at: float) -> RankStep:
        ready_at = ended_at if now.ready_at is None else now.ready_at
        forward_at = began_at if now.forward_at is None else now.forward_at
        return RankStep(
            iteration=self.iteration,
            samples=now.samples,
            local_norm_sq=math.nan,
            share_of_mean_norm_sq=math.nan,
            compute_time=max(ready_at - forward_at - now.blocked, 0.0),
            sync_time=now.blocked + (0.0 if now.done_at is None else now.done_at - ready_at),
            step_time=ended_at - began_at,
        )


def gradient_norm(gradient: Tensor) -> Tensor:
    """Return ||gradient|| on its device, added up in at least float32."""
    wide = torch.float32 if gradient.dtype in HALF_PRECISION else None
    norm: Tensor = torch.linalg.vector_norm(gradient, dtype=wide)
    return norm


def gradient_norms(parameters: Iterable[Tensor]) -> list[Tensor]:
    """Return the norms of the gradients of those parameters that have one."""
    by_width: dict[bool, list[Tensor]] = {True: [], False: []}
    for each in parameters:
        if each.grad is not None:
            by_width[each.grad.dtype in HALF_PRECISION].append(each.grad.detach())
    norms: list[Tensor] = []
    for is_narrow, gradients in by_width.items():
        if gradients:
            norms += torch._foreach_norm(gradients, 2, torch.float32 if is_narrow else None)
    return norms


def start_reading(now: RunningIteration) -> DeviceReading | None:
    """Send both squared norms to the host, without the scale of the loss."""
    if not now.local_norms or now.is_mixed:
        return None
    local = sum_of_squares(now.local_norms)
    # With more ranks than parameters some have no part of the average to look at.
    mean = sum_of_squares(now.mean_norms) if now.mean_norms else torch.zeros_like(local)
    values = torch.stack([local, mean])
    if now.loss_scale is not None:
        values /= now.loss_scale.to(values).square()
    return DeviceReading(values)


def sum_of_squares(norms: list[Tensor]) -> Tensor:
    """Return Σ ||·||² in float64, on the device."""
    total: Tensor = torch.stack(norms).double().square().sum()
    return total


def disable_on_error(watch: StepTimer) -> Callable[[Callable[P, Any]], Callable[P, None]]:
    """Keep what goes wrong in a hook of ours from the script: measuring ends, training goes on."""

    def decorate(hook: Callable[P, Any]) -> Callable[P, None]:
        @wraps(hook)
        def guarded(*arguments: P.args, **options: P.kwargs) -> None:
            if not watch.is_on:
                return
            try:
                hook(*arguments, **options)
            except Exception:
                watch.is_on = False
                log.exception("scavenger: measuring stopped; training goes on unmeasured")

        return guarded

    return decorate
