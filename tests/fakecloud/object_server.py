"""A bucket behind HTTP, as machines and controllers meet it at S3 and at Cloud Storage.

It accepts what is signed and not expired, as `tests.fakecloud.object_signatures` judges, makes an
object at most once where the request says so, and keeps only what has arrived as a whole.
"""

from __future__ import annotations

import base64
import threading
from collections import deque
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Literal, Self
from urllib.parse import unquote, urlsplit

from tests.fakecloud.object_signatures import ObjectRequest, SignatureRefused, Verify

# What becomes of one request: refused, its connection cut before or after it acts, half of the
# content sent, another byte in it, or no answer until it is released.
ObjectFault = Literal["refuse", "lose", "lose answer", "truncate", "alter", "hang"]
ABSENT = "0"


@dataclass
class ObjectShelf:
    """What a bucket holds, and how it behaves.

    Attributes:
        verify: Raises SignatureRefused for a request that is not signed.
        objects: Content by bucket and key, such as ``/bucket/prefix/name``.
        faults: What becomes of the next requests of a method.
        ahead: How far its clock is ahead.
        released: Lets requests that hang go on; their connections are cut.
        denied: Methods for which the signer has no right.
        answered: Method, path and status of each request that was answered.
    """

    verify: Verify
    objects: dict[str, bytes] = field(default_factory=dict)
    faults: dict[str, deque[ObjectFault]] = field(default_factory=dict)
    ahead: timedelta = timedelta(0)
    released: threading.Event = field(default_factory=threading.Event)
    denied: set[str] = field(default_factory=set)
    answered: list[tuple[str, str, int]] = field(default_factory=list)

    def fail(self, method: str, *faults: ObjectFault) -> None:
        """Let the next requests of a method fail."""
        self.faults.setdefault(method, deque()).extend(faults)

    def next_fault(self, method: str) -> ObjectFault | None:
        """Return what becomes of a request that has just come."""
        waiting = self.faults.get(method)
        return waiting.popleft() if waiting else None

    def clear(self) -> None:
        """Forget what was held, and behave."""
        for kept in (self.objects, self.faults, self.denied, self.answered):
            kept.clear()
        self.ahead = timedelta(0)
        self.released.clear()

    def now(self) -> datetime:
        """Return the time at the bucket."""
        return datetime.now(UTC) + self.ahead

    def names(self) -> set[str]:
        """Return the keys of all objects, without the bucket."""
        return {path.split("/", 2)[2] for path in self.objects}


class ObjectServer:
    """Serves a shelf on a free port of this computer until it is closed."""

    def __init__(self, shelf: ObjectShelf) -> None:
        self.shelf = shelf
        self._turn = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self._server.handle_error = lambda *_: None  # type: ignore[method-assign]
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shelf.released.set()
        self._server.shutdown()
        self._server.server_close()

    def act(self, asked: ObjectRequest, body: bytes) -> tuple[int, dict[str, str], bytes]:
        """Return status, headers and content for one request that has arrived."""
        shelf, path = self.shelf, unquote(urlsplit(asked.target).path)
        try:
            shelf.verify(asked, shelf.now())
        except SignatureRefused as refusal:
            return 403, {}, str(refusal).encode()
        if asked.method in shelf.denied:
            return 403, {}, b"AccessDenied"
        with self._turn:
            content = shelf.objects.get(path)
            match asked.method:
                case "PUT":
                    return self._put(asked, path, body)
                case "DELETE":
                    shelf.objects.pop(path, None)
                    is_google = asked.is_google and content is None
                    return (404 if is_google else 204), {}, b""
                case _ if content is None:
                    return 404, {}, b"NoSuchKey"
                case _:
                    digest = base64.b64encode(sha256(content).digest()).decode()
                    told = {} if asked.is_google else {"x-amz-checksum-sha256": digest}
                    return 200, told, content

    def _put(
        self, asked: ObjectRequest, path: str, body: bytes
    ) -> tuple[int, dict[str, str], bytes]:
        headers = asked.headers
        is_once = headers.get("if-none-match") == "*" or (
            headers.get("x-goog-if-generation-match") == ABSENT
        )
        if is_once and path in self.shelf.objects:
            return 412, {}, b"PreconditionFailed"
        digest = headers.get("x-amz-checksum-sha256")
        if digest is not None and base64.b64decode(digest) != sha256(body).digest():
            return 400, {}, b"BadDigest"
        least, _, most = headers.get("x-goog-content-length-range", "").partition(",")
        if most and not int(least) <= len(body) <= int(most):
            return 400, {}, b"EntityTooLarge"
        self.shelf.objects[path] = body
        return 200, {"ETag": f'"{sha256(body).hexdigest()[:32]}"'}, b""

    def _handler(server) -> type[BaseHTTPRequestHandler]:  # noqa: N805
        shelf = server.shelf

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                headers = {name.lower(): value for name, value in self.headers.items()}
                asked = ObjectRequest(self.command, self.path, headers)
                fault = shelf.next_fault(self.command)
                if fault == "lose":
                    return self.cut()
                if fault == "hang":
                    shelf.released.wait()
                    return self.cut()
                length = int(headers.get("content-length", 0))
                body = self.rfile.read(length)
                if len(body) < length:
                    return self.cut()
                if fault == "refuse":
                    return self.send(asked, 503, {}, b"SlowDown", None)
                status, told, content = server.act(asked, body)
                if fault == "lose answer":
                    return self.cut()
                return self.send(asked, status, told, content, fault)

            do_PUT = do_DELETE = do_HEAD = do_GET  # noqa: N815 the base class's words

            def send(
                self,
                asked: ObjectRequest,
                status: int,
                told: dict[str, str],
                content: bytes,
                fault: ObjectFault | None,
            ) -> None:
                shelf.answered.append((asked.method, urlsplit(asked.target).path, status))
                self.send_response(status)
                for name, value in told.items():
                    self.send_header(name, value)
                if status != 204:
                    self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                if asked.method == "HEAD":
                    return
                if fault == "alter" and content:
                    content = bytes([content[0] ^ 1]) + content[1:]
                self.wfile.write(content[: len(content) // 2] if fault == "truncate" else content)
                if fault == "truncate":
                    self.cut()

            def cut(self) -> None:
                self.close_connection = True

            def log_message(self, *_: object) -> None:
                pass

        return Handler
