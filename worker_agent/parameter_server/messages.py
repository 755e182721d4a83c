"""Messages between workers and parameter servers, and the layout of shards they refer to.

Rare messages are JSON in a frame's metadata; frequent ones carry numbers. A shard is a contiguous
range of all parameters laid end to end. The server rebuilds the script's optimizer from its
description: every optimizer allowed treats each value by itself, so parameter boundaries do not
matter; only parameter groups do, because they differ in hyperparameters.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, TypeVar

import numpy as np
import numpy.typing as npt
from pydantic import TypeAdapter, ValidationError

from worker_agent.errors import MalformedFrame
from worker_agent.sampler import SampleRange
from worker_agent.transport.connection import Numbers, pack_numbers, unpack_numbers

# Values of a shard, shape (size,). A framework's tensors cross into this package as arrays that
# share their memory, so nothing is copied and nothing here imports the framework.
ShardValues = npt.NDArray[np.floating[Any]]
Precision = Literal["float32", "float64"]
Hyperparameter = bool | int | float | tuple[float, float] | None

Message = TypeVar("Message")


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

    >>> shard_ranges(5, 2)
    ((0, 2), (2, 5))
    """
    edges = [size * server // servers for server in range(servers + 1)]
    return tuple(pairwise(edges))


def segments_within(segments: Sequence[Segment], low: int, high: int) -> tuple[Segment, ...]:
    """Return what lies between two places; neighbours of one group become one segment.

    >>> segments_within([Segment(0, 4), Segment(0, 2), Segment(1, 3)], 2, 7)
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


@dataclass(frozen=True, slots=True)
class OptimizerSpec:
    """What a server has to know to run the script's optimizer.

    Attributes:
        kind: Name of the class in ``torch.optim``.
        groups: Hyperparameters of each parameter group.
    """

    kind: str
    groups: tuple[dict[str, Hyperparameter], ...]


@dataclass(frozen=True, slots=True)
class OptimizerSlots:
    """The optimizer's state of one segment.

    Attributes:
        scalars: Values that the whole segment shares, such as the number of steps.
        vectors: Names of the values that each weight has of its own, in the order they travel.
    """

    scalars: dict[str, float]
    vectors: tuple[str, ...]


_PUSH_LAYOUT = struct.Struct("<dBII")  # share, is_skipped, columns of the row, rates


@dataclass(frozen=True, slots=True)
class JoinRequest:
    """A worker enters a generation, which the header names.

    Attributes:
        worker: Its id.
        members: Ids of all members in rank order; in Downpour, only the leader's.
        is_new: Whether it has no weights of this job yet.
        clock: Where training stands on it, as the session writes it; empty when it is new.
    """

    worker: str
    members: tuple[str, ...]
    is_new: bool
    clock: str


@dataclass(frozen=True, slots=True)
class ShardManifest:
    """The state of a shard without its floats, which travel as the payload.

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
        is_skipped: Whether its script did not step, so no other may.
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
        sizes = _PUSH_LAYOUT.pack(self.share, self.is_skipped, len(self.row), len(self.rates))
        return sizes + pack_numbers(self.row) + pack_numbers(self.rates) + self.clock.encode()


def parse_push(metadata: bytes) -> PushRequest:
    """Parse a push; raises MalformedFrame."""
    if len(metadata) < _PUSH_LAYOUT.size:
        raise MalformedFrame(f"a push of {len(metadata)} bytes")
    share, is_skipped, row, rates = _PUSH_LAYOUT.unpack_from(metadata)
    end = _PUSH_LAYOUT.size + 8 * (row + rates)
    if len(metadata) < end:
        raise MalformedFrame(f"a push of {len(metadata)} bytes that announces {end}")
    numbers = unpack_numbers(metadata[_PUSH_LAYOUT.size : end])
    try:
        clock = metadata[end:].decode()
    except UnicodeDecodeError as error:
        raise MalformedFrame(f"a push whose clock is no text: {error}") from error
    return PushRequest(share, bool(is_skipped), numbers[:row], numbers[row:], clock)


@dataclass(frozen=True, slots=True)
class IterationOutcome:
    """What all workers hear about an iteration.

    Attributes:
        norms_sq: Share times ||g_k||² of each worker, shape (workers,).
        mean_norm_sq: ||mean g||²; NaN when a member did not step.
        rows: What each worker told the others, shape (workers, columns).
    """

    norms_sq: Numbers
    mean_norm_sq: float
    rows: Numbers

    def to_bytes(self) -> bytes:
        return pack_numbers([self.mean_norm_sq, *self.norms_sq, *self.rows.ravel()])


def combine_outcomes(replies: Sequence[bytes], columns: int) -> IterationOutcome:
    """Add up what the servers measured on their shards; each has heard the same rows."""
    numbers = [unpack_numbers(metadata) for metadata in replies]
    workers = (len(numbers[0]) - 1) // (columns + 1)
    return IterationOutcome(
        norms_sq=np.sum([each[1 : workers + 1] for each in numbers], axis=0),
        mean_norm_sq=float(sum(each[0] for each in numbers)),
        rows=numbers[0][workers + 1 :].reshape(workers, columns),
    )


def pack_stream(is_fetching: bool, rates: Sequence[float], shares: Sequence[SampleRange]) -> bytes:
    """Write what a Downpour worker says with its gradient."""
    places = [place for share in shares for place in (share.start, share.count)]
    return pack_numbers([is_fetching, len(rates), *rates, *places])


def parse_stream(metadata: bytes) -> tuple[bool, Numbers, list[SampleRange]]:
    """Parse it: whether it wants weights, its learning rates, the samples it used."""
    numbers = unpack_numbers(metadata)
    if len(numbers) < 2 or not 0 <= numbers[1] <= len(numbers) - 2:
        raise MalformedFrame(f"an update of {len(metadata)} bytes")
    end = 2 + int(numbers[1])
    places = to_counts(numbers[end:])
    shares = [SampleRange(*pair) for pair in zip(places[::2], places[1::2], strict=False)]
    return bool(numbers[0]), numbers[2:end], shares


def to_counts(numbers: Numbers) -> list[int]:
    """Return numbers as integers; raises MalformedFrame when they are none, such as NaN."""
    if not (np.abs(numbers) < 2**53).all():  # above, not every integer is a float
        raise MalformedFrame("sample counts that are not finite integers below 2**53")
    counts: list[int] = numbers.astype(int).tolist()
    return counts


JOIN_REQUEST, SHARD_MANIFEST = TypeAdapter(JoinRequest), TypeAdapter(ShardManifest)


def parse_message(adapter: TypeAdapter[Message], metadata: bytes) -> Message:
    """Parse JSON metadata; raises MalformedFrame."""
    try:
        return adapter.validate_json(metadata)
    except ValidationError as error:
        why = error.errors()[0]["msg"]
        raise MalformedFrame(f"metadata that makes no sense: {why}") from error
