"""What a parameter server's round trip costs, and what a slow replica of Downpour costs the others.

The same workers take turns, some iterations at a time: push to our servers and hear from them,
gloo's reduce to a server and broadcast from it, and gloo's all-reduce without any server. Load
from elsewhere falls on all three, so their ratios can be trusted more than their times.
"""

from __future__ import annotations

import multiprocessing
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import distributed, nn

from tests.integration.forked import PRELOADED
from tests.integration.test_downpour import conduct, rows, start_servers, wait_for_rows
from tests.integration.test_downpour import order as order_downpour
from worker_agent.parameter_server.client import ParameterServerClient
from worker_agent.parameter_server.messages import (
    JoinRequest,
    OptimizerSlots,
    PushRequest,
    Segment,
    ShardManifest,
    shard_ranges,
)
from worker_agent.parameter_server.server import ShardServer
from worker_agent.pytorch.server_shard import TorchShard, describe_optimizer

SIZES = {"3.2 MB": 800_000, "44.7 MB": 11_175_000}
WORKERS = SERVERS = 2
OURS, REDUCE, ALL_REDUCE = METHODS = ("ours", "reduce + broadcast", "all-reduce")
ROUNDS, ITERATIONS = 12, 5
TARGET = 1.0  # of gloo's reduce and broadcast
SECRET = "bench"

PACE, SLOWER = 0.03, 10
STRAGGLERS = 5
WINDOW = 60  # iterations of the leader
UNHARMED = 0.95

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(PRELOADED)


def rate(entries: list[dict[str, Any]]) -> float:
    """Iterations per second, by the median gap."""
    return 1 / median(after["at"] - before["at"] for before, after in pairwise(entries))


@dataclass(frozen=True, slots=True)
class Asked:
    """Do so many iterations of one method."""

    method: str
    iterations: int


def main() -> int:
    """Measure and print; 1 if a target is missed."""
    console = Console()
    with console.status("round trips, about a minute") as status:
        trips = {name: measure(size) for name, size in SIZES.items()}
        status.update("Downpour with a slow replica, about a minute")
        with tempfile.TemporaryDirectory() as directory:
            kept = straggle(Path(directory))
    console.print(to_table(trips))
    against = {name: ratio(times, REDUCE) for name, times in trips.items()}
    worst = max(against.values())
    console.print(
        f"Round trip of {WORKERS} workers and {SERVERS} servers: push the gradient, average, step "
        "SGD with momentum, send the weights back; ours computes all norms too. Medians of "
        f"{ROUNDS} rounds of {ITERATIONS}; ratios are medians of the rounds' own.\n"
        f"target: at most {TARGET} of reduce + broadcast; the worst is {worst:.2f}: "
        f"{'met' if worst <= TARGET else 'missed'}\n"
        "Downpour, samples/s of the first of two replicas beside one "
        f"{SLOWER} times slower, relative to without it, {STRAGGLERS} times: "
        f"{', '.join(f'{each:.3f}' for each in kept)}; "
        f"median {median(kept):.3f}, target {UNHARMED}: "
        f"{'met' if median(kept) >= UNHARMED else 'missed'}",
        highlight=False,
    )
    return int(worst > TARGET or median(kept) < UNHARMED)


# Round trips.


def measure(size: int) -> dict[str, list[float]]:
    """Return seconds per iteration of each method, round by round."""
    pipes, processes = [], []
    with tempfile.TemporaryDirectory() as directory:
        addresses = [started_server(processes) for _ in range(SERVERS)]
        for rank in range(WORKERS + SERVERS):
            here, there = CONTEXT.Pipe()
            facts = (there, f"file://{directory}/meeting", rank, size, addresses)
            processes.append(CONTEXT.Process(target=take_part, args=facts, daemon=True))
            processes[-1].start()
            pipes.append(here)
        try:
            for method in METHODS:
                play(pipes, method, 2)
            return take_turns(pipes)
        finally:
            for process in processes:
                process.kill()
                process.join()


def started_server(processes: list[multiprocessing.process.BaseProcess]) -> str:
    """Start one of our servers; returns its address."""
    here, there = CONTEXT.Pipe()
    processes.append(CONTEXT.Process(target=serve, args=(there,), daemon=True))
    processes[-1].start()
    address: str = here.recv()
    return address


def serve(pipe: Connection) -> None:
    """Be a server."""
    torch.set_num_threads(1)
    server = ShardServer("127.0.0.1", SECRET, TorchShard.make)
    pipe.send(server.address)
    server.serve()


def take_turns(pipes: Sequence[Connection]) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {method: [] for method in METHODS}
    for turn in range(ROUNDS):
        first = turn % len(METHODS)
        for method in METHODS[first:] + METHODS[:first]:
            times[method].append(play(pipes, method, ITERATIONS))
    return times


def play(pipes: Sequence[Connection], method: str, iterations: int) -> float:
    """Let all take part; returns the seconds per iteration of the slowest worker."""
    for pipe in pipes:
        pipe.send(Asked(method, iterations))
    return max([pipe.recv() for pipe in pipes][:WORKERS])


