"""What the agent costs: CPU time per iteration beside the identical script with plain DDP.

Three pairs of workers are alive together and take turns of a few iterations while the others are
blocked: DDP, DDP once more, and the agent, which reports to a controller in this process. Load from
elsewhere falls on all of them; what the two equal pairs differ by is the noise of the method.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection, Listener
from pathlib import Path
from statistics import median, quantiles

from tests.bench.gpt import GLOBAL_BATCH, WINDOWS, WORKERS
from tests.conductor import Conductor

SCRIPT = ["-m", "tests.bench.gpt"]
PLAIN, AGAIN, AGENT = "DDP", "DDP again", "agent"
PAIRS = (PLAIN, AGAIN, AGENT)

TARGET = 0.03
QUIET = 0.01  # noise at which no more rounds are needed
FEWEST_ROUNDS, MOST_ROUNDS = 12, 40
LONGEST = 220.0  # seconds of measuring, at most
WARM_UP, ITERATIONS = 4, 4
SAME_LOSS = 0.01


@dataclass(frozen=True, slots=True)
class Cost:
    """CPU seconds per iteration and worker in one round, by pair."""

    plain: float
    again: float
    agent: float

    @property
    def overhead(self) -> float:
        """What the agent adds, as a share of the mean of the two plain pairs."""
        return 2 * self.agent / (self.plain + self.again) - 1

    @property
    def noise(self) -> float:
        """What the second of two equal pairs seems to add to the first."""
        return self.again / self.plain - 1


@dataclass(frozen=True, slots=True)
class Spread:
    """Median and quartiles of some values."""

    low: float
    middle: float
    high: float


def main() -> int:
    """Measure and print; 1 if the agent costs more than it may."""
    with tempfile.TemporaryDirectory() as directory, workers(Path(directory)) as pairs:
        costs = measure(pairs)
    show(costs)
    overhead = spread([cost.overhead for cost in costs]).middle
    return int(overhead > max(TARGET, noise_of(costs)))


@contextmanager
def workers(directory: Path) -> Iterator[Mapping[str, list[Connection]]]:
    """Start all pairs; yields the connections to the workers of each."""
    address = str(directory / "turns")
    environment = {"BENCH_ADDRESS": address, "GLOO_SOCKET_IFNAME": "lo"}
    conductor = Conductor(directory, SCRIPT, dataset_size=WINDOWS, environment=environment)
    with Listener(address, backlog=8) as listener, conductor:
        for rank in range(WORKERS):
            conductor.start(name_of(AGENT, rank))
            for pair in (PLAIN, AGAIN):
                start_plain(conductor, pair, rank)
        accepted = [listener.accept() for _ in range(len(PAIRS) * WORKERS)]
        connections = {connection.recv(): connection for connection in accepted}
        conductor.order([name_of(AGENT, rank) for rank in range(WORKERS)], GLOBAL_BATCH)
        yield {
            pair: [connections[name_of(pair, rank)] for rank in range(WORKERS)] for pair in PAIRS
        }
        for connection in accepted:
            connection.send(0)
        for process in conductor.processes.values():
            process.wait(timeout=20)


def start_plain(conductor: Conductor, pair: str, rank: int) -> None:
    """Start a worker that knows nothing of the conductor, which only ends it."""
    name = name_of(pair, rank)
    ours = {
        "BENCH_NAME": name,
        "BENCH_MEETING": f"file://{conductor.directory}/{pair.replace(' ', '-')}",
        "RANK": str(rank),
        "OMP_NUM_THREADS": "1",
    }
    with open(conductor.directory / f"{name}.log", "wb") as log:
        conductor.processes[name] = subprocess.Popen(
            [sys.executable, *SCRIPT],
            cwd=conductor.directory,
            env={**os.environ, **conductor.environment, **ours},
            stdout=log,
            stderr=log,
        )


def name_of(pair: str, rank: int) -> str:
    return f"{pair} {rank}"


def measure(pairs: Mapping[str, list[Connection]]) -> list[Cost]:
    """Take rounds until the method is quiet enough, or it has been tried for long enough."""
    play(pairs, PAIRS, WARM_UP)
    end = time.monotonic() + LONGEST
    costs: list[Cost] = []
    while not is_enough(costs) and time.monotonic() < end:
        first = len(costs) % len(PAIRS)
        costs.append(play(pairs, PAIRS[first:] + PAIRS[:first], ITERATIONS))
    return costs


def is_enough(costs: list[Cost]) -> bool:
    if len(costs) < FEWEST_ROUNDS:
        return False
    return noise_of(costs) < QUIET or len(costs) >= MOST_ROUNDS


def play(pairs: Mapping[str, list[Connection]], order: tuple[str, ...], iterations: int) -> Cost:
    """Give each pair its turn."""
    cpu_time, loss = {}, {}
    for pair in order:
        for connection in pairs[pair]:
            connection.send(iterations)
        rounds = [connection.recv() for connection in pairs[pair]]
        cpu_time[pair] = sum(each.cpu_time for each in rounds) / iterations / WORKERS
        loss[pair] = sum(each.loss for each in rounds) / WORKERS
    return Cost(cpu_time[PLAIN], cpu_time[AGAIN], cpu_time[AGENT])


def noise_of(costs: list[Cost]) -> float:
    return abs(median(cost.noise for cost in costs))


def spread(values: list[float]) -> Spread:
    return Spread(*quantiles(values, n=4, method="inclusive"))


def show(costs: list[Cost]) -> None:
    pass


if __name__ == "__main__":
    sys.exit(main())
