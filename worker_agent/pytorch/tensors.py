"""Tensors in memory: their layout, copies on the host, and their place in an encoded state.

A fused optimizer walks the memory of parameter, gradient and state side by side and never looks
at strides. So every tensor beside a parameter gets PyTorch's own layout: a gradient that of
``AccumulateGrad``, a slot that of ``torch.preserve_format``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from worker_agent.errors import StateRefused
from worker_agent.state.codec import EncodedState, encode_state
from worker_agent.state.progress import HostArray

Strides = tuple[int, ...]


def is_dense(tensor: Tensor) -> bool:
    """Whether the values fill their memory without gaps, each in a place of its own.

    >>> turned = torch.zeros(2, 3).t()
    >>> is_dense(turned), is_dense(turned[:1]), is_dense(torch.zeros(1).expand(3))
    (True, False, False)
    """
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size == 0:
            return True
        if size > 1 and stride != expected:
            return False
        expected *= size
    return True


def gradient_strides(tensor: Tensor) -> Strides:
    """Return the strides of its gradient: its own if it is dense, else row by row."""
    if is_dense(tensor):
        return tensor.stride()
    return torch.empty(tensor.shape, device="meta").stride()  # strides without memory


def comparable_strides(tensor: Tensor) -> Strides:
    """Return strides for comparison.

    Those of two tensors of one shape are equal exactly if their gradients have the same memory
    layout.
    """
    pairs = zip(gradient_strides(tensor), tensor.shape, strict=True)
    return tuple(stride if size > 1 else 0 for stride, size in pairs)


def flatten_in_memory_order(tensor: Tensor) -> Tensor:
    """Return all values as one row, ordered by ``gradient_strides``; not copied if dense."""
    if is_dense(tensor):
        return tensor.as_strided((tensor.numel(),), (1,))
    return tensor.contiguous().view(-1)


def match_layout(parameter: Tensor, value: Tensor) -> Tensor:
    """Return a slot in the order of its parameter; one of another shape stays as it is."""
    if value.shape != parameter.shape or value.dim() < 2:
        return value
    room = torch.empty_like(parameter, dtype=value.dtype, device=value.device)
    return value if value.stride() == room.stride() else room.copy_(value)


def assign_values(target: Tensor, values: Tensor) -> None:
    """Overwrite a tensor, also one that is expanded, whose values share memory."""
    # PyTorch refuses to copy into an expanded tensor, so each place in memory is written once.
    once = tuple(slice(0, 1) if stride == 0 else slice(None) for stride in target.stride())
    target[once].copy_(values[once])


def flatten_all(tensors: Iterable[Tensor]) -> Tensor:
    """Return the values of all tensors in one row, each in C order, however it lies in memory."""
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])


_CUDA: Any = torch.cuda  # not annotated in part
CopyLayout = tuple[tuple[str, torch.dtype, torch.Size], ...]


class HostCopyPool:
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

    def _spare_of(self, layout: CopyLayout) -> HostCopy:
        """Return memory of this layout; memory of another is freed first."""
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

    def __init__(self, layout: CopyLayout) -> None:
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
            self.arrived = _CUDA.Event()
            self.arrived.record()

    def wait(self) -> None:
        """Return when the copies have arrived."""
        if self.arrived is not None:
            self.arrived.synchronize()

    def _allocate(self, dtype: torch.dtype, members: Iterable[tuple[str, torch.Size]]) -> None:
        members = list(members)
        size = sum(shape.numel() for _, shape in members)
        flat = torch.empty(size, dtype=dtype, pin_memory=_CUDA.is_initialized())
        content = flat.view(torch.uint8).numpy().data
        start = 0
        for name, shape in members:
            end = start + shape.numel()
            width = dtype.itemsize
            self.views[name] = flat[start:end].view(shape)
            self.arrays[name] = HostArray(
                dtype_name(dtype), tuple(shape), content[start * width : end * width]
            )
            start = end


def dtype_name(dtype: torch.dtype) -> str:
    """Return the name of a data type, such as ``float32``."""
    return str(dtype).removeprefix("torch.")


def array_to_tensor(array: HostArray) -> Tensor:
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


def encode_torch_state(state: object) -> EncodedState:
    """Take a state apart as ``encode_state`` does; all of its arrays are tensors.

    Raises:
        StateRefused: An object in it cannot be saved or sent; the message says where.
    """
    encoded = encode_state(state, dense_tensor)
    tensors = {
        name: torch.from_numpy(array) if isinstance(array, np.ndarray) else array
        for name, array in encoded.arrays.items()
    }
    return EncodedState(encoded.tree, tensors)


def dense_tensor(value: object, path: str) -> Tensor | None:
    """Return a tensor without its gradient; None for other values.

    Raises:
        StateRefused: The tensor is sparse, without values, quantised, or of another class.
    """
    if not isinstance(value, Tensor):
        return None
    is_ordinary = type(value) in (Tensor, nn.Parameter) and value.layout == torch.strided
    if not is_ordinary or value.is_meta or value.is_quantized:
        raise StateRefused(
            f"{path} is a {type(value).__qualname__} of layout {value.layout} on {value.device},"
            " which cannot be saved or sent to other workers: only ordinary dense tensors can"
        )
    return value.detach()
