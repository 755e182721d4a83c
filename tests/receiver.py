"""A receiver of webhooks: a real server that checks signatures as the specification says."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from service.outbound import OutboundClient

# Tests receive on this computer; a controller has no setting that allows it.
THIS_COMPUTER_IS_PUBLIC = OutboundClient(is_allowed=lambda _: True)


@dataclass(frozen=True, slots=True)
class Received:
    """One request."""

    path: str
    headers: Message
    content: bytes

    @property
    def message_id(self) -> str:
        return str(self.headers["webhook-id"])

    @property
    def document(self) -> Any:
        return json.loads(self.content)

    def is_signed_by(self, secret: str) -> bool:
        """Verify as a receiver does that knows nothing but the specification and its secret."""
        key = base64.b64decode(secret.removeprefix("whsec_"))
        moment = self.headers["webhook-timestamp"]
        signed = f"{self.message_id}.{moment}.{self.content.decode()}".encode()
        digest = base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
        return f"v1,{digest}" in self.headers["webhook-signature"].split(" ")


@dataclass
class Receiver:
    """Answers with these statuses, one after the other, and then with 200.

    Attributes:
        statuses: What it answers; 0 takes the request and hangs up.
        location: Where its redirects lead.
    """

    statuses: Sequence[int] = ()
    location: str = ""
    received: list[Received] = field(default_factory=list)
    url: str = ""

    def next_status(self) -> int:
        place = len(self.received) - 1
        return self.statuses[place] if place < len(self.statuses) else 200


class ManyAtOnceServer(ThreadingHTTPServer):
    """A server that drops no connection of many at once: each would be tried again in a second."""

    request_queue_size = 128


@contextmanager
def receive(*statuses: int, location: str = "") -> Iterator[Receiver]:
    """Run a receiver until the end of a block."""
    receiver = Receiver(statuses, location)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            content = self.rfile.read(int(self.headers["Content-Length"]))
            receiver.received.append(Received(self.path, self.headers, content))
            status = receiver.next_status()
            if status == 0:
                self.close_connection = True
                return
            self.send_response(status)
            if receiver.location:
                self.send_header("Location", receiver.location)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ManyAtOnceServer(("127.0.0.1", 0), Handler)
    receiver.url = f"http://127.0.0.1:{server.server_port}/hook"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield receiver
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
