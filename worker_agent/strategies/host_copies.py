"""HostCopies: copies of tensors in host memory that is used again.

Touching fresh memory costs five times the copy itself (134 MB: 80 ms against 13 ms), so each copy
goes into a buffer of an earlier one, once whoever read that has given it back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from worker_agent.strategies.snapshot import HostArray

CUDA: Any = torch.cuda  # not annotated in part
Layout = tuple[tuple[str, torch.dtype, torch.Size], ...]


class HostCopies:
    """Makes copies and keeps their memory; at most as many as are in use at one time."""

    def __init__(self) -> None:
        self.spare: list[HostCopy] = []

    def copy(self, tensors: Mapping[str, Tensor]) -> HostCopy:
        """Return copies of these tensors; on a device they may still be on their way."""
        layout = tuple((name, tensor.dtype, tensor.shape) for name, tensor in tensors.items())
        copy = self._spare_of(layout)
        copy.fill(tensors)
        return copy

    def give_back(self, copy: HostCopy) -> None:
        """Let the memory be used again; may be called on any thread."""
        self.spare.append(copy)

    def _spare_of(self, layout: Layout) -> HostCopy:
        """Return memory of this layout; what fits no longer is freed first."""
        while self.spare:
            spare = self.spare.pop()
            if spare.layout == layout:
                return spare
        return HostCopy(layout)


class HostCopy:
    """One flat buffer per data type, with the tensors as views of them.

    Attributes:
        layout: Names, types and shapes of what it holds, in order.
        arrays: The same memory by name, as bytes.
    """

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.views: dict[str, Tensor] = {}
        self.arrays: dict[str, HostArray] = {}
        self.arrived: torch.cuda.Event | None = None
        for dtype in dict.fromkeys(dtype for _, dtype, _ in layout):
            self._allocate(dtype, [(name, shape) for name, kind, shape in layout if kind is dtype])

    def fill(self, tensors: Mapping[str, Tensor]) -> None:
        """Copy the tensors; those of a device are queued behind the work it has."""
        is_on_device = False
        for name, tensor in tensors.items():
            self.views[name].copy_(tensor, non_blocking=True)
            is_on_device = is_on_device or tensor.is_cuda
        self.arrived = None
        if is_on_device:
            self.arrived = CUDA.Event()
            self.arrived.record()

    def wait(self) -> None:
        """Return when the copies have arrived."""
        if self.arrived is not None:
            self.arrived.synchronize()

    def _allocate(self, dtype: torch.dtype, members: Iterable[tuple[str, torch.Size]]) -> None:
        members = list(members)
        size = sum(shape.numel() for _, shape in members)
        flat = torch.empty(size, dtype=dtype, pin_memory=CUDA.is_initialized())
        content = flat.view(torch.uint8).numpy().data
        start = 0
        for name, shape in members:
            end = start + shape.numel()
            width = dtype.itemsize
            self.views[name] = flat[start:end].view(shape)
            self.arrays[name] = HostArray(
                name_of(dtype), tuple(shape), content[start * width : end * width]
            )
            start = end


def name_of(dtype: torch.dtype) -> str:
    """Return the name of a data type, such as ``float32``."""
    return str(dtype).removeprefix("torch.")


def tensor_of(array: HostArray) -> Tensor:
    """Return a host tensor that shares the array's memory.

    Raises:
        ValueError: The type is unknown, or content and shape do not fit together.
    """
    dtype = getattr(torch, array.dtype, None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"no data type is called {array.dtype!r}")
    if torch.Size(array.shape).numel() * dtype.itemsize != len(array.content):
        raise ValueError(f"{len(array.content)} bytes cannot be {array.dtype} {array.shape}")
    if not array.content:
        return torch.empty(array.shape, dtype=dtype)
    return torch.frombuffer(array.content, dtype=dtype).view(array.shape)
