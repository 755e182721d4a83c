"""`FramedConnection`: sends and receives frames, and asks while it waits whether to go on.

A frame is a header of fixed size, metadata (a short text or list of numbers), and a payload of
raw little-endian floats. Sizes are known and bounded before anything is read, so a client that
misbehaves costs no more than its own connection. Nothing in a frame is executed.
"""

from __future__ import annotations

import hashlib
import socket
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from worker_agent.errors import GenerationBroken, MalformedFrame
from worker_agent.transport.fork_safety import close_in_forks

FRAME_MAGIC = b"SCVG"
FRAME_VERSION = 1
HEADER_LAYOUT = struct.Struct("<4sBBxxIIQqQ")
MAX_METADATA_BYTES = 1 << 22
MAX_PAYLOAD_BYTES = 1 << 36  # bytes of weights and optimizer state of one server
PEER_CONNECT_TIMEOUT = 2.0  # seconds
_PROOF_PURPOSE = b"scavenger parameter server 1"

# A blocking call returns after half a second so that the caller can ask whether to go on waiting.
# The kernel keeps this limit (struct timeval), because a socket with Python's own timeout does
# not block and then receives a shard in thousands of calls instead of one.
_WAIT_SLICE = struct.pack("@ll", 0, 500_000)
# A computer that is lost sends no FIN: TCP's own probes find it after 10 + 3 * 5 seconds.
_KEEPALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}

Numbers = npt.NDArray[np.float64]
Buffer = bytes | bytearray | memoryview


class MessageKind(IntEnum):
    """What a frame is about; the first to a parameter server is AUTHENTICATE."""

    AUTHENTICATE = 1
    JOIN = 2
    LEAVE = 3
    PUT = 4
    EXPORT = 5
    FETCH = 6
    PUSH = 7
    STREAM = 8
    TAKE = 9
    FINISH = 10
    STORE = 11
    EXCHANGE = 12
    START = 13
    GRAM = 14
    COMBINE = 15
    COMMIT = 16
    BOARD = 17
    WAIT = 18
    ACCUMULATE = 19
    DONE = 20
    FENCED = 21


_MESSAGE_KINDS = frozenset(map(int, MessageKind))


@dataclass(frozen=True, slots=True)
class FrameHeader:
    """The fixed part of a frame.

    Attributes:
        kind: What the frame is about.
        generation: Generation of the sender.
        revision: Its revision.
        iteration: Iteration the frame speaks of; -1 for none.
        metadata_size: Bytes of the metadata that follow.
        payload_size: Bytes of floats that follow the metadata.
    """

    kind: MessageKind
    generation: int = 0
    revision: int = 0
    iteration: int = -1
    metadata_size: int = 0
    payload_size: int = 0

    @property
    def generation_key(self) -> tuple[int, int]:
        """Generation and revision, in the order in which they replace each other."""
        return self.generation, self.revision

    def to_bytes(self) -> bytes:
        return HEADER_LAYOUT.pack(
            FRAME_MAGIC,
            FRAME_VERSION,
            self.kind,
            self.revision,
            self.metadata_size,
            self.generation,
            self.iteration,
            self.payload_size,
        )


def parse_frame_header(content: bytes, *, max_payload: int) -> FrameHeader:
    """Parse a header.

    Raises:
        MalformedFrame: It is no header of ours, or announces more than may come; close the
            connection, because the bytes that follow have no meaning.
    """
    magic, version, kind, revision, metadata_size, generation, iteration, payload_size = (
        HEADER_LAYOUT.unpack(content)
    )
    if magic != FRAME_MAGIC or version != FRAME_VERSION:
        raise MalformedFrame(f"not a frame of version {FRAME_VERSION}: {content[:8]!r}")
    if kind not in _MESSAGE_KINDS:
        raise MalformedFrame(f"unknown message kind {kind}")
    if metadata_size > MAX_METADATA_BYTES or payload_size > max_payload:
        raise MalformedFrame(f"a frame of {metadata_size} + {payload_size} bytes is too large")
    return FrameHeader(
        MessageKind(kind), generation, revision, iteration, metadata_size, payload_size
    )


