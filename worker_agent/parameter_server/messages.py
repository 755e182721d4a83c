"""Messages between workers and parameter servers, and the layout of shards they refer to.

Rare messages are JSON in a frame's metadata; frequent ones carry numbers. A shard is a
contiguous range of all parameters laid end to end. The server rebuilds the script's optimizer
from its description: every optimizer allowed here treats each value by itself, so parameter
boundaries do not matter; only parameter groups do, because they differ in hyperparameters.
"""

from __future__ import annotations

import inspect
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, TypeVar

import torch
from pydantic import TypeAdapter, ValidationError
from torch import Tensor, nn
from torch.optim import Optimizer

from worker_agent.errors import MalformedFrame, UnsupportedServerOptimizer
from worker_agent.sampler import SampleRange
from worker_agent.transport.connection import Numbers, pack_numbers, unpack_numbers


@dataclass(frozen=True, slots=True)
class Segment:
    """Neighbouring values that belong to one parameter group of the optimizer.

    Attributes:
        group: Number of the group.
        size: How many values.
    """

    group: int
    size: int


def shard_ranges(size: int, servers: int) -> tuple[tuple[int, int], ...]:
    """Cut so many values into one range per server; sizes differ by at most one.

    >>> ranges(5, 2)
    ((0, 2), (2, 5))
    """
    edges = [size * server // servers for server in range(servers + 1)]
    return tuple(pairwise(edges))


def segments_within(segments: Sequence[Segment], low: int, high: int) -> tuple[Segment, ...]:
    """Return what lies between two places; neighbours of one group become one segment.

    >>> within([Segment(0, 4), Segment(0, 2), Segment(1, 3)], 2, 7)
    (Segment(group=0, size=4), Segment(group=1, size=1))
    """
    found: list[Segment] = []
    start = 0
    for segment in segments:
        size = min(start + segment.size, high) - max(start, low)
        start += segment.size
        if size <= 0:
            continue
        if found and found[-1].group == segment.group:
            found[-1] = Segment(segment.group, found[-1].size + size)
        else:
            found.append(Segment(segment.group, size))
    return tuple(found)


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
EXECUTION_OPTIONS = frozenset({"foreach", "fused", "capturable", "differentiable"})  # how, not what

Hyperparameter = bool | int | float | tuple[float, float] | None


@dataclass(frozen=True, slots=True)
class OptimizerSpec:
    """What a server has to know to run the script's optimizer.

    Attributes:
        kind: Name of the class in ``torch.optim``.
        groups: Hyperparameters of each parameter group.
    """

    kind: str
    groups: tuple[dict[str, Hyperparameter], ...]

    def __post_init__(self) -> None:
        if self.kind not in SERVER_OPTIMIZERS:
            raise UnsupportedServerOptimizer(
                f"{self.kind} cannot run on parameter servers: use one of {SERVER_OPTIMIZER_NAMES}"
            )


SERVER_OPTIMIZER_NAMES = ", ".join(SERVER_OPTIMIZERS)


def describe_optimizer(optimizer: Optimizer) -> OptimizerSpec:
    """Describe the script's optimizer.

    Raises:
        UnsupportedServerOptimizer: It is not one of those that servers can run.
    """
    kind = type(optimizer)
    if SERVER_OPTIMIZERS.get(kind.__name__) is not kind:
        raise UnsupportedServerOptimizer(
            f"{kind.__module__}.{kind.__name__} cannot run on parameter servers: "
            f"use torch.optim's {SERVER_OPTIMIZER_NAMES}, or strategy: all_reduce"
        )
    known = hyperparameter_names(kind)
    groups = tuple(
        {name: plain_value(value) for name, value in group.items() if name in known}
        for group in optimizer.param_groups
    )
    return OptimizerSpec(kind.__name__, groups)


def hyperparameter_names(kind: type[Optimizer]) -> frozenset[str]:
    """Return the names of what may be set for each parameter group."""
    return frozenset(inspect.signature(kind).parameters) - {"params"} - EXECUTION_OPTIONS


def plain_value(value: Any) -> Hyperparameter:
    """Return a hyperparameter as a plain value; some scripts keep them in tensors."""
    if isinstance(value, tuple | list):
        first, second = value
        return float(first), float(second)
    return float(value) if torch.is_tensor(value) else value


@dataclass(frozen=True, slots=True)
class OptimizerSlots:
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
        self, description: OptimizerSpec, segments: Sequence[Segment], weights: Tensor
    ) -> None:
        self.segments = tuple(segments)
        self.parameters = [nn.Parameter(piece) for piece in self._cut(weights)]
        kind = SERVER_OPTIMIZERS[description.kind]
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
            scalars = {
                name: float(value)
                for name, value in state.items()
                if value is not None and name not in own
            }
            described.append(OptimizerSlots(scalars, tuple(own)))
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


