"""A training script with a diary: resized as a Scavenger job, or restarted by torchrun.

Under torchrun one process, the keeper, is part of every generation. It saves on its way out,
between two iterations, and all workers load: no iteration is lost and nothing is saved in vain,
which is the best a restart allows. Iterations are mostly rest, so that workers and processes that
come up do not fight for the computer's cores.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.distributed import get_rank, get_world_size, init_process_group
from torch.nn.parallel import DistributedDataParallel

import worker_agent
from tests.bench.diary import Boot, Diary, Iteration
from tests.bench.turn import SEED
from tests.bench.workload import RESIZED
from worker_agent.sampler import SampleOrder, SampleRange

BATCH = 32
CHECKPOINT = Path("checkpoint.pt")
REST = 0.08


def be_resized() -> None:
    """Train as a job."""
    training = Training()
    diary = Diary(Path(f"{os.environ['SCAVENGER_WORKER']}.jsonl"))
    with worker_agent.session() as job:
        job.prepare(training.model, training.optimizer)
        for indices in job.batches(training.size, BATCH, epochs=1, seed=SEED):
            began = time.monotonic()
            job.log(loss=training.iterate(training.model, indices))
            diary.note(Iteration(round(BATCH / len(indices)), began, time.monotonic()))


def be_restarted(boot: Boot) -> None:
    """Train under torchrun until it sends SIGTERM or another worker is gone."""
    ends = Ends()
    init_process_group("gloo")
    training = Training()
    if CHECKPOINT.exists():
        training.load(CHECKPOINT)
    network = DistributedDataParallel(training.model)
    diary = Diary(Path("keeper.jsonl")) if "BENCH_KEEPER" in os.environ else None
    if diary is not None:
        diary.note(boot)
    with suppress(RuntimeError):  # another worker is gone: this iteration did not step
        for indices in training.batches(get_rank(), get_world_size()):
            if ends.are_near:
                break
            began = time.monotonic()
            training.iterate(network, indices)
            training.position += BATCH
            if diary is not None:
                diary.note(Iteration(get_world_size(), began, time.monotonic()))
    if diary is not None:
        training.save(CHECKPOINT)
    os._exit(1)  # as quick as the signal itself would have been


class Training:
    """The workload's data, model and optimizer, and how far it has come."""

    def __init__(self) -> None:
        torch.manual_seed(SEED)
        self.workload = RESIZED[os.environ.get("BENCH_WORKLOAD", "digits")]()
        self.model, self.optimizer = self.workload.model, self.workload.optimizer
        self.size = self.workload.size
        self.position = 0

    def iterate(self, network: nn.Module, indices: Tensor) -> Tensor:
        """Train on these samples; returns their loss."""
        self.optimizer.zero_grad()
        loss = self.workload.loss(network, indices)
        loss.backward()
        self.optimizer.step()
        time.sleep(REST)
        return loss

    def batches(self, rank: int, workers: int) -> Iterator[Tensor]:
        """Yield one worker's samples, from the position on."""
        order = SampleOrder(self.size, SEED)
        while True:
            mine = SampleRange(self.position, BATCH).split(workers)[rank]
            yield torch.from_numpy(order.indices(mine))

    def save(self, path: Path) -> None:
        """Write everything the next iteration depends on."""
        fresh = path.with_suffix(".new")
        state = (self.model.state_dict(), self.optimizer.state_dict(), self.position)
        torch.save(state, fresh)
        fresh.replace(path)

    def load(self, path: Path) -> None:
        """Take what was saved."""
        model, optimizer, self.position = torch.load(path)
        self.model.load_state_dict(model)
        self.optimizer.load_state_dict(optimizer)


class Ends:
    """Whether this process has been told to end."""

    def __init__(self) -> None:
        self.are_near = False
        signal.signal(signal.SIGTERM, self._come)

    def _come(self, *_: object) -> None:
        self.are_near = True


if __name__ == "__main__":
    torch.set_num_threads(1)
    be_resized()
