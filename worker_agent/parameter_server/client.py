"""`ParameterServerClient`: one worker's connections to all servers, used as if they were one."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from worker_agent.errors import GenerationBroken, MalformedFrame
from worker_agent.parameter_server.messages import (
    JOIN_REQUEST,
    SHARD_MANIFEST,
    JoinRequest,
    PushRequest,
    ShardManifest,
    dump_message,
    pack_stream,
    parse_message,
    shard_ranges,
)
from worker_agent.pytorch.server_shard import IterationOutcome
from worker_agent.sampler import SampleRange
from worker_agent.transport.connection import (
    MAX_PAYLOAD_BYTES,
    FramedConnection,
    FrameHeader,
    MessageKind,
    Numbers,
    pack_numbers,
    secret_proof,
    tensor_bytes,
    unpack_numbers,
)
from worker_agent.transport.fork_safety import close_in_forks

SERVER_CONNECT_TIMEOUT = 2.0

_Turn = tuple[int, int]


@dataclass(frozen=True, slots=True)
class StreamReply:
    """What the servers say to an update that nobody waited for.

    Attributes:
        before: Updates of all workers applied before it; -1 when nothing was pushed.
        now: Updates contained in the weights that came back, if any did.
        done: Samples that all workers have used so far; -1 when none were told of.
    """

    before: int
    now: int
    done: int


@dataclass(frozen=True, slots=True)
class SampleAssignment:
    """What a worker is to do next.

    Attributes:
        share: Its samples; None when none are left.
        is_over: Whether no more will be.
        done: Samples that all workers have used so far.
    """

    share: SampleRange | None
    is_over: bool
    done: int


class ParameterServerClient:
    """Speaks to all servers of a job at once: says everything before it hears anything.

    Every method raises Broken when a server cannot be reached, refuses, or is waited for no
    longer; then the connections may be out of step, and the client is to be closed.

    Args:
        addresses: ``host:port`` of the servers in the order of their shards.
        secret: What all processes of the job know.
        is_abandoned: Asked while waiting; True gives up.
    """

    def __init__(
        self, addresses: Sequence[str], secret: str, is_abandoned: Callable[[], bool]
    ) -> None:
        self.addresses = tuple(addresses)
        self.channels: list[FramedConnection] = []
        self.turn: _Turn = (0, 0)
        try:
            for address in addresses:
                channel = FramedConnection(connect(address), is_abandoned)
                self.channels.append(channel)
                channel.send(FrameHeader(MessageKind.GREET), secret_proof(secret))
        except OSError as error:
            self.close()
            raise GenerationBroken(f"a parameter server does not answer: {error}") from error

    def join(self, turn: _Turn, iteration: int, joining: JoinRequest) -> list[int]:
        """Enter a generation; returns what each server has applied, -1 where a shard is wanted."""
        self.turn = turn
        note = dump_message(JOIN_REQUEST, joining)
        for channel in self.channels:
            self._send(channel, self._header(MessageKind.JOIN, iteration), note)
        return [self._receive(channel, ()).iteration for channel in self.channels]

    def put(
        self, server: int, iteration: int, holding: ShardManifest, tensors: Iterable[Tensor]
    ) -> None:
        """Hand a server its shard: weights first, then the optimizer's vectors."""
        channel, note = self.channels[server], dump_message(SHARD_MANIFEST, holding)
        self._send(channel, self._header(MessageKind.PUT, iteration), note, tensors)
        self._receive(channel, ())

    def hold(self, server: int) -> tuple[ShardManifest, Tensor]:
        """Fetch a whole shard; returns what it holds, and all its floats end to end."""
        channel = self.channels[server]
        self._send(channel, self._header(MessageKind.HOLD))
        try:
            header = self._heard(channel)
            holding = parse_message(SHARD_MANIFEST, channel.receive_metadata(header))
            dtype = getattr(torch, holding.precision)
            floats = torch.empty(holding.payload_size // dtype.itemsize, dtype=dtype)
            channel.receive_payload(header, tensor_bytes(floats))
        except (OSError, MalformedFrame) as error:
            raise GenerationBroken(f"a parameter server is lost: {error}") from error
        return holding, floats

    def fetch(self, iteration: int, weights: Tensor) -> str:
        """Fill in the weights after so many iterations; returns the clock they were put with."""
        for channel in self.channels:
            self._send(channel, self._header(MessageKind.FETCH, iteration))
        heard = [
            self._receive(channel, (part,))
            for channel, part in zip(self.channels, self._cut(weights), strict=True)
        ]
        return heard[0].note.decode()

    def push(
        self, iteration: int, said: PushRequest, gradient: Sequence[Tensor], weights: Tensor
    ) -> IterationOutcome:
        """Contribute to an iteration, wait for all others, and fill in the weights after it.

        Args:
            iteration: Iterations applied before this one.
            said: What travels with it.
            gradient: The flat mean gradient in pieces that lie end to end.
            weights: Filled with the weights, shape (size,); half filled when Broken is raised.
        """
        header = self._header(MessageKind.PUSH, iteration)
        note = said.to_bytes()
        parts = cut_pieces(gradient, self._ranges(weights))
        for channel, pieces in zip(self.channels, parts, strict=True):
            self._send(channel, header, note, pieces)
        heard = [
            self._receive(channel, (part,))
            for channel, part in zip(self.channels, self._cut(weights), strict=True)
        ]
        return combine_outcomes(
            [unpack_numbers(each.note) for each in heard], columns=len(said.row)
        )

    def stream(
        self,
        rates: Sequence[float],
        shares: Sequence[SampleRange],
        gradient: Sequence[Tensor],
        weights: Tensor,
        *,
        is_fetching: bool,
    ) -> StreamReply:
        """Push an update, or fetch the weights, or both; waits for no other worker.

        Samples whose steps were skipped are told of without a gradient. The first server comes
        last: it counts the samples, which are used when all have heard.
        """
        parts = self._cut(weights)
        pieces = cut_pieces(gradient, self._ranges(weights)) if gradient else [[] for _ in parts]
        backwards = range(len(self.channels) - 1, -1, -1)
        for server in backwards:
            note = pack_stream(is_fetching, rates, shares if server == 0 else ())
            self._send(
                self.channels[server], self._header(MessageKind.STREAM), note, pieces[server]
            )
        heard = {
            server: self._receive(self.channels[server], (parts[server],) if is_fetching else ())
            for server in backwards
        }
        before, done = unpack_numbers(heard[0].note)
        return StreamReply(int(before), heard[0].iteration, int(done))

    def take(self, count: int, limit: int) -> SampleAssignment:
        """Ask the first server for samples below the limit."""
        self._send(self.channels[0], self._header(MessageKind.TAKE), pack_numbers([count, limit]))
        is_over, done, start, size = unpack_numbers(self._receive(self.channels[0], ()).note)
        share = SampleRange(int(start), int(size)) if size else None
        return SampleAssignment(share, bool(is_over), int(done))

    def finish(self) -> None:
        """Tell that the target is reached: no more samples are handed out."""
        self._send(self.channels[0], self._header(MessageKind.FINISH))
        self._receive(self.channels[0], ())

    def leave(self) -> None:
        """Close the connections; this worker comes back by others."""
        with suppress(OSError, GenerationBroken):
            for channel in self.channels:
                channel.send(FrameHeader(MessageKind.LEAVE))
        self.close()

    def close(self) -> None:
        """Close the connections: the servers see that this worker is gone."""
        for channel in self.channels:
            channel.close()

    def _header(self, word: MessageKind, iteration: int = -1) -> FrameHeader:
        generation, revision = self.turn
        return FrameHeader(word, generation, revision, iteration)

    def _ranges(self, weights: Tensor) -> tuple[tuple[int, int], ...]:
        return shard_ranges(weights.numel(), len(self.channels))

    def _cut(self, weights: Tensor) -> list[Tensor]:
        return [weights[low:high] for low, high in self._ranges(weights)]

    def _send(
        self,
        channel: FramedConnection,
        header: FrameHeader,
        note: bytes = b"",
        load: Iterable[Tensor] = (),
    ) -> None:
        try:
            channel.send(header, note, map(tensor_bytes, load))
        except OSError as error:
            raise GenerationBroken(f"a parameter server is lost: {error}") from error

    def _receive(self, channel: FramedConnection, into: Sequence[Tensor]) -> ServerReply:
        """Receive an answer; its floats go where they belong."""
        try:
            header = self._heard(channel)
            note = channel.receive_metadata(header)
            for part in into:
                channel.receive_payload(header, tensor_bytes(part))
        except (OSError, MalformedFrame) as error:
            raise GenerationBroken(f"a parameter server is lost: {error}") from error
        return ServerReply(header.iteration, note)

    def _heard(self, channel: FramedConnection) -> FrameHeader:
        header = channel.receive_header(max_payload=MAX_PAYLOAD_BYTES)
        if header.word == MessageKind.FENCED:
            raise GenerationBroken(channel.receive_metadata(header).decode())
        return header


@dataclass(frozen=True, slots=True)
class ServerReply:
    """An answer without its floats."""

    iteration: int
    note: bytes


def connect(address: str) -> socket.socket:
    """Connect to a server; raises OSError."""
    host, port = address.rsplit(":", 1)
    connection = socket.create_connection((host, int(port)), SERVER_CONNECT_TIMEOUT)
    close_in_forks(connection.fileno())  # a server knows by its end that this worker is dead
    return connection


def cut_pieces(pieces: Sequence[Tensor], edges: Sequence[tuple[int, int]]) -> list[list[Tensor]]:
    """Cut pieces that lie end to end at other places; nothing is copied."""
    found: list[list[Tensor]] = [[] for _ in edges]
    start = 0
    for piece in pieces:
        for parts, (low, high) in zip(found, edges, strict=True):
            part = piece[max(low - start, 0) : max(high - start, 0)]
            if part.numel():
                parts.append(part)
        start += piece.numel()
    return found


def combine_outcomes(notes: Sequence[Numbers], columns: int) -> IterationOutcome:
    """Add up what the servers measured on their shards; each has heard the same rows."""
    workers = (len(notes[0]) - 1) // (columns + 1)
    return IterationOutcome(
        norms_sq=np.sum([note[1 : workers + 1] for note in notes], axis=0),
        mean_norm_sq=float(sum(note[0] for note in notes)),
        rows=notes[0][workers + 1 :].reshape(workers, columns),
    )
