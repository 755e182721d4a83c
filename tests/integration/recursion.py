"""The recursion that PipeDream follows, in one process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import Optimizer

from scavenger.layout import Layout


@dataclass
class Recursion:
    """One process that trains as an asynchronous pipeline would.

    Attributes:
        layout: The pipeline, with the names of the modules that its stages begin with.
        model: The model, a sequence of blocks.
        make_optimizer: Returns the optimizer of a stage.
        inputs: Of all samples.
        targets: Of all samples.
        history: Weights of each stage after each of its steps, since the pipeline was empty.
        pending: Gradients of each stage that its processes have not averaged yet.
        begun: Minibatches since the pipeline was empty.
    """

    layout: Layout
    model: Any
    make_optimizer: Callable[[nn.Module], Optimizer]
    inputs: Tensor
    targets: Tensor
    history: list[list[list[Tensor]]] = field(default_factory=list)
    pending: list[list[list[Tensor]]] = field(default_factory=list)
    begun: int = 0

    def __post_init__(self) -> None:
        blocks = list(self.model)
        edges = [0, *(int(cut.partition(".")[0]) for cut in self.layout.cuts), len(blocks)]
        self.stages = [nn.Sequential(*blocks[low:high]) for low, high in pairwise(edges)]
        self.optimizers = [self.make_optimizer(stage) for stage in self.stages]
        self.empty()

    def weights(self, stage: int) -> list[Tensor]:
        return [p.detach().clone() for p in self.stages[stage].parameters()]

    def empty(self, rate: float | None = None) -> None:
        """End all minibatches: a turn that is not full ends with the gradients that it has.

        Args:
            rate: Learning rate of such a step; None for that of the step before.
        """
        for stage in range(len(self.pending)):
            if self.pending[stage]:
                self.step(stage, rate)
            self.put(stage, self.history[stage][-1])
        self.history = [[self.weights(stage)] for stage in range(self.layout.pipeline)]
        self.pending = [[] for _ in self.history]
        self.begun = 0

    def step(self, stage: int, rate: float | None) -> None:
        turn, self.pending[stage] = self.pending[stage], []
        newest = self.history[stage][-1] if self.history else self.weights(stage)
        self.put(stage, newest)
        for parameter, *each in zip(self.stages[stage].parameters(), *turn, strict=True):
            parameter.grad = torch.stack(each).sum(0) / len(each) if len(each) > 1 else each[0]
        for group in self.optimizers[stage].param_groups:
            group["lr"] = group["lr"] if rate is None else rate
        self.optimizers[stage].step()
        self.history[stage].append(self.weights(stage))

    def put(self, stage: int, weights: Sequence[Tensor]) -> None:
        for parameter, value in zip(self.stages[stage].parameters(), weights, strict=True):
            parameter.data.copy_(value)

    def steps_before(self, stage: int, minibatch: int) -> int:
        """Return how many steps a stage has made when a minibatch comes to it."""
        late = max(minibatch - self.layout.delay(stage), 0)
        return late // self.layout.replicas[stage]

    def version(self, stage: int, minibatch: int) -> int:
        """Return after how many of a stage's steps it has the weights that a minibatch uses.

        With vertical sync all gradients in them are also in those of the first stage.
        """
        if not self.layout.vertical_sync:
            return self.steps_before(stage, minibatch)
        averaged = self.steps_before(0, minibatch) * self.layout.replicas[0]
        steps = 0
        while (steps + 1) * self.layout.replicas[stage] <= averaged:
            steps += 1
        return steps

    def train(self, indices: Sequence[int], rates: Sequence[float | None] = ()) -> float:
        """Train on the next minibatch; returns its loss.

        Args:
            indices: Its samples.
            rates: Learning rate of the step that each stage makes with it, at the end of a turn;
                empty to leave the rates as they are.
        """
        for stage in range(self.layout.pipeline):
            self.put(stage, self.history[stage][self.version(stage, self.begun)])
        self.model.zero_grad()
        places = list(indices)
        value = cross_entropy(self.model(self.inputs[places]), self.targets[places])
        value.backward()
        for stage, module in enumerate(self.stages):
            gradients = [p.grad.clone() for p in module.parameters() if p.grad is not None]
            self.pending[stage].append(gradients)
            if len(self.pending[stage]) == self.layout.replicas[stage]:
                self.step(stage, rates[stage] if rates else None)
        self.begun += 1
        return float(value.detach())