def secret_proof(secret: str) -> bytes:
    """Return what shows that a process belongs to the job, without telling the secret."""
    return hashlib.sha256(_PROOF_PURPOSE + secret.encode()).digest()


def pack_numbers(numbers: Sequence[float] | Numbers) -> bytes:
    """Return numbers as they travel in metadata."""
    return np.asarray(numbers, dtype="<f8").tobytes()


def unpack_numbers(metadata: bytes) -> Numbers:
    """Return the numbers in metadata; raises MalformedFrame when it holds none."""
    if len(metadata) % 8:
        raise MalformedFrame(f"metadata of {len(metadata)} bytes holds no numbers")
    return np.frombuffer(metadata, dtype="<f8").astype(np.float64)


def array_bytes(array: npt.NDArray[np.floating]) -> memoryview:
    """Return the memory of a contiguous array, which may be empty."""
    return array.view(np.uint8).data


def connect(address: str) -> socket.socket:
    """Connect to ``host:port``, with a socket that no fork of this process keeps open.

    The other side knows by the end of the connection that this process is dead.

    Raises:
        OSError: The address refuses the connection, or does not answer in time.
    """
    host, port = address.rsplit(":", 1)
    connection = socket.create_connection((host, int(port)), PEER_CONNECT_TIMEOUT)
    close_in_forks(connection.fileno())
    return connection


def never_abort() -> bool:
    """Return False: wait until the other side answers or is gone."""
    return False


class FramedConnection:
    """Sends and receives whole frames.

    Args:
        connection: A connected socket, which this object closes.
        should_abort: Called while waiting; True gives up with GenerationBroken. It may raise an
            error of its own instead.
    """

    def __init__(
        self, connection: socket.socket, should_abort: Callable[[], bool] = never_abort
    ) -> None:
        self.connection, self.should_abort = connection, should_abort
        connection.settimeout(None)
        for limit in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            connection.setsockopt(socket.SOL_SOCKET, limit, _WAIT_SLICE)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEPALIVE.items():
            if hasattr(socket, name):  # not on every system
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)

    def send(
        self, header: FrameHeader, metadata: bytes = b"", payload: Iterable[Buffer] = ()
    ) -> None:
        """Send a frame; its sizes are filled in here.

        Raises:
            OSError: The connection is gone.
            GenerationBroken: The wait was given up; the connection is of no more use.
        """
        pieces = [memoryview(piece) for piece in payload]
        whole = replace(
            header, metadata_size=len(metadata), payload_size=sum(piece.nbytes for piece in pieces)
        )
        for piece in (memoryview(whole.to_bytes() + metadata), *pieces):
            while piece:
                try:
                    piece = piece[self.connection.send(piece) :]
                except BlockingIOError:
                    self._raise_if_aborted()

    def receive_header(self, *, max_payload: int) -> FrameHeader:
        """Receive the first part of a frame; the other parts must be received next.

        Raises:
            OSError: The connection is gone.
            MalformedFrame: What came is no frame, or too large a one; close the connection.
        """
        content = bytearray(HEADER_LAYOUT.size)
        self.receive_into(memoryview(content))
        return parse_frame_header(bytes(content), max_payload=max_payload)

    def receive_metadata(self, header: FrameHeader) -> bytes:
        metadata = bytearray(header.metadata_size)
        self.receive_into(memoryview(metadata))
        return bytes(metadata)

    def receive_payload(self, header: FrameHeader, into: memoryview) -> None:
        """Receive the floats; raises MalformedFrame when they do not fill the buffer exactly."""
        if header.payload_size != len(into):
            raise MalformedFrame(
                f"{header.payload_size} bytes of floats where {len(into)} were expected"
            )
        self.receive_into(into)

    def receive_into(self, buffer: memoryview) -> None:
        while buffer:
            try:
                received = self.connection.recv_into(buffer, 0, socket.MSG_WAITALL)
            except BlockingIOError:
                self._raise_if_aborted()
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
        self.connection.close()

    def _raise_if_aborted(self) -> None:
        if self.should_abort():
            raise GenerationBroken("gave up waiting for the other side")