PUSH_LAYOUT = struct.Struct("<dBII")

Precision = Literal["float32", "float64"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class JoinRequest:
    """A worker enters a generation; the header's turn says which.

    Attributes:
        worker: Its id.
        members: Ids of all members in rank order; none when nobody waits for anybody.
        is_new: Whether it has no weights of this job yet.
        clock: Where training stands on it, as the session writes it; empty when it is new.
    """

    worker: str
    members: tuple[str, ...]
    is_new: bool
    clock: str


@dataclass(frozen=True, slots=True)
class ShardManifest:
    """The state of a shard without its floats, which travel as the load.

    Attributes:
        precision: Type of the floats.
        description: The optimizer.
        segments: What the values belong to, in order.
        slots: State of the optimizer for each segment.
        clock: Where training stands, as the session writes it.
        samples: Samples consumed, from which on they are handed out.
    """

    precision: Precision
    description: OptimizerSpec
    segments: tuple[Segment, ...]
    slots: tuple[OptimizerSlots, ...]
    clock: str
    samples: int

    @property
    def size(self) -> int:
        """Weights of the shard."""
        return sum(segment.size for segment in self.segments)

    @property
    def payload_size(self) -> int:
        """Bytes of weights and slots together."""
        values = self.size
        for segment, slots in zip(self.segments, self.slots, strict=True):
            values += segment.size * len(slots.vectors)
        return values * (8 if self.precision == "float64" else 4)


@dataclass(frozen=True, slots=True)
class PushRequest:
    """What a worker says with its gradient.

    Attributes:
        share: Fraction of the global batch its samples are.
        is_skipped: Whether its script did not step, so nobody may.
        row: What it tells the other workers.
        rates: Learning rate of each parameter group.
        clock: Where training stands after this iteration; said by the leader.
    """

    share: float
    is_skipped: bool
    row: Numbers
    rates: Numbers
    clock: str

    def to_bytes(self) -> bytes:
        """Return the note as it travels."""
        sizes = PUSH_LAYOUT.pack(self.share, self.is_skipped, len(self.row), len(self.rates))
        return sizes + pack_numbers(self.row) + pack_numbers(self.rates) + self.clock.encode()


def parse_push(note: bytes) -> PushRequest:
    """Understand a push; raises Garbled when it makes no sense."""
    if len(note) < PUSH_LAYOUT.size:
        raise MalformedFrame(f"a push of {len(note)} bytes")
    share, is_skipped, row, rates = PUSH_LAYOUT.unpack_from(note)
    end = PUSH_LAYOUT.size + 8 * (row + rates)
    if len(note) < end:
        raise MalformedFrame(f"a push of {len(note)} bytes that announces {end}")
    numbers = unpack_numbers(note[PUSH_LAYOUT.size : end])
    return PushRequest(share, bool(is_skipped), numbers[:row], numbers[row:], note[end:].decode())


def pack_stream(is_fetching: bool, rates: Sequence[float], shares: Sequence[SampleRange]) -> bytes:
    """Write what a worker that waits for nobody says with its gradient."""
    places = [place for share in shares for place in (share.start, share.count)]
    return pack_numbers([is_fetching, len(rates), *rates, *places])


def parse_stream(note: bytes) -> tuple[bool, Numbers, list[SampleRange]]:
    """Understand it: whether it wants weights, its learning rates, the samples it used."""
    numbers = unpack_numbers(note)
    if len(numbers) < 2 or not 0 <= numbers[1] <= len(numbers) - 2:
        raise MalformedFrame(f"a push of {len(note)} bytes")
    end = 2 + int(numbers[1])
    places = numbers[end:].astype(int).tolist()
    shares = [SampleRange(*pair) for pair in zip(places[::2], places[1::2], strict=False)]
    return bool(numbers[0]), numbers[2:end], shares


JOIN_REQUEST, SHARD_MANIFEST = TypeAdapter(JoinRequest), TypeAdapter(ShardManifest)


def parse_message(adapter: TypeAdapter[T], note: bytes) -> T:
    """Read a note; raises Garbled when it says something else."""
    try:
        return adapter.validate_json(note)
    except ValidationError as error:
        why = error.errors()[0]["msg"]
        raise MalformedFrame(f"a note that makes no sense: {why}") from error


def dump_message(adapter: TypeAdapter[Any], message: object) -> bytes:
    """Write a note."""
    return adapter.dump_json(message)
