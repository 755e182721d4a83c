"""What the agent costs with TensorFlow, beside MultiWorkerMirroredStrategy in the same run.

Four pairs of workers are up together and take turns of a few iterations while the others are
blocked: MultiWorkerMirroredStrategy, the same once more, the same with the hooks of ``agent run``,
and the agent's session, which reports to a controller in this process. What the two equal pairs
differ by is the noise of the method. Scripts with synchronous parameter servers take turns in the
same way: three clusters of one server and two workers, the last of them with the hooks. The CPU
time of a cluster is its server's too.
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
SCRIPT_OF_SERVERS = ["-m", "tests.bench.servers_trained"]
SERVERS = "servers"
# Samples of a worker: steps of 20 ms and more.
WORKLOADS = {"0.3 million": 128, "11 million": 16, SERVERS: 512}
PLAIN, AGAIN, HOOKS, SESSION = "plain", "plain again", "with hooks", "session"
MOST_CPU, MOST_WALL = 1.0, 1.2  # of MultiWorkerMirroredStrategy's
MOST_CPU_OF_HOOKS, MOST_CPU_OF_SERVERS = 1.03, 1.05
STARTS, ROUNDS, WARM_UP, ITERATIONS = 3, 6, 6, 8
SAME_LOSS = 0.02  # relative; the pairs add their gradients up in different orders
LONGEST = 600.0


@dataclass(frozen=True, slots=True)
class Ratio:
    """What one cluster used in one turn, in parts of the mean of the two plain ones.

    Attributes:
        cpu: CPU time of both workers, and of their server.
        wall: Wall time of an iteration of the slower one, the median of the turn.
    """

    cpu: float
    wall: float


@dataclass(frozen=True, slots=True)
class Cluster:
    """The processes of one way to train.

    Attributes:
        workers: Connections of its workers.
        servers: Its parameter servers, which take no turns: they work when their workers do.
    """

    workers: Sequence[Connection]
    servers: Sequence[subprocess.Popen[bytes]]

    def play(self, iterations: int) -> Turns:
        """Let all workers iterate and wait for them."""
        before = self._cpu_of_servers()
        for connection in self.workers:
            connection.send(iterations)
        rounds = [connection.recv() for connection in self.workers]
        return Turns(rounds, self._cpu_of_servers() - before)

    def _cpu_of_servers(self) -> float:
        # Linux numbers the clock of a process's CPU time like this: see clock_getcpuclockid.
        return sum(time.clock_gettime((~server.pid << 3) | 2) for server in self.servers)


@dataclass(frozen=True, slots=True)
class Turns:
    """What the processes of one cluster used in one turn.

    Attributes:
        rounds: Of its workers.
        servers: CPU time of its servers.
    """

    rounds: Sequence[Round]
    servers: float

    @property
    def cpu(self) -> float:
        """CPU seconds per iteration and worker, with a share of the server's."""
        spent = sum(each.cpu_time for each in self.rounds) + self.servers
        return spent / len(self.rounds[0].wall_times) / WORKERS

    @property
    def wall(self) -> float:
        """Wall seconds of an iteration: its slower worker's, the median over the turn."""
        walls = zip(*(each.wall_times for each in self.rounds), strict=True)
        return median(max(both) for both in walls)


