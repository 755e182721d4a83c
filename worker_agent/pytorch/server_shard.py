"""A shard of a parameter server in PyTorch: its weights, and the optimizer that moves them."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from worker_agent.errors import UnsupportedServerOptimizer
from worker_agent.parameter_server.messages import (
    Hyperparameter,
    OptimizerSlots,
    OptimizerSpec,
    Segment,
    ShardManifest,
    ShardValues,
)
from worker_agent.parameter_server.shard import ShardFactory
from worker_agent.transport.connection import Numbers

# Each of them treats every value by itself, so a shard may begin in the middle of a parameter.
SERVER_OPTIMIZERS: dict[str, type[Optimizer]] = {
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
# They say how an optimizer computes, not what.
_EXECUTION_OPTIONS = frozenset({"foreach", "fused", "capturable", "differentiable"})
_SERVER_OPTIMIZER_NAMES = ", ".join(SERVER_OPTIMIZERS)


def describe_optimizer(optimizer: Optimizer) -> OptimizerSpec:
    """Describe the script's optimizer.

    Raises:
        UnsupportedServerOptimizer: It is not one of those that servers can run.
    """
    kind = type(optimizer)
    if SERVER_OPTIMIZERS.get(kind.__name__) is not kind:
        raise UnsupportedServerOptimizer(
            f"{kind.__module__}.{kind.__name__} cannot run on parameter servers: "
            f"use torch.optim's {_SERVER_OPTIMIZER_NAMES}, or strategy: all_reduce"
        )
    known = hyperparameter_names(kind)
    groups = tuple(
        {name: plain_value(value) for name, value in group.items() if name in known}
        for group in optimizer.param_groups
    )
    return OptimizerSpec(kind.__name__, groups)


def hyperparameter_names(kind: type[Optimizer]) -> frozenset[str]:
    """Return the names of what may be set for each parameter group."""
    return frozenset(inspect.signature(kind).parameters) - {"params"} - _EXECUTION_OPTIONS


def plain_value(value: Any) -> Hyperparameter:
    """Return a hyperparameter as a plain value; some scripts keep them in tensors."""
    if isinstance(value, tuple | list):
        first, second = value
        return float(first), float(second)
    return float(value) if torch.is_tensor(value) else value


def shard_factory() -> ShardFactory:
    """Return the factory, after building one optimizer: the first takes seconds of imports."""
    torch.optim.SGD([nn.Parameter(torch.zeros(1))])
    return TorchShard.make


class TorchShard:
    """The values of a shard and the optimizer that moves them, a `ShardWeights`.

    Args:
        iteration: Iterations applied so far.
        manifest: What the shard is; its values are filled in afterwards.

    Raises:
        UnsupportedServerOptimizer: The manifest names no optimizer that servers run.
    """

    def __init__(self, iteration: int, manifest: ShardManifest) -> None:
        self.iteration, self.spec = iteration, manifest.description
        dtype: torch.dtype = getattr(torch, manifest.precision)
        # Two buffers that take turns: a worker that redoes an iteration needs the values before.
        self.current, self.previous = (torch.zeros(manifest.size, dtype=dtype) for _ in range(2))
        self.optimizer = SegmentOptimizer(self.spec, manifest.segments, self.current)

    @classmethod
    def make(cls, iteration: int, manifest: ShardManifest) -> tuple[TorchShard, list[ShardValues]]:
        """Make room for a shard; returns it and what is to be filled in, weights first."""
        shard = cls(iteration, manifest)
        vectors = shard.optimizer.restore(manifest.slots)
        return shard, [each.numpy() for each in (shard.current, *vectors)]

    @property
    def values(self) -> ShardValues:
        values: ShardValues = self.current.numpy()
        return values

    def values_after(self, iteration: int) -> ShardValues | None:
        if iteration == self.iteration:
            return self.values
        return self.previous.numpy() if iteration == self.iteration - 1 else None

    def step(self, gradient: ShardValues, rates: Numbers) -> None:
        self.previous, self.current = self.current, self.previous
        self.current.copy_(self.previous)
        if rates.size:
            self.step_in_place(gradient, rates)
        else:
            self.iteration += 1

    def step_in_place(self, gradient: ShardValues, rates: Numbers) -> None:
        self.iteration += 1
        self.optimizer.step(self.current, torch.from_numpy(gradient), rates.tolist())

    def export(self, clock: str, samples: int) -> tuple[ShardManifest, list[ShardValues]]:
        slots, vectors = self.optimizer.slots()
        manifest = ShardManifest(
            precision="float64" if self.current.dtype == torch.float64 else "float32",
            description=self.spec,
            segments=self.optimizer.segments,
            slots=slots,
            clock=clock,
            samples=samples,
        )
        return manifest, [each.numpy() for each in (self.current, *vectors)]

    def add(
        self, total: ShardValues, gradient: ShardValues, share: float, *, is_first: bool
    ) -> None:
        sum_, slope = torch.from_numpy(total), torch.from_numpy(gradient)
        if is_first:
            torch.mul(slope, share, out=sum_)
        else:
            sum_.add_(slope, alpha=share)

    def squared_norm(self, values: ShardValues) -> float:
        return float(torch.linalg.vector_norm(torch.from_numpy(values)).square())


class SegmentOptimizer:
    """Runs the described optimizer on the segments of one shard.

    Args:
        description: The optimizer.
        segments: What the shard's values belong to.
        weights: The shard's values, shape (size,); changed in place by ``step``.
    """

    def __init__(
        self, description: OptimizerSpec, segments: Sequence[Segment], weights: Tensor
    ) -> None:
        self.segments = tuple(segments)
        self.parameters = [nn.Parameter(piece) for piece in self._cut(weights)]
        kind = SERVER_OPTIMIZERS.get(description.kind)
        if kind is None:
            raise UnsupportedServerOptimizer(
                f"{description.kind} cannot run on parameter servers: "
                f"use one of {_SERVER_OPTIMIZER_NAMES}"
            )
        allowed = hyperparameter_names(kind)
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

    def slots(self) -> tuple[tuple[OptimizerSlots, ...], list[Tensor]]:
        """Return the state: what it holds for each segment, and the vectors in that order."""
        described, vectors = [], []
        for parameter in self.parameters:
            state = self.optimizer.state.get(parameter, {})
            own = {name: value for name, value in sorted(state.items()) if is_per_weight(value)}
            described.append(OptimizerSlots(shared_scalars(state), tuple(own)))
            vectors += [value.detach() for value in own.values()]
        return tuple(described), vectors

    def restore(self, slots: Sequence[OptimizerSlots]) -> list[Tensor]:
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


def is_per_weight(value: Any) -> bool:
    """Whether a slot holds one value per weight."""
    return torch.is_tensor(value) and value.dim() > 0


def shared_scalars(state: Mapping[str, Any]) -> dict[str, float]:
    """Return the slots that all weights of a parameter share, such as the number of steps."""
    return {
        name: float(value)
        for name, value in state.items()
        if value is not None and not is_per_weight(value)
    }
