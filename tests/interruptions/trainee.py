"""A small training script in float64 that notes each attempt at an iteration, steered by files.

In the directory where it runs, ``before-w2`` keeps the second worker from its session, ``held`` all
workers in their iteration, and ``pace`` holds the seconds that an iteration takes.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import worker_agent

SAMPLES, BATCH, SEED = 240, 24, 9


def problem() -> tuple[Tensor, Tensor]:
    """Return inputs and labels, the same in every process."""
    generator = torch.Generator().manual_seed(5)
    inputs = torch.randn(SAMPLES, 6, generator=generator, dtype=torch.float64)
    return inputs, (inputs[:, 0] > inputs[:, 1]).long()


def network(ballast: int = 0) -> nn.Module:
    """Return a small network; ballast makes its checkpoints larger, and nothing else."""
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 2)).double()
    if ballast:
        weight = torch.zeros(ballast // 8, dtype=torch.float64)
        model.register_parameter("ballast", nn.Parameter(weight, requires_grad=False))
    return model


def optimization(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.01)


def result(model: nn.Module, inputs: Tensor, labels: Tensor) -> dict[str, float]:
    """Return what two runs are compared by."""
    with torch.no_grad():
        accuracy = (model(inputs).argmax(dim=1) == labels).double().mean().item()
    weights = sum(p.detach().sum().item() for p in model.parameters())
    return {"accuracy": accuracy, "weights": weights}


def train_undisturbed(batches: list[list[int]]) -> Mapping[str, float]:
    """Return the result of these batches in a plain loop without the agent."""
    inputs, labels = problem()
    model = network()
    optimizer = optimization(model)
    for indices in batches:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs[indices]), labels[indices]).backward()
        optimizer.step()
    return result(model, inputs, labels)


def wait_while(name: str) -> None:
    while os.path.exists(name):
        time.sleep(0.01)


def describe(job: Any, indices: Tensor) -> dict[str, object]:
    """Return what is noted of an attempt."""
    directive = job.directive
    return {
        "iteration": job.iteration + 1,
        "attempt": (directive.generation, directive.revision),
        "indices": indices.tolist(),
        "leads": job.is_leader,
        "at": time.time(),
    }


def main() -> None:
    """Train until told to stop."""
    torch.set_num_threads(1)
    inputs, labels = problem()
    model = network(int(os.environ.get("BALLAST", "0")))
    optimizer = optimization(model)
    worker = os.environ["SCAVENGER_WORKER"]
    Path(f"{worker}.up").touch()
    wait_while(f"before-{worker.rpartition('-')[2]}")
    with open(f"{worker}.jsonl", "a", buffering=1) as out, worker_agent.session() as job:
        job.prepare(model, optimizer)
        for indices in job.batches(SAMPLES, BATCH, epochs=1, seed=SEED):
            time.sleep(float(Path("pace").read_text()))
            wait_while("held")
            optimizer.zero_grad()
            # Before the gradient is sent: what others apply has been written down.
            out.write(json.dumps(describe(job, indices)) + "\n")
            nn.functional.cross_entropy(model(inputs[indices]), labels[indices]).backward()
            optimizer.step()
            job.log(accuracy=result(model, inputs, labels)["accuracy"])
        end = {"iteration": job.iteration, **result(model, inputs, labels)}
        Path(f"{worker}.end").write_text(json.dumps(end))


if __name__ == "__main__":
    main()
