"""`ChannelsLast`: keeps pictures, and the weights that meet them, with their channels innermost."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from worker_agent.pytorch.stacks.switch import PreparedScript


class ChannelsLast:
    """Changes the memory layout of weights with four dimensions, and of what belongs to them."""

    name = "channels_last"

    def __init__(self) -> None:
        self.before: list[tuple[Tensor, torch.memory_format]] = []

    def refusal(self, script: PreparedScript) -> str | None:
        """Say why this model gains nothing; None if it has weights with four dimensions."""
        if not any(parameter.dim() == 4 for parameter in script.model.parameters()):
            return "the model has no convolution of pictures: no weight has four dimensions"
        return None

    def turn_on(self, script: PreparedScript) -> None:
        self.before = [
            (parameter, format_of(parameter))
            for parameter in script.model.parameters()
            if parameter.dim() == 4
        ]
        for parameter, _ in self.before:
            move(script, parameter, torch.channels_last)

    def turn_off(self, script: PreparedScript) -> None:
        for parameter, memory_format in self.before:
            move(script, parameter, memory_format)
        self.before = []


def format_of(parameter: Tensor) -> torch.memory_format:
    """Return which of the two layouts a weight has; one that has both counts as contiguous."""
    return torch.contiguous_format if parameter.is_contiguous() else torch.channels_last


def move(script: PreparedScript, parameter: Tensor, memory_format: torch.memory_format) -> None:
    """Change a weight's layout, and that of its gradient and of its optimizer's state.

    Fused kernels walk through all of them in the order of memory.
    """
    parameter.data = parameter.data.contiguous(memory_format=memory_format)
    if parameter.grad is not None:
        gradient = parameter.grad.contiguous(memory_format=memory_format)
        parameter.grad = gradient
    state: Any = script.optimizer.state.get(parameter, {})
    for name, value in state.items():
        if isinstance(value, Tensor) and value.shape == parameter.shape:
            state[name] = value.contiguous(memory_format=memory_format)
