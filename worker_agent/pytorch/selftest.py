"""The self-test on PyTorch; as a program, one worker of its resize."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from worker_agent.frameworks import NO_FLAGS, WHOLE_BATCH, StrategyContext
from worker_agent.pytorch.all_reduce import AllReduceStrategy
from worker_agent.pytorch.reducer import Reducer
from worker_agent.pytorch.tensors import flatten_all
from worker_agent.rendezvous.rendezvous import StoreRendezvous
from worker_agent.selftest import (
    NARROW,
    SELFTEST_BATCH,
    SELFTEST_CLASSES,
    SELFTEST_FEATURES,
    WIDE,
    Indices,
    Overhead,
    ResizeResult,
    Weights,
    make_samples,
    measure_in_turns,
    resize_workers,
    train_as_worker,
)

NOISE_SHARDS = 4
TORCH_OVERHEAD_BATCH = 240  # an iteration of about ten milliseconds


@dataclass(frozen=True, slots=True)
class TorchTask:
    """The training problem of the self-test."""

    model: nn.Module
    optimizer: Optimizer
    inputs: Tensor
    labels: Tensor

    @classmethod
    def make(cls, width: int = NARROW) -> TorchTask:
        """Return the untrained task; ``width`` sets the cost of an iteration."""
        inputs, labels = map(torch.from_numpy, make_samples())
        torch.manual_seed(3)
        model = nn.Sequential(
            nn.Linear(SELFTEST_FEATURES, width),
            nn.Tanh(),
            nn.Linear(width, width),
            nn.Tanh(),
            nn.Linear(width, SELFTEST_CLASSES),
        ).double()
        return cls(
            model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), inputs, labels
        )

    def loss(self, indices: Tensor | Indices) -> Tensor:
        return nn.functional.cross_entropy(self.model(self.inputs[indices]), self.labels[indices])

    def step(self, indices: Any) -> None:
        # Gradients are kept, or the overhead would be the allocator's too.
        self.optimizer.zero_grad(set_to_none=False)
        self.loss(indices).backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()

    def weights(self) -> Weights:
        return flatten_all(self.model.parameters()).detach().numpy()


def measure_noise_error() -> float:
    """Return the relative error of γ (Eq. 2) over micro-batches, against their own gradients."""
    task = TorchTask.make()
    parts = torch.arange(SELFTEST_BATCH).chunk(NOISE_SHARDS)
    gradients = torch.stack([flat_gradient(task, part) for part in parts])
    direct = gradients.square().sum(dim=1).mean() / gradients.mean(dim=0).square().sum()
    reducer = Reducer(
        task.model.parameters(), micro_batches=NOISE_SHARDS, should_abort=lambda: False
    )
    reducer.begin(WHOLE_BATCH)
    for part in parts:
        (task.loss(part) / NOISE_SHARDS).backward()  # type: ignore[no-untyped-call]
    measured = reducer.end()
    if measured.local_norm_sq is None or measured.mean_norm_sq is None:
        return float("inf")
    noise = measured.local_norm_sq / measured.mean_norm_sq
    return float((noise / direct - 1).abs())


def flat_gradient(task: TorchTask, part: Tensor) -> Tensor:
    """Return the gradient over these samples as one vector."""
    return flatten_all(torch.autograd.grad(task.loss(part), list(task.model.parameters())))


def measure_overhead() -> Overhead:
    """Train two equal models in turns, one of them under the agent."""
    plain, watched = TorchTask.make(WIDE), TorchTask.make(WIDE)
    context = StrategyContext(
        name="all_reduce",
        model=watched.model,
        optimizer=watched.optimizer,
        worker="selftest",
        secret="",
        should_abort=lambda: False,
    )
    rendezvous = StoreRendezvous(context.worker, "127.0.0.1", lambda _: False)
    strategy = AllReduceStrategy(rendezvous, context)

    def watch(indices: Indices) -> None:
        strategy.begin(WHOLE_BATCH, NO_FLAGS)
        watched.step(indices)
        strategy.end()

    with single_thread():
        overhead = measure_in_turns(plain.step, watch, TORCH_OVERHEAD_BATCH)
    strategy.close()
    return overhead


@contextmanager
def single_thread() -> Iterator[None]:
    """Compute on one thread: further threads spin while they wait, which is CPU time too."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def measure_resize() -> ResizeResult:
    """Train on one worker, on two, on one again, and compare."""
    return resize_workers(__name__, TorchTask.make())


if __name__ == "__main__":
    torch.set_num_threads(1)
    train_as_worker(TorchTask.make())
