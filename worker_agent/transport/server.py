"""`FrameServer`: accepts connections and serves each of them on its own thread.

Parameter servers and the workers' key-value stores listen through it. A connection that says
something that makes no sense is closed, and no other connection notices.
"""

from __future__ import annotations

import hmac
import logging
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from worker_agent.errors import AgentError
from worker_agent.transport.connection import (
    FramedConnection,
    FrameHeader,
    MessageKind,
    never_abort,
    secret_proof,
)
from worker_agent.transport.fork_safety import close_in_forks

log = logging.getLogger(__name__)

AUTHENTICATION_TIMEOUT = 5.0  # seconds within which a connection has to prove that it belongs
MAX_UNAUTHENTICATED = 64  # connections that have not proven it yet; more are closed at once


class FrameServer:
    """Listens at one address.

    Args:
        host: The only address it listens at.
        answer: Serves one connection, on a thread of its own, until it returns or raises.
        secret: If given, a connection has to prove first that it knows it; before that, nothing
            but the proof is read.

    Attributes:
        address: ``host:port`` where others reach it.
        connections: Sockets that are being served.
    """

    def __init__(
        self,
        host: str,
        answer: Callable[[FramedConnection], None],
        *,
        secret: str | None = None,
    ) -> None:
        self.answer = answer
        self.proof = None if secret is None else secret_proof(secret)
        self.unauthenticated = threading.BoundedSemaphore(MAX_UNAUTHENTICATED)
        self.listener = socket.create_server((host, 0), backlog=256)
        # A fork would keep the port open after this process died, and then others, which find
        # out by a refused connection who is dead, would wait for it.
        close_in_forks(self.listener.fileno())
        self.address = f"{host}:{self.listener.getsockname()[1]}"
        self.connections: set[socket.socket] = set()
        self.lock, self.is_closed = threading.Lock(), False

    def serve(self) -> None:
        """Accept connections until ``close`` is called."""
        while True:
            try:
                connection, peer = self.listener.accept()
            except OSError:
                return  # closed
            with self.lock:
                # One that was accepted while the server closed would be served for ever.
                is_refused = self.is_closed or (
                    self.proof is not None and not self.unauthenticated.acquire(blocking=False)
                )
                if not is_refused:
                    self.connections.add(connection)
                    close_in_forks(connection.fileno())
            if is_refused:
                connection.close()
                continue
            threading.Thread(target=self._attend, args=(connection, peer), daemon=True).start()

    def close(self) -> None:
        """Refuse new connections from now on, and end those that are open."""
        with self.lock:
            self.is_closed = True
            with suppress(OSError):
                self.listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
            self.listener.close()
            for connection in self.connections:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def _attend(self, connection: socket.socket, peer: object) -> None:
        try:
            framed = FramedConnection(connection)
            if self.proof is None or self._is_authenticated(framed, self.proof):
                self.answer(framed)
        except OSError as error:
            log.debug("the connection from %s ended: %r", peer, error)
        except (AgentError, ValueError, RuntimeError, MemoryError) as error:
            # PyTorch raises RuntimeError for shapes that do not fit.
            log.warning("the connection from %s is closed: %s", peer, error)
        finally:
            with self.lock:
                self.connections.discard(connection)
            connection.close()

    def _is_authenticated(self, framed: FramedConnection, proof: bytes) -> bool:
        """Read the proof, within its time."""
        deadline = time.monotonic() + AUTHENTICATION_TIMEOUT
        framed.should_abort = lambda: time.monotonic() > deadline
        try:
            header = framed.receive_header(max_payload=0)
            if header.kind != MessageKind.AUTHENTICATE or header.metadata_size != len(proof):
                return False
            return hmac.compare_digest(framed.receive_metadata(header), proof)
        except (OSError, AgentError):
            return False
        finally:
            framed.should_abort = never_abort
            self.unauthenticated.release()


def authenticate(framed: FramedConnection, secret: str) -> None:
    """Prove to a server that this process belongs to its job."""
    framed.send(FrameHeader(MessageKind.AUTHENTICATE), secret_proof(secret))
