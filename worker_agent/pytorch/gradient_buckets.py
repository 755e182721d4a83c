"""`GradientBucket`: gradients that travel together, in an order that never changes.

A newcomer always agrees with the others about order and content (DDP reorders its buckets after the
first iteration).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from worker_agent.pytorch.tensors import flatten_all, gradient_strides

BUCKET_BYTES = 25 << 20  # size at which a bucket is closed, as in DDP


class GradientBucket:
    """Parameters whose gradients travel together, as views of one flat tensor.

    Each view has the memory layout of its parameter, also after the script has changed the model's
    memory format. So all workers of a group must have the same layouts; ``join`` checks that.
    """

    def __init__(self, parameters: list[Tensor], dtype: torch.dtype, device: torch.device) -> None:
        self.parameters, self.dtype, self.device = parameters, dtype, device
        self.sizes = [parameter.numel() for parameter in parameters]
        self.size = sum(self.sizes)
        self.missing = len(parameters)
        self.used = [False] * len(parameters)
        self.uncounted: list[int] = []
        self.allocate(tail=0)

    def allocate(self, tail: int) -> None:
        """Allocate the flat tensor, with this many values after the gradients."""
        self.flat = torch.zeros(self.size + tail, dtype=self.dtype, device=self.device)
        self.gradient, self.tail = self.flat[: self.size], self.flat[self.size :]
        self.pieces = torch.split(self.gradient, self.sizes)
        self.strides = [parameter.stride() for parameter in self.parameters]
        self.views = [self._view(place) for place in range(len(self.parameters))]
        self.addresses = [view.data_ptr() for view in self.views]
        self.accumulated: Tensor | None = None

    def take(self, place: int) -> None:
        """Move a parameter's new gradient into the flat tensor, and make it a view of that."""
        parameter = self.parameters[place]
        if parameter.stride() != self.strides[place]:
            self._change_layout(place)
        view, gradient = self.views[place], parameter.grad
        if view.data_ptr() != self.addresses[place]:  # the script has replaced its data
            self.views[place] = view = self._view(place)
        self.used[place] = self.used[place] or gradient is not None
        if gradient is None:
            view.zero_()
        elif gradient.data_ptr() != self.addresses[place]:
            view.copy_(gradient)
        parameter.grad = view
        self.missing -= 1

    def contiguous_gradient(self) -> Tensor:
        """Return the gradients end to end in contiguous order; a copy only if needed."""
        if all(view.is_contiguous() for view in self.views):
            return self.gradient
        return flatten_all(self.views)

    def _view(self, place: int) -> Tensor:
        parameter = self.parameters[place]
        return self.pieces[place].as_strided(parameter.shape, gradient_strides(parameter))

    def _change_layout(self, place: int) -> None:
        """Change a parameter's part to the parameter's new memory layout."""
        before = self.views[place].stride()
        self.strides[place] = self.parameters[place].stride()
        self.views[place] = view = self._view(place)
        rows = [self.pieces[place]]
        if self.accumulated is not None:
            rows.append(torch.split(self.accumulated, self.sizes)[place])
        for row in rows:
            values = row.as_strided(view.shape, before).clone()
            row.as_strided(view.shape, view.stride()).copy_(values)

    def norm_sq(self) -> Tensor:
        """Return ||gradient||² as a tensor on the device, in at least float32."""
        wide = torch.float64 if self.dtype == torch.float64 else torch.float32
        norm: Tensor = torch.linalg.vector_norm(self.gradient, dtype=wide)
        total = norm.square()
        for place in self.uncounted:
            total = total - torch.linalg.vector_norm(self.pieces[place], dtype=wide).square()
        return total


def fill_buckets(trained: Sequence[Tensor], *, has_tail: bool) -> list[GradientBucket]:
    """Group parameters from last to first, the order in which backward finishes them.

    Args:
        trained: The parameters.
        has_tail: Whether rows travel behind the last bucket, which is then at least float32,
            because their numbers must be exact.
    """
    if not trained:
        raise ValueError("the model has no parameter that requires a gradient")
    groups: list[list[Tensor]] = [[]]
    for parameter in trained[::-1]:
        group = groups[-1]
        is_full = sum(p.numel() * p.element_size() for p in group) >= BUCKET_BYTES
        if group and (is_full or group[0].dtype != parameter.dtype):
            groups.append(group := [])
        group.append(parameter)
    buckets = [GradientBucket(group, group[0].dtype, group[0].device) for group in groups]
    if has_tail and buckets[-1].dtype not in (torch.float32, torch.float64):
        buckets.append(GradientBucket([], torch.float32, trained[-1].device))
    return buckets
