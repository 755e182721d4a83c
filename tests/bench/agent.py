"""What the agent costs: time per iteration beside the identical script with plain DDP.

Five pairs of workers are up together and take turns of a few iterations while the others are
blocked: DDP, DDP once more, DDP with the agent's hooks as ``agent run`` installs them, the agent's
session, which reports to a controller in this process, and DDP with norms that are read by hand.
Load from elsewhere falls on all of them; what the two equal pairs differ by is the noise of the
method, and rounds are added until it is small.
"""

from __future__ import annotations

import argparse
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

from tests.bench.trained import GLOBAL_BATCH, WORKERS
from tests.bench.turn import Round
from tests.bench.workload import WORKLOADS
from tests.conductor import Conductor

SCRIPT = ["-m", "tests.bench.trained"]
PLAIN, AGAIN, HOOKS, SESSION, ITEM = "DDP", "DDP again", "agent run", "session", "norms by hand"
WAYS = {PLAIN: "plain", AGAIN: "plain", HOOKS: "hooks", SESSION: "session", ITEM: "item"}
PAIRS = tuple(WAYS)

TARGET = 0.02
MOST_WALL, MOST_WALL_SHARE = 0.001, 0.01  # added by the 99th percentile
QUIET = 0.01  # noise at which no more rounds are needed
FEWEST_ROUNDS, MOST_ROUNDS = 16, 60
LONGEST = 420.0  # seconds after which no other round begins
WARM_UP, ITERATIONS = 4, 4
SAME_LOSS = 0.02  # relative; the pairs add their gradients up in different orders


@dataclass(frozen=True, slots=True)
class Turns:
    """What each pair's workers used in one round."""

    rounds: Mapping[str, Sequence[Round]]

    def cpu_time(self, pair: str) -> float:
        """CPU seconds per iteration and worker."""
        return sum(each.cpu_time for each in self.rounds[pair]) / ITERATIONS / WORKERS

    def overhead(self, pair: str) -> float:
        """What a pair uses more than the mean of the two plain ones, relative."""
        return 2 * self.cpu_time(pair) / (self.cpu_time(PLAIN) + self.cpu_time(AGAIN)) - 1

    @property
    def noise(self) -> float:
        """What the second plain pair seems to add to the first, relative."""
        return self.cpu_time(AGAIN) / self.cpu_time(PLAIN) - 1


def main() -> int:
    """Measure and print; 1 if the agent costs more than it may, and more than the noise."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workloads", nargs="*", default=list(WORKLOADS), metavar="WORKLOAD")
    chosen = parser.parse_args().workloads
    console = Console()
    verdicts = [bench(console, workload) for workload in chosen]
    return int(not all(verdicts))


def bench(console: Console, workload: str) -> bool:
    """Measure one workload; whether the agent costs no more than it may."""
    with (
        tempfile.TemporaryDirectory() as name,
        console.status(f"{workload}: taking turns, some minutes"),
    ):
        environment = {
            "BENCH_ADDRESS": f"{name}/turns",
            "BENCH_WORKLOAD": workload,
            "GLOO_SOCKET_IFNAME": "lo",
        }
        conductor = Conductor(Path(name), SCRIPT, environment=environment)
        with conductor, start(conductor) as pairs:
            turns = measure(pairs)
    console.print(to_table(workload, turns))
    console.print(explain(turns, conductor), highlight=False)
    return cost_of(turns, SESSION) <= max(TARGET, noise_of(turns))


@contextmanager
def start(conductor: Conductor) -> Iterator[Mapping[str, list[Connection]]]:
    """Start all workers; yields the connections of each pair's."""
    with Listener(conductor.environment["BENCH_ADDRESS"], backlog=16) as listener:
        for pair in PAIRS:
            for rank in range(WORKERS):
                start_worker(conductor, pair, rank)
        accepted = [listener.accept() for _ in range(len(PAIRS) * WORKERS)]
    by_name = {connection.recv(): connection for connection in accepted}
    conductor.order([f"{SESSION} {rank}" for rank in range(WORKERS)], GLOBAL_BATCH)
    yield {pair: [by_name[f"{pair} {rank}"] for rank in range(WORKERS)] for pair in PAIRS}
    for connection in accepted:
        connection.send(0)
    for process in conductor.processes.values():
        process.wait(timeout=20)


def start_worker(conductor: Conductor, pair: str, rank: int) -> None:
    """Start one; the conductor will end it, whether it knows of the conductor or not."""
    name = f"{pair} {rank}"
    conductor.environment = {
        **conductor.environment,
        "BENCH_WAY": WAYS[pair],
        "BENCH_NAME": name,
        "BENCH_MEETING": f"file://{conductor.directory}/{pair.replace(' ', '-')}",
        "RANK": str(rank),
    }
    if pair == SESSION:
        conductor.start(name)
        return
    with open(conductor.directory / f"{name}.log", "wb") as log:
        conductor.processes[name] = subprocess.Popen(
            [sys.executable, *SCRIPT],
            cwd=conductor.directory,
            env={**os.environ, "OMP_NUM_THREADS": "1", **conductor.environment},
            stdout=log,
            stderr=log,
        )


