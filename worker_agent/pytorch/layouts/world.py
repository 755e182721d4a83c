"""`WorkerWorld`: the processes of one worker as the default group of ``torch.distributed``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import FileStore
from torch.nn.utils import clip_grad

from scavenger.layout import Layout
from worker_agent.errors import UnsupportedModel
from worker_agent.pytorch.layouts.sharded import local_part
from worker_agent.pytorch.layouts.tensor import TensorGroup
from worker_agent.training.worker_processes import GiveUpWaiting
from worker_agent.transport.process_link import FollowerLinks, LeaderLink

MEETING = "world"
# A process that hangs is noticed by this alone, as PyTorch waits within a pass.
SILENCE_TIMEOUT = timedelta(minutes=5)


class WorkerWorld:
    """The processes of this worker, which meet before the worker says hello.

    Args:
        layout: How they share the model.
        position: Which of them this is, from 0.
        directory: Where they meet.
        link: Connections to the others.
        has_scaler: Whether the script scales its loss.

    Raises:
        UnsupportedModel: The script has formed a default group of its own.
    """

    def __init__(
        self,
        layout: Layout,
        position: int,
        directory: Path,
        link: FollowerLinks | LeaderLink,
        *,
        has_scaler: bool,
    ) -> None:
        if dist.is_initialized():
            raise UnsupportedModel(
                "the script calls torch.distributed.init_process_group, and the processes that"
                " share the model need that group: remove the call, or leave limits.layout and"
                " strategy: pipedream out"
            )
        self.layout, self.position = layout, position
        self.link, self.has_scaler = link, has_scaler
        meeting = FileStore(str(directory / MEETING), layout.processes)
        dist.init_process_group(
            "gloo",
            store=meeting,
            rank=position,
            world_size=layout.processes,
            timeout=SILENCE_TIMEOUT,
        )
        self.stage = layout.stage_of(position)
        index = position - self.place(self.stage)
        self.replica, self.tensor_index, self.shard_index = index, 0, 0
        self.pipeline_group = self.shard_group = self.replica_group = row = None
        if layout.is_asynchronous:
            stages = [list(layout.positions(stage)) for stage in range(layout.pipeline)]
            self.replica_group = self._group_among(stages)
        else:
            self.replica = 0
            self.tensor_index, self.shard_index = divmod(index, layout.shard)
            places = torch.arange(layout.processes)
            places = places.view(layout.pipeline, layout.tensor, layout.shard)
            self.pipeline_group, row, self.shard_group = (
                self._group_along(places, axis) for axis in range(3)
            )
        self.tensor_group = TensorGroup(row, self.tensor_index, layout.tensor)
        # Parameters that all tensor shards have whole count once in a norm: those of the first.
        self.uncounted: list[Tensor] = []

    def _group_along(self, places: Tensor, axis: int) -> Any:
        """Return the group of the processes that differ from this one along one axis only."""
        return self._group_among(places.movedim(axis, -1).reshape(-1, places.shape[axis]).tolist())

    def _group_among(self, lines: Sequence[Sequence[int]]) -> Any:
        """Return the group of those of these processes that this one is among."""
        # Every process takes part in making each group, in this order.
        groups = [dist.new_group(line) for line in lines]
        return next(
            group for line, group in zip(lines, groups, strict=True) if self.position in line
        )

    def sum(self, values: Sequence[Tensor]) -> list[float]:
        """Return the sums over the processes of this worker, the same on all of them."""
        total = torch.stack([value.to("cpu", torch.float64) for value in values])
        dist.all_reduce(total)
        sums: list[float] = total.tolist()
        return sums

    def total(self, value: Tensor) -> Tensor:
        """Return the sum of one value over the processes of this worker."""
        dist.all_reduce(value)
        return value

    def announce_failure(self) -> None:
        """Let the processes that follow this one give up what they wait for."""
        if isinstance(self.link, FollowerLinks):
            self.link.send(GiveUpWaiting())

    def place(self, stage: int) -> int:
        """Return the position of the first process of a stage."""
        return self.layout.positions(stage)[0]

    def share(self, tensor: Tensor, source: int) -> None:
        """Overwrite a tensor with that of one process."""
        dist.broadcast(tensor, source)

    def share_clipping(self) -> None:
        """Let ``clip_grad_norm_`` see the norm of all stages, in this process, from now on."""
        own: Any = clip_grad._get_total_norm

        def norm_of_all_stages(
            tensors: Any, norm_type: float = 2.0, error_if_nonfinite: bool = False, *rest: Any
        ) -> Tensor:
            twice = {p.grad.data_ptr() for p in self.uncounted if p.grad is not None}
            own_parts = [local_part(each) for each in tensors]
            once = [each for each in own_parts if each.data_ptr() not in twice]
            norm: Tensor = own(once, norm_type, False, *rest).to("cpu", torch.float64)
            if math.isinf(norm_type):
                dist.all_reduce(norm, dist.ReduceOp.MAX)
            else:
                dist.all_reduce(norm.pow_(norm_type))
                norm.pow_(1 / norm_type)
            if error_if_nonfinite and not norm.isfinite():
                raise RuntimeError(f"the gradient's norm over all stages is {float(norm)}")
            return norm

        clip_grad._get_total_norm = norm_of_all_stages  # type: ignore[assignment]

    def close(self) -> None:
        """Leave the group; it cannot be formed again."""
        dist.destroy_process_group()


def refuse_clipping() -> None:
    """Let clipping fail from now on: stages have gradients of different minibatches."""

    def refuse(*_: Any) -> Tensor:
        raise UnsupportedModel(
            "an asynchronous pipeline has no gradient of the whole model at any time, so it"
            " cannot be clipped: leave that out, or write limits.layout in place of strategy:"
            " pipedream"
        )

    replaced: Any = clip_grad
    replaced._get_total_norm = refuse
    replaced._group_tensors_by_device_and_dtype = refuse  # which clip_grad_value_ calls
