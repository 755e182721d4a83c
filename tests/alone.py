"""A training strategy attached to a model whose worker is alone: no job, no controller."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.optim import Optimizer

from worker_agent.frameworks import StrategyContext
from worker_agent.pytorch.all_reduce import AllReduceStrategy
from worker_agent.rendezvous.rendezvous import StoreRendezvous


def attach_alone(model: nn.Module, optimizer: Optimizer, **changes: Any) -> AllReduceStrategy:
    """Attach all-reduce to a model; close it afterwards."""
    context = StrategyContext(
        name="all_reduce",
        model=model,
        optimizer=optimizer,
        worker="w0",
        secret="",
        should_abort=lambda: False,
        **changes,
    )
    return AllReduceStrategy(StoreRendezvous("w0", "127.0.0.1", lambda _: False), context)
