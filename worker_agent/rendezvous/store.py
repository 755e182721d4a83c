"""A small key-value store that one worker serves and the others read and write.

PyTorch has one too, but it asks a name server about every address that connects, and blocks for
as long as the name server does not answer. This store sends JSON in the frames that parameter
servers use, and waits for keys instead of polling for them.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Sequence
from typing import Any

from worker_agent.errors import MalformedFrame
from worker_agent.transport.connection import FramedConnection, FrameHeader, MessageKind, connect
from worker_agent.transport.server import FrameServer

MAX_STORE_WAIT = 60.0
ANSWER_GRACE = 2.0  # seconds added to a request's own timeout before TimeoutError


class KeyValueServer:
    """Serves keys and values to other workers, from threads of its own.

    Args:
        host: Address to listen on.
    """

    def __init__(self, host: str) -> None:
        self.values: dict[str, str] = {}
        self.changed = threading.Condition()
        self.server = FrameServer(host, self._serve)
        self.address = self.server.address
        threading.Thread(target=self.server.serve, daemon=True).start()

    def set(self, key: str, value: str) -> None:
        with self.changed:
            self.values[key] = value
            self.changed.notify_all()

    def add(self, key: str, amount: int) -> int:
        """Add to a number, which begins at 0; returns the sum."""
        with self.changed:
            total = int(self.values.get(key, "0")) + amount
            self.values[key] = str(total)
            self.changed.notify_all()
            return total

    def wait(self, keys: Sequence[str], timeout: float) -> bool:
        """Wait until all keys are there; whether they are."""
        with self.changed:
            return self.changed.wait_for(lambda: all(key in self.values for key in keys), timeout)

    def read(self, key: str) -> str | None:
        with self.changed:
            return self.values.get(key)

    def close(self) -> None:
        """Refuse connections from now on: the others know that this worker is gone."""
        self.server.close()

    def _serve(self, connection: FramedConnection) -> None:
        while True:
            answer = self._answer(receive_json(connection))
            send_json(connection, MessageKind.DONE, {"is": answer})

    def _answer(self, request: dict[str, Any]) -> Any:
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


class KeyValueClient:
    """Does in another worker's store what `KeyValueServer` does; threads that share it take turns.

    Args:
        address: ``host:port`` of the store.

    Raises:
        OSError: Its worker is gone; so do all calls from then on. TimeoutError, which is one: it
            does not answer, and may only sleep.
    """

    def __init__(self, address: str) -> None:
        self.connection = FramedConnection(connect(address), self._check_deadline)
        self.deadline = 0.0
        self.lock = threading.Lock()

    def set(self, key: str, value: str) -> None:
        self._ask({"do": "set", "key": key, "value": value})

    def add(self, key: str, amount: int) -> int:
        return int(self._ask({"do": "add", "key": key, "amount": amount}))

    def wait(self, keys: Sequence[str], timeout: float) -> bool:
        return bool(self._ask({"do": "wait", "keys": list(keys), "timeout": timeout}, timeout))

    def read(self, key: str) -> str | None:
        value = self._ask({"do": "read", "key": key})
        return None if value is None else str(value)

    def close(self) -> None:
        self.connection.close()

    def _ask(self, request: dict[str, Any], timeout: float = 0.0) -> Any:
        with self.lock:
            self.deadline = time.monotonic() + timeout + ANSWER_GRACE
            try:
                send_json(self.connection, MessageKind.STORE, request)
                return receive_json(self.connection)["is"]
            except (OSError, MalformedFrame, KeyError) as error:
                self.connection.close()  # a late answer would be taken for the next one's
                if isinstance(error, OSError):
                    raise
                raise ConnectionResetError(f"the peer is not a key-value store: {error}") from error

    def _check_deadline(self) -> bool:
        if time.monotonic() > self.deadline:
            raise TimeoutError("the store does not answer")
        return False


def send_json(connection: FramedConnection, kind: MessageKind, content: dict[str, Any]) -> None:
    """Send a request or an answer."""
    connection.send(FrameHeader(kind), json.dumps(content).encode())


def receive_json(connection: FramedConnection) -> dict[str, Any]:
    """Receive one; raises OSError or MalformedFrame."""
    metadata = connection.receive_metadata(connection.receive_header(max_payload=0))
    try:
        content = json.loads(metadata)
    except (ValueError, RecursionError) as error:
        raise MalformedFrame(f"no JSON: {metadata[:40]!r}") from error
    if not isinstance(content, dict):
        raise MalformedFrame(f"no JSON object: {metadata[:40]!r}")
    return content
