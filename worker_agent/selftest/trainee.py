"""The script that the workers of a rehearsal run: ``python -m worker_agent.selftest.trainee``."""

from __future__ import annotations

import json
import sys

import torch

import worker_agent
from worker_agent.selftest.task import BATCH, SAMPLES, Task

SEED = 9


def main() -> None:
    """Train until told to stop, then print the batches' sizes and the sum of the weights."""
    torch.set_num_threads(1)
    task = Task.make()
    batches = []
    with worker_agent.session() as job:
        job.prepare(task.model, task.optimizer)
        for indices in job.batches(SAMPLES, BATCH, epochs=1, seed=SEED):
            batches.append(len(indices))
            task.step(indices)
        if job.is_leader:
            facts = {"iterations": job.iteration, "weights": task.weights().tolist()}
            sys.stdout.write(json.dumps(facts))


if __name__ == "__main__":
    main()