def take_part(
    pipe: Connection, meeting: str, rank: int, size: int, addresses: Sequence[str]
) -> None:
    """Be one of the workers, or one of gloo's servers."""
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", meeting, rank=rank, world_size=WORKERS + SERVERS)
    trip = Trip(rank, size, addresses)
    ways = {OURS: trip.ours, REDUCE: trip.reduce, ALL_REDUCE: trip.all_reduce}
    while True:
        asked: Asked = pipe.recv()
        began = time.perf_counter()
        for _ in range(asked.iterations):
            ways[asked.method]()
        pipe.send((time.perf_counter() - began) / asked.iterations)


class Trip:
    """One process's part in each method."""

    def __init__(self, rank: int, size: int, addresses: Sequence[str]) -> None:
        self.rank = rank
        everyone = list(range(WORKERS))
        self.workers = distributed.new_group(everyone)
        self.groups = [distributed.new_group([*everyone, WORKERS + s]) for s in range(SERVERS)]
        self.edges = shard_ranges(size, SERVERS)
        self.gradient, self.weights = torch.randn(size), torch.zeros(size)
        self.iteration = 0
        if rank < WORKERS:
            self._join(addresses)
        else:
            low, high = self.edges[rank - WORKERS]
            self.shard, self.momentum = torch.zeros(high - low), torch.zeros(high - low)

    def _join(self, addresses: Sequence[str]) -> None:
        self.client = ParameterServerClient(addresses, SECRET, lambda: False)
        names = tuple(f"w{rank}" for rank in range(WORKERS))
        applied = self.client.join((1, 0), 0, JoinRequest(names[self.rank], names, True, ""))
        sgd = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.01, momentum=0.9)
        for server, (low, high) in enumerate(self.edges):
            if applied[server] < 0:
                segments, slots = (Segment(0, high - low),), (OptimizerSlots({}, ()),)
                holding = ShardManifest("float32", describe_optimizer(sgd), segments, slots, "", 0)
                self.client.put(server, 0, holding, [self.weights[low:high].numpy()])

    def ours(self) -> None:
        """Push to our servers and hear from them."""
        if self.rank >= WORKERS:
            return
        said = PushRequest(1 / WORKERS, False, np.zeros(7), np.array([0.01]), "")
        self.client.push(self.iteration, said, [self.gradient.numpy()], self.weights.numpy())
        self.iteration += 1

    def reduce(self) -> None:
        """Reduce to gloo's servers, which average and step, and hear their broadcast."""
        if self.rank < WORKERS:
            self.weights.copy_(self.gradient)
            self._with_all(distributed.reduce)
            self._with_all(distributed.broadcast)
            return
        server = self.rank - WORKERS
        mean = torch.zeros_like(self.shard)
        distributed.reduce(mean, self.rank, group=self.groups[server])
        self.momentum.mul_(0.9).add_(mean.div_(WORKERS))
        self.shard.add_(self.momentum, alpha=-0.01)
        distributed.broadcast(self.shard, self.rank, group=self.groups[server])

    def _with_all(self, collective: Any) -> None:
        works = [
            collective(self.weights[low:high], WORKERS + s, group=self.groups[s], async_op=True)
            for s, (low, high) in enumerate(self.edges)
        ]
        for work in works:
            work.wait()

    def all_reduce(self) -> None:
        """Average among the workers."""
        if self.rank < WORKERS:
            distributed.all_reduce(self.gradient, group=self.workers)
            self.gradient.div_(WORKERS)


# A slow replica.


def straggle(directory: Path) -> list[float]:
    """Return the first worker's samples/s beside a slow one, relative to without it, each time."""
    slow = {f"slow{number}": PACE * SLOWER for number in range(STRAGGLERS)}
    with conduct(directory, w0=PACE, w1=PACE, **slow) as conductor:
        start_servers(conductor, "s0", "s1")
        for name in ("w0", "w1", *slow):
            conductor.start(name)
        rates = []
        for name in slow:
            order_downpour(conductor, ["w0", "w1"])
            rates.append(rate(wait_for_rows(conductor, "w0", WINDOW)[10:]))
            order_downpour(conductor, ["w0", "w1", name])
            conductor.wait(lambda name=name: rows(conductor, name))
            rates.append(rate(wait_for_rows(conductor, "w0", WINDOW)[10:]))
        order_downpour(conductor, ["w0", "w1"])
        rates.append(rate(wait_for_rows(conductor, "w0", WINDOW)[10:]))
    without, beside = rates[::2], rates[1::2]
    return [2 * each / (a + b) for each, (a, b) in zip(beside, pairwise(without), strict=True)]


# Pages.


def ratio(times: dict[str, list[float]], other: str) -> float:
    return median(a / b for a, b in zip(times[OURS], times[other], strict=True))


def to_table(trips: dict[str, dict[str, list[float]]]) -> Table:
    """Lay the methods beside each other, a row for each size."""
    table = Table(title="Milliseconds of a round trip")
    table.add_column("gradient")
    for heading in (*METHODS, "ours / reduce + broadcast", "ours / all-reduce"):
        table.add_column(heading, justify="right")
    for name, times in trips.items():
        table.add_row(
            name,
            *(f"{median(times[method]) * 1000:.1f}" for method in METHODS),
            f"{ratio(times, REDUCE):.2f}",
            f"{ratio(times, ALL_REDUCE):.2f}",
        )
    return table


if __name__ == "__main__":
    sys.exit(main())
