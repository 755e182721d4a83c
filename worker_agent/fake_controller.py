"""`FakeController`: the controller's protocol without a database, for the self-test."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from pydantic import TypeAdapter

from scavenger.cluster import ClusterConfig
from scavenger.learning_rate import LearningRateScaling
from scavenger.protocol import Directive, Hello, Member, Reply, StepReport, StopAtProgress

_HELLO, _REPORT, _REPLY = TypeAdapter(Hello), TypeAdapter(StepReport), TypeAdapter(Reply)
SELFTEST_TIMEOUT = 120.0


class FakeController:
    """Answers workers on this computer with the Directive that was ordered last."""

    def __init__(self) -> None:
        self.directive: Directive | None = None
        self.hellos: dict[str, Hello] = {}
        self.reports: list[StepReport] = []
        self.stored: dict[str, int] = {}
        self.changed = threading.Condition()
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), make_handler(self.answer))
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}"

    def answer(self, path: str, body: bytes) -> bytes:
        """Record a worker's message, and return the reply."""
        with self.changed:
            worker = self._record(path, body)
            self.changed.notify_all()
            return _REPLY.dump_json(Reply(self.directive, self.stored.get(worker, 0)))

    def publish_generation(
        self, workers: Sequence[str], global_batch: int, epochs: float, epochs_per_iteration: float
    ) -> int:
        """Publish a generation of these workers once all have said Hello; returns its number."""
        self.wait(lambda: all(worker in self.hellos for worker in workers))
        with self.changed:
            before = self.directive
            self.directive = Directive(
                generation=1 if before is None else before.generation + 1,
                config=ClusterConfig(len(workers), global_batch),
                members=tuple(Member(w, self.hellos[w].address) for w in workers),
                purpose="probe",
                progress_per_iteration=epochs_per_iteration,
                learning_rate=LearningRateScaling(),
                stop=StopAtProgress(epochs),
                split_every=0,
                report_after=1,
                why="the selftest resizes",
                handover=None if before is None else before.members[0],
            )
            return self.directive.generation

    def pause_of(self, generation: int) -> float:
        """Wait until a generation was entered, and return the seconds of the change."""
        self.wait(lambda: any(self._entered(generation)))
        with self.changed:
            return next(iter(self._entered(generation)))

    def wait(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition holds.

        Raises:
            TimeoutError: It did not hold within SELFTEST_TIMEOUT.
        """
        deadline = time.monotonic() + SELFTEST_TIMEOUT
        with self.changed:
            while not condition():
                if time.monotonic() > deadline:
                    raise TimeoutError("the workers of the selftest do not answer")
                self.changed.wait(0.5)

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()

    def _entered(self, generation: int) -> list[float]:
        told = [report.regrouped for report in self.reports]
        return [each.pause for each in told if each and each.generation == generation]

    def _record(self, path: str, body: bytes) -> str:
        if path.endswith("/hello"):
            hello = _HELLO.validate_json(body)
            self.hellos[hello.worker] = hello
            return hello.worker
        report = _REPORT.validate_json(body)
        self.reports.append(report)
        self.stored[report.worker] = report.sequence + len(report.steps)
        return report.worker


def make_handler(answer: Callable[[str, bytes], bytes]) -> type[BaseHTTPRequestHandler]:
    """Return a handler class that serves every POST with an answer."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            content = answer(self.path, self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            pass

    return Handler
