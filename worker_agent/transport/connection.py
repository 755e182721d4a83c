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
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from worker_agent.errors import GenerationBroken, MalformedFrame

FRAME_MAGIC = b"SCVG"
FRAME_VERSION = 1
HEADER_LAYOUT = struct.Struct("<4sBBxxIIQqQ")
MAX_METADATA_BYTES = 1 << 22
MAX_PAYLOAD_BYTES = 1 << 36  # bytes of weights and optimizer state of one server
PROOF_PURPOSE = b"scavenger parameter server 1"

Numbers = npt.NDArray[np.float64]


class MessageKind(IntEnum):
    """What a frame is about; the first of a connection is GREET."""

    GREET = 1
    JOIN = 2
    LEAVE = 3
    PUT = 4
    HOLD = 5
    FETCH = 6
    PUSH = 7
    STREAM = 8
    TAKE = 9
    FINISH = 10
    DONE = 20
    FENCED = 21


MESSAGE_KINDS = frozenset(map(int, MessageKind))


@dataclass(frozen=True, slots=True)
class FrameHeader:
    """The fixed part of a frame.

    Attributes:
        word: What the frame is about.
        generation: Generation of the sender.
        revision: Its revision.
        iteration: Iteration the frame speaks of; -1 for none.
        metadata_size: Bytes of the note that follows.
        payload_size: Bytes of floats that follow the note.
    """

    word: MessageKind
    generation: int = 0
    revision: int = 0
    iteration: int = -1
    metadata_size: int = 0
    payload_size: int = 0

    @property
    def turn(self) -> tuple[int, int]:
        """Generation and revision, in the order in which they replace each other."""
        return self.generation, self.revision

    def to_bytes(self) -> bytes:
        """Return the header as it travels."""
        return HEADER_LAYOUT.pack(
            FRAME_MAGIC,
            FRAME_VERSION,
            self.word,
            self.revision,
            self.metadata_size,
            self.generation,
            self.iteration,
            self.payload_size,
        )


def parse_frame_header(content: bytes, *, max_payload: int) -> FrameHeader:
    """Understand a header.

    Raises:
        Garbled: It is no header of ours, or announces more than may come; close the connection,
            whatever follows has no meaning.
    """
    magic, version, word, revision, metadata_size, generation, iteration, payload_size = (
        HEADER_LAYOUT.unpack(content)
    )
    if magic != FRAME_MAGIC or version != FRAME_VERSION:
        raise MalformedFrame(f"not a frame of version {FRAME_VERSION}: {content[:8]!r}")
    if word not in MESSAGE_KINDS:
        raise MalformedFrame(f"unknown word {word}")
    if metadata_size > MAX_METADATA_BYTES or payload_size > max_payload:
        raise MalformedFrame(f"a frame of {metadata_size} + {payload_size} bytes is too large")
    return FrameHeader(
        MessageKind(word), generation, revision, iteration, metadata_size, payload_size
    )


def secret_proof(secret: str) -> bytes:
    """Return what shows that a process belongs to the job, without telling the secret."""
    return hashlib.sha256(PROOF_PURPOSE + secret.encode()).digest()


def pack_numbers(numbers: Sequence[float] | Numbers) -> bytes:
    """Return numbers as they travel in a note."""
    return np.asarray(numbers, dtype="<f8").tobytes()


def unpack_numbers(note: bytes) -> Numbers:
    """Return the numbers of a note; raises Garbled when it holds none."""
    if len(note) % 8:
        raise MalformedFrame(f"a note of {len(note)} bytes holds no numbers")
    return np.frombuffer(note, dtype="<f8").astype(np.float64)


# Half a second, as the system writes it, after which who waits asks whether it still should.
WAIT_SLICE = struct.pack("@ll", 0, 500_000)
KEEPALIVE_IDLE, KEEPALIVE_INTERVAL, KEEPALIVE_PROBES = (
    10,
    5,
    3,
)  # of TCP's own question whether the other computer is there

Buffer = bytes | bytearray | memoryview


def never_abandoned() -> bool:
    """Return False: what is waited for will come."""
    return False


class FramedConnection:
    """Sends and receives whole frames.

    Args:
        connection: A connected socket; the channel owns it.
        is_abandoned: Asked while waiting; True gives up with Broken.
    """

    def __init__(
        self, connection: socket.socket, is_abandoned: Callable[[], bool] = never_abandoned
    ) -> None:
        self.connection, self.is_abandoned = connection, is_abandoned
        # A socket that blocks, with limits kept by the system: a shard comes in one call.
        connection.settimeout(None)
        for limit in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            connection.setsockopt(socket.SOL_SOCKET, limit, WAIT_SLICE)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in (
            ("TCP_KEEPIDLE", KEEPALIVE_IDLE),
            ("TCP_KEEPINTVL", KEEPALIVE_INTERVAL),
            ("TCP_KEEPCNT", KEEPALIVE_PROBES),
        ):
            if hasattr(socket, name):  # not on every system
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)

    def send(self, header: FrameHeader, note: bytes = b"", load: Iterable[Buffer] = ()) -> None:
        """Send a frame; its sizes are filled in here.

        Raises:
            OSError: The connection is gone.
            Broken: The wait was given up; the connection is of no more use.
        """
        pieces = [memoryview(piece).cast("B") for piece in load]
        whole = replace(header, metadata_size=len(note), payload_size=sum(map(len, pieces)))
        for piece in (memoryview(whole.to_bytes() + note), *pieces):
            self._send(piece)

    def receive_header(self, *, max_payload: int) -> FrameHeader:
        """Receive the first part of a frame; ``receive_metadata`` and ``receive_into`` must follow.

        Raises:
            OSError: The connection is gone.
            Garbled: What came is no frame, or too large a one; close the connection.
        """
        content = bytearray(HEADER_LAYOUT.size)
        self.receive_into(memoryview(content))
        return parse_frame_header(bytes(content), max_payload=max_payload)

    def receive_metadata(self, header: FrameHeader) -> bytes:
        """Receive the note of the frame."""
        note = bytearray(header.metadata_size)
        self.receive_into(memoryview(note))
        return bytes(note)

    def receive_payload(self, header: FrameHeader, into: memoryview) -> None:
        """Receive the floats of the frame; raises Garbled when they do not fill the buffer."""
        if header.payload_size != len(into):
            raise MalformedFrame(
                f"{header.payload_size} bytes of floats where {len(into)} were expected"
            )
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
            raise GenerationBroken("what was waited for is given up")


def tensor_bytes(tensor: Tensor) -> memoryview:
    """Return the memory of a contiguous tensor on the host."""
    values: Any = tensor.numpy()
    return memoryview(values).cast("B")
