"""Server: one fake cloud behind HTTP, with a second door for tests.

``/cloud/...`` is what a controller may ask, ``/control/...`` what only a test may do. Requests are
JSON objects that name the arguments. Nothing is kept: this is the outside world.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from pydantic import validate_call
from pydantic_core import from_json, to_json

from tests.fakecloud.cloud import FakeCloud
from tests.fakecloud.refusal import ConnectionLost, Gibberish, Refusal

HTML = b"<html><head><title>500</title></head><body><h1>Something broke</h1></body></html>"
RESET = struct.pack("ii", 1, 0)  # closing drops what was sent and resets the connection
BUSY = {"RequestLimitExceeded", "InsufficientInstanceCapacity", "InternalError", "Unavailable"}

Answer = tuple[int, str, bytes]
Verbs = tuple[Callable[..., object], ...]
Doors = Mapping[str, Callable[..., object]]


class CloudServer:
    """Serves a cloud on a free port of this computer until it is closed.

    Attributes:
        cloud: The cloud, for tests in the same process.
    """

    def __init__(self, cloud: FakeCloud) -> None:
        self.cloud = cloud
        doors = doors_of(cloud)

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            wbufsize = -1  # one packet for head and body, or the client's computer waits 40 ms

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                try:
                    status, kind, content = answer(doors, self.path, body)
                except ConnectionLost:
                    self.reset()
                    return
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

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
        self.port = self._server.server_port
        self.url = f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> CloudServer:
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


def doors_of(cloud: FakeCloud) -> Doors:
    """Return what is done at each path."""
    faults, clock = cloud.faults, cloud.clock
    asked: Verbs = (cloud.launch, cloud.list, cloud.describe, cloud.terminate)
    controls: Verbs = (
        *(cloud.machines, cloud.bill, cloud.interrupt, cloud.renew, cloud.stock),
        *(faults.next, faults.always, faults.sometimes, faults.calm),
        *(faults.counts, faults.unfired, clock.now, clock.advance),
    )
    paths = {f"/cloud/{do.__name__}": do for do in asked}
    paths |= {f"/control/{do.__name__}": do for do in controls}
    return {path: validate_call(do) for path, do in paths.items()}


def answer(doors: Doors, path: str, body: bytes) -> Answer:
    """Return status, media type and content for one request; may raise ConnectionLost."""
    if path not in doors:
        return _refuse(HTTPStatus.NOT_FOUND, "InvalidAction", f"there is no {path}")
    try:
        return HTTPStatus.OK, "application/json", to_json(doors[path](**from_json(body)))
    except Gibberish:
        return HTTPStatus.INTERNAL_SERVER_ERROR, "text/html", HTML
    except ValueError as error:
        return _refuse(HTTPStatus.BAD_REQUEST, "MalformedRequest", str(error))
    except Refusal as refusal:
        is_busy = refusal.code in BUSY
        status = HTTPStatus.SERVICE_UNAVAILABLE if is_busy else HTTPStatus.BAD_REQUEST
        return _refuse(status, refusal.code, refusal.message)


def _refuse(status: int, code: str, message: str) -> Answer:
    return status, "application/json", to_json({"code": code, "message": message})