def main() -> int:
    """Measure and print; 1 if the agent costs more than it may."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workloads", nargs="*", default=list(WORKLOADS), metavar="WORKLOAD")
    console = Console(soft_wrap=True)
    verdicts = [bench(console, workload) for workload in parser.parse_args().workloads]
    return int(not all(verdicts))


def ways_of(workload: str) -> tuple[str, ...]:
    """Return the ways in which a workload is trained; servers have no session."""
    return (PLAIN, AGAIN, HOOKS) if workload == SERVERS else (PLAIN, AGAIN, HOOKS, SESSION)


def bench(console: Console, workload: str) -> bool:
    """Measure one workload; whether session and hooks cost no more than they may."""
    random, turns = Random(workload), list[Mapping[str, Turns]]()
    for start in range(STARTS):
        console.print(f"{workload}: start {start + 1} of {STARTS}", highlight=False)
        turns += start_once(workload, random)
    console.print(to_table(workload, turns))
    hooks = ratio_of(turns, HOOKS)
    most = MOST_CPU_OF_SERVERS if workload == SERVERS else MOST_CPU_OF_HOOKS
    figures = [("hooks, CPU", hooks.cpu, most)]
    if SESSION in ways_of(workload):
        session = ratio_of(turns, SESSION)
        figures.append(("session, CPU", session.cpu, MOST_CPU))
        figures.append(("session, wall", session.wall, MOST_WALL))
    for name, found, most in figures:
        verdict = "met" if found <= most else "missed"
        console.print(f"{workload}: {name} {found:.3f} of {most}: {verdict}", highlight=False)
    return all(found <= most for _, found, most in figures)


def start_once(workload: str, random: Random) -> Iterator[Mapping[str, Turns]]:
    """Start all clusters and let them take turns; yields what each used in a turn."""
    script = SCRIPT_OF_SERVERS if workload == SERVERS else SCRIPT
    with tempfile.TemporaryDirectory() as name:
        environment = {
            "BENCH_ADDRESS": f"{name}/turns",
            "BENCH_WORKLOAD": workload,
            "BENCH_BATCH": str(WORKLOADS[workload] * WORKERS),
            "CUDA_VISIBLE_DEVICES": "-1",
            "TF_CPP_MIN_LOG_LEVEL": "2",
        }
        conductor = Conductor(Path(name), script, environment=environment)
        with conductor, start(conductor, workload) as clusters:
            play(clusters, ways_of(workload), WARM_UP)
            for _ in range(ROUNDS):
                yield play(clusters, random.sample(list(clusters), len(clusters)), ITERATIONS)
            if not (Path(name) / "rows.jsonl").exists():
                raise AssertionError("the hooks measured nothing")


@contextmanager
def start(conductor: Conductor, workload: str) -> Iterator[Mapping[str, Cluster]]:
    """Start all processes; yields the clusters once their workers have connected."""
    ways, number_of_servers = ways_of(workload), int(workload == SERVERS)
    servers: dict[str, list[subprocess.Popen[bytes]]] = {way: [] for way in ways}
    with Listener(conductor.environment["BENCH_ADDRESS"], backlog=16) as listener:
        for way in ways:
            addresses = free_addresses(WORKERS + number_of_servers)
            cluster = {"worker": addresses[:WORKERS]}
            if number_of_servers:
                cluster["ps"] = addresses[WORKERS:]
            for rank in range(number_of_servers):
                servers[way].append(start_process(conductor, way, rank, cluster, task="ps"))
            for rank in range(WORKERS):
                start_process(conductor, way, rank, cluster)
        accepted = [listener.accept() for _ in range(len(ways) * WORKERS)]
    by_name = {connection.recv(): connection for connection in accepted}
    if SESSION in ways:
        batch = WORKLOADS[workload] * WORKERS
        conductor.order([f"{SESSION} {rank}" for rank in range(WORKERS)], batch)
    yield {
        way: Cluster([by_name[f"{way} {rank}"] for rank in range(WORKERS)], servers[way])
        for way in ways
    }
    for connection in accepted:
        connection.send(0)
    every = [server for way in ways for server in servers[way]]
    deadline = time.monotonic() + LONGEST
    for process in conductor.processes.values():
        if process not in every:
            process.wait() if time.monotonic() < deadline else process.kill()
    for server in every:
        server.kill()  # it would serve for ever


def free_addresses(number: int) -> list[str]:
    """Return addresses that no program listens at."""
    with ExitStack() as stack:
        sockets = [
            stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(number)
        ]
        return [f"127.0.0.1:{each.getsockname()[1]}" for each in sockets]


def start_process(
    conductor: Conductor,
    way: str,
    rank: int,
    cluster: Mapping[str, list[str]],
    task: str = "worker",
) -> subprocess.Popen[bytes]:
    """Start one; the conductor will end it, also one that does not know of the conductor."""
    name = f"{way} {rank}" if task == "worker" else f"{way} {task}"
    conductor.environment = {
        **conductor.environment,
        "BENCH_WAY": "session" if way == SESSION else "plain",
        "BENCH_NAME": name,
        "BENCH_CLUSTER": json.dumps(cluster),
        "BENCH_TASK": task,
        "RANK": str(rank),
    }
    if way == SESSION:
        conductor.start(name)
        return conductor.processes[name]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **conductor.environment}
    if way == HOOKS:
        rows = str(conductor.directory / "rows.jsonl")
        environment = instrumented_environment(environment, {"SCAVENGER_ROWS": rows})
    with open(conductor.directory / f"{name}.log", "wb") as log:
        conductor.processes[name] = subprocess.Popen(
            [sys.executable, *conductor.command],
            cwd=conductor.directory,
            env=environment,
            stdout=log,
            stderr=log,
        )
    return conductor.processes[name]


def play(
    clusters: Mapping[str, Cluster], order: Sequence[str], iterations: int
) -> Mapping[str, Turns]:
    """Give every cluster its turn."""
    turns = {way: clusters[way].play(iterations) for way in order}
    losses = {way: fmean(each.loss for each in turns[way].rounds) for way in order}
    if max(losses.values()) > min(losses.values()) * (1 + SAME_LOSS):
        raise AssertionError(f"the clusters do not train alike: {losses}")
    return turns


def ratio_of(turns: Sequence[Mapping[str, Turns]], way: str) -> Ratio:
    """What a way to train used beside the mean of the plain ones, the median over all turns."""
    cpu = [turn[way].cpu / fmean((turn[PLAIN].cpu, turn[AGAIN].cpu)) for turn in turns]
    wall = [turn[way].wall / fmean((turn[PLAIN].wall, turn[AGAIN].wall)) for turn in turns]
    return Ratio(median(cpu), median(wall))


def to_table(workload: str, turns: Sequence[Mapping[str, Turns]]) -> Table:
    """Lay the ways to train below each other."""
    title = f"{workload}: {WORKERS} workers of {WORKLOADS[workload]} samples"
    table = Table(title=title)
    for heading in ("", "CPU", "of plain", "wall", "of plain"):
        table.add_column(heading, justify="right" if heading else "left")
    for way in ways_of(workload):
        ratio = ratio_of(turns, way)
        cpu = median(turn[way].cpu for turn in turns) * 1000
        wall = median(turn[way].wall for turn in turns) * 1000
        row = (f"{cpu:.1f} ms", f"{ratio.cpu:.2f}", f"{wall:.1f} ms", f"{ratio.wall:.2f}")
        table.add_row(way, *row)
    return table


if __name__ == "__main__":
    sys.exit(main())
