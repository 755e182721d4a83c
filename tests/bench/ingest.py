"""Records a second into one process of the controller, beside MLflow's tracking server.

Both run on the same Postgres, in turns, with as many clients, each sending as soon as it is
answered: 1 000 records a report here, 1 000 metrics a batch there, the most it takes. A record is
an iteration; its eight series are eight metrics. The ratio is printed for records, and besides as
if a record were a single metric. Then how many come in reports of 100 at most, and how late the
answers are at 10 000 records a second, sent whether or not answers come in time; and all again with
a fifth of the reports sent twice and answers that are lost. What is stored in the end is counted.
Run by ``make bench-ingest``.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter
from sqlalchemy import Engine, create_engine, func, select, text

from scavenger.protocol import Progress, StepReport
from service.db.database import migrate
from service.db.schema import chunks
from service.postgres.server import EmbeddedPostgres
from tests.bench.load import Caller, Client, best_rate, closed_loop, open_loop, percentile
from tests.bench.machine import measure
from tests.bench.tracker import SERIES, tracker, tracker_clients
from tests.conftest import run
from tests.telemetry.controller import KEYS
from tests.telemetry.source import measured
from tests.telemetry.stage import free_port, set_up

CLIENTS = 4
BATCH = 1_000
SECONDS = 10.0
PACE, SMALL = 10_000, 100  # records a second, in reports of so many
REQUIRED = 50.0
LONGEST = 0.05
REPORT = TypeAdapter(StepReport)


def main() -> int:
    """Print what was measured; 1 if too little, or if a record was lost or stored twice."""
    with tempfile.TemporaryDirectory() as place:
        directory = Path(place)
        directory.chmod(0o755)
        with EmbeddedPostgres(directory / "postgres") as postgres:
            theirs = bench_tracker(postgres, directory)
            return bench_controller(postgres, directory, theirs)


def bench_tracker(postgres: EmbeddedPostgres, directory: Path) -> float:
    """Return metrics a second of MLflow, with as many processes as suit it best."""
    best = 0.0
    for workers in (1, 4):
        name = f"tracker{workers}"
        run(postgres, f"CREATE DATABASE {name}")
        url = postgres.url(name).replace("+psycopg", "+psycopg2")
        port = free_port()
        with tracker(url, port, workers, directory / f"{name}.log"):
            clients = tracker_clients(port, CLIENTS)
            rate = best_rate(clients, SECONDS)
        print(
            f"MLflow, {workers} processes {rate / SERIES:16,.0f} records/s, {rate:,.0f} metrics/s",
            flush=True,
        )
        best = max(best, rate)
    return best


def bench_controller(postgres: EmbeddedPostgres, directory: Path, theirs: float) -> int:
    """Print the figures of a controller; returns the exit code."""
    run(postgres, "CREATE DATABASE controller")
    engine = create_engine(postgres.url("controller"))
    migrate(engine)
    before = measure(directory, engine)
    print(before, flush=True)
    try:
        with controller(postgres.url("controller")) as port:
            cases = [
                Case("each batch once", engine, port, are_faulty=False),
                Case("20 % twice, answers lost", engine, port, are_faulty=True),
            ]
            results = [case.play(theirs) for case in cases]
        print(f"on disk: {bytes_per_record(engine):.1f} bytes/record")
        print(f"afterwards, {measure(directory, engine)}")
    finally:
        engine.dispose()
    return 0 if all(results) else 1


@dataclass(frozen=True, slots=True)
class Case:
    """One way to send."""

    name: str
    engine: Engine
    port: int
    are_faulty: bool

    def play(self, theirs: float) -> bool:
        """Print rate and latency; whether they suffice and all is stored once."""
        job = f"job_{int(self.are_faulty)}"
        fast, is_exact = self._rate(f"{job}0")
        most, waits, is_exact_too, faults = self._latency(f"{job}1")
        ratio, p99 = fast / (theirs / SERIES), percentile(waits, 0.99)
        print(f"{self.name}:")
        print(f"  one process {fast:23,.0f} records/s, {fast * SERIES:,.0f} series values/s")
        print(f"  {ratio:.0f} times MLflow; {fast / theirs:.0f} times, were a record one metric")
        print(f"  in reports of {SMALL} {most:20,.0f} records/s")
        print(
            f"  at {PACE:,}, {PACE / most:.0%} of these"
            f"   p50 {percentile(waits, 0.5) * 1e3:.1f} ms, p99 {p99 * 1e3:.1f} ms"
            f" of {len(waits)} reports"
        )
        print(f"  {faults}; stored exactly once: {is_exact and is_exact_too}", flush=True)
        return ratio >= REQUIRED and p99 <= LONGEST and is_exact and is_exact_too

    def _rate(self, job: str) -> tuple[float, bool]:
        streams = self._streams(job, CLIENTS, BATCH)
        clients = self._clients(streams)
        rate = best_rate(clients, SECONDS)
        return rate, self._is_exact(job, streams)

    def _latency(self, job: str) -> tuple[float, list[float], bool, str]:
        streams = self._streams(job, 8, SMALL)
        most = closed_loop([stream.client(are_faulty=False) for stream in streams], SECONDS / 3)
        clients = self._clients(streams)
        open_loop(clients, PACE / SMALL, 1.0)  # warm
        waits = open_loop(clients, PACE / SMALL, SECONDS)
        twice, lost = (sum(client.faults[kind] for client in clients) for kind in ("twice", "lost"))
        said = f"{twice} reports sent twice, {lost} answers lost"
        return most, waits, self._is_exact(job, streams), said

    def _clients(self, streams: list[Stream]) -> list[Client]:
        return [
            stream.client(are_faulty=self.are_faulty, seed=seed)
            for seed, stream in enumerate(streams)
        ]

    def _streams(self, job: str, number: int, rows: int) -> list[Stream]:
        with self.engine.begin() as connection:
            names = set_up(connection, job, number)
        return [Stream(self.port, name, rows) for name in names]

    def _is_exact(self, job: str, streams: list[Stream]) -> bool:
        """Whether all that was sent is stored, once."""
        sent = sum(stream.sequence for stream in streams)
        query = select(func.coalesce(func.sum(chunks.c.rows), 0)).where(chunks.c.job == job)
        with self.engine.connect() as connection:
            stored = connection.execute(query).scalar_one()
        return sent == stored


class Stream:
    """The reports of one machine; each is the last one again but for its sequence."""

    def __init__(self, port: int, worker: str, rows: int) -> None:
        self.rows, self.sequence = rows, 0
        self.caller = Caller(port, {"Authorization": f"Bearer {KEYS.issue_worker_token(worker)}"})
        progress = Progress(1, 1, 1, 0.1, {"loss": 0.5})
        report = StepReport(worker, progress, 7_777_777, measured(0, rows))
        self.before, _, self.after = REPORT.dump_json(report).partition(b"7777777")

    def client(self, *, are_faulty: bool, seed: int = 0) -> Client:
        if not are_faulty:
            return Client(self.send)
        return Client(self.send, self.again, self.lose, seed)

    def send(self) -> int:
        answer = self.caller.post("/v1/agent/report", self._body())
        assert answer["next_sequence"] == self.sequence + self.rows
        self.sequence += self.rows
        return self.rows

    def again(self) -> int:
        self.sequence -= self.rows
        return self.send()

    def lose(self) -> int:
        self.caller.abandon("/v1/agent/report", self._body())
        return self.rows

    def _body(self) -> bytes:
        return self.before + str(self.sequence).encode() + self.after


@contextmanager
def controller(url: str) -> Iterator[int]:
    """Run one process of a controller; returns its port."""
    port = free_port()
    command = [sys.executable, "-m", "tests.telemetry.controller", str(port), url]
    process = subprocess.Popen(command)
    try:
        for _ in range(300):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)
        yield port
    finally:
        process.terminate()
        process.wait(10)


def bytes_per_record(engine: Engine) -> float:
    """Return what a record takes on disk, indexes included."""
    size = text(
        "SELECT sum(pg_total_relation_size(inhrelid)) FROM pg_inherits"
        " WHERE inhparent = 'chunks'::regclass"
    )
    with engine.connect() as connection:
        bytes_ = connection.execute(size).scalar_one()
        return float(bytes_) / connection.execute(select(func.sum(chunks.c.rows))).scalar_one()


if __name__ == "__main__":
    sys.exit(main())
