"""What the agent costs: time per iteration beside the identical script with plain DDP.

Five pairs of workers are up together and take turns of a few iterations while the others are
blocked: DDP, DDP once more, DDP with the agent's hooks as ``agent run`` installs them, the agent's
session, which reports to a controller in this process, and DDP with norms that are read by hand.
Load from elsewhere falls on all of them. What the two equal pairs differ by is the noise of the
method. Most of it lasts as long as a process, which lies well in memory or does not: so all pairs
are started again and again, in an order drawn at random, until noise and error are small.
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
from random import Random
from statistics import fmean, median, quantiles, stdev

from rich.console import Console
from rich.table import Table

from tests.bench.turn import GLOBAL_BATCH, WORKERS, Round
from tests.bench.workload import WORKLOADS
from tests.conductor import Conductor

SCRIPT = ["-m", "tests.bench.trained"]
PLAIN, AGAIN, HOOKS, SESSION, ITEM = "DDP", "DDP again", "agent run", "session", "norms by hand"
WAYS = {PLAIN: "plain", AGAIN: "plain", HOOKS: "hooks", SESSION: "session", ITEM: "item"}
PAIRS, OURS = tuple(WAYS), (SESSION, HOOKS)

TARGET = 0.02
MOST_WALL, MOST_WALL_SHARE = 0.001, 0.01  # added by the 99th percentile
QUIET, SURE = 0.01, 0.006  # noise, and error of what ours cost, at which no more is needed
FEWEST_STARTS, MOST_STARTS = 4, 24
LONGEST = 900.0  # seconds after which the pairs are not started again
ROUNDS = 5  # of one start
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


@dataclass(frozen=True, slots=True)
class Start:
    """What came of starting all pairs once.

    Attributes:
        measured: Iterations whose noise the session measured.
        reports: Reports that the session sent.
    """

    turns: tuple[Turns, ...]
    measured: int
    reports: int


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
    random, end = Random(workload), time.monotonic() + LONGEST
    starts: list[Start] = []
    console.print(f"{workload}: taking turns, {FEWEST_STARTS} to {MOST_STARTS} starts")
    while not is_enough(starts) and time.monotonic() < end:
        starts.append(start_once(workload, random))
        console.print(f"  start {len(starts)}: {summary(starts[-1])}", highlight=False)
    console.print(to_table(workload, starts))
    console.print(explain(starts), highlight=False)
    return max(cost_of(starts, pair) for pair in OURS) <= max(TARGET, noise_of(starts))


def summary(start: Start) -> str:
    """Say what one start showed."""
    costs = [f"{pair} {cost_of([start], pair):+.1%}" for pair in OURS]
    return f"CPU beside DDP: {', '.join(costs)}, noise {noise_of([start]):.1%}"


def start_once(workload: str, random: Random) -> Start:
    """Start all pairs and let them take turns for some rounds."""
    with tempfile.TemporaryDirectory() as name:
        environment = {
            "BENCH_ADDRESS": f"{name}/turns",
            "BENCH_WORKLOAD": workload,
            "GLOO_SOCKET_IFNAME": "lo",
        }
        conductor = Conductor(Path(name), SCRIPT, environment=environment)
        with conductor, start(conductor, shuffled(random)) as pairs:
            play(pairs, PAIRS, WARM_UP)
            turns = [play(pairs, shuffled(random), ITERATIONS) for _ in range(ROUNDS)]
    norms = [norm for report in conductor.reports for norm in report.steps.local_norm_sq]
    measured = sum(norm is not None for norm in norms)
    return Start(tuple(turns), measured, len(conductor.reports))


def shuffled(random: Random) -> Sequence[str]:
    return random.sample(PAIRS, len(PAIRS))


@contextmanager
def start(conductor: Conductor, order: Sequence[str]) -> Iterator[Mapping[str, list[Connection]]]:
    """Start all workers; yields the connections of each pair's."""
    with Listener(conductor.environment["BENCH_ADDRESS"], backlog=16) as listener:
        for pair in order:
            for rank in range(WORKERS):
                start_worker(conductor, pair, rank)
        accepted = [listener.accept() for _ in range(len(PAIRS) * WORKERS)]
    by_name = {connection.recv(): connection for connection in accepted}
    conductor.order([f"{SESSION} {rank}" for rank in range(WORKERS)], GLOBAL_BATCH)
    yield {pair: [by_name[f"{pair} {rank}"] for rank in range(WORKERS)] for pair in PAIRS}
    for connection in accepted:
        connection.send(0)
    for process in conductor.processes.values():
        process.wait(timeout=LONGEST)


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


