"""The state that makes a newcomer equal to the others: weights, buffers, optimizer, clock.

The source describes its optimizer in JSON, so a newcomer builds the same tensors without a
pretended optimizer step; then everything travels as one flat tensor per data type.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed import BroadcastOptions, ProcessGroup
from torch.optim import Optimizer

from worker_agent.strategies.strategy import Clock


class TrainingState:
    """Everything of a training process that the next iteration depends on."""

    def __init__(self, model: nn.Module, optimizer: Optimizer) -> None:
        self.model, self.optimizer = model, optimizer

    def broadcast(self, group: ProcessGroup, rank: int, source: int, clock: Clock) -> Clock:
        """Make every member equal to the source; returns the source's clock."""
        header = self._describe(clock) if rank == source else b""
        described = json.loads(broadcast_bytes(group, header, source))
        if rank != source:
            self._prepare(described)
        broadcast_flat(group, self._tensors(), source)
        return Clock(**described["clock"])

    def _describe(self, clock: Clock) -> bytes:
        slots = [
            {name: slot_of(value) for name, value in self.optimizer.state.get(p, {}).items()}
            for p in self._optimized()
        ]
        groups = [
            {name: value for name, value in group.items() if isinstance(value, int | float)}
            for group in self.optimizer.param_groups
        ]
        return json.dumps({"clock": asdict(clock), "slots": slots, "groups": groups}).encode()

    def _prepare(self, described: dict[str, Any]) -> None:
        """Give the optimizer the same slots and hyperparameters as the source's."""
        for parameter, slots in zip(self._optimized(), described["slots"], strict=True):
            if slots:
                self.optimizer.state[parameter] = {
                    name: slot_from(slot, parameter) for name, slot in slots.items()
                }
        for group, values in zip(self.optimizer.param_groups, described["groups"], strict=True):
            group.update(values)

    def _optimized(self) -> Iterator[Tensor]:
        for group in self.optimizer.param_groups:
            yield from group["params"]

    def _tensors(self) -> list[Tensor]:
        tensors = [p.data for p in self.model.parameters()]
        tensors += [b.data for b in self.model.buffers()]
        for parameter in self._optimized():
            slots = self.optimizer.state.get(parameter, {})
            tensors += [slots[name] for name in sorted(slots) if torch.is_tensor(slots[name])]
        return tensors


def slot_of(value: Any) -> dict[str, Any]:
    """Describe one optimizer slot: a tensor by its shape and type, or the plain value."""
    if torch.is_tensor(value):
        return {"shape": list(value.shape), "dtype": str(value.dtype).removeprefix("torch.")}
    return {"value": value}


def slot_from(slot: dict[str, Any], parameter: Tensor) -> Any:
    """Build what ``slot_of`` described; scalars stay on the host, as optimizers keep them."""
    if "value" in slot:
        return slot["value"]
    device = parameter.device if slot["shape"] else "cpu"
    return torch.zeros(slot["shape"], dtype=getattr(torch, slot["dtype"]), device=device)


def broadcast_bytes(group: ProcessGroup, content: bytes, source: int) -> bytes:
    """Send bytes from the source to every member."""
    length = torch.tensor([len(content)])
    broadcast(group, length, source)
    buffer = torch.zeros(int(length), dtype=torch.uint8)
    if content:
        buffer.copy_(torch.frombuffer(bytearray(content), dtype=torch.uint8))
    broadcast(group, buffer, source)
    return bytes(buffer.numpy())


def broadcast_flat(group: ProcessGroup, tensors: Iterable[Tensor], source: int) -> None:
    """Copy the source's tensors into everybody's, one collective per data type and device."""
    kinds: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
    for tensor in tensors:
        kinds.setdefault((tensor.dtype, tensor.device), []).append(tensor)
    for same in kinds.values():
        flat = torch.cat([tensor.reshape(-1) for tensor in same])
        broadcast(group, flat, source)
        sizes = [tensor.numel() for tensor in same]
        for tensor, piece in zip(same, torch.split(flat, sizes), strict=True):
            tensor.copy_(piece.view_as(tensor))


def broadcast(group: ProcessGroup, tensor: Tensor, source: int) -> None:
    """Overwrite the tensor with the source's."""
    options = BroadcastOptions()
    options.rootRank = source
    group.broadcast([tensor], options).wait()
