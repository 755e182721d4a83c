"""A training script whose batches are loaded by worker processes, and that has a daemon of its own.

All of them are forked once the worker is connected with the others: in its first iteration.
"""

import json
import os
import signal
import sys
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import worker_agent
from tests.integration.trainee import SAMPLES, network, problem


class Items(Dataset):
    """Endless work for those who load."""

    def __len__(self) -> int:
        return 1 << 40

    def __getitem__(self, place: int) -> torch.Tensor:
        return torch.randn(64, 64).sum()


def fork_daemon() -> int:
    """Start a process that must outlive this one, as a script may; returns its id."""
    child = os.fork()
    if child == 0:
        os.setsid()
        signal.alarm(600)  # in case the test is killed that ends it
        while True:
            signal.pause()
    return child


def fork_helper() -> None:
    """Fork a process that leaves the session as an exception does, and wait for its end."""
    child = os.fork()
    if child == 0:
        sys.exit(3)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 3


def main() -> None:
    """Train until told to stop."""
    torch.set_num_threads(1)
    inputs, labels = problem()
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    items = None
    with (
        open(f"{os.environ['SCAVENGER_WORKER']}.jsonl", "w", buffering=1) as out,
        worker_agent.session() as job,
    ):
        job.prepare(model, optimizer)
        for indices in job.batches(SAMPLES, 24, epochs=1, seed=9):
            now = job.directive
            turn = [now.generation, now.revision]
            row = {"at": time.monotonic(), "turn": turn, "iteration": job.iteration}
            if items is None:
                fork_helper()
                daemon = fork_daemon()
                loader = DataLoader(Items(), batch_size=4, num_workers=2, persistent_workers=True)
                items = iter(loader)
                loaders = [process.pid for process in items._workers]
                row |= {"daemon": daemon, "loaders": loaders}
            next(items)
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs[indices]), labels[indices]).backward()
            out.write(json.dumps(row) + "\n")
            optimizer.step()


if __name__ == "__main__":
    main()
