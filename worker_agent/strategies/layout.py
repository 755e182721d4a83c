"""Layout: in what order the values of a tensor lie in memory.

A fused optimizer walks the memory of parameter, gradient and state side by side and never looks at
strides. So all that stands beside a parameter lies as PyTorch's own would: a gradient as
``AccumulateGrad`` makes it, a slot as ``torch.preserve_format`` does.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

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


def strides_of(tensor: Tensor) -> Strides:
    """Return the strides of its gradient: its own if it is dense, else row by row."""
    return tensor.stride() if is_dense(tensor) else row_by_row(tensor.shape)


def order_of(tensor: Tensor) -> Strides:
    """Return what two tensors of one shape have in common whose gradients lie alike."""
    pairs = zip(strides_of(tensor), tensor.shape, strict=True)
    return tuple(stride if size > 1 else 0 for stride, size in pairs)


def row_by_row(shape: Sequence[int]) -> Strides:
    """Return the strides of a contiguous tensor."""
    return torch.empty(shape, device="meta").stride()


def in_memory_order(tensor: Tensor) -> Tensor:
    """Return all values as one row, in the order of ``strides_of``; not copied if it is dense."""
    if is_dense(tensor):
        return tensor.as_strided((tensor.numel(),), (1,))
    return tensor.contiguous().view(-1)


def seen_as(row: Tensor, shape: Sequence[int], strides: Strides) -> Tensor:
    """Return a row of values as a tensor that lies in these strides; nothing is copied."""
    return row.as_strided(shape, strides)


def like(parameter: Tensor, value: Tensor) -> Tensor:
    """Return a slot in the order of its parameter; one of another shape stays as it is."""
    if value.shape != parameter.shape or value.dim() < 2:
        return value
    room = torch.empty_like(parameter, dtype=value.dtype, device=value.device)
    return value if value.stride() == room.stride() else room.copy_(value)


def assign(target: Tensor, values: Tensor) -> None:
    """Overwrite a tensor, also one that is expanded, whose values share memory."""
    once = tuple(slice(0, 1) if stride == 0 else slice(None) for stride in target.stride())
    target[once].copy_(values[once])


def laid_end_to_end(tensors: Iterable[Tensor]) -> Tensor:
    """Return the values of all tensors in one row, each row by row, in all orders it may lie in."""
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])
