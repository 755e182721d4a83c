"""FirstMomentum: the momentum of a fused SGD is right although its first step was skipped.

PyTorch does not clear the memory of its buffers. The kernel fills them in its first step; a loss
scaler that has found an infinite gradient lets it write nothing, and the steps after that take them
as they are. With its usual scale of 65 536 a scaler skips just that first step.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, Optimizer

from worker_agent.strategies.step_hook import StepHook


class FirstMomentum:
    """Sees to the buffers before the steps that a loss scaler may skip.

    A zero buffer is as good as none where momentum · 0 + gradient is what a first step makes of it.
    Dampening would shrink that gradient: there whether the step is skipped is read on the host, as
    the scaler itself does for kernels that are not fused, until a step was not.

    Args:
        optimizer: Any; nothing is done but for a fused SGD whose step is PyTorch's own.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self.put_aside: list[tuple[Tensor, Tensor]] = []
        if type(optimizer).step is SGD.step:
            StepHook(optimizer, self._before)
            optimizer.register_step_post_hook(self._restore)

    def _before(self, optimizer: Optimizer) -> None:
        self._restore()  # a step that raised has left its own behind
        found_inf: Tensor | None = getattr(optimizer, "found_inf", None)
        if found_inf is None:
            return
        for group in optimizer.param_groups:
            fresh = without_momentum(optimizer, group)
            if not fresh:
                continue
            if not group["dampening"]:
                for parameter in fresh:
                    optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
            elif found_inf.item():
                self._skip(group["params"])

    def _skip(self, parameters: list[Tensor]) -> None:
        """Let these have no gradient for the length of the step: no gradient, no step."""
        for parameter in parameters:
            if parameter.grad is not None:
                self.put_aside.append((parameter, parameter.grad))
                parameter.grad = None

    def _restore(self, *_: Any) -> None:
        for parameter, gradient in self.put_aside:
            parameter.grad = gradient
        self.put_aside = []


def without_momentum(optimizer: Optimizer, group: dict[str, Any]) -> list[Tensor]:
    """Return the parameters of a group that will get their momentum in this step."""
    if not group["fused"] or not group["momentum"]:
        return []
    return [
        parameter
        for parameter in group["params"]
        if parameter.grad is not None
        and optimizer.state.get(parameter, {}).get("momentum_buffer") is None
    ]
