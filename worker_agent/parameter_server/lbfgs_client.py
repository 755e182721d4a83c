"""What workers and the coordinator of a Sandblaster job ask the servers for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from worker_agent.parameter_server.client import ParameterServerClient, broken_on_loss, cut_pieces
from worker_agent.parameter_server.lbfgs import LbfgsOptions
from worker_agent.parameter_server.lbfgs_messages import (
    ACCEPTED_RUNS,
    BOARD_REPLY,
    AcceptedRuns,
    BoardReply,
    CombineRequest,
    CommitRequest,
    GramRequest,
    PortionOffer,
    SaveRequest,
    StartRequest,
    pack_result,
    parse_offer,
    to_metadata,
)
from worker_agent.parameter_server.messages import (
    Precision,
    ShardValues,
    parse_message,
    shard_ranges,
)
from worker_agent.parameter_server.portions import PortionRun
from worker_agent.transport.connection import (
    MAX_PAYLOAD_BYTES,
    MessageKind,
    Numbers,
    array_bytes,
    pack_numbers,
    unpack_numbers,
)


@dataclass(frozen=True, slots=True)
class ResultReply:
    """What the first server says to a result.

    Attributes:
        counts: Whether it counts, or another worker's does.
        samples_used: Samples of all results so far.
        iteration: Iterations so far.
    """

    counts: bool
    samples_used: int
    iteration: int


class EvaluationClient:
    """A worker's requests; all raise GenerationBroken when a server is lost.

    Args:
        client: Connections to all servers.
    """

    def __init__(self, client: ParameterServerClient) -> None:
        self.client = client

    def start(self, options: LbfgsOptions, weights: ShardValues, place: Mapping[str, int]) -> None:
        """Fill all servers, where L-BFGS begins anew; the first one last: it has the coordinator.

        Args:
            options: The hyperparameters.
            weights: All weights, shape (size,).
            place: ``evaluation``, ``iteration`` and ``samples`` of the `StartRequest`.
        """
        addresses = self.client.addresses
        precision: Precision = "float64" if weights.dtype == np.float64 else "float32"
        ranges = shard_ranges(weights.size, len(addresses))
        for server in reversed(range(len(addresses))):
            low, high = ranges[server]
            request = StartRequest(precision, high - low, options, addresses, server, **place)
            connection = self.client.connections[server]
            metadata, part = to_metadata(request), weights[low:high]
            self.client.send(connection, MessageKind.START, -1, metadata, [part])
            self.client.receive(connection)

    def take(self, limit: int) -> PortionOffer:
        """Ask the first server for portions, of batches that begin below so many samples."""
        first = self.client.connections[0]
        self.client.send(first, MessageKind.TAKE, -1, pack_numbers([0, limit]))
        metadata = self.client.receive(first)[1]
        with broken_on_loss():
            return parse_offer(metadata)

    def fetch(self, evaluation: int, weights: ShardValues) -> bool:
        """Fill in the weights of an evaluation; False if they are not there any more."""
        ranges = shard_ranges(weights.size, len(self.client.connections))
        for connection in self.client.connections:
            self.client.send(connection, MessageKind.FETCH, evaluation)
        answers = [
            self._receive_unless_fenced(server, weights[low:high])
            for server, (low, high) in enumerate(ranges)
        ]
        return all(answer is not None for answer in answers)

    def accumulate(
        self, evaluation: int, run: PortionRun, loss: float, gradient: ShardValues
    ) -> ResultReply | None:
        """Push sums over the samples of some portions; None if their evaluation is over.

        The first server comes last and alone: what it says counts, all others have.

        Args:
            evaluation: The evaluation.
            run: The portions.
            loss: Sum of the losses of their samples.
            gradient: Sum of their gradients, shape (size,).
        """
        servers = len(self.client.connections)
        parts = cut_pieces([gradient], shard_ranges(gradient.size, servers))
        metadata = pack_result(run, loss)

        def push(server: int) -> None:
            connection = self.client.connections[server]
            kind = MessageKind.ACCUMULATE
            self.client.send(connection, kind, evaluation, metadata, parts[server])

        for server in range(1, servers):
            push(server)
        answers = [self._receive_unless_fenced(server) for server in range(1, servers)]
        if any(answer is None for answer in answers):
            return None
        push(0)
        answer = self._receive_unless_fenced(0)
        if answer is None:
            return None
        counts, used, iteration = unpack_numbers(answer)
        return ResultReply(bool(counts), int(used), int(iteration))

    def finish(self) -> None:
        """Say that the target is reached: no more portions are given."""
        self.client.finish()

    def _receive_unless_fenced(self, server: int, into: ShardValues | None = None) -> bytes | None:
        """Return the metadata of an answer; None for a refusal, after which all is in step."""
        connection = self.client.connections[server]
        with broken_on_loss():
            header = connection.receive_header(max_payload=MAX_PAYLOAD_BYTES)
            metadata = connection.receive_metadata(header)
            if header.kind == MessageKind.FENCED:
                return None
            if into is not None:
                connection.receive_payload(header, array_bytes(into))
        return metadata


class CoordinatorClient:
    """A coordinator's requests; all raise GenerationBroken when a server is lost or refuses.

    Args:
        client: Connections to all servers; to the first one only, before ``load``.
    """

    def __init__(self, client: ParameterServerClient) -> None:
        self.client = client

    def load(self) -> BoardReply:
        """Return the state that was kept last."""
        return parse_message(BOARD_REPLY, self._ask_first(MessageKind.BOARD, b""))

    def save(self, request: SaveRequest) -> None:
        """Keep a state on the first server."""
        self._ask_first(MessageKind.BOARD, to_metadata(request))

    def wait(self, evaluation: int, known: int) -> AcceptedRuns:
        """Wait until more results than these count."""
        metadata = pack_numbers([known])
        return parse_message(ACCEPTED_RUNS, self._ask_first(MessageKind.WAIT, metadata, evaluation))

    def gram(self, names: Sequence[str]) -> tuple[Numbers, Numbers, Numbers]:
        """Return inner products, sums of magnitudes and largest magnitudes of whole vectors."""
        count = len(names)
        replies = self._ask_all(MessageKind.GRAM, GramRequest(tuple(names)))
        numbers = np.stack([unpack_numbers(reply) for reply in replies])
        products = numbers[:, : count * count].sum(axis=0).reshape(count, count)
        sums = numbers[:, count * count : count * count + count].sum(axis=0)
        return products, sums, numbers[:, count * count + count :].max(axis=0)

    def combine(self, request: CombineRequest) -> float:
        """Make a vector on all servers; returns its largest magnitude."""
        replies = self._ask_all(MessageKind.COMBINE, request)
        return max(float(unpack_numbers(reply)[1]) for reply in replies)

    def commit(self, request: CommitRequest) -> None:
        """Add results to the gradient on all servers."""
        self._ask_all(MessageKind.COMMIT, request)

    def _ask_all(self, kind: MessageKind, request: Any) -> list[bytes]:
        metadata = to_metadata(request)
        for connection in self.client.connections:
            self.client.send(connection, kind, -1, metadata)
        return [self.client.receive(each)[1] for each in self.client.connections]

    def _ask_first(self, kind: MessageKind, metadata: bytes, evaluation: int = -1) -> bytes:
        first = self.client.connections[0]
        self.client.send(first, kind, evaluation, metadata)
        return self.client.receive(first)[1]
