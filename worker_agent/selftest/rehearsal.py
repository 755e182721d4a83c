"""A rehearsal: two workers on this computer grow and shrink, and must train as one process does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import torch

from worker_agent.sampler import SampleOrder, Share
from worker_agent.selftest.controller import PATIENCE, StandIn
from worker_agent.selftest.task import BATCH, SAMPLES, Task
from worker_agent.selftest.trainee import SEED

EPOCHS = 1e9  # until told
LAST_EPOCHS = 0.5
FIRST, SECOND = "first", "second"


@dataclass(frozen=True, slots=True)
class Rehearsed:
    """What a rehearsal showed.

    Attributes:
        growing: Seconds without training when the second worker joined.
        shrinking: Seconds without training when it left.
        iterations: Iterations trained altogether.
        difference: Largest difference of a weight from those one process trains.
    """

    growing: float
    shrinking: float
    iterations: int
    difference: float


def rehearse() -> Rehearsed:
    """Train on one worker, on two, on one again, and compare."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        controller = StandIn()
        stack.callback(controller.close)
        workers = {name: start(name, controller.url, directory) for name in (FIRST, SECOND)}
        for process in workers.values():
            stack.callback(process.kill)
        share = BATCH / SAMPLES
        controller.pause_of(controller.order([FIRST], BATCH, EPOCHS, share))
        growing = controller.pause_of(controller.order([FIRST, SECOND], BATCH, EPOCHS, share))
        shrinking = controller.pause_of(controller.order([FIRST], BATCH, EPOCHS, share))
        done = max(report.progress.epochs for report in controller.reports)
        controller.order([FIRST], BATCH, done + LAST_EPOCHS, share)
        facts = ending_of(workers[FIRST])
    weights = torch.tensor(facts["weights"], dtype=torch.float64)
    iterations = int(str(facts["iterations"]))
    difference = float((weights - train_alone(iterations)).abs().max())
    return Rehearsed(growing, shrinking, iterations, difference)


def start(name: str, url: str, directory: Path) -> subprocess.Popen[bytes]:
    """Start a worker."""
    ours = {
        "SCAVENGER_CONTROLLER": url,
        "SCAVENGER_TOKEN": "rehearsal",
        "SCAVENGER_JOB": "rehearsal",
        "SCAVENGER_WORKER": name,
        "SCAVENGER_PREPAID": str(PATIENCE),
        "OMP_NUM_THREADS": "1",
    }
    return subprocess.Popen(
        [sys.executable, "-m", "worker_agent.selftest.trainee"],
        cwd=directory,
        env={**os.environ, **ours},
        stdout=subprocess.PIPE,
    )


def ending_of(process: subprocess.Popen[bytes]) -> Mapping[str, object]:
    """Wait for a worker to end and read what it printed.

    Raises:
        RuntimeError: It failed.
    """
    output, _ = process.communicate(timeout=PATIENCE)
    if process.returncode:
        raise RuntimeError(f"a worker of the rehearsal ended with code {process.returncode}")
    facts: Mapping[str, object] = json.loads(output)
    return facts


def train_alone(iterations: int) -> torch.Tensor:
    """Return the weights of one process that trains on the same batches."""
    task, order = Task.make(), SampleOrder(SAMPLES, SEED)
    for number in range(iterations):
        task.step(torch.from_numpy(order.indices(Share(number * BATCH, BATCH))))
    return task.weights()
