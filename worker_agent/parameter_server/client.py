"""`ParameterServerClient`: one worker's connections to all servers, used as if they were one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import numpy as np

from scavenger.protocol import Directive
from worker_agent.errors import GenerationBroken, MalformedFrame
from worker_agent.frameworks import StrategyContext
from worker_agent.parameter_server.messages import (
    JOIN_REQUEST,
    SHARD_MANIFEST,
    IterationOutcome,
    JoinRequest,
    PushRequest,
    ShardManifest,
    ShardValues,
    combine_outcomes,
    pack_stream,
    parse_message,
    shard_ranges,
)
from worker_agent.sampler import SampleAssignment, SampleRange
from worker_agent.transport.connection import (
    MAX_PAYLOAD_BYTES,
    FramedConnection,
    FrameHeader,
    MessageKind,
    array_bytes,
    connect,
    pack_numbers,
    unpack_numbers,
)
from worker_agent.transport.server import authenticate


@dataclass(frozen=True, slots=True)
class StreamReply:
    """What the servers say to an update for which no worker waits.

    Attributes:
        updates_before: Updates of all workers applied before it; -1 when nothing was pushed.
        version: Updates contained in the weights that came back, if any did.
        samples_used: Samples that all workers have used so far; -1 when the update named none.
    """

    updates_before: int
    version: int
    samples_used: int


class ParameterServerClient:
    """Speaks to all servers of a job at once: sends everything before it receives anything.

    Every method raises GenerationBroken when a server cannot be reached or refuses, or when the
    wait is abandoned. Then requests and replies may be out of step: close the client.

    Args:
        addresses: ``host:port`` of the servers in the order of their shards.
        secret: What all processes of the job know.
        should_abort: Called while waiting; True gives up.
    """

    def __init__(
        self, addresses: Sequence[str], secret: str, should_abort: Callable[[], bool]
    ) -> None:
        self.addresses = tuple(addresses)
        self.connections: list[FramedConnection] = []
        self.generation_key = (0, 0)
        try:
            for address in addresses:
                self.connections.append(FramedConnection(connect(address), should_abort))
                authenticate(self.connections[-1], secret)
        except OSError as error:
            self.close()
            raise GenerationBroken(f"a parameter server does not answer: {error}") from error

    def join(
        self, generation_key: tuple[int, int], iteration: int, request: JoinRequest
    ) -> list[int]:
        """Enter a generation; returns what each server has applied, -1 where a shard is wanted."""
        self.generation_key = generation_key
        metadata = JOIN_REQUEST.dump_json(request)
        # All requests before the first answer, so that the servers work side by side.
        for connection in self.connections:
            self.send(connection, MessageKind.JOIN, iteration, metadata)
        return [self.receive(connection)[0] for connection in self.connections]

    def put(
        self, server: int, iteration: int, manifest: ShardManifest, values: Iterable[ShardValues]
    ) -> None:
        """Hand a server its shard: weights first, then the optimizer's vectors."""
        connection, metadata = self.connections[server], SHARD_MANIFEST.dump_json(manifest)
        self.send(connection, MessageKind.PUT, iteration, metadata, values)
        self.receive(connection)

    def fetch_shard(self, server: int) -> tuple[ShardManifest, ShardValues]:
        """Fetch a whole shard; returns its description, and all its floats end to end."""
        connection = self.connections[server]
        self.send(connection, MessageKind.EXPORT)
        with broken_on_loss():
            header = receive_reply_header(connection)
            manifest = parse_message(SHARD_MANIFEST, connection.receive_metadata(header))
            dtype = np.dtype(manifest.precision)
            floats = np.empty(manifest.payload_size // dtype.itemsize, dtype)
            connection.receive_payload(header, array_bytes(floats))
        return manifest, floats

    def fetch(self, iteration: int, weights: ShardValues) -> str:
        """Fill in the weights after so many iterations; returns the clock they were put with."""
        for connection in self.connections:
            self.send(connection, MessageKind.FETCH, iteration)
        (_, clock), *_ = self._receive_all(weights)
        return clock.decode()

    def push(
        self,
        iteration: int,
        request: PushRequest,
        gradient: Sequence[ShardValues],
        weights: ShardValues,
    ) -> IterationOutcome:
        """Contribute to an iteration, wait for all others, and fill in the weights after it.

        Args:
            iteration: Iterations applied before this one.
            request: What travels with the gradient.
            gradient: The flat mean gradient in pieces that lie end to end.
            weights: Filled with the weights, shape (size,); half filled when GenerationBroken is
                raised.
        """
        metadata = request.to_bytes()
        parts = cut_pieces(gradient, shard_ranges(weights.size, len(self.connections)))
        for connection, pieces in zip(self.connections, parts, strict=True):
            self.send(connection, MessageKind.PUSH, iteration, metadata, pieces)
        replies = self._receive_all(weights)
        return combine_outcomes([metadata for _, metadata in replies], columns=len(request.row))

    def push_and_fetch(
        self,
        rates: Sequence[float],
        shares: Sequence[SampleRange],
        gradient: Sequence[ShardValues],
        weights: ShardValues,
        *,
        is_fetching: bool,
    ) -> StreamReply:
        """Push an update, or fetch the weights, or both; waits for no other worker.

        Samples whose steps were skipped are named without a gradient. The first server comes last:
        it counts the samples, which are used only when all servers have the gradient.
        """
        ranges = shard_ranges(weights.size, len(self.connections))
        parts = cut_pieces(gradient, ranges)
        backwards = range(len(self.connections) - 1, -1, -1)
        for server in backwards:
            metadata = pack_stream(is_fetching, rates, shares if server == 0 else ())
            self.send(self.connections[server], MessageKind.STREAM, -1, metadata, parts[server])
        replies = {}
        for server in backwards:
            into = weights[slice(*ranges[server])] if is_fetching else None
            replies[server] = self.receive(self.connections[server], into)
        version, metadata = replies[0]
        updates_before, samples_used = unpack_numbers(metadata)
        return StreamReply(int(updates_before), version, int(samples_used))

    def take(self, count: int, limit: int) -> SampleAssignment:
        """Ask the first server for samples below the limit."""
        self.send(self.connections[0], MessageKind.TAKE, -1, pack_numbers([count, limit]))
        _, metadata = self.receive(self.connections[0])
        is_over, samples_used, start, size = unpack_numbers(metadata)
        share = SampleRange(int(start), int(size)) if size else None
        return SampleAssignment(share, bool(is_over), int(samples_used))

    def finish(self) -> None:
        """Say that the target is reached: no more samples are handed out."""
        self.send(self.connections[0], MessageKind.FINISH)
        self.receive(self.connections[0])

    def leave(self) -> None:
        """Close the connections; this worker comes back by others."""
        with suppress(OSError, GenerationBroken):
            for connection in self.connections:
                connection.send(FrameHeader(MessageKind.LEAVE))
        self.close()

    def close(self) -> None:
        """Close the connections: the servers see that this worker is gone."""
        for connection in self.connections:
            connection.close()

    def send(
        self,
        connection: FramedConnection,
        kind: MessageKind,
        iteration: int = -1,
        metadata: bytes = b"",
        payload: Iterable[ShardValues] = (),
    ) -> None:
        """Send a request to one server."""
        header = FrameHeader(kind, *self.generation_key, iteration)
        with broken_on_loss():
            connection.send(header, metadata, map(array_bytes, payload))

    def receive(
        self, connection: FramedConnection, into: ShardValues | None = None
    ) -> tuple[int, bytes]:
        """Return iteration and metadata of an answer; its floats go where they belong."""
        with broken_on_loss():
            header = receive_reply_header(connection)
            metadata = connection.receive_metadata(header)
            if into is not None:
                connection.receive_payload(header, array_bytes(into))
        return header.iteration, metadata

    def _receive_all(self, weights: ShardValues) -> list[tuple[int, bytes]]:
        ranges = shard_ranges(weights.size, len(self.connections))
        return [
            self.receive(connection, weights[low:high])
            for connection, (low, high) in zip(self.connections, ranges, strict=True)
        ]


def connect_servers(
    directive: Directive, context: StrategyContext, before: ParameterServerClient | None
) -> ParameterServerClient:
    """Return connections to the servers of a generation; those that are in use stay.

    Raises:
        GenerationBroken: The generation has none, or one does not answer.
    """
    addresses = tuple(server.address for server in directive.servers)
    if before is not None and before.addresses == addresses:
        return before
    if before is not None:
        before.leave()
    if not addresses:
        raise GenerationBroken(f"generation {directive.generation} names no parameter servers")
    return ParameterServerClient(addresses, context.secret, context.should_abort)


@contextmanager
def broken_on_loss() -> Iterator[None]:
    """Turn the loss of a server into GenerationBroken."""
    try:
        yield
    except (OSError, MalformedFrame) as error:
        raise GenerationBroken(f"a parameter server is lost: {error}") from error


def receive_reply_header(connection: FramedConnection) -> FrameHeader:
    """Receive the header of an answer; raises GenerationBroken when the server refuses."""
    header = connection.receive_header(max_payload=MAX_PAYLOAD_BYTES)
    if header.kind == MessageKind.FENCED:
        raise GenerationBroken(connection.receive_metadata(header).decode())
    return header


def cut_pieces(
    pieces: Sequence[ShardValues], ranges: Sequence[tuple[int, int]]
) -> list[list[ShardValues]]:
    """Cut pieces that lie end to end at other places; nothing is copied."""
    found: list[list[ShardValues]] = [[] for _ in ranges]
    start = 0
    for piece in pieces:
        for parts, (low, high) in zip(found, ranges, strict=True):
            part = piece[max(low - start, 0) : max(high - start, 0)]
            if part.size:
                parts.append(part)
        start += piece.size
    return found
