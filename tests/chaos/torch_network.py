"""The network of chaos in PyTorch."""

from __future__ import annotations

import os
from typing import Any

import httpx
import torch
from torch import nn
from torch._dynamo import lookup_backend

import worker_agent.pytorch.all_reduce  # before the fork
import worker_agent.pytorch.layouts.asynchronous
import worker_agent.pytorch.layouts.stage
import worker_agent.pytorch.line_search
import worker_agent.pytorch.sandblaster
import worker_agent.pytorch.server_shard
import worker_agent.state.checkpoints
import worker_agent.training.asynchronous  # noqa: F401
from tests.chaos.networks import HALF_LIFE, RATE, SAMPLES, SEED
from tests.chaos.shared_workers import PLAN
from tests.integration.shared import own_weights
from worker_agent.pytorch.stacks.code_cache import platform_facts
from worker_agent.pytorch.stacks.compiled import Compiled
from worker_agent.pytorch.state import seed_iteration


def compile_at_once(graph: Any, inputs: Any, **_: Any) -> Any:
    """Compile into what PyTorch's own operators compute, in a moment."""
    return lookup_backend("aot_eager")(graph, inputs)


def make_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    """Return the optimizer of a network, or of some of its layers."""
    return torch.optim.AdamW(model.parameters(), lr=RATE)


def make_lbfgs(model: nn.Module) -> torch.optim.Optimizer:
    """Return the optimizer of a job whose servers step by L-BFGS, to the end of the job."""
    return torch.optim.LBFGS(
        model.parameters(), tolerance_grad=0.0, tolerance_change=0.0, line_search_fn="strong_wolfe"
    )


class TorchNetwork:
    """Implements `tests.chaos.networks.Network`."""

    def __init__(self, dropout: float) -> None:
        torch.set_num_threads(1)
        generator = torch.Generator().manual_seed(5)
        self.inputs = torch.randn(SAMPLES, 6, generator=generator, dtype=torch.float64)
        self.labels = torch.randint(0, 3, (SAMPLES,), generator=generator)
        torch.manual_seed(3)
        first = (nn.Linear(6, 16), nn.Tanh(), nn.Dropout(dropout), nn.Linear(16, 8))
        last = (nn.Tanh(), nn.Linear(8, 12), nn.Tanh(), nn.Linear(12, 3))
        self.model = nn.Sequential(*first, *last).double()
        self.optimizer = make_optimizer(self.model)
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
        loss, self.is_alone = nn.functional.cross_entropy, False
        if os.environ["SCAVENGER_STRATEGY"] == "sandblaster":
            self.optimizer = make_lbfgs(self.model)
            job.prepare(self.model, self.optimizer, loss=loss)
            return
        shared = {"loss": loss, "tensor_plan": PLAN}
        self.is_alone = "SCAVENGER_LAYOUT" not in os.environ
        options = {} if self.is_alone else shared
        job.prepare(self.model, self.optimizer, scheduler=self.scheduler, **options)

    def pass_batch(self, job: Any, indices: Any) -> None:
        if self.is_alone:
            self.add(indices, 1.0)
        else:
            job.step(self.inputs[indices], self.labels[indices])

    def seed(self, start: int) -> None:
        seed_iteration(SEED, start)

    def add(self, indices: Any, weight: float) -> None:
        places = torch.as_tensor(indices)
        loss = nn.functional.cross_entropy(self.model(self.inputs[places]), self.labels[places])
        (loss * weight).backward()

    def step(self) -> None:
        if isinstance(self.optimizer, torch.optim.LBFGS):  # the servers step
            return
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
