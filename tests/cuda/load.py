"""Training that keeps a GPU busy much longer than the host needs to queue it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median

import torch
import torch.distributed as dist
from torch import Tensor, nn

WIDTH, DEPTH, BATCH = 2048, 6, 4096
WARM_UP, STEPS = 5, 30


class HeavyTask:
    """A network of 25 million parameters; the same at each call."""

    def __init__(self) -> None:
        torch.manual_seed(3)
        layers = [layer for _ in range(DEPTH) for layer in (nn.Linear(WIDTH, WIDTH), nn.Tanh())]
        self.model: nn.Module = nn.Sequential(*layers).cuda()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)
        self.inputs = torch.randn(BATCH, WIDTH, device="cuda")

    def gradients(self, network: nn.Module) -> Tensor:
        """Make one forward and backward pass; returns the loss."""
        self.optimizer.zero_grad()
        loss = network(self.inputs).square().mean()
        loss.backward()
        return loss.detach()

    def step(self, network: nn.Module) -> Tensor:
        loss = self.gradients(network)
        self.optimizer.step()
        return loss

    def weights(self) -> Tensor:
        return torch.cat([parameter.detach().flatten() for parameter in self.model.parameters()])


def synchronised_times() -> tuple[float, float]:
    """Return the seconds of both passes and of the whole step, with the host waiting for each."""
    task = HeavyTask()
    computing, whole = [], []
    for _ in range(WARM_UP + STEPS):
        torch.cuda.synchronize()
        began = time.perf_counter()
        task.gradients(task.model)
        torch.cuda.synchronize()
        ready = time.perf_counter()
        task.optimizer.step()
        torch.cuda.synchronize()
        computing.append(ready - began)
        whole.append(time.perf_counter() - began)
    return median(computing[WARM_UP:]), median(whole[WARM_UP:])


def queueing_time() -> float:
    """Return the seconds in which the host queues both passes."""
    task = HeavyTask()
    times = []
    for _ in range(WARM_UP + STEPS):
        torch.cuda.synchronize()
        began = time.perf_counter()
        task.gradients(task.model)
        times.append(time.perf_counter() - began)
    return median(times[WARM_UP:])


@contextmanager
def refuse_waits() -> Iterator[None]:
    """Let PyTorch raise where the host would wait for the device."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@contextmanager
def group_of_one() -> Iterator[None]:
    """Form a process group of this process, by NCCL, which does not wait on the host."""
    store = dist.HashStore()
    dist.init_process_group("nccl", store=store, rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()
