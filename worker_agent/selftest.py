"""The self-test, as far as it needs no framework: data, turns with and without the agent, a resize.

Each framework has a module of the same functions that ``FRAMEWORK_SELFTESTS`` names. As a program,
such a module is one worker of the resize.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from pkgutil import resolve_name
from statistics import median
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

import worker_agent
from worker_agent.fake_controller import SELFTEST_TIMEOUT, FakeController
from worker_agent.sampler import SampleOrder, SampleRange

SelftestFramework = Literal["pytorch", "tensorflow"]

# By its name in job documents, the module that must be installed and the self-test: one line each.
FRAMEWORK_SELFTESTS: Mapping[SelftestFramework, tuple[str, str]] = {
    "pytorch": ("torch", "worker_agent.pytorch.selftest"),
    "tensorflow": ("tensorflow", "worker_agent.tensorflow.selftest"),
}

SELFTEST_SAMPLES, SELFTEST_FEATURES, SELFTEST_CLASSES = 960, 16, 4
SELFTEST_BATCH, SELFTEST_SEED = 48, 9
NARROW, WIDE = 32, 512  # a step that takes no time, and one of 40 µs a sample

Indices = npt.NDArray[np.int64]
Weights = npt.NDArray[np.float64]


class SelftestTask(Protocol):
    """A small training problem in float64, the same in every process.

    Its network has no batch statistics, so that any split of a batch means the same; the momentum
    of its optimizer has to travel.
    """

    @property
    def model(self) -> Any: ...

    @property
    def optimizer(self) -> Any: ...

    def step(self, indices: Any) -> None:
        """Train on these samples; takes indices of NumPy and of the framework."""

    def weights(self) -> Weights: ...


class FrameworkSelftest(Protocol):
    """What the module of a framework has."""

    def measure_overhead(self) -> Overhead:
        """Train two equal models in turns, one of them under the agent."""

    def measure_noise_error(self) -> float:
        """Return the relative error of γ (Eq. 2) over parts of a batch, against their gradients."""

    def measure_resize(self) -> ResizeResult:
        """Train on one worker, on two, on one again, and compare."""


def installed_frameworks() -> list[SelftestFramework]:
    """Return the frameworks that are installed; the first one is tested if none is named."""
    imported = FRAMEWORK_SELFTESTS.items()
    return [name for name, (module, _) in imported if find_spec(module) is not None]


def load_selftest(framework: SelftestFramework) -> FrameworkSelftest:
    """Return a framework's self-test; loads the framework, which takes seconds."""
    _, module = FRAMEWORK_SELFTESTS[framework]
    selftest: FrameworkSelftest = resolve_name(module)
    return selftest


def make_samples() -> tuple[Weights, Indices]:
    """Return inputs and labels."""
    random = np.random.default_rng(5)
    inputs = random.normal(size=(SELFTEST_SAMPLES, SELFTEST_FEATURES))
    return inputs, random.integers(0, SELFTEST_CLASSES, SELFTEST_SAMPLES)


OVERHEAD_ROUNDS, OVERHEAD_ITERATIONS, OVERHEAD_WARM_UP = 12, 6, 2


@dataclass(frozen=True, slots=True)
class Overhead:
    """CPU seconds of one iteration.

    Attributes:
        plain: Without the agent, median over rounds.
        added: What the agent adds, median of the differences within rounds.
    """

    plain: float
    added: float

    @property
    def fraction(self) -> float:
        return self.added / self.plain


def measure_in_turns(
    plain: Callable[[Indices], None], watched: Callable[[Indices], None], batch: int
) -> Overhead:
    """Train by one function and by the other in turns, on so many samples at once."""
    rounds = [
        (iteration_cpu_time(plain, batch), iteration_cpu_time(watched, batch))
        for _ in range(OVERHEAD_WARM_UP + OVERHEAD_ROUNDS)
    ]
    counted = rounds[OVERHEAD_WARM_UP:]
    alone = [first for first, _ in counted]
    return Overhead(median(alone), median(second - first for first, second in counted))


