"""Sends a state to newcomers: first a description, so that they make room, then the tensors.

`StateManifest` is a state without the values of its tensors. Whether the state fits is known
before a value travels, so a mismatch changes nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from pydantic import JsonValue, TypeAdapter
from pydantic_core import to_json
from torch import Tensor
from torch.distributed import BroadcastOptions, ProcessGroup, Work

from worker_agent.pytorch.tensors import (
    assign_values,
    dtype_name,
    flatten_in_memory_order,
    gradient_strides,
)
from worker_agent.state.progress import TrainingProgress


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """What a newcomer must know of a tensor to make room for it.

    Attributes:
        dtype: Name of its type, such as ``float32``.
        shape: Its sizes.
        strides: In what order its values travel, that of their memory where it has no gaps.
        is_on_device: Whether it lives where the weights do, rather than on the host.
    """

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    is_on_device: bool

    @classmethod
    def of(cls, tensor: Tensor) -> TensorInfo:
        is_on_device = tensor.device.type != "cpu"
        return cls(
            dtype_name(tensor.dtype), tuple(tensor.shape), gradient_strides(tensor), is_on_device
        )

    def allocate(self, device: torch.device) -> Tensor:
        """Return an uninitialised tensor like it."""
        place = device if self.is_on_device else "cpu"
        dtype: torch.dtype = getattr(torch, self.dtype)
        return torch.empty_strided(self.shape, self.strides, dtype=dtype, device=place)


@dataclass(frozen=True, slots=True)
class StateManifest:
    """A state without the values of its tensors.

    Attributes:
        clock: Where training stands.
        tree: The plain part of the state.
        tensors: The tensors' facts by name, in the order in which they travel.
        refusal: Why the state cannot be sent; empty when it can.
    """

    clock: TrainingProgress
    tree: JsonValue
    tensors: dict[str, TensorInfo]
    refusal: str = ""

    def to_json(self) -> bytes:
        return to_json(self, inf_nan_mode="strings")

    def allocate(self, mine: Mapping[str, Tensor], device: torch.device) -> dict[str, Tensor]:
        """Return where to put the tensors: in a worker's own where they fit, else in new ones."""

        def fits(name: str, info: TensorInfo) -> bool:
            return name in mine and TensorInfo.of(mine[name]) == info

        return {
            name: mine[name] if fits(name, info) else info.allocate(device)
            for name, info in self.tensors.items()
        }

    @staticmethod
    def from_json(content: bytes) -> StateManifest:
        return _MANIFEST.validate_json(content)


_MANIFEST: TypeAdapter[StateManifest] = TypeAdapter(StateManifest)


def first_mismatch(theirs: Mapping[str, Tensor], mine: Mapping[str, Tensor]) -> str | None:
    """Say what the first tensor that does not fit is in the state and here; None when all fit."""
    for name, tensor in mine.items():
        here = f"{dtype_name(tensor.dtype)} {tuple(tensor.shape)}"
        if name not in theirs:
            return f"{name} is missing in the state; here it is {here}"
        there = f"{dtype_name(theirs[name].dtype)} {tuple(theirs[name].shape)}"
        if there != here:
            return f"{name} is {there} in the state and {here} here"
    unknown = next((name for name in theirs if name not in mine), None)
    return None if unknown is None else f"{unknown} is in the state and not in this model"


SEND_ALONE_BYTES = 1 << 18  # bytes from which on a tensor travels faster alone than copied


def broadcast_bytes(group: ProcessGroup, content: bytes, source: int) -> bytes:
    """Send bytes from the source to every member; the other members' argument is ignored."""
    length = torch.tensor([len(content)])
    broadcast_tensor(group, length, source)
    buffer = torch.zeros(int(length), dtype=torch.uint8)
    if content:
        buffer.copy_(torch.frombuffer(bytearray(content), dtype=torch.uint8))
    broadcast_tensor(group, buffer, source)
    return bytes(buffer.numpy())


def broadcast_tensors(
    group: ProcessGroup, tensors: Iterable[Tensor], source: int, *, fresh: Collection[int] = ()
) -> None:
    """Copy the source's tensors into those of all members: large ones each, small ones together.

    Nothing that was in use is overwritten before all has arrived: a source that dies leaves no half
    of a state.

    Args:
        group: The members, all of which call this with tensors of the same shapes, types and
            ``gradient_strides``: values travel in the order they lie in.
        tensors: What to send, or where to put it.
        source: Rank of the sender.
        fresh: Ids of tensors that hold nothing yet, so that they are received in place.
    """
    groups = coalesce_tensors(tensors)
    is_source = group.rank() == source
    rows = [
        flatten_group(members) if is_source else allocate_group(members, fresh)
        for members in groups
    ]
    # As bytes, because gloo knows few data types. All are started before the first is waited for.
    for work in [start_broadcast(group, row.view(torch.uint8), source) for row in rows]:
        work.wait()
    for row, members in zip(rows, groups, strict=True):
        if is_source or row.data_ptr() == members[0].data_ptr():  # received in place
            continue
        pieces = torch.split(row, [tensor.numel() for tensor in members])
        for tensor, piece in zip(members, pieces, strict=True):
            assign_values(tensor, piece.as_strided(tensor.shape, gradient_strides(tensor)))


def coalesce_tensors(tensors: Iterable[Tensor]) -> list[list[Tensor]]:
    """Return the tensors that travel together, which sizes and types alone decide.

    So all members form the same groups without a word about them.
    """
    alone: list[list[Tensor]] = []
    together: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
    for tensor in tensors:
        if tensor.nbytes >= SEND_ALONE_BYTES:
            alone.append([tensor])
        elif tensor.nbytes > 0:
            together.setdefault((tensor.dtype, tensor.device), []).append(tensor)
    return [*alone, *together.values()]


def flatten_group(members: Sequence[Tensor]) -> Tensor:
    """Return the values of a group in one row; those of a single tensor are not copied."""
    rows = [flatten_in_memory_order(tensor.detach()) for tensor in members]
    return rows[0] if len(rows) == 1 else torch.cat(rows)


def allocate_group(members: Sequence[Tensor], fresh: Collection[int]) -> Tensor:
    """Return a row to receive a group in: the tensor itself when it holds nothing yet."""
    first = members[0]
    if len(members) == 1 and id(first) in fresh:
        return flatten_in_memory_order(first)
    size = sum(tensor.numel() for tensor in members)
    return torch.empty(size, dtype=first.dtype, device=first.device)


def broadcast_tensor(group: ProcessGroup, tensor: Tensor, source: int) -> None:
    """Overwrite the tensor with the source's."""
    start_broadcast(group, tensor, source).wait()


def start_broadcast(group: ProcessGroup, tensor: Tensor, source: int) -> Work:
    """Begin to overwrite the tensor with the source's; ``wait`` for the work that is returned."""
    options = BroadcastOptions()
    options.rootRank = source
    return group.broadcast([tensor], options)
