"""The network of chaos in PyTorch."""

from __future__ import annotations

import os
from typing import Any

import httpx
import torch
from torch import nn
from torch._dynamo import lookup_backend

import worker_agent.pytorch.all_reduce  # before the fork
import worker_agent.pytorch.layouts.stage  # noqa: F401
from tests.chaos.networks import HALF_LIFE, SAMPLES, SEED
from tests.chaos.shared_workers import PLAN
from tests.integration.shared import own_weights
from worker_agent.pytorch.stacks.code_cache import platform_facts
from worker_agent.pytorch.stacks.compiled import Compiled
from worker_agent.pytorch.state import seed_iteration


def compile_at_once(graph: Any, inputs: Any, **_: Any) -> Any:
    """Compile into what PyTorch's own operators compute, in a moment."""
    return lookup_backend("aot_eager")(graph, inputs)


class TorchNetwork:
    """Implements `tests.chaos.networks.Network`."""

    def __init__(self, dropout: float) -> None:
        torch.set_num_threads(1)
        generator = torch.Generator().manual_seed(5)
        self.inputs = torch.randn(SAMPLES, 6, generator=generator, dtype=torch.float64)
        self.labels = torch.randint(0, 3, (SAMPLES,), generator=generator)
        torch.manual_seed(3)
        layers = (nn.Linear(6, 16), nn.Tanh(), nn.Dropout(dropout), nn.Linear(16, 3))
        self.model = nn.Sequential(*layers).double()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        halving = 0.5 ** (1 / HALF_LIFE)
        self.scheduler = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, halving)
        self.optimizer.zero_grad()

    @staticmethod
    def warm_up() -> None:
        network = TorchNetwork(dropout=0.1)
        network.add(torch.arange(SAMPLES), 1.0)
        network.step()
        Compiled.backend = staticmethod(compile_at_once)
        torch.compile(network.model, backend=compile_at_once)(network.inputs).sum().backward()
        torch._dynamo.reset()
        platform_facts()  # asks the C++ compiler, once
        httpx.Client(trust_env=False).close()

    def prepare(self, job: Any) -> None:
        self.is_shared = "SCAVENGER_LAYOUT" in os.environ
        loss = nn.functional.cross_entropy if self.is_shared else None
        job.prepare(
            self.model, self.optimizer, scheduler=self.scheduler, loss=loss, tensor_plan=PLAN
        )

    def pass_batch(self, job: Any, indices: Any) -> None:
        if self.is_shared:
            job.step(self.inputs[indices], self.labels[indices])
        else:
            self.add(indices, 1.0)

    def seed(self, start: int) -> None:
        seed_iteration(SEED, start)

    def add(self, indices: Any, weight: float) -> None:
        places = torch.as_tensor(indices)
        loss = nn.functional.cross_entropy(self.model(self.inputs[places]), self.labels[places])
        (loss * weight).backward()

    def step(self) -> None:
        self.optimizer.step()
        self.scheduler.step()
        self.optimizer.zero_grad()

    def own_weights(self) -> dict[str, list[Any]]:
        """Return what this process has of each weight."""
        return own_weights(self.model)

    def weights(self) -> list[float]:
        parameters = [each.detach().flatten() for each in self.model.parameters()]
        flat: list[float] = torch.cat(parameters).tolist()
        return flat
