"""A controller that grants leases and hears how commands ended, for tests of one machine."""

from __future__ import annotations

import json
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from scavenger.layout import Layout
from scavenger.protocol import (
    RENEWAL_HEADER,
    CommandExit,
    EnrolmentReply,
    EnrolmentRequest,
    ExitReply,
    InterruptionNotice,
    LogBatch,
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
        package: What a machine installs when it boots.
        ca: Certificate authority that it is to trust.
        code: What it sends as the code of the job.
        cut_off: How many of the next answers with code end half-way.
    """

    def __init__(self) -> None:
        self.lease = 60.0
        self.asked: list[float] = []
        self.exits: list[CommandExit] = []
        self.restarts: list[CommandExit] = []
        self.failed: list[CommandExit] = []
        self.layouts: list[Layout] = []  # in which commands go on that failed in another
        self.notices: list[InterruptionNotice] = []
        self.logs: list[LogBatch] = []
        self.heard_at = 0.0
        self.reports: list[StepReport] = []
        self.refused = 0
        self.is_silent = threading.Event()
        self.shown: list[tuple[str, str]] = []
        self.enrolled = EnrolmentReply(
            TOKEN, "of all of us", {"HF_TOKEN": "hf_1"}, WorkerSpec(command=("sleep", "600"))
        )
        self.code = b""
        self.cut_off = 0
        self.enrolments: list[EnrolmentRequest] = []
        self.package = self.ca = b""
        self.got: list[str] = []
        self.lost = self.busy = 0
        self.renewed = ""
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def assign(self, **changes: Any) -> None:
        """Change what machines that enrol from now on run."""
        self.enrolled = replace(self.enrolled, worker=replace(self.enrolled.worker, **changes))

    def secure(self, certificate: Path, key: Path) -> None:
        """Speak TLS from now on."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        self.url = self.url.replace("http:", "https:")

    def close(self) -> None:
        self.is_silent.clear()
        self.server.shutdown()
        self.server.server_close()

    def is_second(self, content: bytes) -> bool:
        """Tell whether a machine enrols whose token is used."""
        asked = TypeAdapter(EnrolmentRequest).validate_json(content)
        return any(
            asked.worker == before.worker and asked.nonce != before.nonce
            for before in self.enrolments
        )

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
        if path == "/v1/agent/notice":
            self.notices.append(TypeAdapter(InterruptionNotice).validate_json(content))
            return b"{}"
        if path == "/v1/agent/logs":
            self.logs.append(TypeAdapter(LogBatch).validate_json(content))
            return b"{}"
        assert path == "/v1/agent/exit"
        ending = TypeAdapter(CommandExit).validate_json(content)
        self.heard_at = time.monotonic()
        if ending.failed_layout is None:
            (self.restarts if ending.restarts else self.exits).append(ending)
            return TypeAdapter(ExitReply).dump_json(ExitReply())
        self.failed.append(ending)
        other = self.layouts.pop(0) if self.layouts else None
        return TypeAdapter(ExitReply).dump_json(ExitReply(other))

    def _handler(controller) -> type[BaseHTTPRequestHandler]:  # noqa: N805
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                controller.got.append(self.path)
                token = self.headers.get("Authorization", "").removeprefix("Bearer ")
                if self.path == "/v1/agent/ca":
                    self.send(controller.ca)
                elif token == BOOTSTRAP:
                    self.send(controller.package)
                elif token == TOKEN and self.path == "/v1/agent/code":
                    self.send_code()
                else:
                    self.send_error(401)

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
                if is_enrolling and controller.is_second(content):
                    self.send_error(403)
                    return
                answer = controller.answer(self.path, content)
                if is_enrolling and len(controller.enrolments) <= controller.lost:
                    self.close_connection = True
                    return
                self.send(answer)

            def send(self, answer: bytes) -> None:
                self.send_response(200)
                if controller.renewed:
                    self.send_header(RENEWAL_HEADER, controller.renewed)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def send_code(self) -> None:
                half = len(controller.code) // 2 if controller.cut_off else None
                controller.cut_off = max(controller.cut_off - 1, 0)
                self.send_response(200)
                self.send_header("Content-Length", str(len(controller.code)))
                self.end_headers()
                self.wfile.write(controller.code[:half])

            def log_message(self, *_: object) -> None:
                pass

        return Handler
