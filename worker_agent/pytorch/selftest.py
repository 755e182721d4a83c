"""The self-test on PyTorch: overhead of the agent, correctness of the noise, and a resize.

A small training problem in float64, the same in every process, is trained with and without the
agent. As a program (``python -m worker_agent.pytorch.selftest``) it is one worker of that
resize.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

import worker_agent
from worker_agent.fake_controller import SELFTEST_TIMEOUT, FakeController
from worker_agent.frameworks import NO_FLAGS, WHOLE_BATCH, StrategyContext
from worker_agent.pytorch.all_reduce import AllReduceStrategy
from worker_agent.pytorch.reducer import Reducer
from worker_agent.pytorch.tensors import flatten_all
from worker_agent.rendezvous.rendezvous import StoreRendezvous
from worker_agent.sampler import SampleOrder, SampleRange

SELFTEST_SAMPLES, SELFTEST_FEATURES, SELFTEST_CLASSES = 960, 16, 4
SELFTEST_BATCH = 48


@dataclass(frozen=True, slots=True)
class SelftestTask:
    """A small training problem: model, optimizer and data.

    Attributes:
        model: A network without batch statistics, so that any split of a batch means the same.
        optimizer: Its momentum has to travel.
    """

    model: nn.Module
    optimizer: Optimizer
    inputs: Tensor
    labels: Tensor

    @classmethod
    def make(cls, width: int = 32) -> SelftestTask:
        """Return the untrained task; ``width`` sets the cost of an iteration."""
        generator = torch.Generator().manual_seed(5)
        inputs = torch.randn(
            SELFTEST_SAMPLES, SELFTEST_FEATURES, generator=generator, dtype=torch.float64
        )
        labels = torch.randint(0, SELFTEST_CLASSES, (SELFTEST_SAMPLES,), generator=generator)
        torch.manual_seed(3)
        model = nn.Sequential(
            nn.Linear(SELFTEST_FEATURES, width),
            nn.Tanh(),
            nn.Linear(width, width),
            nn.Tanh(),
            nn.Linear(width, SELFTEST_CLASSES),
        ).double()
        return cls(
            model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), inputs, labels
        )

    def loss(self, indices: Tensor | Sequence[int]) -> Tensor:
        return nn.functional.cross_entropy(self.model(self.inputs[indices]), self.labels[indices])

    def step(self, indices: Tensor | Sequence[int]) -> None:
        self.optimizer.zero_grad()
        self.loss(indices).backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()

    def weights(self) -> Tensor:
        return flatten_all(self.model.parameters())


NOISE_SHARDS = 4


def measure_noise_error() -> float:
    """Return the relative error of γ (Eq. 2) over micro-batches, against their own gradients."""
    task = SelftestTask.make()
    parts = torch.arange(SELFTEST_BATCH).chunk(NOISE_SHARDS)
    gradients = torch.stack([flat_gradient(task, part) for part in parts])
    direct = gradients.square().sum(dim=1).mean() / gradients.mean(dim=0).square().sum()
    reducer = Reducer(
        task.model.parameters(), micro_batches=NOISE_SHARDS, should_abort=lambda: False
    )
    reducer.begin(WHOLE_BATCH)
    for part in parts:
        (task.loss(part) / NOISE_SHARDS).backward()  # type: ignore[no-untyped-call]
    measured = reducer.end()
    if measured.local_norm_sq is None or measured.mean_norm_sq is None:
        return float("inf")
    noise = measured.local_norm_sq / measured.mean_norm_sq
    return float((noise / direct - 1).abs())


def flat_gradient(task: SelftestTask, part: torch.Tensor) -> torch.Tensor:
    """Return the gradient over these samples as one vector."""
    return flatten_all(torch.autograd.grad(task.loss(part), list(task.model.parameters())))


OVERHEAD_WIDTH, OVERHEAD_BATCH = 512, 240  # an iteration of about ten milliseconds
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


def measure_overhead() -> Overhead:
    """Train two equal models in turns, one of them under the agent."""
    plain, watched = SelftestTask.make(OVERHEAD_WIDTH), SelftestTask.make(OVERHEAD_WIDTH)
    context = StrategyContext(
        name="all_reduce",
        model=watched.model,
        optimizer=watched.optimizer,
        worker="selftest",
        secret="",
        should_abort=lambda: False,
    )
    rendezvous = StoreRendezvous(context.worker, "127.0.0.1", lambda _: False)
    strategy = AllReduceStrategy(rendezvous, context)

    def watch(indices: torch.Tensor) -> None:
        strategy.begin(WHOLE_BATCH, NO_FLAGS)
        train_step(watched, indices)
        strategy.end()

    with single_thread():
        rounds = [
            (iteration_cpu_time(partial(train_step, plain)), iteration_cpu_time(watch))
            for _ in range(OVERHEAD_WARM_UP + OVERHEAD_ROUNDS)
        ]
    strategy.close()
    counted = rounds[OVERHEAD_WARM_UP:]
    alone = [first for first, _ in counted]
    return Overhead(median(alone), median(second - first for first, second in counted))


def train_step(task: SelftestTask, indices: torch.Tensor) -> None:
    """Train on these samples; gradients are kept, or the allocator would be measured too."""
    task.optimizer.zero_grad(set_to_none=False)
    task.loss(indices).backward()  # type: ignore[no-untyped-call]
    task.optimizer.step()


@contextmanager
def single_thread() -> Iterator[None]:
    """Compute on one thread: further threads spin while they wait, which is CPU time too."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def iteration_cpu_time(step: Callable[[torch.Tensor], None]) -> float:
    """Return the CPU seconds of one iteration, mean over a few."""
    began = time.process_time()
    for number in range(OVERHEAD_ITERATIONS):
        first = number * OVERHEAD_BATCH % (SELFTEST_SAMPLES - OVERHEAD_BATCH)
        step(torch.arange(first, first + OVERHEAD_BATCH))
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