def measure(pairs: Mapping[str, list[Connection]]) -> list[Turns]:
    """Take rounds until they are quiet enough together, or enough have been tried."""
    play(pairs, PAIRS, WARM_UP)
    end = time.monotonic() + LONGEST
    turns: list[Turns] = []
    while not is_enough(turns) and time.monotonic() < end:
        first = len(turns) % len(PAIRS)
        turns.append(play(pairs, PAIRS[first:] + PAIRS[:first], ITERATIONS))
    return turns


def play(pairs: Mapping[str, list[Connection]], order: Sequence[str], iterations: int) -> Turns:
    """Give every pair its turn."""
    rounds = {}
    for pair in order:
        for connection in pairs[pair]:
            connection.send(iterations)
        rounds[pair] = [connection.recv() for connection in pairs[pair]]
    losses = {pair: sum(each.loss for each in rounds[pair]) / WORKERS for pair in order}
    if max(losses.values()) > min(losses.values()) * (1 + SAME_LOSS):
        raise AssertionError(f"the pairs do not train alike: {losses}")
    return Turns(rounds)


def is_enough(turns: Sequence[Turns]) -> bool:
    if len(turns) < FEWEST_ROUNDS:
        return False
    return noise_of(turns) < QUIET or len(turns) >= MOST_ROUNDS


def noise_of(turns: Sequence[Turns]) -> float:
    return abs(median(each.noise for each in turns))


def cost_of(turns: Sequence[Turns], pair: str) -> float:
    return median(each.overhead(pair) for each in turns)


def wall_times(turns: Sequence[Turns], pair: str) -> list[float]:
    """Return the wall seconds of all iterations, of the slower worker."""
    walls = [[each.wall_times for each in turn.rounds[pair]] for turn in turns]
    return [max(both) for wall in walls for both in zip(*wall, strict=True)]


def last_percentile(turns: Sequence[Turns], pair: str) -> float:
    return quantiles(wall_times(turns, pair), n=100, method="inclusive")[98]


def to_table(workload: str, turns: Sequence[Turns]) -> Table:
    """Lay the pairs below each other: what they use, and how much more than plain DDP."""
    table = Table(title=f"{workload}, 2 workers of 32 samples, per iteration")
    for heading in ("", "CPU", "quartiles", "more than DDP", "quartiles", "wall", "p99"):
        table.add_column(heading, justify="right" if heading else "left")
    for pair in PAIRS:
        low, middle, high = quantiles([each.cpu_time(pair) * 1000 for each in turns])
        more = [each.noise if pair == AGAIN else each.overhead(pair) for each in turns]
        less, typical, most = quantiles([share * 100 for share in more])
        is_first = pair == PLAIN
        table.add_row(
            pair,
            f"{middle:.1f} ms",
            f"{low:.1f} … {high:.1f}",
            "" if is_first else f"{typical:+.1f} %",
            "" if is_first else f"{less:+.1f} … {most:+.1f}",
            f"{median(wall_times(turns, pair)) * 1000:.1f} ms",
            f"{last_percentile(turns, pair) * 1000:.1f} ms",
        )
    return table


def explain(turns: Sequence[Turns], conductor: Conductor) -> str:
    """Say what the numbers hold, and whether the targets are met."""
    norms = [norm for report in conductor.reports for norm in report.steps.local_norm_sq]
    verdict = "met" if cost_of(turns, SESSION) <= TARGET else "missed"
    plain = last_percentile(turns, PLAIN)
    allowed = MOST_WALL + MOST_WALL_SHARE * plain
    added = last_percentile(turns, SESSION) - plain
    by_chance = abs(last_percentile(turns, AGAIN) - plain)
    return (
        f"{len(turns)} rounds of {ITERATIONS} iterations, all threads count. The session measured "
        f"the noise of {sum(norm is not None for norm in norms)} iterations and sent "
        f"{len(conductor.reports)} reports, also between its turns, where they do not count.\n"
        f"CPU: target under {TARGET:.0%}, the session adds {cost_of(turns, SESSION):+.1%}, agent "
        f"run {cost_of(turns, HOOKS):+.1%}, the method's noise is {noise_of(turns):.1%}: "
        f"{verdict}\n"
        f"Wall, 99th percentile: target under {allowed * 1000:.1f} ms more, the session adds "
        f"{added * 1000:+.1f} ms, chance adds {by_chance * 1000:.1f} ms: "
        f"{'met' if added <= max(allowed, by_chance) else 'missed'}"
    )


if __name__ == "__main__":
    sys.exit(main())
