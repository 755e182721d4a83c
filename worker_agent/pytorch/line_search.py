"""`strong_wolfe`: PyTorch's own line search, asked one step at a time and without its vectors.

PyTorch calls back for each trial. Here a search that has come so far is repeated from its record
of trials, which costs no evaluation, until it asks for a point that is not in there. So a line
search is a pure function of numbers, and any process can go on with it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim.lbfgs import _strong_wolfe

from worker_agent.parameter_server.lbfgs import LineSearch, LineSearchRule, Trial


def line_search_rule() -> LineSearchRule:
    """Return the rule; see ``frameworks.load_line_search_rule``."""
    return strong_wolfe


def strong_wolfe(search: LineSearch) -> float | Trial | None:
    """Return t of the next trial, the trial that is accepted, or None if none is better.

    PyTorch takes two things of the vectors: gᵀd, and the largest entry of d. Both come out right
    with three numbers in place of each vector: d = (2^k, largest, 0) with 2^k at most the largest
    and g = (slope / 2^k, 0, place). A power of two loses no digit, and the place says which trial
    a gradient stands for.
    """
    unit = 2.0 ** math.floor(math.log2(search.largest))
    direction = torch.tensor([unit, search.largest, 0.0], dtype=torch.float64)

    def gradient(slope: float, place: int) -> Tensor:
        return torch.tensor([slope / unit, 0.0, place], dtype=torch.float64)

    record = TrialRecord(search.trials)

    def evaluate(_origin: Tensor, step: Tensor | float, _direction: Tensor) -> tuple[float, Tensor]:
        place, trial = record.next_trial(float(step))
        return trial.loss, gradient(trial.slope, place)

    try:
        search_line: Any = _strong_wolfe  # it has no types
        _, accepted, _, _ = search_line(
            evaluate,
            torch.zeros(1, dtype=torch.float64),
            search.first_step,
            direction,
            search.loss,
            gradient(search.slope, -1),
            torch.tensor(search.slope, dtype=torch.float64),
        )
    except TrialMissing as missing:
        return missing.step
    place = int(accepted[2])
    return None if place < 0 else search.trials[place]


class TrialMissing(Exception):
    """A line search asks for a point that was not tried yet.

    Attributes:
        step: Where it is.
    """

    def __init__(self, step: float) -> None:
        self.step = step
        super().__init__(f"no trial at {step}")


class TrialRecord:
    """Trials, handed out in the order in which they were made."""

    def __init__(self, trials: Sequence[Trial]) -> None:
        self.left = list(enumerate(trials))

    def next_trial(self, step: float) -> tuple[int, Trial]:
        """Return place and trial; raises TrialMissing after the last."""
        if not self.left:
            raise TrialMissing(step)
        return self.left.pop(0)
