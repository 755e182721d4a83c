"""What the agent adds to an iteration, measured in turns with the same loop without it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from statistics import median

import torch

from worker_agent.selftest.task import SAMPLES, Task
from worker_agent.strategies.all_reduce import AllReduce
from worker_agent.strategies.board_meeting import BoardMeeting
from worker_agent.strategies.strategy import Slice, Words

WIDTH, BATCH = 512, 240  # an iteration of about ten milliseconds
ROUNDS, ITERATIONS, WARM_UP = 12, 6, 2
WHOLE = Slice(share_of_worker=1.0, share_of_batch=1.0, is_last=True)
NOTHING = Words(0, is_over=False, is_leaving=False, learning_rate_factor=1.0)


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
    def share(self) -> float:
        """What is added, relative to the iteration."""
        return self.added / self.plain


def measure_overhead() -> Overhead:
    """Train two equal models in turns, one of them watched."""
    plain, watched = Task.make(WIDTH), Task.make(WIDTH)
    strategy = AllReduce(
        watched.model,
        watched.optimizer,
        BoardMeeting("selftest", "127.0.0.1", lambda _: False),
        is_abandoned=lambda: False,
    )

    def watch(indices: torch.Tensor) -> None:
        strategy.begin(WHOLE, NOTHING)
        train(watched, indices)
        strategy.end()
        strategy.tally()

    with one_thread():
        rounds = [
            (cpu_time(partial(train, plain)), cpu_time(watch)) for _ in range(WARM_UP + ROUNDS)
        ]
    strategy.close()
    counted = rounds[WARM_UP:]
    alone = [first for first, _ in counted]
    return Overhead(median(alone), median(second - first for first, second in counted))


def train(task: Task, indices: torch.Tensor) -> None:
    """Train on these samples; gradients stay where they are, or the allocator is measured too."""
    task.optimizer.zero_grad(set_to_none=False)
    task.loss(indices).backward()  # type: ignore[no-untyped-call]
    task.optimizer.step()


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute on one thread: others spin while they wait, and all of that is CPU time."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def cpu_time(step: Callable[[torch.Tensor], None]) -> float:
    """Return the CPU seconds of one iteration, mean over a few."""
    began = time.process_time()
    for number in range(ITERATIONS):
        first = number * BATCH % (SAMPLES - BATCH)
        step(torch.arange(first, first + BATCH))
    return (time.process_time() - began) / ITERATIONS
