"""The optimizer at a server: the script's own, rebuilt from its description, on flat segments.

Every optimizer allowed here treats each value by itself, so it does not matter where one parameter
ends and the next begins; only parameter groups do, because they differ in hyperparameters.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from worker_agent.parameter_server.errors import NotServable
from worker_agent.parameter_server.shard import Segment

SERVABLE: dict[str, type[Optimizer]] = {
    kind.__name__: kind
    for kind in (
        torch.optim.SGD,
        torch.optim.Adam,
        torch.optim.AdamW,
        torch.optim.Adagrad,
        torch.optim.Adadelta,
        torch.optim.Adamax,
        torch.optim.NAdam,
        torch.optim.RAdam,
        torch.optim.RMSprop,
    )
}
EXECUTION = frozenset({"foreach", "fused", "capturable", "differentiable"})  # how, not what

Value = bool | int | float | tuple[float, float] | None


@dataclass(frozen=True, slots=True)
class Description:
    """What a server has to know to run the script's optimizer.

    Attributes:
        kind: Name of the class in ``torch.optim``.
        groups: Hyperparameters of each parameter group.
    """

    kind: str
    groups: tuple[dict[str, Value], ...]

    def __post_init__(self) -> None:
        if self.kind not in SERVABLE:
            raise NotServable(f"{self.kind} cannot run on parameter servers: use one of {NAMES}")


NAMES = ", ".join(SERVABLE)


def describe(optimizer: Optimizer) -> Description:
    """Describe the script's optimizer.

    Raises:
        NotServable: It is not one of those that servers can run.
    """
    kind = type(optimizer)
    if SERVABLE.get(kind.__name__) is not kind:
        raise NotServable(
            f"{kind.__module__}.{kind.__name__} cannot run on parameter servers: "
            f"use torch.optim's {NAMES}, or strategy: all_reduce"
        )
    known = hyperparameters(kind)
    groups = tuple(
        {name: plain(value) for name, value in group.items() if name in known}
        for group in optimizer.param_groups
    )
    return Description(kind.__name__, groups)


def hyperparameters(kind: type[Optimizer]) -> frozenset[str]:
    """Return the names of what may be set for each parameter group."""
    return frozenset(inspect.signature(kind).parameters) - {"params"} - EXECUTION


def plain(value: Any) -> Value:
    """Return a hyperparameter as a plain value; some scripts keep them in tensors."""
    if isinstance(value, tuple | list):
        first, second = value
        return float(first), float(second)
    return float(value) if torch.is_tensor(value) else value


@dataclass(frozen=True, slots=True)
class Slots:
    """The optimizer's state of one segment.

    Attributes:
        scalars: Values that the whole segment shares, such as the number of steps.
        vectors: Names of the values that each weight has of its own, in the order they travel.
    """

    scalars: dict[str, float]
    vectors: tuple[str, ...]


class SegmentOptimizer:
    """Runs the described optimizer on the segments of one shard.

    Args:
        description: The optimizer.
        segments: What the shard's values belong to.
        weights: The shard's values, shape (size,); changed in place by ``step``.
    """

    def __init__(
        self, description: Description, segments: Sequence[Segment], weights: Tensor
    ) -> None:
        self.segments = tuple(segments)
        self.parameters = [nn.Parameter(piece) for piece in self._cut(weights)]
        kind = SERVABLE[description.kind]
        allowed = hyperparameters(kind)
        groups: list[dict[str, Any]] = [
            {name: value for name, value in group.items() if name in allowed}
            for group in description.groups
        ]
        how = {"fused": True} if "fused" in inspect.signature(kind).parameters else {}
        make: Any = kind
        self.optimizer: Optimizer = make(
            [
                {**groups[segment.group], "params": [parameter]}
                for segment, parameter in zip(self.segments, self.parameters, strict=True)
            ],
            **groups[0],  # Adagrad reads what its sums begin with from here only
            **how,
        )

    def step(self, weights: Tensor, gradient: Tensor, rates: Sequence[float]) -> None:
        """Move these weights along the gradient.

        Args:
            weights: Where the weights lie now, shape (size,).
            gradient: The mean gradient, same shape.
            rates: Learning rate of each parameter group.
        """
        pieces = zip(
            self.segments,
            self.parameters,
            self.optimizer.param_groups,
            self._cut(weights),
            self._cut(gradient),
            strict=True,
        )
        for segment, parameter, group, place, slope in pieces:
            parameter.data, parameter.grad = place, slope
            group["lr"] = rates[segment.group]
        self.optimizer.step()

    def slots(self) -> tuple[tuple[Slots, ...], list[Tensor]]:
        """Return the state: what it holds for each segment, and the vectors in that order."""
        described, vectors = [], []
        for parameter in self.parameters:
            state = self.optimizer.state.get(parameter, {})
            own = {name: value for name, value in sorted(state.items()) if is_vector(value)}
            scalars = {
                name: float(value)
                for name, value in state.items()
                if value is not None and name not in own
            }
            described.append(Slots(scalars, tuple(own)))
            vectors += [value.detach() for value in own.values()]
        return tuple(described), vectors

    def restore(self, slots: Sequence[Slots]) -> list[Tensor]:
        """Make room for a state; returns the vectors to fill, in the order they travel."""
        vectors: list[Tensor] = []
        for parameter, described in zip(self.parameters, slots, strict=True):
            if not described.scalars and not described.vectors:
                continue
            own = {name: torch.zeros_like(parameter.data) for name in described.vectors}
            scalars = {name: torch.tensor(value) for name, value in described.scalars.items()}
            self.optimizer.state[parameter] = {**scalars, **own}
            vectors += own.values()
        return vectors

    def _cut(self, flat: Tensor) -> tuple[Tensor, ...]:
        return torch.split(flat, [segment.size for segment in self.segments])


def is_vector(value: Any) -> bool:
    """Whether a slot holds one value per weight."""
    return torch.is_tensor(value) and value.dim() > 0
