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
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

import psutil
from pydantic import TypeAdapter

from scavenger.cluster import ClusterConfig
from scavenger.learning_rate import LearningRateScaling
from scavenger.protocol import Directive, Hello, Member, Reply, StepReport, StopAtProgress, StopRule

T = TypeVar("T")
HELLO, REPORT, REPLY = TypeAdapter(Hello), TypeAdapter(StepReport), TypeAdapter(Reply)


FOREVER = StopAtProgress(max_progress=1e9)
LONGEST = 800.0  # seconds a test waits for anything; a busy computer takes long


class Process(Protocol):
    """What a test does to a worker."""

    def poll(self) -> int | None: ...

    def wait(self) -> int: ...

    def kill(self) -> None: ...

    def send_signal(self, number: int, /) -> None: ...


@dataclass(frozen=True)
class Start:
    """How a worker is to be started."""

    command: list[str]
    directory: Path
    environment: dict[str, str]
    log: Path


def descendants(process: Process) -> list[psutil.Process]:
    """Return what a process that runs has started, and what that has started."""
    number = getattr(process, "pid", None)
    if number is None or process.poll() is not None:
        return []
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(number).children(recursive=True)
    return []


class InVain(AssertionError):
    """What was waited for did not come."""


class Unavailable(Exception):
    """The controller answers that it cannot answer."""


def spawn(start: Start) -> Process:
    """Start a worker in an interpreter of its own."""
    with open(start.log, "wb") as log:
        return subprocess.Popen(
            [sys.executable, *start.command],
            cwd=start.directory,
            env=start.environment,
            stdout=log,
            stderr=log,
        )


def answer_all(answer: Callable[[], bytes]) -> bytes:
    """Answer every request."""
    return answer()


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
    launch: Callable[[Start], Process] = spawn
    door: Callable[[Callable[[], bytes]], bytes] = answer_all

    def __post_init__(self) -> None:
        self.directive: Directive | None = None
        self.hellos: dict[str, Hello] = {}
        self.reports: list[StepReport] = []
        self.heard_at: dict[str, float] = {}
        self.sequences: dict[str, int] = {}
        self.processes: dict[str, Process] = {}
        self.news = threading.Condition()
        conductor = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                what = self.path.rsplit("/", 1)[1]
                try:
                    answer = conductor.door(lambda: conductor.answer(what, body))
                except Unavailable:
                    self.send_error(500)
                    return
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
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()

    def __enter__(self) -> Conductor:
        return self

    def __exit__(self, *_: object) -> None:
        # What serves outlives its launcher, if that is killed.
        started = [each for process in self.processes.values() for each in descendants(process)]
        for process in self.processes.values():
            process.kill()
        for each in started:
            with suppress(psutil.NoSuchProcess):
                each.kill()
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
            self.heard_at[hello.worker] = time.monotonic()
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
        environment = {**os.environ, **ours, **self.environment}
        log = self.directory / f"{worker}.log"
        self.processes[worker] = self.launch(Start(self.command, self.directory, environment, log))

    def order(self, workers: list[str], global_batch: int, **changes: Any) -> int:
        """Publish a Directive for these workers, once they are all up; returns its generation."""
        timeout, stack = changes.pop("timeout", LONGEST), changes.pop("stack", "eager")
        self.wait(lambda: all(worker in self.hellos for worker in workers), timeout)
        with self.news:
            before = self.directive
            generation = 1 if before is None else before.generation + 1
            is_planned = before is not None and not changes.get("repairs", False)
            facts: dict[str, Any] = {
                "progress_per_iteration": global_batch / self.dataset_size,
                "learning_rate": LearningRateScaling(),
                "split_every": self.split_every,
                "report_after": 0,
                "fence": 0 if before is None else before.fence,
                "handover": before.members[0] if before is not None and is_planned else None,
                **changes,
            }
            self.directive = Directive(
                generation=generation,
                config=ClusterConfig(len(workers), global_batch, stack=stack),
                members=tuple(Member(w, self.hellos[w].address) for w in workers),
                purpose=self.purpose,
                stop=self.stop,
                why="ordered",
                **facts,
            )
            return generation

    def wait_applied(
        self, generation: int, iterations: int = 1, timeout: float = LONGEST
    ) -> StepReport:
        """Wait until a generation has run so many reported iterations."""

        def found() -> StepReport | None:
            rows = [r for r in self.reports if r.progress.generation == generation]
            done = sum(len(report.steps) for report in rows)
            return rows[-1] if done >= iterations else None

        return self.wait(found, timeout)

    def wait(self, condition: Callable[[], T | bool | None], timeout: float = LONGEST) -> T:
        """Wait until a condition holds, or fail with everything the workers printed."""
        deadline = time.monotonic() + timeout
        with self.news:
            while not (value := condition()):
                left = deadline - time.monotonic()
                if left <= 0 or (not self.news.wait(min(left, 0.5)) and self.has_failed()):
                    raise InVain(f"waited in vain\n{self.logs()}")
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
        """Return what a worker's script wrote into its own file, one JSON object per line.

        A line it was killed in is left out.
        """
        path = self.directory / f"{worker}.jsonl"
        return [json.loads(line) for line in path.read_text().split("\n")[:-1]]
