"""Messages: what the notes of rare frames say, as JSON; frequent frames carry numbers."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from pydantic import TypeAdapter, ValidationError

from worker_agent.parameter_server.errors import Garbled
from worker_agent.parameter_server.frame import Numbers, pack, unpack
from worker_agent.parameter_server.optimizer import Description, Slots
from worker_agent.parameter_server.shard import Segment
from worker_agent.sampler import Share

PUSHING = struct.Struct("<dBII")

Precision = Literal["float32", "float64"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Joining:
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
class Holding:
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
    description: Description
    segments: tuple[Segment, ...]
    slots: tuple[Slots, ...]
    clock: str
    samples: int

    @property
    def size(self) -> int:
        """Weights of the shard."""
        return sum(segment.size for segment in self.segments)

    @property
    def load_size(self) -> int:
        """Bytes of weights and slots together."""
        values = self.size
        for segment, slots in zip(self.segments, self.slots, strict=True):
            values += segment.size * len(slots.vectors)
        return values * (8 if self.precision == "float64" else 4)


@dataclass(frozen=True, slots=True)
class Pushing:
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
        sizes = PUSHING.pack(self.share, self.is_skipped, len(self.row), len(self.rates))
        return sizes + pack(self.row) + pack(self.rates) + self.clock.encode()


def read_pushing(note: bytes) -> Pushing:
    """Understand a push; raises Garbled when it makes no sense."""
    if len(note) < PUSHING.size:
        raise Garbled(f"a push of {len(note)} bytes")
    share, is_skipped, row, rates = PUSHING.unpack_from(note)
    end = PUSHING.size + 8 * (row + rates)
    if len(note) < end:
        raise Garbled(f"a push of {len(note)} bytes that announces {end}")
    numbers = unpack(note[PUSHING.size : end])
    return Pushing(share, bool(is_skipped), numbers[:row], numbers[row:], note[end:].decode())


def streaming(is_fetching: bool, rates: Sequence[float], shares: Sequence[Share]) -> bytes:
    """Write what a worker that waits for nobody says with its gradient."""
    places = [place for share in shares for place in (share.start, share.count)]
    return pack([is_fetching, len(rates), *rates, *places])


def read_streaming(note: bytes) -> tuple[bool, Numbers, list[Share]]:
    """Understand it: whether it wants weights, its learning rates, the samples it used."""
    numbers = unpack(note)
    if len(numbers) < 2 or not 0 <= numbers[1] <= len(numbers) - 2:
        raise Garbled(f"a push of {len(note)} bytes")
    end = 2 + int(numbers[1])
    places = numbers[end:].astype(int).tolist()
    shares = [Share(*pair) for pair in zip(places[::2], places[1::2], strict=False)]
    return bool(numbers[0]), numbers[2:end], shares


JOINING, HOLDING = TypeAdapter(Joining), TypeAdapter(Holding)


def understand(adapter: TypeAdapter[T], note: bytes) -> T:
    """Read a note; raises Garbled when it says something else."""
    try:
        return adapter.validate_json(note)
    except ValidationError as error:
        why = error.errors()[0]["msg"]
        raise Garbled(f"a note that makes no sense: {why}") from error


def written(adapter: TypeAdapter[Any], message: object) -> bytes:
    """Write a note."""
    return adapter.dump_json(message)
