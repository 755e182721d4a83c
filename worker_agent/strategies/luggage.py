"""Luggage: what a worker of a parameter-server job leaves with the first server for newcomers.

Weights and optimizer state are the servers' own. The rest of what makes a newcomer equal to the
others is small: buffers, the optimizer's options, schedulers, a loss scaler, and the clock.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from pydantic import JsonValue, TypeAdapter
from pydantic_core import to_json
from torch import Tensor, nn
from torch.optim import Optimizer

from worker_agent.errors import StateRefused
from worker_agent.strategies.host_copies import name_of
from worker_agent.strategies.layout import assign
from worker_agent.strategies.optimizer_state import load_options, options_of
from worker_agent.strategies.snapshot import Stateful
from worker_agent.strategies.strategy import Clock
from worker_agent.strategies.tree import decode, encode

LARGEST = 1 << 21  # bytes of text


@dataclass(frozen=True, slots=True)
class Packed:
    """One tensor as text."""

    dtype: str
    shape: tuple[int, ...]
    content: str


@dataclass(frozen=True, slots=True)
class Luggage:
    """The clock, and the state that servers do not keep.

    Attributes:
        clock: Where training stands.
        tree: Buffers, options and carried objects as ``strategies.tree`` encodes them, or None.
        tensors: Their tensors by name.
    """

    clock: Clock
    tree: JsonValue = None
    tensors: Mapping[str, Packed] = field(default_factory=dict)


LUGGAGE: TypeAdapter[Luggage] = TypeAdapter(Luggage)


def pack(
    clock: Clock, model: nn.Module, optimizer: Optimizer, carried: Mapping[str, Stateful]
) -> str:
    """Write everything down; buffers too large to be left with a server stay behind.

    Raises:
        StateRefused: A carried object holds what cannot be carried.
    """
    states = {name: stateful.state_dict() for name, stateful in carried.items()}
    # Schedules that multiply what they find go on from the rates that the others have.
    options = [options_of(group) for group in optimizer.param_groups]
    small = {"carried": states, "groups": options}
    tree = encode({"buffers": dict(model.named_buffers()), **small})
    if sum(tensor.nbytes for tensor in tree.tensors.values()) > LARGEST // 2:
        tree = encode({"buffers": {}, **small})
    packed = {name: packed_tensor(tensor) for name, tensor in tree.tensors.items()}
    return to_json(Luggage(clock, tree.json, packed), inf_nan_mode="strings").decode()


def pack_clock(clock: Clock) -> str:
    """Write only the clock down."""
    return to_json(Luggage(clock), inf_nan_mode="strings").decode()


def unpack(
    text: str, model: nn.Module, optimizer: Optimizer, carried: Mapping[str, Stateful]
) -> Clock:
    """Take over what another worker left; returns its clock.

    Raises:
        StateRefused: It is not of this script.
    """
    try:
        luggage = LUGGAGE.validate_json(text)
    except ValueError as error:
        raise StateRefused(f"what the others left makes no sense: {error}") from error
    if luggage.tree is None:
        return luggage.clock
    tensors = {name: tensor_of(packed) for name, packed in luggage.tensors.items()}
    state: dict[str, Any] = decode(luggage.tree, tensors)
    mine = dict(model.named_buffers())
    with torch.no_grad():
        for name, buffer in state["buffers"].items():
            if name not in mine or mine[name].shape != buffer.shape:
                raise StateRefused(f"buffer {name} of the others does not fit this model")
            assign(mine[name], buffer)
        for group, options in zip(optimizer.param_groups, state["groups"], strict=False):
            load_options(group, options)
    for name, stateful in carried.items():
        if name in state["carried"]:
            stateful.load_state_dict(state["carried"][name])
    return luggage.clock


def packed_tensor(tensor: Tensor) -> Packed:
    """Return a tensor as text."""
    flat = tensor.detach().to("cpu").contiguous().reshape(-1).view(torch.uint8)
    content = base64.b64encode(flat.numpy().tobytes()).decode()
    return Packed(name_of(tensor.dtype), tuple(tensor.shape), content)


def tensor_of(packed: Packed) -> Tensor:
    """Return the tensor of a text."""
    content = bytearray(base64.b64decode(packed.content))
    dtype: torch.dtype = getattr(torch, packed.dtype)
    if not content:
        return torch.empty(packed.shape, dtype=dtype)
    return torch.frombuffer(content, dtype=torch.uint8).view(dtype).reshape(packed.shape)