def iteration_cpu_time(step: Callable[[Indices], None], batch: int) -> float:
    """Return the CPU seconds of one iteration, mean over a few."""
    began = time.process_time()
    for number in range(OVERHEAD_ITERATIONS):
        first = number * batch % (SELFTEST_SAMPLES - batch)
        step(np.arange(first, first + batch))
    return (time.process_time() - began) / OVERHEAD_ITERATIONS


ENDLESS_EPOCHS = 1e9  # until told
LAST_EPOCHS = 0.5
FIRST_WORKER, SECOND_WORKER = "first", "second"


@dataclass(frozen=True, slots=True)
class ResizeResult:
    """Result of a resize on this computer.

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


def resize_workers(program: str, task: SelftestTask) -> ResizeResult:
    """Train on one worker, on two, on one again, and compare.

    Args:
        program: The framework's module.
        task: What one process trains for comparison, untrained.
    """
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        controller = FakeController()
        stack.callback(controller.close)
        workers = {
            name: start_worker(program, name, controller.url, directory)
            for name in (FIRST_WORKER, SECOND_WORKER)
        }
        for process in workers.values():
            stack.callback(process.kill)
        epochs_per_iteration = SELFTEST_BATCH / SELFTEST_SAMPLES

        def enter(names: list[str]) -> float:
            return controller.pause_of(
                controller.publish_generation(
                    names, SELFTEST_BATCH, ENDLESS_EPOCHS, epochs_per_iteration
                )
            )

        enter([FIRST_WORKER])
        growing = enter([FIRST_WORKER, SECOND_WORKER])
        shrinking = enter([FIRST_WORKER])
        done = max(report.progress.epochs for report in controller.reports)
        controller.publish_generation(
            [FIRST_WORKER], SELFTEST_BATCH, done + LAST_EPOCHS, epochs_per_iteration
        )
        facts = read_result(workers[FIRST_WORKER])
    iterations = int(str(facts["iterations"]))
    train_alone(task, iterations)
    difference = float(np.abs(np.array(facts["weights"]) - task.weights()).max())
    return ResizeResult(growing, shrinking, iterations, difference)


def start_worker(program: str, name: str, url: str, directory: Path) -> subprocess.Popen[bytes]:
    """Start a worker."""
    ours = {
        "SCAVENGER_CONTROLLER": url,
        "SCAVENGER_TOKEN": "selftest",
        "SCAVENGER_JOB": "selftest",
        "SCAVENGER_WORKER": name,
        "SCAVENGER_PREPAID": str(SELFTEST_TIMEOUT),
        "OMP_NUM_THREADS": "1",
    }
    return subprocess.Popen(
        [sys.executable, "-m", program],
        cwd=directory,
        env={**os.environ, **ours},
        stdout=subprocess.PIPE,
    )


def read_result(process: subprocess.Popen[bytes]) -> Mapping[str, object]:
    """Wait for a worker to end and read what it printed.

    Raises:
        RuntimeError: It failed.
    """
    output, _ = process.communicate(timeout=SELFTEST_TIMEOUT)
    if process.returncode:
        raise RuntimeError(f"a worker of the selftest ended with code {process.returncode}")
    facts: Mapping[str, object] = json.loads(output)
    return facts


def train_alone(task: SelftestTask, iterations: int) -> None:
    """Train in one process on the batches of the resized job."""
    order = SampleOrder(SELFTEST_SAMPLES, SELFTEST_SEED)
    for number in range(iterations):
        task.step(order.indices(SampleRange(number * SELFTEST_BATCH, SELFTEST_BATCH)))


def train_as_worker(task: SelftestTask) -> None:
    """As one worker, train until the job ends, then print iterations and weights as JSON."""
    with worker_agent.session() as job:
        job.prepare(task.model, task.optimizer)
        for indices in job.batches(SELFTEST_SAMPLES, SELFTEST_BATCH, epochs=1, seed=SELFTEST_SEED):
            task.step(indices)
        if job.is_leader:
            facts = {"iterations": job.iteration, "weights": task.weights().tolist()}
            sys.stdout.write(json.dumps(facts))
