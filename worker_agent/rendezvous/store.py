"""A small key-value store that one worker serves and the others read and write.

PyTorch has one too, but it asks a name server about every address that connects, and blocks for
as long as the name server does not answer. This store sends frames of a length and a line of
JSON, and waits for keys instead of polling for them.
"""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections.abc import Sequence
from contextlib import suppress
from socketserver import BaseRequestHandler, ThreadingTCPServer
from typing import Any

from worker_agent.transport.fork_safety import close_in_forks

LENGTH_PREFIX = struct.Struct("!I")
MAX_MESSAGE_BYTES = 16 << 20
STORE_CONNECT_TIMEOUT = 2.0
MAX_STORE_WAIT = 60.0
ANSWER_GRACE = 2.0  # seconds an answer may be late after the time it was to wait


class KeyValueServer:
    """Serves keys and values to other workers, from threads of its own.

    Args:
        host: Address to listen on.
    """

    def __init__(self, host: str) -> None:
        self.values: dict[str, str] = {}
        self.news = threading.Condition()
        self.server = StoreListener((host, 0), self)
        close_in_forks(self.server.fileno())
        self.address = f"{host}:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()

    def set(self, key: str, value: str) -> None:
        """Write a value."""
        with self.news:
            self.values[key] = value
            self.news.notify_all()

    def add(self, key: str, amount: int) -> int:
        """Add to a number, which begins at 0; returns the sum."""
        with self.news:
            total = int(self.values.get(key, "0")) + amount
            self.values[key] = str(total)
            self.news.notify_all()
            return total

    def wait(self, keys: Sequence[str], timeout: float) -> bool:
        """Wait until all keys are there; whether they are."""
        with self.news:
            return self.news.wait_for(lambda: all(key in self.values for key in keys), timeout)

    def read(self, key: str) -> str | None:
        """Return a value; None when it is not there."""
        with self.news:
            return self.values.get(key)

    def close(self) -> None:
        """Refuse everybody from now on."""
        self.server.shutdown()
        self.server.close_all()

    def answer(self, request: dict[str, Any]) -> Any:
        """Do what another worker asks."""
        match request:
            case {"do": "set", "key": str(key), "value": str(value)}:
                return self.set(key, value)
            case {"do": "add", "key": str(key), "amount": int(amount)}:
                return self.add(key, amount)
            case {"do": "wait", "keys": list(keys), "timeout": int(timeout) | float(timeout)}:
                # In this order NaN, for which a wait would spin for ever, becomes 60 s.
                return self.wait([str(key) for key in keys], min(MAX_STORE_WAIT, timeout))
            case {"do": "read", "key": str(key)}:
                return self.read(key)
            case _:
                return None


class StoreListener(ThreadingTCPServer):
    """Accepts connections for a board."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 256

    def __init__(self, address: tuple[str, int], board: KeyValueServer) -> None:
        super().__init__(address, StoreRequestHandler)
        self.board = board
        self.connections: set[socket.socket] = set()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Note the connection before its thread starts: a closed board answers nobody."""
        self.connections.add(request)
        close_in_forks(request.fileno())
        super().process_request(request, client_address)

    def close_all(self) -> None:
        """Stop listening and hang up on everybody."""
        self.server_close()
        for connection in list(self.connections):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: who hangs up in the middle of a request is no news here."""


class StoreRequestHandler(BaseRequestHandler):
    """Answers one connection's requests, one after the other."""

    server: StoreListener

    def handle(self) -> None:
        """Answer until the other side hangs up."""
        try:
            self.request.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while (request := receive_json(self.request)) is not None:
                send_json(self.request, self.server.board.answer(request))
        finally:
            self.server.connections.discard(self.request)


class KeyValueClient:
    """Speaks to another worker's board; safe to share between threads, which take turns.

    Args:
        address: ``host:port`` of the board.

    Raises:
        OSError: Nobody serves it; so do all calls once it is gone.
    """

    def __init__(self, address: str) -> None:
        host, port = address.rsplit(":", 1)
        self.connection = socket.create_connection((host, int(port)), STORE_CONNECT_TIMEOUT)
        close_in_forks(self.connection.fileno())
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.turn = threading.Lock()

    def set(self, key: str, value: str) -> None:
        """Write a value."""
        self._ask({"do": "set", "key": key, "value": value})

    def add(self, key: str, amount: int) -> int:
        """Add to a number, which begins at 0; returns the sum."""
        return int(self._ask({"do": "add", "key": key, "amount": amount}))

    def wait(self, keys: Sequence[str], timeout: float) -> bool:
        """Wait until all keys are there; whether they are."""
        return bool(self._ask({"do": "wait", "keys": list(keys), "timeout": timeout}, timeout))

    def read(self, key: str) -> str | None:
        """Return a value; None when it is not there."""
        value = self._ask({"do": "read", "key": key})
        return None if value is None else str(value)

    def close(self) -> None:
        """Hang up."""
        self.connection.close()

    def _ask(self, request: dict[str, Any], patience: float = 0.0) -> Any:
        with self.turn:
            try:
                self.connection.settimeout(patience + ANSWER_GRACE)
                send_json(self.connection, request)
                answered = receive_json(self.connection)
                if answered is None:
                    raise ConnectionResetError("the board is gone")
            except OSError:
                self.connection.close()  # a late answer would be taken for the next one's
                raise
        return answered["is"]


def send_json(connection: socket.socket, content: Any) -> None:
    """Send one frame; an answer is wrapped so that it may be anything."""
    body = json.dumps(content if isinstance(content, dict) else {"is": content}).encode()
    connection.sendall(LENGTH_PREFIX.pack(len(body)) + body)


def receive_json(connection: socket.socket) -> dict[str, Any] | None:
    """Receive one frame; None when the other side hung up or speaks another language."""
    head = receive_exactly(connection, LENGTH_PREFIX.size)
    if head is None:
        return None
    (length,) = LENGTH_PREFIX.unpack(head)
    body = receive_exactly(connection, length) if length <= MAX_MESSAGE_BYTES else None
    if body is None:
        return None
    try:
        content = json.loads(body)
    except ValueError:
        return None
    return content if isinstance(content, dict) else None


def receive_exactly(connection: socket.socket, count: int) -> bytes | None:
    """Receive so many bytes; None when there are fewer."""
    parts = []
    while count > 0:
        part = connection.recv(min(count, 1 << 20))
        if not part:
            return None
        parts.append(part)
        count -= len(part)
    return b"".join(parts)
