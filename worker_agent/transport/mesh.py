"""`Mesh`: the members of a generation, each connected to every other one, exchange arrays.

A framework whose own group cannot change while it trains averages its gradients here. All members
call the same methods in the same order. Sending and receiving overlap on one thread, so two
members that send to each other never wait for each other.
"""

from __future__ import annotations

import select
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from worker_agent.errors import GenerationBroken, MalformedFrame
from worker_agent.transport.connection import (
    HEADER_LAYOUT,
    MAX_PAYLOAD_BYTES,
    Buffer,
    FramedConnection,
    FrameHeader,
    MessageKind,
    Numbers,
    array_bytes,
    connect,
    pack_numbers,
    parse_frame_header,
    unpack_numbers,
)
from worker_agent.transport.server import FrameServer, authenticate

ABORT_CHECK_EVERY = 0.5  # seconds
PEER_ARRIVAL_TIMEOUT = 5.0  # seconds; all members have met before they connect

Vector = npt.NDArray[Any]


class PeerListener:
    """Accepts the connections of other members of this worker's generations.

    Args:
        host: Address to listen on.
        secret: What a connection has to prove that it knows.

    Attributes:
        address: ``host:port`` where the others connect.
    """

    def __init__(self, host: str, secret: str) -> None:
        self.changed = threading.Condition()
        self.arrived: dict[tuple[str, int], tuple[FramedConnection, threading.Event]] = {}
        self.server = FrameServer(host, self._keep, secret=secret)
        self.address = self.server.address
        threading.Thread(target=self.server.serve, daemon=True).start()

    def take(
        self, label: str, ranks: Iterable[int], should_abort: Callable[[], bool]
    ) -> dict[int, tuple[FramedConnection, threading.Event]]:
        """Wait until members of these ranks have connected for one mesh, and return them.

        Raises:
            GenerationBroken: One does not come, or the wait is given up.
        """
        deadline = time.monotonic() + PEER_ARRIVAL_TIMEOUT
        wanted = [(label, rank) for rank in ranks]
        with self.changed:
            while missing := [key for key in wanted if key not in self.arrived]:
                if should_abort() or time.monotonic() > deadline:
                    raise GenerationBroken(f"member {missing[0][1]} of {label} did not connect")
                self.changed.wait(0.05)
            return {key[1]: self.arrived.pop(key) for key in wanted}

    def close(self) -> None:
        """Refuse connections, and end those that no mesh has taken."""
        self.server.close()
        with self.changed:
            for _, is_over in self.arrived.values():
                is_over.set()
            self.arrived.clear()

    def _keep(self, connection: FramedConnection) -> None:
        """Keep a connection open until the mesh that takes it is closed."""
        header = connection.receive_header(max_payload=0)
        label = connection.receive_metadata(header).decode(errors="replace")
        is_over = threading.Event()
        with self.changed:
            self.arrived[label, header.iteration] = connection, is_over
            self.changed.notify_all()
        is_over.wait()


