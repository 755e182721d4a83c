"""Tensors in memory and on the wire: their layout, reusable host copies, and broadcasts.

A fused optimizer walks the memory of parameter, gradient and state side by side and never looks
at strides. So every tensor beside a parameter gets PyTorch's own layout: a gradient that of
``AccumulateGrad``, a slot that of ``torch.preserve_format``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed import BroadcastOptions, ProcessGroup, Work

from worker_agent.state.progress import HostArray

Strides = tuple[int, ...]


def is_dense(tensor: Tensor) -> bool:
    """Whether the values fill their memory without gaps, each in a place of its own.

    >>> turned = torch.zeros(2, 3).t()
    >>> is_dense(turned), is_dense(turned[:, :1]), is_dense(torch.zeros(1).expand(3))
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
    return tensor.stride() if is_dense(tensor) else contiguous_strides(tensor.shape)


def memory_order(tensor: Tensor) -> Strides:
    """Return what two tensors of one shape have in common whose gradients lie alike."""
    pairs = zip(gradient_strides(tensor), tensor.shape, strict=True)
    return tuple(stride if size > 1 else 0 for stride, size in pairs)


def contiguous_strides(shape: Sequence[int]) -> Strides:
    """Return the strides of a contiguous tensor."""
    return torch.empty(shape, device="meta").stride()


def flatten_in_memory_order(tensor: Tensor) -> Tensor:
    """Return all values as one row, in the order of ``strides_of``; not copied if it is dense."""
    if is_dense(tensor):
        return tensor.as_strided((tensor.numel(),), (1,))
    return tensor.contiguous().view(-1)


def view_strided(row: Tensor, shape: Sequence[int], strides: Strides) -> Tensor:
    """Return a row of values as a tensor that lies in these strides; nothing is copied."""
    return row.as_strided(shape, strides)


def match_layout(parameter: Tensor, value: Tensor) -> Tensor:
    """Return a slot in the order of its parameter; one of another shape stays as it is."""
    if value.shape != parameter.shape or value.dim() < 2:
        return value
    room = torch.empty_like(parameter, dtype=value.dtype, device=value.device)
    return value if value.stride() == room.stride() else room.copy_(value)


def assign_values(target: Tensor, values: Tensor) -> None:
    """Overwrite a tensor, also one that is expanded, whose values share memory."""
    once = tuple(slice(0, 1) if stride == 0 else slice(None) for stride in target.stride())
    target[once].copy_(values[once])


def flatten_all(tensors: Iterable[Tensor]) -> Tensor:
    """Return the values of all tensors in one row, each row by row, in all orders it may lie in."""
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


SEND_ALONE_BYTES = 1 << 18  # bytes from which on a tensor travels faster alone than copied


def broadcast_bytes(group: ProcessGroup, content: bytes, source: int) -> bytes:
    """Send bytes from the source to every member; what the others pass is ignored."""
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
    """Copy the source's tensors into everybody's: large ones each, small ones together.

    Nothing that was in use is overwritten before all has arrived: a source that dies leaves no half
    of a state.

    Args:
        group: The members, all of which call this with tensors of the same shapes, types and
            ``strides_of``: values travel in the order they lie in.
        tensors: What to send, or where to put it.
        source: Rank of the sender.
        fresh: Ids of tensors that hold nothing yet, so that they are received in place.
    """
    parcels = group_parcels(tensors)
    is_source = group.rank() == source
    flats = [
        pack_parcel(parcel) if is_source else allocate_parcel(parcel, fresh) for parcel in parcels
    ]
    # As bytes, because gloo knows few data types.
    for work in [start_broadcast(group, flat.view(torch.uint8), source) for flat in flats]:
        work.wait()
    if not is_source:
        for flat, parcel in zip(flats, parcels, strict=True):
            unpack_parcel(flat, parcel)


def group_parcels(tensors: Iterable[Tensor]) -> list[list[Tensor]]:
    """Return what travels together, the same on every member: only sizes and types count."""
    alone: list[list[Tensor]] = []
    together: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
    for tensor in tensors:
        if tensor.nbytes >= SEND_ALONE_BYTES:
            alone.append([tensor])
        elif tensor.nbytes > 0:
            together.setdefault((tensor.dtype, tensor.device), []).append(tensor)
    return [*alone, *together.values()]


def pack_parcel(parcel: Sequence[Tensor]) -> Tensor:
    """Return the values of a parcel in one row; those of a single tensor are not copied."""
    rows = [flatten_in_memory_order(tensor.detach()) for tensor in parcel]
    return rows[0] if len(rows) == 1 else torch.cat(rows)


def allocate_parcel(parcel: Sequence[Tensor], fresh: Collection[int]) -> Tensor:
    """Return a row to receive a parcel in: the tensor itself when it holds nothing yet."""
    first = parcel[0]
    if len(parcel) == 1 and id(first) in fresh:
        return flatten_in_memory_order(first)
    size = sum(tensor.numel() for tensor in parcel)
    return torch.empty(size, dtype=first.dtype, device=first.device)


def unpack_parcel(flat: Tensor, parcel: Sequence[Tensor]) -> None:
    """Copy a row into the tensors of a parcel, unless it is them."""
    if flat.data_ptr() == parcel[0].data_ptr():
        return
    pieces = torch.split(flat, [tensor.numel() for tensor in parcel])
    for tensor, piece in zip(parcel, pieces, strict=True):
        assign_values(tensor, view_strided(piece, tensor.shape, gradient_strides(tensor)))


def broadcast_tensor(group: ProcessGroup, tensor: Tensor, source: int) -> None:
    """Overwrite the tensor with the source's."""
    start_broadcast(group, tensor, source).wait()


def start_broadcast(group: ProcessGroup, tensor: Tensor, source: int) -> Work:
    """Begin to overwrite the tensor with the source's; the work's ``wait`` ends it."""
    options = BroadcastOptions()
    options.rootRank = source
    return group.broadcast([tensor], options)
