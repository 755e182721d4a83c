"""What the agent costs with TensorFlow, beside MultiWorkerMirroredStrategy in the same run.

Four pairs of workers are up together and take turns of a few iterations while the others are
blocked: MultiWorkerMirroredStrategy, the same once more, the same with the hooks of ``agent run``,
and the agent's session, which reports to a controller in this process. What the two equal pairs
differ by is the noise of the method.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection, Listener
from pathlib import Path
from random import Random
from statistics import fmean, median

from rich.console import Console
from rich.table import Table

from tests.bench.turn import WORKERS, Round
from tests.conductor import Conductor
from worker_agent.launcher.environment import instrumented_environment

SCRIPT = ["-m", "tests.bench.keras_trained"]
WORKLOADS = {"0.3 million": 128, "11 million": 16}  # samples of a worker: steps of 20 ms and more
PLAIN, AGAIN, HOOKS, SESSION = "MWMS", "MWMS again", "MWMS with hooks", "session"
PAIRS = (PLAIN, AGAIN, HOOKS, SESSION)
MOST_CPU, MOST_WALL = 1.0, 1.2  # of MultiWorkerMirroredStrategy's
MOST_CPU_OF_HOOKS = 1.03
STARTS, ROUNDS, WARM_UP, ITERATIONS = 3, 6, 6, 8
SAME_LOSS = 0.02  # relative; the pairs add their gradients up in different orders
LONGEST = 600.0


@dataclass(frozen=True, slots=True)
class Ratio:
    """What one pair used in one turn, in parts of the mean of the two plain pairs.

    Attributes:
        cpu: CPU time of both workers.
        wall: Wall time of an iteration of the slower one, the median of the turn.
    """

    cpu: float
    wall: float


def main() -> int:
    """Measure and print; 1 if the session costs more than it may."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workloads", nargs="*", default=list(WORKLOADS), metavar="WORKLOAD")
    console = Console(soft_wrap=True)
    verdicts = [bench(console, workload) for workload in parser.parse_args().workloads]
    return int(not all(verdicts))


def bench(console: Console, workload: str) -> bool:
    """Measure one workload; whether session and hooks cost no more than they may."""
    random, turns = Random(workload), list[Mapping[str, Sequence[Round]]]()
    for start in range(STARTS):
        console.print(f"{workload} parameters: start {start + 1} of {STARTS}", highlight=False)
        turns += start_once(workload, random)
    console.print(to_table(workload, turns))
    session = ratio_of(turns, SESSION)
    hooks = ratio_of(turns, HOOKS)
    figures = (
        ("session, CPU", session.cpu, MOST_CPU),
        ("session, wall", session.wall, MOST_WALL),
        ("hooks, CPU", hooks.cpu, MOST_CPU_OF_HOOKS),
    )
    for name, found, most in figures:
        verdict = "met" if found <= most else "missed"
        console.print(f"{workload}: {name} {found:.3f} of {most}: {verdict}", highlight=False)
    return all(found <= most for _, found, most in figures)


def start_once(workload: str, random: Random) -> Iterator[Mapping[str, Sequence[Round]]]:
    """Start all pairs and let them take turns; yields what each used in a turn."""
    with tempfile.TemporaryDirectory() as name:
        environment = {
            "BENCH_ADDRESS": f"{name}/turns",
            "BENCH_WORKLOAD": workload,
            "BENCH_BATCH": str(WORKLOADS[workload] * WORKERS),
            "CUDA_VISIBLE_DEVICES": "-1",
            "TF_CPP_MIN_LOG_LEVEL": "2",
        }
        conductor = Conductor(Path(name), SCRIPT, environment=environment)
        with conductor, start(conductor, WORKLOADS[workload] * WORKERS) as pairs:
            play(pairs, PAIRS, WARM_UP)
            for _ in range(ROUNDS):
                yield play(pairs, random.sample(PAIRS, len(PAIRS)), ITERATIONS)
            if not (Path(name) / "rows.jsonl").exists():
                raise AssertionError("the hooks measured nothing")


