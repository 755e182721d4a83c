"""A model that several processes share: its data, and worker processes that do."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer

from scavenger.layout import Layout
from tests.conductor import Process, Start, spawn

SAMPLES, FEATURES, CLASSES = 96, 6, 3


def make_model(blocks: int = 4) -> nn.Sequential:
    """Return the same model in every process."""
    torch.manual_seed(3)
    inner = [nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(blocks - 2)]
    return nn.Sequential(nn.Linear(FEATURES, 8), *inner, nn.Linear(8, CLASSES)).double()


def make_optimizer(name: str, model: nn.Module) -> Optimizer:
    """Return an optimizer with slots, in two groups."""
    weights = [p for p in model.parameters() if p.dim() > 1]
    biases = [p for p in model.parameters() if p.dim() == 1]
    groups: Any = [{"params": weights}, {"params": biases, "weight_decay": 0.0}]
    if name == "adamw":
        return AdamW(groups, lr=0.01)
    return SGD(groups, lr=0.1, momentum=0.9)


def samples() -> tuple[Tensor, Tensor]:
    """Return inputs and labels."""
    generator = torch.Generator().manual_seed(5)
    inputs = torch.randn(SAMPLES, FEATURES, generator=generator, dtype=torch.float64)
    return inputs, torch.randint(0, CLASSES, (SAMPLES,), generator=generator)


def loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the mean loss over a batch."""
    return nn.functional.cross_entropy(outputs, targets)


class WorkerProcesses:
    """The processes of one worker, as its supervisor starts them."""

    def __init__(self, processes: Sequence[Process]) -> None:
        self.processes = processes

    def poll(self) -> int | None:
        codes = [process.poll() for process in self.processes]
        return next((code for code in codes if code), codes[0])

    def wait(self) -> int:
        return max(process.wait() for process in self.processes)

    def kill(self) -> None:
        for process in self.processes:
            process.kill()

    def send_signal(self, number: int, /) -> None:
        self.processes[0].send_signal(number)


def start_with(layout: Layout) -> Callable[[Start], WorkerProcesses]:
    """Return what starts a worker with a layout."""

    def start(one: Start) -> WorkerProcesses:
        place = tempfile.mkdtemp(prefix="scv-")
        started = []
        for position in range(layout.processes):
            ours = {
                "SCAVENGER_LAYOUT": str(layout),
                "SCAVENGER_POSITION": str(position),
                "SCAVENGER_PROCESSES": place,
            }
            log = one.log.with_suffix(f".{position}.log")
            started.append(spawn(replace(one, environment={**one.environment, **ours}, log=log)))
        return WorkerProcesses(started)

    return start
