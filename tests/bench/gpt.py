"""The GPT of docs/examples, trained in turns: as a Scavenger job, or by plain DDP with RANK set.

Both ways run the same loop on the same samples in the same order.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from multiprocessing.connection import Client

import torch
from torch import Tensor, nn
from torch.distributed import destroy_process_group, init_process_group
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import worker_agent
from tests.bench import example
from tests.bench.turn import Turn
from worker_agent.sampler import SampleOrder, Share

script = example.load("gpt")

WORKERS = 2
GLOBAL_BATCH = 32 * WORKERS
WINDOWS, SEED = script.WINDOWS, script.SEED


def main() -> None:
    """Train until there are no more turns."""
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    is_plain = "RANK" in os.environ
    name = os.environ["BENCH_NAME" if is_plain else "SCAVENGER_WORKER"]
    with Client(os.environ["BENCH_ADDRESS"]) as connection:
        connection.send(name)
        (with_ddp if is_plain else with_agent)(script.GPT(), Turn(connection))


def with_agent(model: nn.Module, turn: Turn) -> None:
    """Train as a job: measured, reported, ready to be resized."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=script.LEARNING_RATE)
    with worker_agent.session() as job:
        job.prepare(model, optimizer)
        batches = job.batches(WINDOWS, GLOBAL_BATCH, epochs=1, seed=SEED)
        train(model, optimizer, batches, turn, lambda loss: job.log(loss=loss))


def with_ddp(model: nn.Module, turn: Turn) -> None:
    """Train with DistributedDataParallel, which neither measures nor reports."""
    rank = int(os.environ["RANK"])
    init_process_group(
        "gloo", init_method=os.environ["BENCH_MEETING"], rank=rank, world_size=WORKERS
    )
    network = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(network.parameters(), lr=script.LEARNING_RATE)
    train(network, optimizer, batches(rank), turn, lambda _: None)
    destroy_process_group()


def train(
    network: nn.Module,
    optimizer: torch.optim.Optimizer,
    batches: Iterator[Tensor],
    turn: Turn,
    log: Callable[[Tensor], None],
) -> None:
    """Train while there are turns."""
    text, _ = script.load_text()
    starts = script.spread(text, WINDOWS)
    for indices in batches:
        if not turn.goes_on():
            return
        windows = script.cut(text, starts[indices])
        optimizer.zero_grad()
        scores = network(windows[:, :-1])
        loss = cross_entropy(scores.flatten(0, 1), windows[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        log(loss)
        turn.loss = loss.detach()


def batches(rank: int) -> Iterator[Tensor]:
    """Yield the indices that a job gives the worker of this rank."""
    order = SampleOrder(WINDOWS, SEED)
    position = 0
    while True:
        mine = Share(position, GLOBAL_BATCH).split(WORKERS)[rank]
        yield torch.from_numpy(order.indices(mine))
        position += GLOBAL_BATCH


if __name__ == "__main__":
    main()
