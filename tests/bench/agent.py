"""What the agent costs: CPU time per iteration beside the identical script with plain DDP.

Three pairs of workers are up together and take turns of a few iterations while the others are
blocked: DDP, DDP once more, and the agent, which reports to a controller in this process. Load from
elsewhere falls on all of them; what the two equal pairs differ by is the noise of the method.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection, Listener
from pathlib import Path
from statistics import median, quantiles

from rich.console import Console
from rich.table import Table

from tests.bench.gpt import GLOBAL_BATCH, WINDOWS, WORKERS
from tests.conductor import Conductor

SCRIPT = ["-m", "tests.bench.gpt"]
PLAIN, AGAIN, AGENT = PAIRS = ("DDP", "DDP again", "agent")

TARGET = 0.03
QUIET = 0.01  # noise at which no more rounds are needed
FEWEST_ROUNDS, MOST_ROUNDS = 16, 40
LONGEST = 230.0  # seconds after which no other round begins
WARM_UP, ITERATIONS = 4, 4
SAME_LOSS = 0.01  # relative; the pairs add their gradients up in different orders


@dataclass(frozen=True, slots=True)
class Cost:
    """CPU seconds per iteration and worker in one round, by pair."""

    plain: float
    again: float
    agent: float

    @property
    def overhead(self) -> float:
        """What the agent adds to the mean of the two plain pairs, relative."""
        return 2 * self.agent / (self.plain + self.again) - 1

    @property
    def noise(self) -> float:
        """What the second plain pair seems to add to the first, relative."""
        return self.again / self.plain - 1


def main() -> int:
    """Measure and print; 1 if the agent costs more than it may, and more than the noise."""
    console = Console()
    with tempfile.TemporaryDirectory() as name, console.status("taking turns, some minutes"):
        environment = {"BENCH_ADDRESS": f"{name}/turns", "GLOO_SOCKET_IFNAME": "lo"}
        conductor = Conductor(Path(name), SCRIPT, dataset_size=WINDOWS, environment=environment)
        with conductor, start(conductor) as pairs:
            costs = measure(pairs)
    console.print(to_table(costs))
    console.print(explain(costs, conductor), highlight=False)
    overhead = median(cost.overhead for cost in costs)
    return int(overhead > max(TARGET, noise_of(costs)))


@contextmanager
def start(conductor: Conductor) -> Iterator[Mapping[str, list[Connection]]]:
    """Start all workers; yields the connections of each pair's."""
    with Listener(conductor.environment["BENCH_ADDRESS"], backlog=8) as listener:
        for rank in range(WORKERS):
            conductor.start(f"{AGENT} {rank}")
            start_plain(conductor, PLAIN, rank)
            start_plain(conductor, AGAIN, rank)
        accepted = [listener.accept() for _ in range(len(PAIRS) * WORKERS)]
    by_name = {connection.recv(): connection for connection in accepted}
    conductor.order([f"{AGENT} {rank}" for rank in range(WORKERS)], GLOBAL_BATCH)
    yield {pair: [by_name[f"{pair} {rank}"] for rank in range(WORKERS)] for pair in PAIRS}
    for connection in accepted:
        connection.send(0)
    for process in conductor.processes.values():
        process.wait(timeout=20)


def start_plain(conductor: Conductor, pair: str, rank: int) -> None:
    """Start a worker that knows nothing of the conductor, which will only end it."""
    name = f"{pair} {rank}"
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


def measure(pairs: Mapping[str, list[Connection]]) -> list[Cost]:
    """Take rounds until they are quiet enough together, or enough have been tried."""
    play(pairs, PAIRS, WARM_UP)
    end = time.monotonic() + LONGEST
    costs: list[Cost] = []
    while not is_enough(costs) and time.monotonic() < end:
        first = len(costs) % len(PAIRS)
        costs.append(play(pairs, PAIRS[first:] + PAIRS[:first], ITERATIONS))
    return costs


def play(pairs: Mapping[str, list[Connection]], order: Sequence[str], iterations: int) -> Cost:
    """Give every pair its turn."""
    cpu_times, losses = {}, {}
    for pair in order:
        for connection in pairs[pair]:
            connection.send(iterations)
        rounds = [connection.recv() for connection in pairs[pair]]
        cpu_times[pair] = sum(each.cpu_time for each in rounds) / iterations / WORKERS
        losses[pair] = sum(each.loss for each in rounds) / WORKERS
    if max(losses.values()) > min(losses.values()) * (1 + SAME_LOSS):
        raise AssertionError(f"the pairs do not train alike: {losses}")
    return Cost(cpu_times[PLAIN], cpu_times[AGAIN], cpu_times[AGENT])


def is_enough(costs: Sequence[Cost]) -> bool:
    if len(costs) < FEWEST_ROUNDS:
        return False
    return noise_of(costs) < QUIET or len(costs) >= MOST_ROUNDS


def noise_of(costs: Sequence[Cost]) -> float:
    return abs(median(cost.noise for cost in costs))


def to_table(costs: Sequence[Cost]) -> Table:
    """Lay the pairs, and what they differ by, below each other."""
    table = Table(title="CPU time per iteration, GPT, 2 workers of 32 samples")
    for heading in ("", "median", "quartiles"):
        table.add_column(heading, justify="right" if heading else "left")
    milliseconds = {
        PLAIN: [cost.plain * 1000 for cost in costs],
        AGAIN: [cost.again * 1000 for cost in costs],
        AGENT: [cost.agent * 1000 for cost in costs],
    }
    for pair, values in milliseconds.items():
        low, middle, high = quantiles(values, method="inclusive")
        table.add_row(pair, f"{middle:.1f} ms", f"{low:.1f} … {high:.1f}")
    table.add_section()
    percent = {
        "agent against DDP": [cost.overhead * 100 for cost in costs],
        "DDP again against DDP": [cost.noise * 100 for cost in costs],
    }
    for pair, values in percent.items():
        low, middle, high = quantiles(values, method="inclusive")
        table.add_row(pair, f"{middle:+.1f} %", f"{low:+.1f} … {high:+.1f}")
    return table


def explain(costs: Sequence[Cost], conductor: Conductor) -> str:
    """Say what the numbers hold, and whether the target is met."""
    overhead = median(cost.overhead for cost in costs)
    norms = [norm for report in conductor.reports for norm in report.steps.local_norm_sq]
    verdict = "met" if overhead <= TARGET else "missed"
    return (
        f"{len(costs)} rounds of {ITERATIONS} iterations. All threads count. The agent measured "
        f"the noise of {sum(norm is not None for norm in norms)} iterations and sent "
        f"{len(conductor.reports)} reports, also between its turns, where they do not count.\n"
        f"target: median under {TARGET:.0%}, method's noise {noise_of(costs):.1%}: {verdict}"
    )


if __name__ == "__main__":
    sys.exit(main())
