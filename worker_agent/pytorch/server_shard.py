"""The weights of one parameter server, and the gradients of one iteration that are summed for it.

Shards apply an iteration one after the other. When a worker dies in between, the others redo it
from the weights before; a shard that had applied it already still holds those for newcomers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from worker_agent.errors import MalformedFrame
from worker_agent.parameter_server.messages import (
    OptimizerSpec,
    Segment,
    SegmentOptimizer,
    ShardManifest,
)
from worker_agent.transport.connection import Numbers


class ShardWeights:
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
        description: OptimizerSpec,
        segments: Sequence[Segment],
    ) -> None:
        size = sum(segment.size for segment in segments)
        self.iteration = iteration
        self.description = description
        self.now = torch.zeros(size, dtype=dtype)
        self.before = torch.zeros(size, dtype=dtype)
        self.optimizer = SegmentOptimizer(description, segments, self.now)

    @classmethod
    def to_fill(cls, iteration: int, holding: ShardManifest) -> tuple[ShardWeights, list[Tensor]]:
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


@dataclass(frozen=True, slots=True)
class Contribution:
    """What one worker pushes.

    Attributes:
        gradient: Mean gradient over its samples, this shard's part, shape (size,).
        norm_sq: ||gradient||² of this part.
        share: Fraction of the global batch its samples are.
        is_skipped: Whether its script did not step, so nobody may.
        rates: Learning rate of each parameter group; the leader's count.
        row: What it tells the other workers.
        clock: Where training stands after this iteration; the leader's counts.
    """

    gradient: Tensor
    norm_sq: float
    share: float
    is_skipped: bool
    rates: Numbers
    row: Numbers
    clock: str


@dataclass(frozen=True, slots=True)
class IterationOutcome:
    """What all workers hear about an iteration.

    Attributes:
        norms_sq: Share times ||g_k||² of this shard for each worker, shape (workers,).
        mean_norm_sq: ||mean g||² of this shard; NaN when a member did not step.
        rows: What each worker told, shape (workers, columns).
    """

    norms_sq: Numbers
    mean_norm_sq: float
    rows: Numbers


class GatheredIteration:
    """Adds gradients up in rank order, whoever comes first, so that the sum is always the same.

    Args:
        number: Iterations applied before this one.
        workers: How many contributions make it complete.
        mean: Where the mean gradient is built, shape (size,).
    """

    def __init__(self, number: int, workers: int, mean: Tensor) -> None:
        self.number, self.workers, self.mean = number, workers, mean
        self.contributions: dict[int, Contribution] = {}
        self.added = 0
        self.outcome: IterationOutcome | None = None

    @property
    def is_complete(self) -> bool:
        """Whether all members have contributed."""
        return self.added == self.workers

    @property
    def rates(self) -> Numbers:
        """Learning rates to step with; none when a member did not step."""
        if any(each.is_skipped for each in self.contributions.values()):
            return np.empty(0)
        return self.contributions[0].rates

    def add(self, rank: int, contribution: Contribution) -> None:
        """Take a contribution; its gradient may be overwritten once the iteration is complete.

        Raises:
            Garbled: This worker has contributed already.
        """
        if rank in self.contributions:
            raise MalformedFrame(f"rank {rank} contributes twice to iteration {self.number}")
        self.contributions[rank] = contribution
        while (following := self.contributions.get(self.added)) is not None:
            if self.added == 0:
                torch.mul(following.gradient, following.share, out=self.mean)
            else:
                self.mean.add_(following.gradient, alpha=following.share)
            self.added += 1

    def conclude(self) -> IterationOutcome:
        """Return what to tell everybody."""
        ranked = [self.contributions[rank] for rank in range(self.workers)]
        self.outcome = IterationOutcome(
            norms_sq=np.array([each.share * each.norm_sq for each in ranked]),
            mean_norm_sq=squared_norm(self.mean) if len(self.rates) else math.nan,
            rows=np.stack([each.row for each in ranked]),
        )
        return self.outcome


def squared_norm(values: Tensor) -> float:
    """Return the sum of squares."""
    return float(torch.linalg.vector_norm(values).square())