class Mesh:
    """The connections of one member to all others.

    Args:
        rank: Rank of this member, from 0.
        peers: A connection to each other member, by rank.
        should_abort: Called while waiting; True gives up.
        on_close: Called when the connections are closed.
    """

    def __init__(
        self,
        rank: int,
        peers: Mapping[int, FramedConnection],
        should_abort: Callable[[], bool],
        on_close: Sequence[Callable[[], None]] = (),
    ) -> None:
        self.rank, self.peers, self.should_abort = rank, dict(sorted(peers.items())), should_abort
        self.size = len(self.peers) + 1
        self.on_close = on_close
        # Frames so far, by which members notice that they are not in step.
        self.sent, self.received = dict.fromkeys(peers, 0), dict.fromkeys(peers, 0)

    def exchange(
        self,
        sent: Mapping[int, Sequence[Buffer]],
        received: Mapping[int, memoryview],
        metadata: bytes = b"",
    ) -> dict[int, bytes]:
        """Send a frame to some members, and fill buffers with the frames of some.

        Args:
            sent: What to send, by rank.
            received: Where to put what comes, by rank; as large as what comes.
            metadata: Goes with each frame; of the same size for all members.

        Returns:
            The metadata of the frames that came, by rank.

        Raises:
            GenerationBroken: A member is gone or not in step, or the wait was given up. The mesh
                is of no more use.
        """
        transfers = {}
        for rank in sent.keys() | received.keys():
            self.sent[rank] += rank in sent
            self.received[rank] += rank in received
            transfer = _Transfer(self.peers[rank], len(metadata))
            if rank in sent:
                transfer.send(self.sent[rank], sent[rank], metadata)
            if rank in received:
                transfer.expect(self.received[rank], received[rank])
            transfers[rank] = transfer
        try:
            self._run([transfer for transfer in transfers.values() if transfer.advance()])
        except (OSError, MalformedFrame) as error:
            raise GenerationBroken(f"another member is gone: {error}") from error
        return {rank: bytes(transfers[rank].metadata) for rank in received}

    def all_reduce(self, vector: Vector, metadata: bytes = b"") -> dict[int, bytes]:
        """Replace a vector by the sum over all members, the same to the last bit on each.

        Each member adds one part of the vector, in the order of ranks: 2 (K - 1) / K of its bytes
        leave every member, which is the least that an all-reduce can send.

        Args:
            vector: Contiguous, of one dimension; the same length and type on all members.
            metadata: Goes to every member; of the same size on all.

        Returns:
            The others' metadata by rank.
        """
        edges = [len(vector) * part // self.size for part in range(self.size + 1)]
        parts = [vector[low:high] for low, high in pairwise(edges)]
        mine = parts[self.rank]
        theirs = {rank: np.empty_like(mine) for rank in self.peers}
        told = self.exchange(
            {rank: [array_bytes(parts[rank])] for rank in self.peers},
            {rank: array_bytes(part) for rank, part in theirs.items()},
            metadata,
        )
        for rank in range(self.size):
            if rank == 0:
                total = mine.copy() if self.rank == 0 else theirs[0]
            else:
                total += mine if rank == self.rank else theirs[rank]
        mine[:] = total
        self.exchange(
            {rank: [array_bytes(mine)] for rank in self.peers},
            {rank: array_bytes(parts[rank]) for rank in self.peers},
        )
        return told

    def all_gather(self, numbers: Sequence[float]) -> list[Numbers]:
        """Return the numbers of all members by rank; as many on each."""
        own = pack_numbers(numbers)
        nothing = {rank: memoryview(b"") for rank in self.peers}
        told = self.exchange({rank: [] for rank in self.peers}, nothing, own)
        return [unpack_numbers(told.get(rank, own)) for rank in range(self.size)]

    def send(self, content: Sequence[Buffer], receivers: Collection[int]) -> None:
        """Send bytes to members of these ranks, which call ``receive`` meanwhile."""
        size = sum(memoryview(piece).nbytes for piece in content)
        self.exchange({rank: [] for rank in receivers}, {}, pack_numbers([size]))
        self.exchange(dict.fromkeys(receivers, content), {})

    def receive(self, source: int) -> memoryview:
        """Return what a member sends."""
        told = self.exchange({}, {source: memoryview(b"")}, pack_numbers([0]))
        size = int(unpack_numbers(told[source])[0])
        if not 0 <= size <= MAX_PAYLOAD_BYTES:
            raise GenerationBroken(f"a member announces {size} bytes")
        content = array_bytes(np.empty(size, np.uint8))
        self.exchange({}, {source: content})
        return content

    def close(self) -> None:
        """Close all connections, by which the other members notice it."""
        for connection in self.peers.values():
            connection.close()
        for act in self.on_close:
            act()

    def _run(self, transfers: Sequence[_Transfer]) -> None:
        waiting = {each.descriptor: each for each in transfers}
        poll = select.poll()
        for each in transfers:
            poll.register(each.descriptor, each.events)
        checked = time.monotonic()
        while waiting:
            for descriptor, _ in poll.poll(ABORT_CHECK_EVERY * 1000):
                each = waiting[descriptor]
                if each.advance():
                    poll.modify(descriptor, each.events)
                else:
                    poll.unregister(descriptor)
                    del waiting[descriptor]
            now = time.monotonic()
            if waiting and now - checked >= ABORT_CHECK_EVERY:
                checked = now
                if self.should_abort():
                    raise GenerationBroken("gave up waiting for another member")


class _Transfer:
    """One frame to a member and one from it, each optional, as far as they have come."""

    def __init__(self, connection: FramedConnection, metadata_size: int) -> None:
        self.socket, self.descriptor = connection.connection, connection.connection.fileno()
        self.header, self.metadata = bytearray(HEADER_LAYOUT.size), bytearray(metadata_size)
        self.outgoing: list[memoryview] = []
        self.incoming: list[memoryview] = []
        self.expected = FrameHeader(MessageKind.EXCHANGE)
        self.is_header_due = False

    def send(self, number: int, content: Sequence[Buffer], metadata: bytes) -> None:
        """Send a frame, the member's so many-th one."""
        pieces = [memoryview(piece) for piece in content]
        header = FrameHeader(
            MessageKind.EXCHANGE,
            iteration=number,
            metadata_size=len(metadata),
            payload_size=sum(piece.nbytes for piece in pieces),
        )
        first = memoryview(header.to_bytes() + metadata)
        self.outgoing = [piece for piece in (first, *pieces) if piece]

    def expect(self, number: int, payload: memoryview) -> None:
        """Receive a frame, the member's so many-th one, whose payload fills this memory."""
        self.expected = FrameHeader(
            MessageKind.EXCHANGE,
            iteration=number,
            metadata_size=len(self.metadata),
            payload_size=payload.nbytes,
        )
        pieces = (memoryview(self.header), memoryview(self.metadata), payload)
        self.incoming = [piece for piece in pieces if piece]
        self.is_header_due = True

    @property
    def events(self) -> int:
        """What to wait for."""
        return (select.POLLOUT if self.outgoing else 0) | (select.POLLIN if self.incoming else 0)

    def advance(self) -> bool:
        """Send and receive as much as goes without waiting; whether something is left.

        Raises:
            OSError: The connection is gone.
            MalformedFrame: What comes is no frame of this exchange.
        """
        try:
            while self.outgoing:
                count = self.socket.send(self.outgoing[0], socket.MSG_DONTWAIT)
                _consume(self.outgoing, count)
        except BlockingIOError:
            pass
        try:
            while self.incoming:
                count = self.socket.recv_into(self.incoming[0], 0, socket.MSG_DONTWAIT)
                if not count:
                    raise ConnectionResetError("it closed the connection")
                if _consume(self.incoming, count) and self.is_header_due:
                    self._check_header()
        except BlockingIOError:
            pass
        return bool(self.outgoing or self.incoming)

    def _check_header(self) -> None:
        self.is_header_due = False
        header = parse_frame_header(bytes(self.header), max_payload=MAX_PAYLOAD_BYTES)
        if header != self.expected:
            raise MalformedFrame(
                f"{header.payload_size} bytes of frame {header.iteration} came where"
                f" {self.expected.payload_size} of frame {self.expected.iteration} were expected:"
                " do all workers train the same model?"
            )


def _consume(pieces: list[memoryview], count: int) -> bool:
    """Take so many bytes from the first piece; whether it is used up."""
    pieces[0] = pieces[0][count:]
    if pieces[0]:
        return False
    del pieces[0]
    return True


def connect_mesh(
    listener: PeerListener,
    rank: int,
    addresses: Sequence[str],
    label: str,
    secret: str,
    should_abort: Callable[[], bool],
) -> Mesh:
    """Connect to all members, which do the same at the same time.

    Args:
        listener: Where members of higher rank connect to this one.
        rank: Rank of this member.
        addresses: The listeners' addresses by rank.
        label: Name of the mesh, the same on all members and never used again.
        secret: Secret of the job.
        should_abort: Called while waiting; True gives up.

    Raises:
        GenerationBroken: A member did not come, or the wait was given up.
        OSError: A member is gone.
    """
    peers: dict[int, FramedConnection] = {}
    try:
        for other in range(rank):
            peers[other] = FramedConnection(connect(addresses[other]), should_abort)
            authenticate(peers[other], secret)
            peers[other].send(FrameHeader(MessageKind.JOIN, iteration=rank), label.encode())
        taken = listener.take(label, range(rank + 1, len(addresses)), should_abort)
    except BaseException:
        for connection in peers.values():
            connection.close()
        raise
    for other, (connection, _) in taken.items():
        peers[other] = connection
    return Mesh(rank, peers, should_abort, [is_over.set for _, is_over in taken.values()])
