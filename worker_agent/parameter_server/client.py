"""Client: one worker's connections to all servers, used as if they were one."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from worker_agent.descriptors import withhold
from worker_agent.errors import Broken
from worker_agent.parameter_server.channel import Channel, bytes_of
from worker_agent.parameter_server.errors import Garbled
from worker_agent.parameter_server.frame import (
    LARGEST_LOAD,
    Header,
    Numbers,
    Word,
    pack,
    proof,
    unpack,
)
from worker_agent.parameter_server.iteration import Outcome
from worker_agent.parameter_server.message import (
    HOLDING,
    JOINING,
    Holding,
    Joining,
    Pushing,
    streaming,
    understand,
    written,
)
from worker_agent.parameter_server.shard import ranges
from worker_agent.sampler import Share

CONNECT = 2.0

Turn = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Streamed:
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
class Handed:
    """What a worker is to do next.

    Attributes:
        share: Its samples; None when none are left.
        is_over: Whether no more will be.
        done: Samples that all workers have used so far.
    """

    share: Share | None
    is_over: bool
    done: int


class Client:
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
        self.channels: list[Channel] = []
        self.turn: Turn = (0, 0)
        try:
            for address in addresses:
                channel = Channel(connected(address), is_abandoned)
                self.channels.append(channel)
                channel.send(Header(Word.GREET), proof(secret))
        except OSError as error:
            self.close()
            raise Broken(f"a parameter server does not answer: {error}") from error

    def join(self, turn: Turn, iteration: int, joining: Joining) -> list[int]:
        """Enter a generation; returns what each server has applied, -1 where a shard is wanted."""
        self.turn = turn
        note = written(JOINING, joining)
        for channel in self.channels:
            self._send(channel, self._header(Word.JOIN, iteration), note)
        return [self._receive(channel, ()).iteration for channel in self.channels]

    def put(self, server: int, iteration: int, holding: Holding, tensors: Iterable[Tensor]) -> None:
        """Hand a server its shard: weights first, then the optimizer's vectors."""
        channel, note = self.channels[server], written(HOLDING, holding)
        self._send(channel, self._header(Word.PUT, iteration), note, tensors)
        self._receive(channel, ())

    def hold(self, server: int) -> tuple[Holding, Tensor]:
        """Fetch a whole shard; returns what it holds, and all its floats end to end."""
        channel = self.channels[server]
        self._send(channel, self._header(Word.HOLD))
        try:
            header = self._heard(channel)
            holding = understand(HOLDING, channel.receive_note(header))
            dtype = getattr(torch, holding.precision)
            floats = torch.empty(holding.load_size // dtype.itemsize, dtype=dtype)
            channel.receive_load(header, bytes_of(floats))
        except (OSError, Garbled) as error:
            raise Broken(f"a parameter server is lost: {error}") from error
        return holding, floats

    def fetch(self, iteration: int, weights: Tensor) -> str:
        """Fill in the weights after so many iterations; returns the clock they were put with."""
        for channel in self.channels:
            self._send(channel, self._header(Word.FETCH, iteration))
        heard = [
            self._receive(channel, (part,))
            for channel, part in zip(self.channels, self._cut(weights), strict=True)
        ]
        return heard[0].note.decode()

    def push(
        self, iteration: int, said: Pushing, gradient: Sequence[Tensor], weights: Tensor
    ) -> Outcome:
        """Contribute to an iteration, wait for all others, and fill in the weights after it.

        Args:
            iteration: Iterations applied before this one.
            said: What travels with it.
            gradient: The flat mean gradient in pieces that lie end to end.
            weights: Filled with the weights, shape (size,); half filled when Broken is raised.
        """
        header = self._header(Word.PUSH, iteration)
        note = said.to_bytes()
        parts = spread(gradient, self._ranges(weights))
        for channel, pieces in zip(self.channels, parts, strict=True):
            self._send(channel, header, note, pieces)
        heard = [
            self._receive(channel, (part,))
            for channel, part in zip(self.channels, self._cut(weights), strict=True)
        ]
        return joined([unpack(each.note) for each in heard], columns=len(said.row))

    def stream(
        self,
        rates: Sequence[float],
        shares: Sequence[Share],
        gradient: Sequence[Tensor],
        weights: Tensor,
        *,
        is_fetching: bool,
    ) -> Streamed:
        """Push an update, or fetch the weights, or both; waits for no other worker.

        Samples whose steps were skipped are told of without a gradient. The first server comes
        last: it counts the samples, which are used when all have heard.
        """
        parts = self._cut(weights)
        pieces = spread(gradient, self._ranges(weights)) if gradient else [[] for _ in parts]
        backwards = range(len(self.channels) - 1, -1, -1)
        for server in backwards:
            note = streaming(is_fetching, rates, shares if server == 0 else ())
            self._send(self.channels[server], self._header(Word.STREAM), note, pieces[server])
        heard = {
            server: self._receive(self.channels[server], (parts[server],) if is_fetching else ())
            for server in backwards
        }
        before, done = unpack(heard[0].note)
        return Streamed(int(before), heard[0].iteration, int(done))

    def take(self, count: int, limit: int) -> Handed:
        """Ask the first server for samples below the limit."""
        self._send(self.channels[0], self._header(Word.TAKE), pack([count, limit]))
        is_over, done, start, size = unpack(self._receive(self.channels[0], ()).note)
        share = Share(int(start), int(size)) if size else None
        return Handed(share, bool(is_over), int(done))

    def finish(self) -> None:
        """Tell that the target is reached: no more samples are handed out."""
        self._send(self.channels[0], self._header(Word.FINISH))
        self._receive(self.channels[0], ())

    def leave(self) -> None:
        """Close the connections; this worker comes back by others."""
        with suppress(OSError, Broken):
            for channel in self.channels:
                channel.send(Header(Word.LEAVE))
        self.close()

    def close(self) -> None:
        """Close the connections: the servers see that this worker is gone."""
        for channel in self.channels:
            channel.close()

    def _header(self, word: Word, iteration: int = -1) -> Header:
        generation, revision = self.turn
        return Header(word, generation, revision, iteration)

    def _ranges(self, weights: Tensor) -> tuple[tuple[int, int], ...]:
        return ranges(weights.numel(), len(self.channels))

    def _cut(self, weights: Tensor) -> list[Tensor]:
        return [weights[low:high] for low, high in self._ranges(weights)]

    def _send(
        self, channel: Channel, header: Header, note: bytes = b"", load: Iterable[Tensor] = ()
    ) -> None:
        try:
            channel.send(header, note, map(bytes_of, load))
        except OSError as error:
            raise Broken(f"a parameter server is lost: {error}") from error

    def _receive(self, channel: Channel, into: Sequence[Tensor]) -> Heard:
        """Receive an answer; its floats go where they belong."""
        try:
            header = self._heard(channel)
            note = channel.receive_note(header)
            for part in into:
                channel.receive_load(header, bytes_of(part))
        except (OSError, Garbled) as error:
            raise Broken(f"a parameter server is lost: {error}") from error
        return Heard(header.iteration, note)

    def _heard(self, channel: Channel) -> Header:
        header = channel.receive_header(largest_load=LARGEST_LOAD)
        if header.word == Word.FENCED:
            raise Broken(channel.receive_note(header).decode())
        return header


@dataclass(frozen=True, slots=True)
class Heard:
    """An answer without its floats."""

    iteration: int
    note: bytes


def connected(address: str) -> socket.socket:
    """Connect to a server; raises OSError."""
    host, port = address.rsplit(":", 1)
    connection = socket.create_connection((host, int(port)), CONNECT)
    withhold(connection.fileno())  # a server knows by its end that this worker is dead
    return connection


def spread(pieces: Sequence[Tensor], edges: Sequence[tuple[int, int]]) -> list[list[Tensor]]:
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


def joined(notes: Sequence[Numbers], columns: int) -> Outcome:
    """Add up what the servers measured on their shards; each has heard the same rows."""
    workers = (len(notes[0]) - 1) // (columns + 1)
    return Outcome(
        norms_sq=np.sum([note[1 : workers + 1] for note in notes], axis=0),
        mean_norm_sq=float(sum(note[0] for note in notes)),
        rows=notes[0][workers + 1 :].reshape(workers, columns),
    )