@contextmanager
def start(conductor: Conductor, batch: int) -> Iterator[Mapping[str, list[Connection]]]:
    """Start all workers; yields the connections of each pair's."""
    clusters = {pair: json.dumps(free_addresses()) for pair in PAIRS if pair != SESSION}
    with Listener(conductor.environment["BENCH_ADDRESS"], backlog=16) as listener:
        for pair in PAIRS:
            for rank in range(WORKERS):
                start_worker(conductor, pair, rank, clusters.get(pair, ""))
        accepted = [listener.accept() for _ in range(len(PAIRS) * WORKERS)]
    by_name = {connection.recv(): connection for connection in accepted}
    conductor.order([f"{SESSION} {rank}" for rank in range(WORKERS)], batch)
    yield {pair: [by_name[f"{pair} {rank}"] for rank in range(WORKERS)] for pair in PAIRS}
    for connection in accepted:
        connection.send(0)
    deadline = time.monotonic() + LONGEST
    for process in conductor.processes.values():
        process.wait() if time.monotonic() < deadline else process.kill()


def free_addresses() -> list[str]:
    """Return addresses that no program listens at."""
    with ExitStack() as stack:
        sockets = [
            stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(WORKERS)
        ]
        return [f"127.0.0.1:{each.getsockname()[1]}" for each in sockets]


def start_worker(conductor: Conductor, pair: str, rank: int, cluster: str) -> None:
    """Start one; the conductor will end it, also one that does not know of the conductor."""
    name = f"{pair} {rank}"
    conductor.environment = {
        **conductor.environment,
        "BENCH_WAY": "session" if pair == SESSION else "plain",
        "BENCH_NAME": name,
        "BENCH_CLUSTER": cluster,
        "RANK": str(rank),
    }
    if pair == SESSION:
        conductor.start(name)
        return
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **conductor.environment}
    if pair == HOOKS:
        rows = str(conductor.directory / "rows.jsonl")
        environment = instrumented_environment(environment, {"SCAVENGER_ROWS": rows})
    with open(conductor.directory / f"{name}.log", "wb") as log:
        conductor.processes[name] = subprocess.Popen(
            [sys.executable, *SCRIPT],
            cwd=conductor.directory,
            env=environment,
            stdout=log,
            stderr=log,
        )


def play(
    pairs: Mapping[str, list[Connection]], order: Sequence[str], iterations: int
) -> Mapping[str, Sequence[Round]]:
    """Give every pair its turn."""
    rounds = {}
    for pair in order:
        for connection in pairs[pair]:
            connection.send(iterations)
        rounds[pair] = [connection.recv() for connection in pairs[pair]]
    losses = {pair: sum(each.loss for each in rounds[pair]) / WORKERS for pair in order}
    if max(losses.values()) > min(losses.values()) * (1 + SAME_LOSS):
        raise AssertionError(f"the pairs do not train alike: {losses}")
    return rounds


def cpu_of(rounds: Sequence[Round]) -> float:
    """CPU seconds per iteration and worker."""
    return sum(each.cpu_time for each in rounds) / ITERATIONS / WORKERS


def wall_of(rounds: Sequence[Round]) -> float:
    """Wall seconds of an iteration: its slower worker's, the median over the turn."""
    walls = zip(*(each.wall_times for each in rounds), strict=True)
    return median(max(both) for both in walls)


def ratio_of(turns: Sequence[Mapping[str, Sequence[Round]]], pair: str) -> Ratio:
    """What a pair used beside the mean of the plain ones, the median over all turns."""
    cpu = [
        cpu_of(turn[pair]) / fmean(cpu_of(turn[plain]) for plain in (PLAIN, AGAIN))
        for turn in turns
    ]
    wall = [
        wall_of(turn[pair]) / fmean(wall_of(turn[plain]) for plain in (PLAIN, AGAIN))
        for turn in turns
    ]
    return Ratio(median(cpu), median(wall))


def to_table(workload: str, turns: Sequence[Mapping[str, Sequence[Round]]]) -> Table:
    """Lay the pairs below each other."""
    title = f"{workload} parameters, {WORKERS} workers of {WORKLOADS[workload]} samples"
    table = Table(title=title)
    for heading in ("", "CPU", "of MWMS", "wall", "of MWMS"):
        table.add_column(heading, justify="right" if heading else "left")
    for pair in PAIRS:
        ratio = ratio_of(turns, pair)
        cpu = median(cpu_of(turn[pair]) for turn in turns) * 1000
        wall = median(wall_of(turn[pair]) for turn in turns) * 1000
        row = (f"{cpu:.1f} ms", f"{ratio.cpu:.2f}", f"{wall:.1f} ms", f"{ratio.wall:.2f}")
        table.add_row(pair, *row)
    return table


if __name__ == "__main__":
    sys.exit(main())
