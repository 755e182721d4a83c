"""`ShardedWeights`: weights of which each process keeps a part, and gathers a block's for its pass.

PyTorch's ``fully_shard`` gathers and scatters. Its parts are DTensors, which not every optimizer
steps, so the optimizer gets plain parameters in the same memory (docs/decisions/0060).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, Shard
from torch.optim import Optimizer

from worker_agent.errors import UnsupportedModel


class ShardedWeights:
    """The weights of a stage, by rows, among processes that each train on a part of the batch.

    Args:
        model: The model, whose names are kept.
        stage: The module that this process calls.
        blocks: Parts of it that are gathered one after the other; the rest is gathered at once.
        optimizer: The optimizer, which gets this process's parts.
        group: The processes that share the weights.

    Attributes:
        parameters: This process's parts by name, plain tensors.

    Raises:
        UnsupportedModel: A parameter has no rows.
    """

    def __init__(
        self,
        model: nn.Module,
        stage: nn.Module,
        blocks: Sequence[nn.Module],
        optimizer: Optimizer,
        group: Any,
    ) -> None:
        before = dict(model.named_parameters())
        scalars = [name for name, parameter in before.items() if parameter.dim() == 0]
        if scalars:
            raise UnsupportedModel(
                f"{scalars[0]} is a single value, which processes cannot divide: give it the shape"
                " (1,), or set limits.layout.shard to 1"
            )
        self.mesh = DeviceMesh.from_group(group, "cpu")
        shard: Any = fully_shard
        for block in separable(blocks):
            if block is not stage:
                shard(block, mesh=self.mesh)
        shard(stage, mesh=self.mesh, reshard_after_forward=True)
        for module in stage.modules():
            if isinstance(module, FSDPModule):  # parts of unequal size move once, at the first use
                module.unshard()
                module.reshard()
        self.divided: Mapping[str, Any] = dict(model.named_parameters())
        with torch.no_grad():
            self.parameters = {
                name: nn.Parameter(each.to_local(), requires_grad=each.requires_grad)
                for name, each in self.divided.items()
            }
        parts = {id(before[name]): part for name, part in self.parameters.items()}
        for options in optimizer.param_groups:
            options["params"] = [parts.get(id(each), each) for each in options["params"]]

    def begin(self) -> None:
        """Forget the gradients that the script was shown."""
        for divided in self.divided.values():
            divided.grad = None

    def take_gradients(self) -> None:
        """Give the plain parameters the gradients of the pass that has ended."""
        for name, divided in self.divided.items():
            if divided.grad is None:
                continue
            gradient, part = divided.grad.to_local(), self.parameters[name]
            part.grad = gradient if part.grad is None else part.grad.add_(gradient)

    def show_gradients(self) -> None:
        """Let the model's parameters have the same gradients, for a script that clips them."""
        for name, divided in self.divided.items():
            gradient = self.parameters[name].grad
            divided.grad = (
                None
                if gradient is None
                else DTensor.from_local(
                    gradient,
                    self.mesh,
                    [Shard(0)],
                    run_check=False,
                    shape=divided.shape,
                    stride=divided.stride(),
                )
            )


def separable(blocks: Sequence[nn.Module]) -> list[nn.Module]:
    """Return the blocks that have parameters, all of which are theirs alone."""
    owners = Counter(id(parameter) for block in blocks for parameter in block.parameters())
    own = [[owners[id(parameter)] for parameter in block.parameters()] for block in blocks]
    return [block for block, counts in zip(blocks, own, strict=True) if counts and max(counts) == 1]


def local_part(tensor: Tensor) -> Tensor:
    """Return what this process has of a tensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
