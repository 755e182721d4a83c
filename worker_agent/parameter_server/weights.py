"""Weights: one shard as it was before and after the last iteration.

Shards apply an iteration one after the other. When a worker dies in between, the others redo it
from the weights before; a shard that had applied it already still holds those for newcomers.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from worker_agent.parameter_server.message import Holding
from worker_agent.parameter_server.optimizer import Description, SegmentOptimizer
from worker_agent.parameter_server.shard import Segment


class Weights:
    """The values of a shard and the optimizer that moves them.

    Attributes:
        iteration: Iterations applied so far.
        now: The values, shape (size,).
        before: The values one iteration ago.
    """

    def __init__(
        self,
        iteration: int,
        dtype: torch.dtype,
        description: Description,
        segments: Sequence[Segment],
    ) -> None:
        size = sum(segment.size for segment in segments)
        self.iteration = iteration
        self.description = description
        self.now = torch.zeros(size, dtype=dtype)
        self.before = torch.zeros(size, dtype=dtype)
        self.optimizer = SegmentOptimizer(description, segments, self.now)

    @classmethod
    def to_fill(cls, iteration: int, holding: Holding) -> tuple[Weights, list[Tensor]]:
        """Make room for a shard; returns it and what is to be filled, weights first."""
        dtype = getattr(torch, holding.precision)
        weights = cls(iteration, dtype, holding.description, holding.segments)
        return weights, [weights.now, *weights.optimizer.restore(holding.slots)]

    def step(self, gradient: Tensor, rates: Sequence[float]) -> None:
        """Apply an iteration; without rates it is only counted."""
        self.iteration += 1
        self.before, self.now = self.now, self.before
        self.now.copy_(self.before)
        if len(rates):
            self.optimizer.step(self.now, gradient, rates)

    def step_in_place(self, gradient: Tensor, rates: Sequence[float]) -> None:
        """Apply an update of one worker that nobody waits for."""
        self.iteration += 1
        self.optimizer.step(self.now, gradient, rates)

    def at(self, iteration: int) -> Tensor | None:
        """Return the values after so many iterations, if they are still there."""
        if iteration == self.iteration:
            return self.now
        return self.before if iteration == self.iteration - 1 else None
