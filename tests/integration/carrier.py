"""A training script that carries all there is: schedulers of every class, a loss scaler, averages.

One sample in 240 makes the loss infinite, so one worker in some iterations has no finite gradient.
"""

from __future__ import annotations

import json
import os
import time
import warnings
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn, optim
from torch.optim import lr_scheduler
from torch.optim.swa_utils import AveragedModel

import worker_agent
from tests.integration.trainee import SAMPLES, network, problem

POISON = 17


def poisoned(loss: Tensor, indices: Tensor) -> Tensor:
    """Make the loss infinite where the bad sample is."""
    return loss * torch.inf if (indices == POISON).any() else loss


class Schedule:
    """A scheduler with an optimizer of its own that trains nothing."""

    def __init__(self, make: Any) -> None:
        parameter = nn.Parameter(torch.zeros(1))
        parameter.grad = torch.zeros(1)
        self.optimizer = optim.SGD([parameter], lr=0.1, momentum=0.9)
        self.scheduler = make(self.optimizer)

    @property
    def rate(self) -> float:
        return float(self.optimizer.param_groups[0]["lr"])

    def step(self, metric: float) -> None:
        self.optimizer.step()
        if isinstance(self.scheduler, lr_scheduler.ReduceLROnPlateau):
            self.scheduler.step(metric)
        else:
            self.scheduler.step()


SCHEDULERS: dict[str, Any] = {
    "lambda": lambda o: lr_scheduler.LambdaLR(o, lambda step: 0.99**step),
    "multi": lambda o: lr_scheduler.MultiStepLR(o, [5, 20, 20, 33]),
    "restarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 7),
    "cyclic": lambda o: lr_scheduler.CyclicLR(o, 0.01, 0.1, step_size_up=9),
    "plateau": lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=3),
    "sequential": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.ConstantLR(o, total_iters=9), lr_scheduler.ExponentialLR(o, 0.99)], [15]
    ),
    "chained": lambda o: lr_scheduler.ChainedScheduler(
        [lr_scheduler.LinearLR(o, total_iters=40), lr_scheduler.ExponentialLR(o, 0.99)]
    ),
}


class Training:
    """All objects of a process, and its loop body."""

    def __init__(self, *, is_fused: bool) -> None:
        self.model = network()
        self.optimizer: optim.Optimizer
        if is_fused:
            self.optimizer = optim.AdamW(self.model.parameters(), lr=0.01, fused=True)
        else:
            self.optimizer = optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)
        self.scheduler = lr_scheduler.OneCycleLR(self.optimizer, 0.05, total_steps=20_000)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=6)
        self.average = AveragedModel(self.model)
        self.schedules = {name: Schedule(make) for name, make in SCHEDULERS.items()}

    def extra(self) -> dict[str, Any]:
        """Return what a session is to carry besides scheduler and scaler."""
        parts: dict[str, Any] = {"average": self.average}
        for name, schedule in self.schedules.items():
            parts |= {name: schedule.scheduler, f"{name} rates": schedule.optimizer}
        return parts

    def facts(self) -> dict[str, Any]:
        """Return what must be the same in every process before an iteration."""
        return {
            "weights": flat(self.model.parameters()),
            "rate": self.optimizer.param_groups[0]["lr"],
            "momentum": self.optimizer.param_groups[0].get("betas", [0])[0],
            "rates": {name: schedule.rate for name, schedule in self.schedules.items()},
            "scale": self.scaler.get_scale(),
        }

    def train(self, inputs: Tensor, labels: Tensor, indices: Tensor, iteration: int) -> None:
        """Run one loop body."""
        self.optimizer.zero_grad()
        loss = nn.functional.cross_entropy(self.model(inputs[indices]), labels[indices])
        self.scaler.scale(poisoned(loss, indices)).backward()
        self.scaler.unscale_(self.optimizer)
        nn.utils.clip_grad_norm_(self.model.parameters(), 0.1)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.scheduler.step()
        for schedule in self.schedules.values():
            schedule.step(metric=float(iteration // 9))


def flat(tensors: Iterable[Tensor]) -> list[float]:
    values: list[float] = torch.cat([tensor.detach().flatten() for tensor in tensors]).tolist()
    return values


def main() -> None:
    """Train until told to stop."""
    warnings.filterwarnings("ignore", message="Detected call of `lr_scheduler.step")
    torch.set_num_threads(1)
    inputs, labels = problem()
    training = Training(is_fused=bool(os.environ.get("FUSED")))
    worker = os.environ.get("SCAVENGER_WORKER", "alone")
    with open(f"{worker}.jsonl", "w", buffering=1) as out, worker_agent.session() as job:
        job.prepare(
            training.model,
            training.optimizer,
            scheduler=training.scheduler,
            scaler=training.scaler,
            extra=training.extra(),
        )
        for indices in job.batches(SAMPLES, 24, epochs=1, seed=9):
            iteration = job.iteration
            row = {"iteration": iteration, "indices": indices.tolist(), **training.facts()}
            out.write(json.dumps(row) + "\n")
            training.train(inputs, labels, indices, iteration)
            time.sleep(0.003)


if __name__ == "__main__":
    main()
