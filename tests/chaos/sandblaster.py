"""Whether L-BFGS on servers went through the points of PyTorch's in one process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.optim import LBFGS

from scavenger.protocol import LbfgsSettings
from tests.chaos.diaries import Diaries, Ending
from tests.chaos.networks import SAMPLES
from tests.chaos.script import EPOCHS
from tests.chaos.torch_network import TorchNetwork

SETTINGS = LbfgsSettings(history=5, portions=40)
CLOSE = 1e-9


def wrong_points(diaries: Diaries, done: Sequence[Ending]) -> list[str]:
    """Name evaluations and ends that are not those of one process.

    A target in epochs counts evaluations, as each of them uses all samples once.
    """
    points, origins = one_process()
    first = min((visit.evaluation for visit in diaries.visits), default=0)
    visited = {visit.evaluation - first for visit in diaries.visits}
    wrong = []
    if visited != set(range(EPOCHS)):
        wrong.append(f"evaluations {sorted(visited)} instead of {EPOCHS}")
    for visit in diaries.visits:
        number = visit.evaluation - first
        if number < EPOCHS and not (off := distance(visit.weights, points[number])) <= CLOSE:
            wrong.append(f"{visit.worker} has weights {off:.1e} off in evaluation {number}")
    for ending in done:
        if not (off := distance(ending.weights, origins[EPOCHS])) <= CLOSE:
            wrong.append(f"{ending.worker} ends with weights {off:.1e} off")
        if ending.samples != EPOCHS * SAMPLES:
            wrong.append(f"{ending.worker} counts {ending.samples} samples: not each portion once")
    return wrong


def distance(weights: Sequence[float], expected: Sequence[float]) -> float:
    """Return the largest difference of a weight."""
    return max(abs(a - b) for a, b in zip(weights, expected, strict=True))


class Watched(LBFGS):
    """L-BFGS that notes where the line search of each evaluation began."""

    origins: list[list[float]]

    def _directional_evaluate(self, closure: Callable[[], Any], x: Any, t: Any, d: Any) -> Any:
        self.origins.append(torch.cat([each.flatten() for each in x]).tolist())
        return super()._directional_evaluate(closure, x, t, d)  # type: ignore[no-untyped-call]


@lru_cache
def one_process() -> tuple[list[list[float]], list[list[float]]]:
    """Return the point of each evaluation of PyTorch's optimizer, and where its search began.

    There is one evaluation more than a job has: its search begins where the job ends.
    """
    network = TorchNetwork(dropout=0.0)
    points = []
    optimizer = Watched(
        network.model.parameters(),
        max_iter=EPOCHS,
        max_eval=EPOCHS + 1,
        history_size=SETTINGS.history,
        tolerance_grad=0.0,
        tolerance_change=0.0,
        line_search_fn="strong_wolfe",
    )
    optimizer.origins = [network.weights()]

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = cross_entropy(network.model(network.inputs), network.labels)
        loss.backward()  # type: ignore[no-untyped-call]
        points.append(network.weights())
        return loss

    optimizer.step(closure)
    return points, optimizer.origins
