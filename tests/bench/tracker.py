"""Tracker: MLflow's tracking server on a Postgres, and clients that log batches to it."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from tests.bench.load import Caller, Client

PROGRAM = Path(".venv/mlflow/bin/mlflow")
LOG_BATCH = "/api/2.0/mlflow/runs/log-batch"
MOST = 1_000  # metrics of a batch, by its rules
KEYS = 8


@contextmanager
def tracker(url: str, port: int, workers: int, log: Path) -> Iterator[None]:
    """Serve with so many processes."""
    command = [
        *(PROGRAM.absolute(), "server", "--backend-store-uri", url, "--workers", str(workers)),
        *("--host", "127.0.0.1", "--port", str(port)),
        *("--default-artifact-root", str(log.parent)),
    ]
    quiet = {"MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "true"}
    # Its programs call each other by name.
    path = f"{PROGRAM.absolute().parent}:{os.environ['PATH']}"
    with log.open("wb") as file:
        process = subprocess.Popen(
            command,
            stdout=file,
            stderr=file,
            env={**os.environ, **quiet, "PATH": path},
            cwd=log.parent,
        )
    try:
        wait_for(port, process, log)
        yield
    finally:
        process.terminate()
        process.wait(30)


def wait_for(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until it answers."""
    for _ in range(600):
        assert process.poll() is None, log.read_text()[-2000:]
        try:
            Caller(port, {}).post("/api/2.0/mlflow/experiments/search", b'{"max_results": 1}')
        except (OSError, AssertionError):
            time.sleep(0.2)
        else:
            return
    raise AssertionError(log.read_text()[-2000:])


def tracker_clients(port: int, number: int) -> list[Client]:
    """Return clients that log to a run each."""
    return [client(Caller(port, {})) for _ in range(number)]


def client(caller: Caller) -> Client:
    run = {"experiment_id": "0", "start_time": int(time.time() * 1000)}
    made = caller.post("/api/2.0/mlflow/runs/create", json.dumps(run).encode())
    run_id, batches = made["run"]["info"]["run_id"], count()

    def send() -> int:
        first = next(batches) * (MOST // KEYS)
        metrics = [
            {"key": f"series{key}", "value": 0.1 * step, "timestamp": step, "step": step}
            for step in range(first, first + MOST // KEYS)
            for key in range(KEYS)
        ]
        caller.post(LOG_BATCH, json.dumps({"run_id": run_id, "metrics": metrics}).encode())
        return len(metrics)

    return Client(send)
