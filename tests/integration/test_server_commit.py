"""A worker that dies between two servers leaves neither half an iteration nor one applied twice."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.controller_double import LONG
from worker_agent.errors import GenerationBroken
from worker_agent.parameter_server.client import ParameterServerClient
from worker_agent.parameter_server.messages import (
    JoinRequest,
    OptimizerSlots,
    PushRequest,
    Segment,
    ShardManifest,
)
from worker_agent.parameter_server.server import ShardServer
from worker_agent.pytorch.server_shard import TorchShard, describe_optimizer

SIZE, RATE = 6, 0.5
START = torch.arange(SIZE, dtype=torch.float64)
NAMES = ("w0", "w1", "w2")


@pytest.fixture
def addresses() -> Iterator[list[str]]:
    servers = [ShardServer("127.0.0.1", "ours", TorchShard.make) for _ in range(2)]
    for server in servers:
        threading.Thread(target=server.serve, daemon=True).start()
    yield [server.address for server in servers]
    for server in servers:
        server.close()


class Worker:
    """One worker, reduced to what it says to the servers."""

    def __init__(self, name: str, addresses: Sequence[str]) -> None:
        self.name, self.addresses = name, addresses
        self.client = ParameterServerClient(addresses, "ours", lambda: False)
        self.weights = torch.zeros(SIZE, dtype=torch.float64)

    def join(self, turn: int, members: tuple[str, ...], iteration: int | None) -> list[int]:
        """Enter a generation; without an iteration as a newcomer."""
        clock = "" if iteration is None else str(iteration)
        joining = JoinRequest(self.name, members, iteration is None, clock)
        applied = self.client.join((turn, 0), iteration or 0, joining)
        for server, each in enumerate(applied):
            if each < 0:
                half = START[server * 3 : server * 3 + 3]
                self.client.put(server, 0, holding(), [half.numpy()])
        return [max(each, 0) for each in applied]

    def push(self, iteration: int, gradient: Tensor, workers: int) -> None:
        said = PushRequest(1 / workers, False, np.zeros(1), np.array([RATE]), str(iteration + 1))
        self.client.push(iteration, said, [gradient.numpy()], self.weights.numpy())


def holding() -> ShardManifest:
    sgd = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=RATE)
    return ShardManifest(
        "float64", describe_optimizer(sgd), (Segment(0, 3),), (OptimizerSlots({}, ()),), "0", 0
    )


def gradient_of(rank: int) -> Tensor:
    return torch.full((SIZE,), float(rank + 1), dtype=torch.float64)


def test_an_iteration_that_one_server_applied_is_redone_at_the_other_only(
    addresses: list[str],
) -> None:
    workers = [Worker(name, addresses) for name in NAMES]
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda worker: worker.join(1, NAMES, None), workers))
        pushes = [pool.submit(workers[rank].push, 0, gradient_of(rank), 3) for rank in (0, 1)]
        die_between_the_servers(workers[2])
        for push in pushes:
            with pytest.raises(GenerationBroken, match="w2"):
                push.result(timeout=LONG)
        survivors = workers[:2]
        for worker in survivors:
            worker.client.leave()
            worker.client = ParameterServerClient(addresses, "ours", lambda: False)
        applied = list(pool.map(lambda worker: worker.join(2, NAMES[:2], 0), survivors))
        late = Worker("w3", addresses)
        assert applied == [[1, 0], [1, 0]]
        assert late_sees(late, pool, survivors) == START.tolist()
        redone = torch.full((SIZE,), 2.0, dtype=torch.float64)  # the same batch, the same mean
        again = [pool.submit(worker.push, 0, redone, 3) for worker in (*survivors, late)]
        for push in again:
            push.result(timeout=LONG)
    for worker in (*survivors, late):
        assert torch.allclose(worker.weights, START - RATE * 2.0, rtol=0, atol=1e-12)
        worker.client.close()


def die_between_the_servers(worker: Worker) -> None:
    """Push to the first server only, and break both connections."""
    alone = ParameterServerClient.__new__(ParameterServerClient)
    alone.connections = worker.client.connections[:1]
    alone.generation_key = worker.client.generation_key
    said = PushRequest(1 / 3, False, np.zeros(1), np.array([RATE]), "1")
    alone.push(0, said, [gradient_of(2)[:3].numpy()], np.zeros(3))
    worker.client.close()


def late_sees(late: Worker, pool: ThreadPoolExecutor, survivors: Sequence[Worker]) -> list[float]:
    """Let a newcomer in; returns the weights it gets at the iteration that is to be redone."""
    members = ("w0", "w1", "w3")
    joining = pool.submit(late.join, 3, members, None)
    for worker in survivors:
        worker.join(3, members, 0)
    assert min(joining.result(timeout=LONG)) == 0
    assert late.client.fetch(0, late.weights.numpy()) == "0"
    return late.weights.tolist()
