"""Processor time of a pass with tensor shards: ours, PyTorch's DTensor, and one whole process.

``python -m tests.bench.tensor_shards POSITION PLACE`` is one of two processes. They take turns with
each kind of model, and the first one prints what a pass takes of a processor.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from statistics import median

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.optim import SGD

from worker_agent.pytorch.layouts.tensor import TensorGroup, share_weights

SAMPLES, LAYERS, ROUNDS, PASSES = 16, 4, 9, 20
WIDTHS = (32, 512)  # where operations cost little beside what starts them, and where they do not


class Pair(nn.Module):
    """Two layers with a way around them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        left: Tensor = x + self.down(torch.tanh(self.up(x)))
        return left


def make(width: int) -> nn.Sequential:
    """Return the same model in both processes."""
    torch.manual_seed(0)
    return nn.Sequential(*[Pair(width) for _ in range(LAYERS)])


def main() -> None:
    """Measure; the first process prints processor time of a pass beside one whole process's."""
    position, place = int(sys.argv[1]), sys.argv[2]
    torch.set_num_threads(1)
    store = dist.FileStore(place, 2)
    dist.init_process_group("gloo", store=store, rank=position, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    told = {}
    for width in WIDTHS:
        ours, theirs = make(width), make(width)
        group = TensorGroup(dist.group.WORLD, position, 2)
        share_weights(ours, SGD(ours.parameters()), group, {"*.up": "column", "*.down": "row"})
        for pair in theirs:
            parallelize_module(pair, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
        models: dict[str, nn.Module] = {"whole": make(width), "ours": ours, "dtensor": theirs}
        took: dict[str, list[float]] = {name: [] for name in models}
        for _ in range(ROUNDS):
            for name, model in models.items():
                took[name].append(processor_time(model, torch.randn(SAMPLES, width)))
        told[width] = {name: median(each) for name, each in took.items()}
    if position == 0:
        print(json.dumps(told))
    dist.destroy_process_group()


def processor_time(model: Callable[[Tensor], Tensor], x: Tensor) -> float:
    """Return seconds of a processor that both passes take."""
    dist.barrier()
    began = time.process_time()
    for _ in range(PASSES):
        model(x).square().mean().backward()
    return (time.process_time() - began) / PASSES


if __name__ == "__main__":
    main()
