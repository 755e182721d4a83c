"""What an asynchronous pipeline must have made of the minibatches that count."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from tests.chaos.diaries import Iteration
from tests.chaos.networks import HALF_LIFE, RATE
from tests.chaos.script import Script
from tests.chaos.torch_network import TorchNetwork, make_optimizer
from tests.integration.recursion import Recursion


def replay(script: Script, order: Sequence[Iteration]) -> list[float]:
    """Return the weights of the recursion that PipeDream follows.

    Wherever the pipeline was empty, for a checkpoint, another generation or a worker that started
    again, the recursion ends all minibatches, too.
    """
    network, layout = TorchNetwork(script.dropout), script.layout
    data = network.inputs, network.labels
    alone = Recursion(layout, network.model, make_optimizer, *data)
    empty_at = [it.number for it in order if begun_of(it) == 0]
    for low, high in pairwise([*empty_at, len(order)]):
        for it in order[low:high]:
            # The schedule goes on while a minibatch is in flight: its step is made with a later
            # rate, at most with that of the moment when all of them are ended.
            steps = [min(it.number + layout.delay(s), high) for s in range(layout.pipeline)]
            alone.train(it.attempts[0].indices, [rate(number) for number in steps])
        alone.empty(rate(high))
    return network.weights()


def wrong_minibatches(order: Sequence[Iteration]) -> list[str]:
    """Name iterations that were not the next minibatch of a pipeline."""
    wrong, expected = [], 0
    for it in order:
        if begun_of(it) not in (0, expected):
            wrong.append(f"iteration {it.number} is minibatch {begun_of(it)}, not {expected}")
        expected = begun_of(it) + 1
    return wrong[:3]


def begun_of(it: Iteration) -> int:
    """Return how many minibatches an iteration's worker had begun before it."""
    return it.attempts[0].begun


def rate(iteration: int) -> float:
    """Return the learning rate of the schedule."""
    return float(RATE * 0.5 ** (iteration / HALF_LIFE))
