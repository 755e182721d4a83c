"""`ModelCall`: one call of a model as the script made it, to be computed again in other ways.

Its inputs and the gradient of the loss by its outputs are kept. So the gradients of the parameters
can be computed without the script, which neither steps nor sees anything of it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from worker_agent.pytorch.optimizer_hooks import PicklableForwardHook

Gradients = Sequence[Tensor | None]


@dataclass(frozen=True, slots=True, eq=False)
class ModelCall:
    """One call of a model.

    Attributes:
        batch: Samples in it; tensors whose first dimension has this length have one per sample.
        arguments: Positional arguments.
        named: Keyword arguments.
        cotangents: Gradient of the loss by each tensor that was returned; None of one without.
    """

    batch: int
    arguments: Any
    named: Any
    cotangents: Sequence[Tensor | None]

    def first(self, batch: int) -> ModelCall:
        """Return the same call with the first samples only.

        What is returned may have several rows per sample, such as one for each word.
        """

        def part(value: Any) -> Any:
            is_batch = isinstance(value, Tensor) and value.dim() > 0 and len(value) == self.batch
            return value[:batch].clone() if is_batch else value

        def rows(value: Tensor | None) -> Tensor | None:
            if value is None or value.dim() == 0 or len(value) % self.batch:
                return value
            return value[: len(value) // self.batch * batch].clone()

        return replace(
            self,
            batch=batch,
            arguments=tree_map(part, self.arguments),
            named=tree_map(part, self.named),
            cotangents=[rows(each) for each in self.cotangents],
        )

    def scaled(self, factor: float) -> ModelCall:
        """Return the same call with the loss multiplied by a factor."""
        scaled = [None if each is None else each * factor for each in self.cotangents]
        return replace(self, cotangents=scaled)

    def in_float64(self) -> ModelCall:
        """Return the same call with all floating-point numbers in float64."""

        def wide(value: Any) -> Any:
            is_float = isinstance(value, Tensor) and value.is_floating_point()
            return value.double() if is_float else value

        return replace(
            self,
            arguments=tree_map(wide, self.arguments),
            named=tree_map(wide, self.named),
            cotangents=[wide(each) for each in self.cotangents],
        )

    def gradients(self, model: nn.Module) -> Gradients:
        """Compute the gradients of a model's parameters; nothing else of it changes.

        Returns:
            One for each parameter that requires a gradient, None of one without influence.
        """
        trained = [each for each in model.parameters() if each.requires_grad]
        with buffers_kept(model), torch.random.fork_rng(devices_of(model)), torch.enable_grad():
            returned = outputs_of(model(*self.arguments, **self.named))
            pairs = [
                (output, cotangent)
                for output, cotangent in zip(returned, self.cotangents, strict=True)
                if cotangent is not None
            ]
            return torch.autograd.grad(
                [output for output, _ in pairs],
                trained,
                [cotangent.to(output.dtype) for output, cotangent in pairs],
                allow_unused=True,
            )

    def kept_bytes(self, model: nn.Module) -> int:
        """Count the bytes that a forward pass keeps for its backward pass, for these samples.

        Weights do not count, nor copies of them with fewer bits: they are as large for any batch.
        """
        weights = {tuple(sorted(each.shape)) for each in model.parameters()}
        storages: dict[int, int] = {}

        def keep(tensor: Tensor) -> Tensor:
            # A sparse tensor has no storage to count.
            if tensor.layout == torch.strided and tuple(sorted(tensor.shape)) not in weights:
                storage = tensor.untyped_storage()
                storages[storage.data_ptr()] = storage.nbytes()
            return tensor

        hooks = torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor)
        with buffers_kept(model), torch.random.fork_rng(devices_of(model)), torch.enable_grad():
            with hooks:
                returned = model(*self.arguments, **self.named)
            del returned  # nothing that it holds may be freed, and its place used again, before
        return sum(storages.values())


class CallRecorder:
    """Keeps the first call of a model in which gradients are computed.

    Args:
        model: The model.
        batch: Samples that the script is given.
        on_work: Called when the model begins to work.
    """

    def __init__(self, model: nn.Module, batch: int, on_work: Callable[[], None]) -> None:
        self.batch, self.on_work = batch, on_work
        self.inputs: tuple[Any, Any] | None = None
        self.cotangents: list[Tensor | None] = []
        self.is_complete = False
        self.handles = [
            model.register_forward_pre_hook(PicklableForwardHook(self._begin), with_kwargs=True),
            model.register_forward_hook(PicklableForwardHook(self._end)),
        ]

    def close(self) -> ModelCall | None:
        """Record no more; returns the call, None if the script has made none with a gradient."""
        for handle in self.handles:
            handle.remove()
        if self.inputs is None or all(each is None for each in self.cotangents):
            return None
        return ModelCall(self.batch, *self.inputs, self.cotangents)

    def _begin(self, _: Any, arguments: Any, named: Any) -> None:
        self.on_work()
        if self.inputs is None and torch.is_grad_enabled():
            self.inputs = tree_map(copy_tensor, arguments), tree_map(copy_tensor, named)

    def _end(self, _: Any, __: Any, returned: Any) -> None:
        if self.inputs is None or self.is_complete or not torch.is_grad_enabled():
            return
        self.is_complete = True
        outputs = outputs_of(returned)
        self.cotangents = [None] * len(outputs)
        for place, output in enumerate(outputs):
            hooked: Any = output
            hooked.register_hook(self._keep(place))

    def _keep(self, place: int) -> Callable[[Tensor], None]:
        def keep(cotangent: Tensor) -> None:
            self.cotangents[place] = cotangent.detach().clone()

        return keep


def devices_of(model: nn.Module) -> list[int]:
    """Return the indices of the GPUs that a model is on."""
    return sorted({each.device.index or 0 for each in model.parameters() if each.is_cuda})


def outputs_of(returned: Any) -> list[Tensor]:
    """Return the tensors that a model has returned and that have a gradient."""
    leaves = tree_leaves(returned)
    return [each for each in leaves if isinstance(each, Tensor) and each.requires_grad]


def copy_tensor(value: Any) -> Any:
    """Return a copy of a tensor, apart from any graph; other values as they are."""
    if not isinstance(value, Tensor):
        return value
    return value.detach().clone().requires_grad_(value.requires_grad)


@contextmanager
def buffers_kept(model: nn.Module) -> Iterator[None]:
    """Restore a model's buffers at the end, such as the averages of a batch normalisation."""
    before = {name: each.detach().clone() for name, each in model.named_buffers()}
    try:
        yield
    finally:
        with torch.no_grad():
            for name, buffer in model.named_buffers():
                if name in before:
                    buffer.copy_(before[name])


def copy_in_float64(model: nn.Module) -> nn.Module:
    """Return a copy of a model in float64, without hooks of ours."""
    return copy.deepcopy(model).double()
