"""A controller reduced to its protocol: tests and benchmarks decide themselves what it orders.

It keeps what the workers say and answers with the Directive it was given last; workers are real
processes that run a real script.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import TypeAdapter

from scavenger.cluster import ClusterConfig
from scavenger.lr_scaling import LearningRateScaling
from scavenger.protocol import (
    Directive,
    Hello,
    Member,
    Reply,
    StepReport,
    StopAtProgress,
    StopRule,
)

T = TypeVar("T")
HELLO, REPORT, REPLY = TypeAdapter(Hello), TypeAdapter(StepReport), TypeAdapter(Reply)


FOREVER = StopAtProgress(max_progress=1e9)


@dataclass
class Conductor:
    """Starts workers, tells them what to do, and remembers what they report."""

    directory: Path
    command: list[str]
    stop: StopRule = FOREVER
    dataset_size: int = 1000
    split_every: int = 0
    purpose: Literal["probe", "train"] = "train"
    environment: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.directive: Directive | None = None
        self.hellos: dict[str, Hello] = {}
        self.reports: list[StepReport] = []
        self.heard_at: dict[str, float] = {}
        self.sequences: dict[str, int] = {}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.news = threading.Condition()
        conductor = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                answer = conductor.answer(self.path.rsplit("/", 1)[1], body)
                self.send_response(200)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            def handle_error(self, *_: Any) -> None:
                """Workers are killed in the middle of a request; that is the test."""

        self.server = Server(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def __enter__(self) -> Conductor:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes.values():
            process.kill()
        for process in self.processes.values():
            process.wait()
        self.server.shutdown()
        self.server.server_close()

    def answer(self, what: str, body: bytes) -> bytes:
        with self.news:
            worker = self.note(what, body)
            self.news.notify_all()
            reply = Reply(self.directive, self.sequences.get(worker, 0))
            return REPLY.dump_json(reply)

    def note(self, what: str, body: bytes) -> str:
        if what == "hello":
            hello = HELLO.validate_json(body)
            self.hellos[hello.worker] = hello
            return hello.worker
        report = REPORT.validate_json(body)
        self.reports.append(report)
        self.heard_at[report.worker] = time.monotonic()
        expected = self.sequences.get(report.worker, 0)
        assert report.sequence <= expected, "a gap in the stream"
        self.sequences[report.worker] = max(expected, report.sequence + len(report.steps))
        return report.worker

    def start(self, worker: str) -> None:
        url = f"http://127.0.0.1:{self.server.server_port}"
        ours = {
            "SCAVENGER_CONTROLLER": url,
            "SCAVENGER_TOKEN": "token",
            "SCAVENGER_JOB": "job",
            "SCAVENGER_WORKER": worker,
            "SCAVENGER_PREPAID": "600",
            "OMP_NUM_THREADS": "1",
        }
        with open(self.directory / f"{worker}.log", "wb") as log:
            self.processes[worker] = subprocess.Popen(
                [sys.executable, *self.command],
                cwd=self.directory,
                env={**os.environ, **ours, **self.environment},
                stdout=log,
                stderr=log,
            )

    def order(self, workers: list[str], global_batch: int, **changes: Any) -> int:
        """Publish a Directive for these workers, once they are all up; returns its generation."""
        self.wait(lambda: all(worker in self.hellos for worker in workers))
        with self.news:
            generation = 1 if self.directive is None else self.directive.generation + 1
            facts: dict[str, Any] = {
                "progress_per_iteration": global_batch / self.dataset_size,
                "learning_rate": LearningRateScaling(),
                "split_every": self.split_every,
                "report_after": 0,
                **changes,
            }
            self.directive = Directive(
                generation=generation,
                config=ClusterConfig(len(workers), global_batch),
                members=tuple(Member(w, self.hellos[w].address) for w in workers),
                purpose=self.purpose,
                stop=self.stop,
                why="ordered",
                **facts,
            )
            return generation

    def wait_applied(self, generation: int, iterations: int = 1) -> StepReport:
        """Wait until a generation has run so many reported iterations."""

        def found() -> StepReport | None:
            rows = [r for r in self.reports if r.progress.generation == generation]
            done = sum(len(report.steps) for report in rows)
            return rows[-1] if done >= iterations else None

        return self.wait(found)

    def wait(self, condition: Callable[[], T | bool | None], timeout: float = 60.0) -> T:
        """Wait until a condition holds, or fail with everything the workers printed."""
        deadline = time.monotonic() + timeout
        with self.news:
            while not (value := condition()):
                left = deadline - time.monotonic()
                if left <= 0 or (not self.news.wait(min(left, 0.5)) and self.has_failed()):
                    raise AssertionError(f"waited in vain\n{self.logs()}")
            return value  # type: ignore[return-value]

    def has_failed(self) -> bool:
        return any((p.poll() or 0) > 0 for p in self.processes.values())

    def has_been_silent(self, worker: str, seconds: float) -> bool:
        return time.monotonic() - self.heard_at[worker] > seconds

    def logs(self) -> str:
        return "\n".join(
            f"--- {path.name}\n{path.read_text(errors='replace')[-3000:]}"
            for path in sorted(self.directory.glob("*.log"))
        )

    def rows(self, worker: str) -> list[dict[str, Any]]:
        """Return what a worker's script wrote into its own file, one JSON object per line."""
        path = self.directory / f"{worker}.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()]
