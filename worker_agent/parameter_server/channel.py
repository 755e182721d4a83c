"""Channel: one connection that carries frames, and never waits without asking whether to go on."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from torch import Tensor

from worker_agent.errors import Broken
from worker_agent.parameter_server.errors import Garbled
from worker_agent.parameter_server.frame import HEADER, Header, read_header

# Half a second, as the system writes it, after which who waits asks whether it still should.
SLICE = struct.pack("@ll", 0, 500_000)
IDLE, INTERVAL, PROBES = 10, 5, 3  # of TCP's own question whether the other computer is there

Buffer = bytes | bytearray | memoryview


def never() -> bool:
    """Return False: what is waited for will come."""
    return False


class Channel:
    """Sends and receives whole frames.

    Args:
        connection: A connected socket; the channel owns it.
        is_abandoned: Asked while waiting; True gives up with Broken.
    """

    def __init__(self, connection: socket.socket, is_abandoned: Callable[[], bool] = never) -> None:
        self.connection, self.is_abandoned = connection, is_abandoned
        # A socket that blocks, with limits kept by the system: a shard comes in one call.
        connection.settimeout(None)
        for limit in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            connection.setsockopt(socket.SOL_SOCKET, limit, SLICE)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in (
            ("TCP_KEEPIDLE", IDLE),
            ("TCP_KEEPINTVL", INTERVAL),
            ("TCP_KEEPCNT", PROBES),
        ):
            if hasattr(socket, name):  # not on every system
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)

    def send(self, header: Header, note: bytes = b"", load: Iterable[Buffer] = ()) -> None:
        """Send a frame; its sizes are filled in here.

        Raises:
            OSError: The connection is gone.
            Broken: The wait was given up; the connection is of no more use.
        """
        pieces = [memoryview(piece).cast("B") for piece in load]
        whole = replace(header, note_size=len(note), load_size=sum(map(len, pieces)))
        for piece in (memoryview(whole.to_bytes() + note), *pieces):
            self._send(piece)

    def receive_header(self, *, largest_load: int) -> Header:
        """Receive the first part of a frame; ``receive_note`` and ``receive_into`` must follow.

        Raises:
            OSError: The connection is gone.
            Garbled: What came is no frame, or too large a one; close the connection.
        """
        content = bytearray(HEADER.size)
        self.receive_into(memoryview(content))
        return read_header(bytes(content), largest_load=largest_load)

    def receive_note(self, header: Header) -> bytes:
        """Receive the note of the frame."""
        note = bytearray(header.note_size)
        self.receive_into(memoryview(note))
        return bytes(note)

    def receive_load(self, header: Header, into: memoryview) -> None:
        """Receive the floats of the frame; raises Garbled when they do not fill the buffer."""
        if header.load_size != len(into):
            raise Garbled(f"{header.load_size} bytes of floats where {len(into)} were expected")
        self.receive_into(into)

    def receive_into(self, buffer: memoryview) -> None:
        """Fill the buffer."""
        while buffer:
            try:
                received = self.connection.recv_into(buffer, 0, socket.MSG_WAITALL)
            except BlockingIOError:
                self._ask()
                continue
            if not received:
                raise ConnectionResetError("the other side closed the connection")
            buffer = buffer[received:]

    def is_closed(self) -> bool:
        """Whether the other side has closed the connection; never waits."""
        try:
            return not self.connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def close(self) -> None:
        """Close the connection."""
        self.connection.close()

    def _send(self, piece: memoryview) -> None:
        while piece:
            try:
                piece = piece[self.connection.send(piece) :]
            except BlockingIOError:
                self._ask()

    def _ask(self) -> None:
        if self.is_abandoned():
            raise Broken("what was waited for is given up")


def bytes_of(tensor: Tensor) -> memoryview:
    """Return the memory of a contiguous tensor on the host."""
    values: Any = tensor.numpy()
    return memoryview(values).cast("B")
