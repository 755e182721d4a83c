"""PyTorch as the agent's sessions use it, and the registry of its training strategies."""

from __future__ import annotations

from collections.abc import Callable
from pkgutil import resolve_name
from typing import Any

import torch
from torch import Tensor, nn

from scavenger.protocol import TrainingStrategyName
from worker_agent.errors import UnsupportedStrategy
from worker_agent.frameworks import (
    AsynchronousStrategy,
    Framework,
    ModelSteps,
    StrategyContext,
    TrainingStrategy,
)
from worker_agent.pytorch.device_clock import DeviceValues, send_to_host
from worker_agent.pytorch.model_steps import WholeModelSteps
from worker_agent.pytorch.state import seed_iteration
from worker_agent.rendezvous.rendezvous import StoreRendezvous
from worker_agent.sampler import SampleIndices


class PyTorch:
    """Implements `worker_agent.frameworks.Framework`."""

    name = "pytorch"

    def owns(self, model: Any) -> bool:
        return isinstance(model, nn.Module)

    def strategy(self, rendezvous: StoreRendezvous, context: StrategyContext) -> TrainingStrategy:
        strategy: TrainingStrategy = _load(SYNCHRONOUS, context.name)(rendezvous, context)
        return strategy

    def asynchronous_strategy(self, context: StrategyContext) -> AsynchronousStrategy:
        strategy: AsynchronousStrategy = _load(ASYNCHRONOUS, context.name)(context)
        return strategy

    def model_steps(
        self, model: Any, loss: Callable[[Any, Any], Tensor], scaler: Any
    ) -> ModelSteps:
        return WholeModelSteps(model, loss, scaler)

    def to_batch(self, indices: SampleIndices) -> Tensor:
        return torch.from_numpy(indices)

    def seed(self, seed: int, sample_position: int) -> None:
        """Set all random streams, and refuse operations whose result varies."""
        torch.use_deterministic_algorithms(True)
        seed_iteration(seed, sample_position)

    def detach(self, value: Any) -> Tensor | DeviceValues | None:
        """Return a tensor without its graph, which would keep the whole iteration in memory.

        A number on a device is sent to the host at once, to be read when it has arrived.
        """
        return send_to_host(value) if isinstance(value, Tensor) else None


FRAMEWORK: Framework = PyTorch()

# One line for each strategy. Loaded when a job uses it: parameter servers never load gloo.
SYNCHRONOUS: dict[TrainingStrategyName, str] = {
    "all_reduce": "worker_agent.pytorch.all_reduce:AllReduceStrategy",
    # Its one worker has the passes of an asynchronous pipeline, which the layout says.
    "pipedream": "worker_agent.pytorch.all_reduce:AllReduceStrategy",
    "parameter_server": "worker_agent.pytorch.parameter_server:ParameterServerStrategy",
}
ASYNCHRONOUS: dict[TrainingStrategyName, str] = {
    "downpour": "worker_agent.pytorch.downpour:DownpourStrategy",
    "sandblaster": "worker_agent.pytorch.sandblaster:SandblasterStrategy",
}


def _load(strategies: dict[TrainingStrategyName, str], name: TrainingStrategyName) -> Any:
    if name not in strategies:
        known = ", ".join([*SYNCHRONOUS, *ASYNCHRONOUS])
        raise UnsupportedStrategy(f"PyTorch has no strategy {name} here; it has {known}")
    return resolve_name(strategies[name])
