"""Iteration: the gradients of one iteration at one server, until all members' are there."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from worker_agent.parameter_server.errors import Garbled
from worker_agent.parameter_server.frame import Numbers


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
class Outcome:
    """What all workers hear about an iteration.

    Attributes:
        norms_sq: Share times ||g_k||² of this shard for each worker, shape (workers,).
        mean_norm_sq: ||mean g||² of this shard; NaN when a member did not step.
        rows: What each worker told, shape (workers, columns).
    """

    norms_sq: Numbers
    mean_norm_sq: float
    rows: Numbers


class Iteration:
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
        self.outcome: Outcome | None = None

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
            raise Garbled(f"rank {rank} contributes twice to iteration {self.number}")
        self.contributions[rank] = contribution
        while (following := self.contributions.get(self.added)) is not None:
            if self.added == 0:
                torch.mul(following.gradient, following.share, out=self.mean)
            else:
                self.mean.add_(following.gradient, alpha=following.share)
            self.added += 1

    def conclude(self) -> Outcome:
        """Return what to tell everybody."""
        ranked = [self.contributions[rank] for rank in range(self.workers)]
        self.outcome = Outcome(
            norms_sq=np.array([each.share * each.norm_sq for each in ranked]),
            mean_norm_sq=norm_sq(self.mean) if len(self.rates) else math.nan,
            rows=np.stack([each.row for each in ranked]),
        )
        return self.outcome


def norm_sq(values: Tensor) -> float:
    """Return the sum of squares."""
    return float(torch.linalg.vector_norm(values).square())
