"""Server: a socket, one thread for each connection, and a keeper behind them.

A connection begins with the proof that it belongs to the job; before that nothing else is read.
Whatever a connection says that makes no sense closes it, and only it.
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

from worker_agent.errors import Broken
from worker_agent.parameter_server.channel import Channel, bytes_of
from worker_agent.parameter_server.errors import Fenced, Garbled, NotServable
from worker_agent.parameter_server.frame import LARGEST_LOAD, Header, Word, pack, proof, unpack
from worker_agent.parameter_server.iteration import Contribution, norm_sq
from worker_agent.parameter_server.keeper import Keeper
from worker_agent.parameter_server.message import (
    HOLDING,
    JOINING,
    read_pushing,
    read_streaming,
    understand,
    written,
)
from worker_agent.parameter_server.weights import Weights

log = logging.getLogger(__name__)

GREETING = 5.0  # seconds within which a connection has to prove that it belongs
MOST_STRANGERS = 64  # connections that have not proven it yet


class Server:
    """Serves one shard.

    Args:
        host: The only address it listens at.
        secret: What all processes of the job know.
        port: Where it listens; 0 takes a free one.
    """

    def __init__(self, host: str, secret: str, port: int = 0) -> None:
        self.keeper = Keeper()
        self.host, self.proof = host, proof(secret)
        self.listener = socket.create_server((host, port), backlog=128)
        self.strangers = threading.BoundedSemaphore(MOST_STRANGERS)

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
            Attendant(self.keeper, Channel(connection)).serve()

    def _belongs(self, connection: socket.socket) -> bool:
        """Read the proof, within its time."""
        deadline = threading.Event()
        timer = threading.Timer(GREETING, deadline.set)
        timer.start()
        channel = Channel(connection, deadline.is_set)
        try:
            header = channel.receive_header(largest_load=0)
            if header.word != Word.GREET or header.note_size != len(self.proof):
                return False
            return hmac.compare_digest(channel.receive_note(header), self.proof)
        except (OSError, Garbled, Broken):
            return False
        finally:
            timer.cancel()


class Attendant:
    """Understands what one worker says and does it.

    Attributes:
        worker: Who speaks, once it has joined.
        is_moving: Whether it said that it will be back by another connection.
    """

    def __init__(self, keeper: Keeper, channel: Channel) -> None:
        self.keeper, self.channel = keeper, channel
        self.worker = ""
        self.is_moving = False
        self.buffer = torch.empty(0)

    def serve(self) -> None:
        """Answer until the connection ends or says something that makes no sense."""
        try:
            while not self.is_moving:
                self._answer(self.channel.receive_header(largest_load=LARGEST_LOAD))
        except (OSError, Broken) as error:
            log.debug("%s: %r", self.worker, error)
        except (Garbled, NotServable, MemoryError, ValueError, RuntimeError) as error:
            # Torch says RuntimeError for shapes that do not fit; the others are not concerned.
            log.warning("the connection of %s is closed: %s", self.worker or "a stranger", error)
        finally:
            self.keeper.miss(self.worker, self, is_moving=self.is_moving)

    def _answer(self, header: Header) -> None:
        note = self.channel.receive_note(header)
        try:
            match header.word:
                case Word.JOIN:
                    self._join(header, note)
                case Word.LEAVE:
                    self.is_moving = True
                case Word.PUT:
                    self._put(header, note)
                case Word.HOLD:
                    self._hold(header)
                case Word.FETCH:
                    self._fetch(header)
                case Word.PUSH:
                    self._push(header, note)
                case Word.STREAM:
                    self._stream(header, note)
                case Word.TAKE:
                    self._take(note)
                case Word.FINISH:
                    self.keeper.finish()
                    self._reply()
                case _:
                    raise Garbled(f"{header.word!r} is no question")
        except Fenced as error:
            self.channel.send(Header(Word.FENCED), str(error).encode())

    def _join(self, header: Header, note: bytes) -> None:
        joining = understand(JOINING, note)
        self.worker = joining.worker
        self.keeper.attend(self.worker, self)
        asks = self.channel.is_closed
        applied = self.keeper.join(header.turn, header.iteration, joining, asks)
        self._reply(applied)

    def _put(self, header: Header, note: bytes) -> None:
        holding = understand(HOLDING, note)
        if holding.load_size != header.load_size:
            raise Garbled(f"{header.load_size} bytes where {holding.load_size} were announced")
        weights, places = Weights.to_fill(header.iteration, holding)
        for place in places:
            self.channel.receive_into(bytes_of(place))
        self.keeper.publish(header.turn, weights, holding.clock, holding.samples)
        self._reply()

    def _hold(self, header: Header) -> None:
        iteration, holding, tensors = self.keeper.hold(header.turn)
        self._reply(iteration, written(HOLDING, holding), tensors)

    def _fetch(self, header: Header) -> None:
        values, clock = self.keeper.read(header.turn, header.iteration)
        self._reply(header.iteration, clock.encode(), [values])

    def _push(self, header: Header, note: bytes) -> None:
        gradient = self._receive(header)
        said = read_pushing(note)
        contribution = Contribution(
            gradient=gradient,
            norm_sq=norm_sq(gradient),
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
        self._reply(header.iteration + 1, pack(told), [values])

    def _stream(self, header: Header, note: bytes) -> None:
        """Apply an update, or send the weights, or both, and wait for nobody."""
        is_fetching, rates, shares = read_streaming(note)
        before, done = -1, -1
        if header.load_size:
            gradient = self._receive(header)
            before, done = self.keeper.apply(self.worker, gradient, rates, shares)
        elif shares:  # their steps were skipped
            done = self.keeper.use(self.worker, shares)
        if not is_fetching:
            self._reply(before + 1, pack([before, done]))
            return
        self._make_room()
        version = self.keeper.copy(self.buffer)
        self._reply(version, pack([before, done]), [self.buffer])

    def _take(self, note: bytes) -> None:
        count, limit = unpack(note).astype(int)
        share, is_over = self.keeper.take(self.worker, int(count), int(limit))
        place = (0, 0) if share is None else (share.start, share.count)
        self._reply(note=pack([is_over, self.keeper.cursor.done, *place]))

    def _receive(self, header: Header) -> Tensor:
        """Receive a gradient into this connection's own buffer."""
        self._make_room()
        self.channel.receive_load(header, bytes_of(self.buffer))
        return self.buffer

    def _make_room(self) -> None:
        weights = self.keeper.weights
        if weights is None:
            raise Garbled("there are no weights here yet")
        if self.buffer.shape != weights.now.shape or self.buffer.dtype != weights.now.dtype:
            self.buffer = torch.empty_like(weights.now)

    def _reply(self, iteration: int = -1, note: bytes = b"", load: Iterable[Tensor] = ()) -> None:
        self.channel.send(Header(Word.DONE, iteration=iteration), note, map(bytes_of, load))
