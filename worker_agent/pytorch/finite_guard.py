"""`FiniteGuard`: lets a step do nothing whose averaged gradient is not finite, without a scaler.

All workers of a group have the same averaged gradient, so all skip the same steps and their
replicas stay equal. Whether it is finite stays on the device: a fused optimizer reads it there
(``found_inf``), and another optimizer steps and is put back where it must not have stepped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from worker_agent.pytorch.optimizer_hooks import StepHook


class FiniteGuard:
    """Guards the steps of one optimizer.

    A step of a ``GradScaler`` is left alone, because the scaler skips it by itself.

    Attributes:
        is_on: Whether steps are guarded from the next one on.
        skipped: Steps that did nothing so far, on the device; None before the first guarded step.

    Args:
        optimizer: The script's optimizer.
        norm_of_mean: Returns the norm of the averaged gradient, or its square, on the device; None
            where this step has none.
    """

    def __init__(self, optimizer: Optimizer, norm_of_mean: Callable[[], Tensor | None]) -> None:
        self.norm_of_mean = norm_of_mean
        self.is_on = False
        self.skipped: Tensor | None = None
        self.found: Tensor | None = None
        self.before: list[tuple[Tensor, Tensor]] = []
        self.has_told_kernel = False
        StepHook(optimizer, self._before_step)
        optimizer.register_step_post_hook(self._after_step)

    def _before_step(self, optimizer: Any) -> None:
        self._forget(optimizer)  # after a step that raised
        norm = self.norm_of_mean() if self.is_on else None
        if norm is None or hasattr(optimizer, "found_inf"):
            return
        self.found = found = ~torch.isfinite(norm.detach())
        count = found.to(torch.int64)
        self.skipped = count if self.skipped is None else self.skipped + count
        if takes_found_inf(optimizer):
            # Its kernels multiply gradients by no scale where there is none.
            optimizer.found_inf, optimizer.grad_scale = found.to(torch.float32), None
            self.has_told_kernel = True
        elif is_reversible(optimizer):
            self.before = [(tensor, tensor.clone()) for tensor in stepped_tensors(optimizer)]
        elif found.item():
            optimizer.zero_grad(set_to_none=True)  # no gradient, no step

    @torch.no_grad()
    def _after_step(self, optimizer: Any, *_: Any) -> None:
        for tensor, before in self.before:
            assert self.found is not None
            tensor.copy_(torch.where(self.found.to(tensor.device), before, tensor))
        self._forget(optimizer)

    def _forget(self, optimizer: Any) -> None:
        if self.has_told_kernel:
            del optimizer.found_inf, optimizer.grad_scale
            self.has_told_kernel = False
        self.before, self.found = [], None


def takes_found_inf(optimizer: Any) -> bool:
    """Whether the optimizer's kernels read on the device that they must do nothing."""
    groups = optimizer.param_groups
    supports = getattr(optimizer, "_step_supports_amp_scaling", False)
    return bool(supports) and all(group.get("fused") for group in groups)


def is_reversible(optimizer: Optimizer) -> bool:
    """Whether a step changes nothing but tensors that exist and lie beside their parameters.

    State that is born in this step could not be put back: PyTorch's optimizers give it other first
    values than zero. Nor could numbers on the host, without reading whether the step counts.
    """
    for parameter in stepped_parameters(optimizer):
        state = optimizer.state.get(parameter, {})
        if not state and not is_stateless(optimizer):
            return False
        for value in state.values():
            is_beside = isinstance(value, Tensor) and value.device == parameter.device
            if value is not None and not is_beside:
                return False
    return True


def is_stateless(optimizer: Optimizer) -> bool:
    """Whether the optimizer keeps no state at all: SGD without momentum."""
    is_plain = type(optimizer).step is torch.optim.SGD.step
    return is_plain and not any(group["momentum"] for group in optimizer.param_groups)


def stepped_parameters(optimizer: Optimizer) -> Iterator[Tensor]:
    """Yield the parameters that the next step changes."""
    for group in optimizer.param_groups:
        yield from (each for each in group["params"] if each.grad is not None)


def stepped_tensors(optimizer: Optimizer) -> Iterator[Tensor]:
    """Yield all tensors that the next step changes."""
    for parameter in stepped_parameters(optimizer):
        yield parameter
        state = optimizer.state.get(parameter, {})
        yield from (value for value in state.values() if isinstance(value, Tensor))
