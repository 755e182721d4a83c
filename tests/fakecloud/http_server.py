"""HTTP for every door of a fake cloud: requests in, answers or a broken connection out."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from tests.fakecloud.refusal import ConnectionLost

RESET = struct.pack("ii", 1, 0)  # closing drops what was sent and resets the connection

# Status, media type, content, and perhaps other headers.
Answer = tuple[int, str, bytes] | tuple[int, str, bytes, Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """What a client sent.

    Attributes:
        target: Path and query, as sent.
    """

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes


class HttpServer:
    """Serves a function on a free port of this computer until it is closed.

    Args:
        answer: Called on the thread of each connection; if it raises ConnectionLost, the
            connection is reset instead.
        listener: Socket that listens, perhaps in another network; None makes one here.
    """

    def __init__(
        self, answer: Callable[[HttpRequest], Answer], listener: socket.socket | None = None
    ) -> None:
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            wbufsize = -1  # one packet for head and body, or the client's computer waits 40 ms

            def do_GET(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                asked = HttpRequest(self.command, self.path, dict(self.headers), body)
                try:
                    status, media_type, content, *headers = answer(asked)
                except ConnectionLost:
                    self.reset()
                    return
                self.send_response(status)
                self.send_header("Content-Type", media_type)
                self.send_header("Content-Length", str(len(content)))
                for name, text in dict(*headers).items():
                    self.send_header(name, text)
                self.end_headers()
                self.wfile.write(content)

            do_POST = do_PUT = do_DELETE = do_GET  # noqa: N815 the base class's words

            def reset(self) -> None:
                self.close_connection = True
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                socket.close(self.connection.detach())

            def log_message(self, *_: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_: Any) -> None:
                """Controllers are killed in the middle of a request; that is the test."""

        self._server = Server(("127.0.0.1", 0), Handler)
        if listener is not None:
            self._server.socket.close()
            self._server.socket, self._server.server_address = listener, listener.getsockname()
        host, self.port = self._server.socket.getsockname()
        self.url = f"http://{host}:{self.port}"

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self.serve, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def serve(self) -> None:
        """Serve in this thread."""
        self._server.serve_forever(poll_interval=0.01)
