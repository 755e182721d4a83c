"""`ShardServer`: a listening socket, one thread per connection, and a `ShardState` behind them.

A connection begins with the proof that it belongs to the job; before that nothing else is read.
A message that makes no sense closes its own connection and no other.
"""

from __future__ import annotations

import hmac
import logging
import socket
import threading
from collections.abc import Iterable
from contextlib import suppress

import torch
from torch import Tensor

from worker_agent.errors import Fenced, GenerationBroken, MalformedFrame, UnsupportedServerOptimizer
from worker_agent.parameter_server.messages import (
    JOIN_REQUEST,
    SHARD_MANIFEST,
    dump_message,
    parse_message,
    parse_push,
    parse_stream,
)
from worker_agent.parameter_server.shard import ShardState
from worker_agent.pytorch.server_shard import Contribution, ShardWeights, squared_norm
from worker_agent.transport.connection import (
    MAX_PAYLOAD_BYTES,
    FramedConnection,
    FrameHeader,
    MessageKind,
    pack_numbers,
    secret_proof,
    tensor_bytes,
    unpack_numbers,
)

log = logging.getLogger(__name__)

GREETING_TIMEOUT = 5.0  # seconds within which a connection has to prove that it belongs
MAX_UNPROVEN = 64  # connections that have not proven it yet


class ShardServer:
    """Serves one shard.

    Args:
        host: The only address it listens at.
        secret: What all processes of the job know.
        port: Where it listens; 0 takes a free one.
    """

    def __init__(self, host: str, secret: str, port: int = 0) -> None:
        self.keeper = ShardState()
        self.host, self.proof = host, secret_proof(secret)
        self.listener = socket.create_server((host, port), backlog=128)
        self.strangers = threading.BoundedSemaphore(MAX_UNPROVEN)

    @property
    def address(self) -> str:
        """``host:port`` where workers reach it."""
        return f"{self.host}:{self.listener.getsockname()[1]}"

    def serve(self) -> None:
        """Serve until ``close`` is called."""
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return  # closed
            if not self.strangers.acquire(blocking=False):
                connection.close()
                continue
            threading.Thread(target=self._attend, args=(connection,), daemon=True).start()

    def close(self) -> None:
        """Accept no more connections."""
        with suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)  # wakes who waits in accept
        self.listener.close()

    def _attend(self, connection: socket.socket) -> None:
        """Answer one connection until it ends."""
        try:
            belongs = self._belongs(connection)
        finally:
            self.strangers.release()
        if not belongs:
            connection.close()
            return
        with connection:
            ShardConnection(self.keeper, FramedConnection(connection)).serve()

    def _belongs(self, connection: socket.socket) -> bool:
        """Read the proof, within its time."""
        deadline = threading.Event()
        timer = threading.Timer(GREETING_TIMEOUT, deadline.set)
        timer.start()
        channel = FramedConnection(connection, deadline.is_set)
        try:
            header = channel.receive_header(max_payload=0)
            if header.word != MessageKind.GREET or header.metadata_size != len(self.proof):
                return False
            return hmac.compare_digest(channel.receive_metadata(header), self.proof)
        except (OSError, MalformedFrame, GenerationBroken):
            return False
        finally:
            timer.cancel()