def measure_resize() -> ResizeResult:
    """Train on one worker, on two, on one again, and compare."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        controller = FakeController()
        stack.callback(controller.close)
        workers = {
            name: start_worker(name, controller.url, directory)
            for name in (FIRST_WORKER, SECOND_WORKER)
        }
        for process in workers.values():
            stack.callback(process.kill)
        epochs_per_iteration = SELFTEST_BATCH / SELFTEST_SAMPLES
        controller.pause_of(
            controller.publish_generation(
                [FIRST_WORKER], SELFTEST_BATCH, ENDLESS_EPOCHS, epochs_per_iteration
            )
        )
        growing = controller.pause_of(
            controller.publish_generation(
                [FIRST_WORKER, SECOND_WORKER], SELFTEST_BATCH, ENDLESS_EPOCHS, epochs_per_iteration
            )
        )
        shrinking = controller.pause_of(
            controller.publish_generation(
                [FIRST_WORKER], SELFTEST_BATCH, ENDLESS_EPOCHS, epochs_per_iteration
            )
        )
        done = max(report.progress.epochs for report in controller.reports)
        controller.publish_generation(
            [FIRST_WORKER], SELFTEST_BATCH, done + LAST_EPOCHS, epochs_per_iteration
        )
        facts = read_result(workers[FIRST_WORKER])
    weights = torch.tensor(facts["weights"], dtype=torch.float64)
    iterations = int(str(facts["iterations"]))
    difference = float((weights - train_alone(iterations)).abs().max())
    return ResizeResult(growing, shrinking, iterations, difference)


def start_worker(name: str, url: str, directory: Path) -> subprocess.Popen[bytes]:
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
        [sys.executable, "-m", "worker_agent.pytorch.selftest"],
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


def train_alone(iterations: int) -> torch.Tensor:
    """Return the weights of one process that trains on the same batches."""
    task, order = SelftestTask.make(), SampleOrder(SELFTEST_SAMPLES, SELFTEST_SEED)
    for number in range(iterations):
        task.step(
            torch.from_numpy(order.indices(SampleRange(number * SELFTEST_BATCH, SELFTEST_BATCH)))
        )
    return task.weights()


SELFTEST_SEED = 9


def train_as_worker() -> None:
    """As one worker, train until the job ends, then print iterations and weights as JSON."""
    torch.set_num_threads(1)
    task = SelftestTask.make()
    batches = []
    with worker_agent.session() as job:
        job.prepare(task.model, task.optimizer)
        for indices in job.batches(SELFTEST_SAMPLES, SELFTEST_BATCH, epochs=1, seed=SELFTEST_SEED):
            batches.append(len(indices))
            task.step(indices)
        if job.is_leader:
            facts = {"iterations": job.iteration, "weights": task.weights().tolist()}
            sys.stdout.write(json.dumps(facts))


if __name__ == "__main__":
    train_as_worker()
