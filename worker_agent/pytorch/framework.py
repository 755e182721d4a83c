"""PyTorch as the agent's sessions use it, and the registry of its training strategies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from scavenger.protocol import TrainingStrategyName
from worker_agent.errors import UnsupportedStrategy
from worker_agent.frameworks import (
    AsynchronousStrategy,
    Framework,
    StrategyContext,
    TrainingStrategy,
)
from worker_agent.pytorch.state import seed_iteration
from worker_agent.rendezvous.rendezvous import StoreRendezvous
from worker_agent.sampler import SampleIndices


class PyTorch:
    """Implements `worker_agent.frameworks.Framework`."""

    def owns(self, model: Any) -> bool:
        return isinstance(model, nn.Module)

    def strategy(self, meeting: StoreRendezvous, context: StrategyContext) -> TrainingStrategy:
        return _find(SYNCHRONOUS, context.name)(meeting, context)

    def asynchronous_strategy(self, context: StrategyContext) -> AsynchronousStrategy:
        return _find(ASYNCHRONOUS, context.name)(context)

    def to_batch(self, indices: SampleIndices) -> Tensor:
        return torch.from_numpy(indices)

    def seed(self, number: int, position: int) -> None:
        """Set all random streams, and refuse operations whose result varies."""
        torch.use_deterministic_algorithms(True)
        seed_iteration(number, position)

    def hold(self, value: Any) -> Tensor | None:
        """Return a tensor without its graph, which would keep the whole iteration in memory."""
        return value.detach() if isinstance(value, Tensor) else None


FRAMEWORK: Framework = PyTorch()
_T = TypeVar("_T")

# Strategies import what they need when a job uses them: parameter servers never load gloo.


def _all_reduce(meeting: StoreRendezvous, context: StrategyContext) -> TrainingStrategy:
    from worker_agent.pytorch.all_reduce import AllReduceStrategy

    return AllReduceStrategy(
        context.model,
        context.optimizer,
        meeting,
        micro_batches=context.micro_batches,
        carried=context.carried,
        is_abandoned=context.is_abandoned,
        on_work=context.on_work,
        restart=context.restart,
    )


def _parameter_server(meeting: StoreRendezvous, context: StrategyContext) -> TrainingStrategy:
    from worker_agent.pytorch.parameter_server import ParameterServerStrategy

    return ParameterServerStrategy(
        context.model,
        context.optimizer,
        meeting,
        worker=context.worker,
        secret=context.secret,
        micro_batches=context.micro_batches,
        carried=context.carried,
        is_abandoned=context.is_abandoned,
        on_work=context.on_work,
        restart=context.restart,
    )


def _downpour(context: StrategyContext) -> AsynchronousStrategy:
    from worker_agent.pytorch.downpour import DownpourStrategy

    return DownpourStrategy(
        context.model,
        context.optimizer,
        worker=context.worker,
        secret=context.secret,
        micro_batches=context.micro_batches,
        is_abandoned=context.is_abandoned,
        on_work=context.on_work,
    )


# One line for each strategy.
SYNCHRONOUS: dict[
    TrainingStrategyName, Callable[[StoreRendezvous, StrategyContext], TrainingStrategy]
] = {
    "all_reduce": _all_reduce,
    "parameter_server": _parameter_server,
}
ASYNCHRONOUS: dict[TrainingStrategyName, Callable[[StrategyContext], AsynchronousStrategy]] = {
    "downpour": _downpour,
}


def _find(strategies: dict[TrainingStrategyName, _T], name: TrainingStrategyName) -> _T:
    if name not in strategies:
        known = ", ".join([*SYNCHRONOUS, *ASYNCHRONOUS])
        raise UnsupportedStrategy(f"PyTorch has no strategy {name} here; it has {known}")
    return strategies[name]
