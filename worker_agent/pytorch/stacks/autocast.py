"""`Autocast`: computes the forward pass of a model in 16 bits, and returns float32."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.amp import GradScaler
from torch.utils._pytree import tree_map
from torch.utils.hooks import RemovableHandle

from worker_agent.pytorch.optimizer_hooks import PicklableForwardHook
from worker_agent.pytorch.stacks.switch import PreparedScript


class Autocast:
    """One precision of forward passes; weights, gradients and steps stay as they are.

    It works by hooks, which a copy of the model does not have: one that the script averages its
    weights in is evaluated in full precision.
    """

    dtype: torch.dtype
    name: str

    def __init__(self) -> None:
        self.handles: list[RemovableHandle] = []
        self.entered: list[Any] = []

    def refusal(self, script: PreparedScript) -> str | None:
        """Say why this model cannot be computed so; None if it can."""
        kind = next(script.model.parameters()).device.type
        if not torch.amp.is_autocast_available(kind):
            return f"PyTorch has no autocast on {kind}"
        return None

    def turn_on(self, script: PreparedScript) -> None:
        model, kind = script.model, next(script.model.parameters()).device.type

        def begin(*_: Any) -> None:
            context: Any = torch.autocast(kind, dtype=self.dtype)
            context.__enter__()
            self.entered.append(context)

        def end(_: Any, __: Any, result: Any) -> Any:
            self.entered.pop().__exit__(None, None, None)
            return tree_map(to_float32, result)

        self.handles = [
            model.register_forward_pre_hook(PicklableForwardHook(begin)),
            model.register_forward_hook(PicklableForwardHook(end), always_call=True),
        ]

    def turn_off(self, script: PreparedScript) -> None:
        for handle in self.handles:
            handle.remove()
        self.handles = []


class BFloat16(Autocast):
    """Forward passes in bfloat16, which has the range of float32."""

    name, dtype = "bf16", torch.bfloat16


class Float16(Autocast):
    """Forward passes in float16, whose small range needs a scaler."""

    name, dtype = "fp16", torch.float16

    def refusal(self, script: PreparedScript) -> str | None:
        if not isinstance(script.scaler, GradScaler):
            return "float16 needs a GradScaler, passed to job.prepare as scaler"
        return Autocast.refusal(self, script)


def to_float32(value: Any) -> Any:
    """Return a tensor of 16 bits as float32, so that losses are computed as before."""
    is_short = isinstance(value, Tensor) and value.dtype in (torch.bfloat16, torch.float16)
    return value.float() if is_short else value
