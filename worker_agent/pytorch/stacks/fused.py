"""`FusedStep`: one kernel for the whole step of an optimizer, which reads no value on the host.

SGD, Adam, AdamW and Adagrad of PyTorch have such a kernel. It takes from the device whether a
gradient is infinite (``found_inf``), where the other implementations make the host wait for that.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer

from worker_agent.pytorch.optimizer_hooks import optimizer_name
from worker_agent.pytorch.stacks.switch import PreparedScript

FUSED_OPTIMIZERS: tuple[type[Optimizer], ...] = (SGD, Adam, AdamW, Adagrad)
_OPTIONS = ("fused", "foreach")
_ABSENT: Any = object()


class FusedStep:
    """Lets the script's own optimizer step by its fused kernel.

    Turned on and off between two iterations, also in the middle of a run: the state stays the
    script's, and the numbers are those of the other implementations up to rounding.
    """

    name = "fused"

    def __init__(self) -> None:
        self.before: list[dict[str, Any]] = []
        self.supported_scaling: Any = _ABSENT

    def refusal(self, script: PreparedScript) -> str | None:
        """Say why this optimizer has to step as it does now; None if it can be fused."""
        optimizer = script.optimizer
        name = optimizer_name(optimizer)
        if not any(type(optimizer).step is kind.step for kind in FUSED_OPTIMIZERS):
            known = ", ".join(kind.__name__ for kind in FUSED_OPTIMIZERS)
            return f"{name} has no fused step: {known} have one"
        for group in optimizer.param_groups:
            if group.get("differentiable"):
                return f"{name} is differentiable, which a fused step is not"
            if group.get("momentum") and group.get("dampening"):
                return f"{name} has dampening, with which a fused first step may not be skipped"
            for parameter in group["params"]:
                if not parameter.is_floating_point():
                    return f"{name} trains a parameter of {parameter.dtype}"
                if parameter.grad is not None and parameter.grad.layout is not torch.strided:
                    return f"{name} is given sparse gradients"
        return None

    def turn_on(self, script: PreparedScript) -> None:
        optimizer: Any = script.optimizer
        self.supported_scaling = optimizer.__dict__.get("_step_supports_amp_scaling", _ABSENT)
        self.before = [
            {name: group[name] for name in _OPTIONS if name in group}
            for group in optimizer.param_groups
        ]
        for group in optimizer.param_groups:
            group["fused"], group["foreach"] = True, False
        for counted, parameter in counters_of(optimizer):
            counted["step"] = counted["step"].to(parameter.device, torch.float32)
        # Also asks PyTorch to check devices and types once more.
        optimizer._need_device_dtype_check_for_fused = True
        optimizer._step_supports_amp_scaling = True

    def turn_off(self, script: PreparedScript) -> None:
        optimizer: Any = script.optimizer
        for group, options in zip(optimizer.param_groups, self.before, strict=False):
            for name in _OPTIONS:
                group.pop(name, None)
            group.update(options)
        if any(group.get("fused") for group in optimizer.param_groups):
            return  # it was fused before
        for counted, _ in counters_of(optimizer):
            kind = torch.float64 if torch.get_default_dtype() == torch.float64 else torch.float32
            counted["step"] = counted["step"].to("cpu", kind)
        if self.supported_scaling is _ABSENT:
            with suppress(AttributeError):
                del optimizer._step_supports_amp_scaling
        else:
            optimizer._step_supports_amp_scaling = self.supported_scaling


def counters_of(optimizer: Optimizer) -> Iterator[tuple[dict[str, Any], Tensor]]:
    """Yield the state of each parameter whose steps are counted in a tensor, and the parameter."""
    for parameter, state in optimizer.state.items():
        if isinstance(state, dict) and isinstance(state.get("step"), Tensor):
            yield state, parameter
