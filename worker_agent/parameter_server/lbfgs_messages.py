"""Messages of a Sandblaster job between workers, coordinator and parameter servers.

Those that a coordinator sends are JSON in a frame's metadata, a few per evaluation; those of
workers are numbers. ``iteration`` in the header of a worker's frame is an evaluation.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from pydantic import TypeAdapter
from pydantic_core import to_json

from worker_agent.errors import MalformedFrame
from worker_agent.parameter_server.lbfgs import MAX_HISTORY, LbfgsOptions, LbfgsState
from worker_agent.parameter_server.messages import Precision, to_counts
from worker_agent.parameter_server.portions import PortionRun
from worker_agent.sampler import SampleRange
from worker_agent.transport.connection import Numbers, pack_numbers, unpack_numbers

_VECTOR_NAME = re.compile(r"[xgdsy][0-9]{1,16}")
MAX_SERVERS = 64
MAX_VECTOR_NAMES = 4 * MAX_HISTORY  # of all vectors that are kept, beside those of a long search


def check_names(names: Sequence[str]) -> None:
    """Refuse names that no vector has, and more than one request needs; raises ValueError."""
    if len(names) > MAX_VECTOR_NAMES:
        raise ValueError(f"{len(names)} vectors, more than {MAX_VECTOR_NAMES}")
    wrong = [name for name in names if not _VECTOR_NAME.fullmatch(name)]
    if wrong:
        raise ValueError(f"no vector is called {wrong[0]!r:.40}")


@dataclass(frozen=True, slots=True)
class StartRequest:
    """The leader fills a server, and L-BFGS begins at the weights that follow.

    Attributes:
        precision: Type of weights and gradients.
        size: Weights of this server's shard.
        options: The hyperparameters.
        servers: Addresses of all servers, in the order of their shards.
        server: Which of them this one is.
        evaluation: The number of the first evaluation, larger than that of any start before.
        iteration: Iterations of starts before.
        samples: Samples used before.
    """

    precision: Precision
    size: int
    options: LbfgsOptions
    servers: tuple[str, ...]
    server: int
    evaluation: int
    iteration: int
    samples: int

    def __post_init__(self) -> None:
        if not 0 <= self.server < len(self.servers) <= MAX_SERVERS:
            raise ValueError(f"server {self.server} of {len(self.servers)}")
        if min(self.size, self.evaluation, self.iteration, self.samples) < 0:
            raise ValueError(f"counts must not be negative: {self}")

    @property
    def payload_size(self) -> int:
        """Bytes of the weights."""
        return self.size * (8 if self.precision == "float64" else 4)


@dataclass(frozen=True, slots=True)
class GramRequest:
    """Asks for all inner products of some vectors, and for the size of their entries."""

    names: tuple[str, ...]

    def __post_init__(self) -> None:
        check_names(self.names)


@dataclass(frozen=True, slots=True)
class CombineRequest:
    """Makes a vector from others; one that is there already stays as it is.

    Attributes:
        out: Its name.
        names: Names of the others.
        coefficients: Their coefficients.
        evaluation: The evaluation that begins at this point; None if none does.
        keep: Names of all vectors that are still needed; None keeps all.
    """

    out: str
    names: tuple[str, ...]
    coefficients: tuple[float, ...]
    evaluation: int | None = None
    keep: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        check_names([self.out, *self.names, *(self.keep or ())])
        if len(self.names) != len(self.coefficients) or not self.names:
            raise ValueError(f"{len(self.coefficients)} coefficients of {len(self.names)} vectors")
        if not all(map(math.isfinite, self.coefficients)):
            raise ValueError("coefficients must be finite")


@dataclass(frozen=True, slots=True)
class CommitRequest:
    """Adds staged results to the gradient of an evaluation; what is added already is not again.

    Attributes:
        evaluation: The evaluation.
        runs: The portions of each result; no two overlap.
        is_last: Whether the gradient is complete with them.
    """

    evaluation: int
    runs: tuple[PortionRun, ...]
    is_last: bool


@dataclass(frozen=True, slots=True)
class SaveRequest:
    """Keeps the coordinator's state, and opens an evaluation to the workers.

    Attributes:
        start: The first evaluation since L-BFGS began, which tells one start from another.
        term: The coordinator's, from when it began.
        state: The state.
        evaluation: The evaluation to compute; None for none.
    """

    start: int
    term: int
    state: LbfgsState
    evaluation: int | None


@dataclass(frozen=True, slots=True)
class BoardReply:
    """What a coordinator begins with.

    Attributes:
        start: The first evaluation since L-BFGS began.
        term: Counts coordinators: what one of an earlier term says is refused.
        options: The hyperparameters.
        servers: Addresses of all servers.
        state: The state that was kept last.
    """

    start: int
    term: int
    options: LbfgsOptions
    servers: tuple[str, ...]
    state: LbfgsState


@dataclass(frozen=True, slots=True)
class AcceptedRuns:
    """How far an evaluation has come.

    Attributes:
        runs: Results that count, in the order in which they came.
        loss: Sum of the losses of their samples.
        is_over: Whether they are all.
    """

    runs: tuple[PortionRun, ...]
    loss: float
    is_over: bool


START_REQUEST: TypeAdapter[StartRequest] = TypeAdapter(StartRequest)
GRAM_REQUEST: TypeAdapter[GramRequest] = TypeAdapter(GramRequest)
COMBINE_REQUEST: TypeAdapter[CombineRequest] = TypeAdapter(CombineRequest)
COMMIT_REQUEST: TypeAdapter[CommitRequest] = TypeAdapter(CommitRequest)
SAVE_REQUEST: TypeAdapter[SaveRequest] = TypeAdapter(SaveRequest)
BOARD_REPLY: TypeAdapter[BoardReply] = TypeAdapter(BoardReply)
ACCEPTED_RUNS: TypeAdapter[AcceptedRuns] = TypeAdapter(AcceptedRuns)


def to_metadata(message: Any) -> bytes:
    """Write a message as JSON; a loss may be infinite or NaN."""
    return to_json(message, inf_nan_mode="strings")


@dataclass(frozen=True, slots=True)
class PortionOffer:
    """What the first server answers to a worker that asks for portions.

    Attributes:
        run: The portions; None if there are none for now.
        evaluation: Their evaluation.
        samples: Samples of that evaluation.
        portions: Parts into which these are cut.
        point: Evaluation whose point is the result so far.
        iteration: Iterations so far.
        samples_used: Samples of all results so far.
        is_over: Whether there will never be any again.
        has_converged: Whether that is so because nothing is left to improve.
    """

    run: PortionRun | None
    evaluation: int
    samples: SampleRange
    portions: int
    point: int
    iteration: int
    samples_used: int
    is_over: bool
    has_converged: bool

    def to_bytes(self) -> bytes:
        first, count = (0, 0) if self.run is None else (self.run.first, self.run.count)
        return pack_numbers(
            [
                first,
                count,
                self.evaluation,
                self.samples.start,
                self.samples.count,
                self.portions,
                self.point,
                self.iteration,
                self.samples_used,
                self.is_over,
                self.has_converged,
            ]
        )


def parse_offer(metadata: bytes) -> PortionOffer:
    """Parse the answer; raises MalformedFrame."""
    numbers = to_counts(unpack_numbers(metadata))
    if len(numbers) != 11:
        raise MalformedFrame(f"an offer of {len(numbers)} numbers")
    first, count, evaluation, start, size, portions, point, iteration, used, over, same = numbers
    return PortionOffer(
        run=PortionRun(first, count) if count else None,
        evaluation=evaluation,
        samples=SampleRange(start, size),
        portions=portions,
        point=point,
        iteration=iteration,
        samples_used=used,
        is_over=bool(over),
        has_converged=bool(same),
    )


def pack_result(run: PortionRun, loss: float) -> bytes:
    """Write what a worker says with a sum of gradients."""
    return pack_numbers([run.first, run.count, loss])


def parse_result(metadata: bytes) -> tuple[PortionRun, float]:
    """Parse it: the portions, and the sum of the losses of their samples."""
    numbers: Numbers = unpack_numbers(metadata)
    if len(numbers) != 3:
        raise MalformedFrame(f"a result of {len(metadata)} bytes")
    first, count = to_counts(np.asarray(numbers[:2]))
    try:
        return PortionRun(first, count), float(numbers[2])
    except ValueError as error:
        raise MalformedFrame(f"a result of {error}") from error
