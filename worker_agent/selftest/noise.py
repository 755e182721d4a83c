"""Whether the noise that is measured equals a direct computation."""

from __future__ import annotations

import torch

from worker_agent.selftest.task import BATCH, Task
from worker_agent.strategies.reducer import Reducer
from worker_agent.strategies.strategy import Slice

SHARDS = 4
WHOLE = Slice(share_of_worker=1.0, share_of_batch=1.0, is_last=True)


def measure_noise_error() -> float:
    """Return the relative error of γ (Eq. 2) over micro-batches, against their own gradients."""
    task = Task.make()
    parts = torch.arange(BATCH).chunk(SHARDS)
    gradients = torch.stack([gradient(task, part) for part in parts])
    direct = gradients.square().sum(dim=1).mean() / gradients.mean(dim=0).square().sum()
    reducer = Reducer(task.model.parameters(), micro_batches=SHARDS, is_abandoned=lambda: False)
    reducer.begin(WHOLE)
    for part in parts:
        (task.loss(part) / SHARDS).backward()  # type: ignore[no-untyped-call]
    measured = reducer.end()
    if measured.local_norm_sq is None or measured.mean_norm_sq is None:
        return float("inf")
    noise = measured.local_norm_sq / measured.mean_norm_sq
    return float((noise / direct - 1).abs())


def gradient(task: Task, part: torch.Tensor) -> torch.Tensor:
    """Return the gradient over these samples as one vector."""
    pieces = torch.autograd.grad(task.loss(part), list(task.model.parameters()))
    return torch.cat([piece.flatten() for piece in pieces])
