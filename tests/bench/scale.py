"""A controller with 200 jobs on 1 000 machines, 10 000 jobs at rest, and ten million records.

Prints what jobs at rest cost, how long a pass takes, a sweep, a page of each list and a look at the
metrics, each beside its limit, and fails when one is missed. The machines are those of a fake cloud
in this process, the lists are requested from another process over HTTP. Other programs on the
computer make figures worse: beside each stands how long our processors worked for it. Run by
``make bench-scale``.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import httpx
import psutil
from sqlalchemy import Engine, create_engine, text

from service.clouds.labels import ResourceLabels
from service.db import clock, controllers, partitions
from service.db.database import migrate
from service.garbage_collection.collector import GarbageCollector
from service.postgres.server import EmbeddedPostgres
from service.reconciler.fleet import Fleet as Acting
from service.reconciler.loop import PASS_INTERVAL, ReconcilerLoop
from service.reconciler.tick import Reconciler
from tests.bench.fleet import Fleet, build_resting
from tests.bench.ingest import controller
from tests.bench.load import percentile
from tests.bench.machine import measure
from tests.builders import CONTACT
from tests.conftest import run
from tests.fakecloud.clock import VirtualClock
from tests.fakecloud.cloud import FakeCloud
from tests.fakecloud.provider import FakeCloudProvider
from tests.fakecloud.server import CloudServer
from tests.fakecloud.settings import Settings
from tests.telemetry.controller import KEYS

PASSES, ROUNDS, SWEEPS, PAGES = 60, 6, 3, 60
PASS, ROUND, SWEEP, PAGE = 1.0, 5.0, 10.0, 0.1  # the most each may take, in seconds
IDLE_SPAN, IDLE_SHARE = 20.0, 0.1  # of one processor, while all jobs rest
LISTS = {
    "jobs": "/v1/jobs?limit=50",
    "events": "/v1/jobs/job_0007/events?limit=50",
    "models": "/v1/models?limit=50",
    "sweeps": "/v1/sweeps?limit=50",
    "audit": "/v1/audit?limit=50",
    "tokens": "/v1/tokens",
    "metrics": "/metrics",
}


def main() -> int:
    """Print what was measured; 1 if a limit was missed."""
    reader = argparse.ArgumentParser(description=__doc__)
    reader.add_argument("--jobs", type=int, default=200)
    reader.add_argument("--resting", type=int, default=10_000)
    reader.add_argument("--records", type=int, default=10_000_000)
    asked = reader.parse_args()
    cloud = FakeCloud(VirtualClock(), Settings(page=1000))
    with tempfile.TemporaryDirectory() as place, CloudServer(cloud) as server:
        directory = Path(place)
        directory.chmod(0o755)
        with EmbeddedPostgres(directory / "postgres") as postgres:
            run(postgres, "CREATE DATABASE scale")
            with connected(postgres.url("scale")) as engine:
                provider = FakeCloudProvider(server.url, "account")
                print(measure(directory, engine), flush=True)
                return bench(engine, provider, postgres.url("scale"), asked)


@contextmanager
def connected(url: str) -> Iterator[Engine]:
    """Connect to a fresh database that has the schema and a place for what is received today."""
    engine = create_engine(url, pool_size=10)
    migrate(engine)
    with engine.begin() as connection:
        partitions.create_ahead(connection)
    yield engine
    engine.dispose()


def bench(engine: Engine, provider: FakeCloudProvider, url: str, asked: argparse.Namespace) -> int:
    """Build everything, and measure; returns the exit code."""
    with engine.begin() as connection:
        ownership = ResourceLabels(controllers.installation_id(connection), b"a secret")
    fleet = Acting(engine, provider, CONTACT, ownership)
    with engine.connect() as connection:
        loop = ReconcilerLoop(Reconciler(fleet, clock.read(connection)))
    is_idle_cheap = bench_rest(engine, loop, asked.resting)
    began = time.perf_counter()
    Fleet(engine, provider, ownership, asked.jobs, asked.records).build()
    print(f"{asked.jobs} jobs, {5 * asked.jobs:,} machines, {counted(engine):,} records, ", end="")
    print(f"built in {time.perf_counter() - began:.0f} s", flush=True)
    results = [
        is_idle_cheap,
        bench_passes(loop, asked.jobs),
        bench_sweeps(GarbageCollector(engine, provider, ownership)),
    ]
    with controller(url) as port:
        results += bench_lists(port)
    print(f"memory of this process, fake cloud included: {memory(psutil.Process()):.0f} MiB")
    return 0 if all(results) else 1


def bench_rest(engine: Engine, loop: ReconcilerLoop, resting: int) -> bool:
    """Measure what jobs at rest cost; whether that is little."""
    build_resting(engine, resting, lambda: look_until_rest(loop))
    loop.nudge_all()
    taken = measured(lambda: look_until_rest(loop), psutil.Process())
    quiet = sum("launched within an hour" in said for said in loop.said.values())
    print(f"{resting:,} jobs at rest, {quiet:,} of them waiting to launch again")
    print(f"  the first look {taken[0]:6.2f} s, {taken[1]:5.2f} s of processor")
    loop.periodic.wake_event.clear()

    def rest() -> None:
        ends_at = time.perf_counter() + IDLE_SPAN
        while time.perf_counter() < ends_at:
            loop._pass()
            loop.periodic.wake_event.wait(PASS_INTERVAL)

    passed, worked = measured(rest, psutil.Process())
    verdict = "ok" if worked / passed <= IDLE_SHARE else "MISSED"
    print(f"  all at rest    {worked / passed:.1%} of one processor of {IDLE_SHARE:.0%} {verdict}")
    return verdict == "ok" and quiet == resting


def look_until_rest(loop: ReconcilerLoop) -> None:
    """Do passes until no job is due."""
    loop._pass()
    while loop.agenda.is_any_due():
        loop._pass()


def bench_passes(loop: ReconcilerLoop, jobs: int) -> bool:
    """Measure passes at their pace, and rounds over all jobs that train; whether all are short."""
    me = psutil.Process()
    loop.nudge_all()
    loop._pass()
    active = {job for job in loop.agenda.jobs if job.startswith("job_")}
    first = measured(lambda: look_until_rest(loop), me)
    print(f"  the first look {first[0]:6.2f} s, {first[1]:5.2f} s of processor")
    passes = []
    for _ in range(PASSES):
        passes.append(measured(loop._pass, me))
        time.sleep(PASS_INTERVAL)

    def look_at_active() -> None:
        for job in active:
            loop.agenda.note(job)
        look_until_rest(loop)

    rounds = [measured(look_at_active, me) for _ in range(ROUNDS)]
    quiet = sum(loop.said.get(job, "").startswith("running") for job in active)
    print(f"reconciler: {quiet} of {jobs} jobs run on as they should, beside those at rest")
    is_short = told("a pass", passes, PASS, 1.0, "s")
    return told("a look at all", rounds, ROUND, 1.0, "s") and is_short and quiet == jobs


def bench_sweeps(sweeper: GarbageCollector) -> bool:
    """Measure sweeps; whether none took too long or found anything."""
    found = []

    def sweep() -> None:
        with sweeper.engine.connect() as connection:
            now = clock.read(connection)
        found.append(sweeper.sweep(now, timedelta(0)))

    taken = [measured(sweep, psutil.Process()) for _ in range(SWEEPS)]
    is_clean = all(verdict is not None and not verdict.suspects for verdict in found)
    print(f"sweeper: nothing is suspect: {is_clean}")
    return told("a sweep", taken, SWEEP, 1.0, "s") and is_clean


def bench_lists(port: int) -> list[bool]:
    """Measure pages of every list; whether 95 of 100 came in time."""
    (server,) = (
        child
        for child in psutil.Process().children()
        if "tests.telemetry.controller" in child.cmdline()
    )
    headers = {"Authorization": f"Bearer {KEYS.home_token}"}
    results = []
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=60) as client:
        for name, path in LISTS.items():

            def ask(path: str = path) -> None:
                client.get(path).raise_for_status()

            ask()
            taken = [measured(ask, server) for _ in range(PAGES)]
            results.append(told(f"GET {name}", taken, PAGE, 1e3, "ms"))
    print(f"memory of the API: {memory(server):.0f} MiB")
    return results


def measured(do: Callable[[], object], process: psutil.Process) -> tuple[float, float]:
    """Return seconds that passed, and seconds of processor that a process took meanwhile."""
    worked, began = process.cpu_times(), time.perf_counter()
    do()
    passed, now = time.perf_counter() - began, process.cpu_times()
    return passed, now.user + now.system - worked.user - worked.system


def told(
    what: str, taken: list[tuple[float, float]], limit: float, scale: float, unit: str
) -> bool:
    """Print how long something took; whether 95 of 100 times were within the limit."""
    passed, worked = sorted(one[0] for one in taken), statistics.mean(one[1] for one in taken)
    middle, late = percentile(passed, 0.5), percentile(passed, 0.95)
    verdict = "ok" if late <= limit else "MISSED"
    print(
        f"  {what:14s} p50 {middle * scale:7.2f} {unit}, p95 {late * scale:7.2f} {unit}"
        f" of {limit * scale:.0f} {unit} {verdict}; {worked * scale:.2f} {unit} of processor",
        flush=True,
    )
    return late <= limit


def counted(engine: Engine) -> int:
    """Return how many records are stored."""
    with engine.connect() as connection:
        return int(connection.execute(text("SELECT sum(rows) FROM chunks")).scalar_one())


def memory(process: psutil.Process) -> float:
    """Return MiB that a process holds."""
    return float(process.memory_info().rss) / 2**20


if __name__ == "__main__":
    sys.exit(main())
