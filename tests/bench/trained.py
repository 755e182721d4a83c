"""A training script for benchmarks that take turns: under the agent, or by plain DDP.

All ways run the same loop on the same samples in the same order. BENCH_WAY says which:

- ``session``: three lines of ours, and no DDP;
- ``hooks``: a DDP script, measured as ``agent run`` does it;
- ``item``: a DDP script that reads its gradients' norm in every step, as people do it by hand;
- ``plain``: a DDP script.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator
from multiprocessing.connection import Client

import torch
from torch import Tensor, nn
from torch.distributed import destroy_process_group, init_process_group
from torch.nn.parallel import DistributedDataParallel

import worker_agent
from tests.bench.turn import GLOBAL_BATCH, SEED, WORKERS, Turn
from tests.bench.workload import WORKLOADS, Workload
from worker_agent.launcher.step_records import MeasuredStep
from worker_agent.pytorch.instrumentation import Instrumentation
from worker_agent.sampler import SampleOrder, SampleRange


def main() -> None:
    """Train until there are no more turns."""
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    way = os.environ["BENCH_WAY"]
    workload = WORKLOADS[os.environ["BENCH_WORKLOAD"]]()
    with Client(os.environ["BENCH_ADDRESS"]) as connection:
        connection.send(os.environ["BENCH_NAME"])
        turn = Turn(connection)
        if way == "session":
            train_as_job(workload, turn)
        else:
            train_with_ddp(workload, turn, way)


def train_as_job(workload: Workload, turn: Turn) -> None:
    """Train as a job: measured, reported, ready to be resized."""
    with worker_agent.session() as job:
        job.prepare(workload.model, workload.optimizer)
        batches = job.batches(workload.size, GLOBAL_BATCH, epochs=1, seed=SEED)
        train(workload, workload.model, batches, turn, lambda loss: job.log(loss=loss))


def train_with_ddp(workload: Workload, turn: Turn, way: str) -> None:
    """Train with DistributedDataParallel, which by itself neither measures nor reports."""
    rank = int(os.environ["RANK"])
    init_process_group(
        "gloo", init_method=os.environ["BENCH_MEETING"], rank=rank, world_size=WORKERS
    )
    network = DistributedDataParallel(workload.model)
    if way == "hooks":
        rows: deque[MeasuredStep] = deque(maxlen=100_000)
        attached = Instrumentation(0, rows.append)
        attached.parallel.listen(network)
        workload.optimizer.register_step_post_hook(attached.after_step)
    batches = read_norms(workload, rank) if way == "item" else draw(workload, rank)
    train(workload, network, batches, turn, lambda _: None)
    destroy_process_group()


def train(
    workload: Workload,
    network: nn.Module,
    batches: Iterator[Tensor],
    turn: Turn,
    log: Callable[[Tensor], None],
) -> None:
    """Train while there are turns."""
    for indices in batches:
        if not turn.goes_on():
            return
        workload.optimizer.zero_grad()
        loss = workload.loss(network, indices)
        loss.backward()
        workload.optimizer.step()
        log(loss)
        turn.loss = loss.detach()


def draw(workload: Workload, rank: int) -> Iterator[Tensor]:
    """Yield the indices that a job gives the worker of this rank."""
    order = SampleOrder(workload.size, SEED)
    position = 0
    while True:
        mine = SampleRange(position, GLOBAL_BATCH).split(WORKERS)[rank]
        yield torch.from_numpy(order.indices(mine))
        position += GLOBAL_BATCH


def read_norms(workload: Workload, rank: int) -> Iterator[Tensor]:
    """Yield the same, and read every gradient's norm on the host once an iteration is done."""
    for indices in draw(workload, rank):
        yield indices
        sum(p.grad.norm().item() ** 2 for p in workload.model.parameters() if p.grad is not None)


if __name__ == "__main__":
    main()
