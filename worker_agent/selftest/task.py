"""Task: a small training problem in float64, the same in every process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

SAMPLES, FEATURES, CLASSES = 960, 16, 4
BATCH = 48


@dataclass(frozen=True, slots=True)
class Task:
    """What is trained, and on what.

    Attributes:
        model: A network without batch statistics, so that any split of a batch means the same.
        optimizer: Its momentum has to travel.
    """

    model: nn.Module
    optimizer: Optimizer
    inputs: Tensor
    labels: Tensor

    @classmethod
    def make(cls, width: int = 32) -> Task:
        """Return the task at its beginning; ``width`` sets what an iteration computes."""
        generator = torch.Generator().manual_seed(5)
        inputs = torch.randn(SAMPLES, FEATURES, generator=generator, dtype=torch.float64)
        labels = torch.randint(0, CLASSES, (SAMPLES,), generator=generator)
        torch.manual_seed(3)
        model = nn.Sequential(
            nn.Linear(FEATURES, width),
            nn.Tanh(),
            nn.Linear(width, width),
            nn.Tanh(),
            nn.Linear(width, CLASSES),
        ).double()
        return cls(
            model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), inputs, labels
        )

    def loss(self, indices: Tensor | Sequence[int]) -> Tensor:
        """Return the mean loss over these samples."""
        return nn.functional.cross_entropy(self.model(self.inputs[indices]), self.labels[indices])

    def step(self, indices: Tensor | Sequence[int]) -> None:
        """Train on these samples."""
        self.optimizer.zero_grad()
        self.loss(indices).backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()

    def weights(self) -> Tensor:
        """Return all weights as one vector."""
        return torch.cat([parameter.detach().flatten() for parameter in self.model.parameters()])
