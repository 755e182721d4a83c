"""A controller that grants leases and hears how commands ended, for tests of one machine."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from pydantic import TypeAdapter

from scavenger.protocol import (
    RENEWAL_HEADER,
    CommandExit,
    EnrolmentReply,
    EnrolmentRequest,
    Reply,
    StepReport,
    VmLease,
    WorkerSpec,
)

TOKEN, BOOTSTRAP = "a-secret-of-this-job", "scb_w1_what-the-machine-was-launched-with"


# Seconds a test waits for what comes by itself. Only a failure takes this long: starved processes
# of a busy computer have needed half a minute for what takes a second.
LONG = 120.0


def until(is_true: Callable[[], object], patience: float = LONG) -> None:
    """Wait until a condition holds."""
    deadline = time.monotonic() + patience
    while not is_true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


class ControllerDouble:
    """Obeys the protocol, and never publishes a directive.

    Attributes:
        enrolled: What a machine learns by enrolling.
        is_silent: Whether it answers only machines that enrol.
    """

    def __init__(self) -> None:
        self.lease = 60.0
        self.asked: list[float] = []
        self.exits: list[CommandExit] = []
        self.restarts: list[CommandExit] = []
        self.heard_at = 0.0
        self.reports: list[StepReport] = []
        self.refused = 0
        self.is_silent = threading.Event()
        self.shown: list[tuple[str, str]] = []
        self.enrolled = EnrolmentReply(
            TOKEN, "of all of us", {"HF_TOKEN": "hf_1"}, WorkerSpec(command=("sleep", "600"))
        )
        self.enrolments: list[EnrolmentRequest] = []
        self.lost = self.busy = 0
        self.renewed = ""
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def assign(self, **changes: Any) -> None:
        """Change what machines that enrol from now on run."""
        self.enrolled = replace(self.enrolled, worker=replace(self.enrolled.worker, **changes))

    def close(self) -> None:
        self.is_silent.clear()
        self.server.shutdown()
        self.server.server_close()

    def answer(self, path: str, content: bytes) -> bytes:
        if path == "/v1/agent/enrol":
            self.enrolments.append(TypeAdapter(EnrolmentRequest).validate_json(content))
            return TypeAdapter(EnrolmentReply).dump_json(self.enrolled)
        if path == "/v1/agent/lease":
            self.asked.append(time.monotonic())
            assert json.loads(content)["worker"]
            return TypeAdapter(VmLease).dump_json(VmLease(self.lease))
        if path == "/v1/agent/hello":
            return TypeAdapter(Reply).dump_json(Reply(None, 0))
        if path in ("/v1/agent/report", "/v1/telemetry/backfill", "/v1/deliveries"):
            assert not self.exits, "the report comes before the end"
            self.reports.append(TypeAdapter(StepReport).validate_json(content))
            return TypeAdapter(Reply).dump_json(Reply(None, 0))
        assert path == "/v1/agent/exit"
        ending = TypeAdapter(CommandExit).validate_json(content)
        self.heard_at = time.monotonic()
        (self.restarts if ending.restarts else self.exits).append(ending)
        return b"null"

    def _handler(controller) -> type[BaseHTTPRequestHandler]:  # noqa: N805
        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                content = self.rfile.read(int(self.headers["Content-Length"]))
                is_enrolling = self.path == "/v1/agent/enrol"
                if controller.is_silent.is_set() and not is_enrolling:
                    until(lambda: not controller.is_silent.is_set(), patience=600)
                    return
                token = self.headers["Authorization"].removeprefix("Bearer ")
                controller.shown.append((self.path, token))
                if controller.busy:
                    controller.busy -= 1
                    self.send_error(429)
                    return
                if token not in ((BOOTSTRAP,) if is_enrolling else (TOKEN, controller.renewed)):
                    controller.refused += 1
                    self.send_error(401)
                    return
                answer = controller.answer(self.path, content)
                if is_enrolling and len(controller.enrolments) <= controller.lost:
                    self.close_connection = True
                    return
                self.send_response(200)
                if controller.renewed:
                    self.send_header(RENEWAL_HEADER, controller.renewed)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_: object) -> None:
                pass

        return Handler