class ShardConnection:
    """Understands what one worker says and does it.

    Attributes:
        worker: Who speaks, once it has joined.
        is_moving: Whether it said that it will be back by another connection.
    """

    def __init__(self, keeper: ShardState, channel: FramedConnection) -> None:
        self.keeper, self.channel = keeper, channel
        self.worker = ""
        self.is_moving = False
        self.buffer = torch.empty(0)

    def serve(self) -> None:
        """Answer until the connection ends or says something that makes no sense."""
        try:
            while not self.is_moving:
                self._answer(self.channel.receive_header(max_payload=MAX_PAYLOAD_BYTES))
        except (OSError, GenerationBroken) as error:
            log.debug("%s: %r", self.worker, error)
        except (
            MalformedFrame,
            UnsupportedServerOptimizer,
            MemoryError,
            ValueError,
            RuntimeError,
        ) as error:
            # Torch says RuntimeError for shapes that do not fit; the others are not concerned.
            log.warning("the connection of %s is closed: %s", self.worker or "a stranger", error)
        finally:
            self.keeper.miss(self.worker, self, is_moving=self.is_moving)

    def _answer(self, header: FrameHeader) -> None:
        note = self.channel.receive_metadata(header)
        try:
            match header.word:
                case MessageKind.JOIN:
                    self._join(header, note)
                case MessageKind.LEAVE:
                    self.is_moving = True
                case MessageKind.PUT:
                    self._put(header, note)
                case MessageKind.HOLD:
                    self._hold(header)
                case MessageKind.FETCH:
                    self._fetch(header)
                case MessageKind.PUSH:
                    self._push(header, note)
                case MessageKind.STREAM:
                    self._stream(header, note)
                case MessageKind.TAKE:
                    self._take(note)
                case MessageKind.FINISH:
                    self.keeper.finish()
                    self._reply()
                case _:
                    raise MalformedFrame(f"{header.word!r} is no question")
        except Fenced as error:
            self.channel.send(FrameHeader(MessageKind.FENCED), str(error).encode())

    def _join(self, header: FrameHeader, note: bytes) -> None:
        joining = parse_message(JOIN_REQUEST, note)
        self.worker = joining.worker
        self.keeper.attend(self.worker, self)
        asks = self.channel.is_closed
        applied = self.keeper.join(header.turn, header.iteration, joining, asks)
        self._reply(applied)

    def _put(self, header: FrameHeader, note: bytes) -> None:
        holding = parse_message(SHARD_MANIFEST, note)
        if holding.payload_size != header.payload_size:
            raise MalformedFrame(
                f"{header.payload_size} bytes where {holding.payload_size} were announced"
            )
        weights, places = ShardWeights.to_fill(header.iteration, holding)
        for place in places:
            self.channel.receive_into(tensor_bytes(place))
        self.keeper.publish(header.turn, weights, holding.clock, holding.samples)
        self._reply()

    def _hold(self, header: FrameHeader) -> None:
        iteration, holding, tensors = self.keeper.hold(header.turn)
        self._reply(iteration, dump_message(SHARD_MANIFEST, holding), tensors)

    def _fetch(self, header: FrameHeader) -> None:
        values, clock = self.keeper.read(header.turn, header.iteration)
        self._reply(header.iteration, clock.encode(), [values])

    def _push(self, header: FrameHeader, note: bytes) -> None:
        gradient = self._receive(header)
        said = parse_push(note)
        contribution = Contribution(
            gradient=gradient,
            norm_sq=squared_norm(gradient),
            share=said.share,
            is_skipped=said.is_skipped,
            rates=said.rates,
            row=said.row,
            clock=said.clock,
        )
        outcome, values = self.keeper.push(
            header.turn, self.worker, header.iteration, contribution, self.channel.is_closed
        )
        told = [outcome.mean_norm_sq, *outcome.norms_sq, *outcome.rows.ravel()]
        self._reply(header.iteration + 1, pack_numbers(told), [values])

    def _stream(self, header: FrameHeader, note: bytes) -> None:
        """Apply an update, or send the weights, or both, and wait for nobody."""
        is_fetching, rates, shares = parse_stream(note)
        before, done = -1, -1
        if header.payload_size:
            gradient = self._receive(header)
            before, done = self.keeper.apply(self.worker, gradient, rates, shares)
        elif shares:  # their steps were skipped
            done = self.keeper.use(self.worker, shares)
        if not is_fetching:
            self._reply(before + 1, pack_numbers([before, done]))
            return
        self._make_room()
        version = self.keeper.copy(self.buffer)
        self._reply(version, pack_numbers([before, done]), [self.buffer])

    def _take(self, note: bytes) -> None:
        count, limit = unpack_numbers(note).astype(int)
        share, is_over = self.keeper.take(self.worker, int(count), int(limit))
        place = (0, 0) if share is None else (share.start, share.count)
        self._reply(note=pack_numbers([is_over, self.keeper.cursor.done, *place]))

    def _receive(self, header: FrameHeader) -> Tensor:
        """Receive a gradient into this connection's own buffer."""
        self._make_room()
        self.channel.receive_payload(header, tensor_bytes(self.buffer))
        return self.buffer

    def _make_room(self) -> None:
        weights = self.keeper.weights
        if weights is None:
            raise MalformedFrame("there are no weights here yet")
        if self.buffer.shape != weights.now.shape or self.buffer.dtype != weights.now.dtype:
            self.buffer = torch.empty_like(weights.now)

    def _reply(self, iteration: int = -1, note: bytes = b"", load: Iterable[Tensor] = ()) -> None:
        self.channel.send(
            FrameHeader(MessageKind.DONE, iteration=iteration), note, map(tensor_bytes, load)
        )
