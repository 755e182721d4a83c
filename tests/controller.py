"""A controller as users run it: a process with its own database, killed and restarted at will."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import httpx
import psutil

from scavenger.schemas.curves import CurveView
from scavenger.schemas.events import EventView
from scavenger.schemas.jobs import JobView
from tests.controller_double import LONG

T = TypeVar("T")
LOOK_INTERVAL = 0.4  # each look costs the controller a request
# Each request has a connection of its own, since controllers are killed; without this it would read
# all certificates of the computer first, which takes longer than the answer.
CERTIFICATES = httpx.create_ssl_context()


@dataclass
class Controller:
    """``python -m service`` in a home of its own."""

    home: Path
    options: Sequence[str] = ()
    process: subprocess.Popen[bytes] | None = field(default=None, init=False)

    def __enter__(self) -> Controller:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end_machines()
        self.stop()

    def start(self) -> None:
        """Start it and wait until it answers."""
        self.home.parent.mkdir(parents=True, exist_ok=True)
        with open(self.home.parent / "controller.log", "ab") as log:
            self.process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "service",
                    "--home",
                    self.home,
                    "--port",
                    "0",
                    *self.options,
                ],
                stdout=log,
                stderr=log,
            )
        self.wait(self.is_healthy)

    def is_healthy(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, self.log()
        try:
            return httpx.get(f"{self.connection['url']}/healthz", verify=CERTIFICATES).is_success
        except (OSError, ValueError, httpx.HTTPError):
            return False

    @property
    def connection(self) -> dict[str, str]:
        return dict(json.loads((self.home / "connection.json").read_text()))

    def kill(self) -> None:
        """Kill it as kill -9 does."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait()

    def log(self) -> str:
        return (self.home.parent / "controller.log").read_text()[-6000:]

    def ask(self, method: str, path: str, **options: Any) -> httpx.Response:
        """Ask once more after a 503 of the API, as clients do: its database may be starved."""
        connection = self.connection
        headers = {"Authorization": f"Bearer {connection['token']}", **options.pop("headers", {})}
        while True:
            answer = httpx.request(
                method,
                connection["url"] + path,
                headers=headers,
                timeout=LONG,
                verify=CERTIFICATES,
                **options,
            )
            if answer.status_code != 503 or not path.startswith("/v1/"):
                return answer
            time.sleep(float(answer.headers.get("retry-after", 1)))

    def submit(self, document: dict[str, Any]) -> str:
        answer = self.ask("POST", "/v1/jobs", json=document)
        assert answer.status_code == 201, answer.text
        return JobView.model_validate_json(answer.text).id

    def job(self, job: str) -> JobView:
        return JobView.model_validate_json(self.ask("GET", f"/v1/jobs/{job}").text)

    def curve(self, job: str) -> CurveView:
        return CurveView.model_validate_json(self.ask("GET", f"/v1/jobs/{job}/curve").text)

    def events(self, job: str) -> list[EventView]:
        page = self.ask("GET", f"/v1/jobs/{job}/events?limit=200").json()
        return [EventView.model_validate(event) for event in page["events"]]

    def finished(self, job: str, timeout: float = 800) -> JobView:
        """Wait until a job is final and its machines are gone."""

        def final() -> JobView | None:
            view = self.job(job)
            alive = view.workers_alive + view.servers_alive
            return view if view.phase.is_final and not alive else None

        return self.wait(final, timeout)

    def wait(self, condition: Callable[[], T | bool | None], timeout: float = 800) -> T:
        deadline = time.monotonic() + timeout
        while not (value := condition()):
            assert time.monotonic() < deadline, f"waited in vain\n{self.log()}\n{self.machines()}"
            time.sleep(LOOK_INTERVAL)
        return value  # type: ignore[return-value]

    def machines(self) -> str:
        """What the machines have printed."""
        logs = sorted((self.home / "machines").glob("*.log"))
        return "\n".join(f"--- {log.name}\n{log.read_text()[-1500:]}" for log in logs)

    def trainers(self) -> list[psutil.Process]:
        """The training processes that run now, oldest first."""
        found = []
        for process in self.supervisors():
            with suppress(psutil.NoSuchProcess):  # it may end while it is looked at
                found += [child for child in process.children() if has_begun(child, process)]
        return sorted(found, key=lambda process: process.create_time())

    def supervisors(self) -> list[psutil.Process]:
        """The first processes of all machines that run, oldest first."""
        files = (self.home / "machines").glob("*.pid")
        found = [process for file in files for process in supervisor_of(file)]
        return sorted(found, key=lambda process: process.create_time())

    def end_machines(self) -> None:
        """Let no test leave a process behind."""
        for process in self.supervisors():
            os.killpg(process.pid, signal.SIGKILL)


def has_begun(child: psutil.Process, parent: psutil.Process) -> bool:
    """Whether a process runs its own program; until then it has its parent's environment."""
    with suppress(psutil.NoSuchProcess):
        return child.cmdline() not in ([], parent.cmdline())
    return False


def supervisor_of(file: Path) -> list[psutil.Process]:
    """Return the supervisor a pid file names, if it still runs."""
    try:
        number = int(file.read_text())
        process = psutil.Process(number)
        return [process] if "worker_agent.supervisor" in " ".join(process.cmdline()) else []
    except (ValueError, psutil.Error):
        return []
