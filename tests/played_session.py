"""A job of threads that trains the same on any device, and what it has told."""

from __future__ import annotations

import math
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch

from tests.crew import SAMPLES, Classifier, crew
from tests.integration.reads import Reads

PLAYED_ITERATIONS = 24


@dataclass(frozen=True)
class Played:
    """What a job has told, by iteration."""

    rows: dict[int, tuple[float, ...]]
    times: dict[int, tuple[float, float, float]]
    weights: torch.Tensor
    reads: list[str]


def play(
    directory: Path,
    workers: int,
    split_every: int,
    *,
    strategy: str = "all_reduce",
    device: str = "cpu",
) -> Played:
    """Train in a session; note all reads within its steps and between them."""
    weights: list[torch.Tensor] = []
    reads: list[str] = []

    def script(job, note):  # type: ignore[no-untyped-def]
        task = Classifier().to(device)
        optimizer = torch.optim.SGD(task.model.parameters(), lr=0.1)
        job.prepare(task.model, optimizer)
        seen = None
        # Workers are threads, and would share the default stream.
        stream = nullcontext() if device == "cpu" else torch.cuda.stream(torch.cuda.Stream())
        with stream, Reads() as trap:
            for indices in job.batches(SAMPLES, 24, epochs=1):
                # The last iterations are not read where they end: a rank may leave before.
                if seen == job.directive and job.iteration < PLAYED_ITERATIONS - 5:
                    reads.extend(trap.seen)
                trap.seen.clear()
                seen = job.directive
                optimizer.zero_grad()
                loss = task.loss(indices)
                loss.backward()
                optimizer.step()
                job.log(loss=loss)
            if job.is_leader:
                weights.append(task.weights().cpu())

    with crew(directory, script, split_every=split_every, strategy=strategy) as made:
        made.play(workers, 24, PLAYED_ITERATIONS)
        parts = [report.steps for report in made.conductor.reports]
    rows: dict[int, tuple[float, ...]] = {}
    times: dict[int, tuple[float, float, float]] = {}
    for steps in parts:
        for place, iteration in enumerate(steps.iteration):
            assert iteration == 1 + max(rows, default=0)
            values = (steps.local_norm_sq, steps.mean_norm_sq, steps.loss)
            numbers = [math.nan if each[place] is None else each[place] for each in values]
            rows[iteration] = (steps.shards[place], *numbers)
            times[iteration] = (
                steps.compute_time[place],
                steps.sync_time[place],
                steps.step_time[place],
            )
    return Played(rows, times, weights[0], reads)