def is_enough(starts: Sequence[Start]) -> bool:
    if len(starts) < FEWEST_STARTS:
        return False
    is_sure = max(error_of(starts, pair) for pair in OURS) < SURE
    return (is_sure and noise_of(starts) < QUIET) or len(starts) >= MOST_STARTS


def noise_of(starts: Sequence[Start]) -> float:
    return abs(fmean(median(turn.noise for turn in start.turns) for start in starts))


def cost_of(starts: Sequence[Start], pair: str) -> float:
    return fmean(costs_of(starts, pair))


def costs_of(starts: Sequence[Start], pair: str) -> list[float]:
    """Return what a pair cost in each start."""
    return [median(turn.overhead(pair) for turn in start.turns) for start in starts]


def error_of(starts: Sequence[Start], pair: str) -> float:
    """Return the standard error of what a pair costs."""
    return float(stdev(costs_of(starts, pair)) / len(starts) ** 0.5)


def turns_of(starts: Sequence[Start]) -> list[Turns]:
    return [turn for start in starts for turn in start.turns]


def wall_times(starts: Sequence[Start], pair: str) -> list[float]:
    """Return the wall seconds of all iterations, of the slower worker."""
    walls = [[each.wall_times for each in turn.rounds[pair]] for turn in turns_of(starts)]
    return [max(both) for wall in walls for both in zip(*wall, strict=True)]


def last_percentile(starts: Sequence[Start], pair: str) -> float:
    return quantiles(wall_times(starts, pair), n=100, method="inclusive")[98]


def to_table(workload: str, starts: Sequence[Start]) -> Table:
    """Lay the pairs below each other: what they use, and how much more than plain DDP."""
    table = Table(title=f"{workload}, 2 workers of 32 samples, per iteration")
    for heading in ("", "CPU", "quartiles", "more than DDP", "quartiles", "wall", "p99"):
        table.add_column(heading, justify="right" if heading else "left")
    turns = turns_of(starts)
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
            f"{median(wall_times(starts, pair)) * 1000:.1f} ms",
            f"{last_percentile(starts, pair) * 1000:.1f} ms",
        )
    return table


def explain(starts: Sequence[Start]) -> str:
    """Say what the numbers hold, and whether the targets are met."""
    verdict = "met" if max(cost_of(starts, pair) for pair in OURS) <= TARGET else "missed"
    plain = last_percentile(starts, PLAIN)
    allowed = MOST_WALL + MOST_WALL_SHARE * plain
    added = last_percentile(starts, SESSION) - plain
    by_chance = abs(last_percentile(starts, AGAIN) - plain)
    costs = [f"{pair} {cost_of(starts, pair):+.1%} ± {error_of(starts, pair):.1%}" for pair in OURS]
    return (
        f"{len(starts)} starts, each of {ROUNDS} rounds of {ITERATIONS} iterations, all threads "
        f"count. The sessions measured the noise of {sum(each.measured for each in starts)} "
        f"iterations and sent {sum(each.reports for each in starts)} reports, also between their "
        f"turns, where they do not count.\n"
        f"CPU, mean of the starts' medians: target under {TARGET:.0%}, {', '.join(costs)}, the "
        f"method's noise is {noise_of(starts):.1%}: {verdict}\n"
        f"Wall, 99th percentile: target under {allowed * 1000:.1f} ms more, the session adds "
        f"{added * 1000:+.1f} ms, chance adds {by_chance * 1000:.1f} ms: "
        f"{'met' if added <= max(allowed, by_chance) else 'missed'}"
    )


if __name__ == "__main__":
    sys.exit(main())
