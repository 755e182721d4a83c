"""A controller whose cloud hangs: how it answers people, and how it goes round, meanwhile.

Ten jobs train on two machines each. First the cloud answers; then every call hangs, five jobs are
submitted and five cancelled. Prints, for both times, how long a page of jobs takes and for how long
at most the reconciler finished no pass, each beside its limit; then how soon all is as wanted once
the cloud answers again. Run by ``make bench-slow-cloud``.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import httpx
import uvicorn
from sqlalchemy import Engine

from service.__main__ import freeze_loaded_objects
from service.api.dependencies import AppState
from service.app import build_app
from service.background import PgListener
from service.clouds.clouds import Clouds
from service.clouds.executor import CloudExecutors
from service.clouds.inventory import Inventories
from service.clouds.labels import ResourceLabels
from service.clouds.storage import CheckpointStorage
from service.db import controllers, jobs, vms
from service.postgres.server import EmbeddedPostgres
from service.reconciler.fleet import Fleet
from service.reconciler.loop import ReconcilerLoop
from service.reconciler.tick import Reconciler
from tests.bench.load import percentile
from tests.bench.scale import connected
from tests.builders import CONTACT, document, spec
from tests.conftest import run
from tests.controller_double import until
from tests.fakecloud.clock import VirtualClock
from tests.fakecloud.cloud import FakeCloud
from tests.fakecloud.hanging import HangingProvider
from tests.fakecloud.server import CloudServer
from tests.fakecloud.settings import Settings
from tests.telemetry.controller import KEYS

JOBS, CHANGED = 10, 5
PAGE, LAG = 0.25, 1.0  # the most that each may take, in seconds
WISH = document(limits={"max_cost": "100 USD", "workers": "2..2", "batch": [120]})
STORAGE = CheckpointStorage(Path("/nowhere"))


class Bench:
    """The controller, its people and what they saw."""

    def __init__(self, engine: Engine, provider: HangingProvider) -> None:
        self.engine, self.provider = engine, provider
        with engine.begin() as connection:
            ownership = ResourceLabels(controllers.installation_id(connection), b"our secret")
        clouds, executors = Clouds([provider]), CloudExecutors(8)
        fleet = Fleet(engine, clouds, CONTACT, ownership, executors=executors)
        acting = Reconciler(fleet, datetime.now(UTC))
        self.loop = ReconcilerLoop(acting, Inventories.of(engine, clouds, threads=1))

    def submit(self, *numbers: int) -> None:
        for number in numbers:
            with self.engine.begin() as connection:
                jobs.create(connection, f"job_{number:02}", spec(**WISH), datetime.now(UTC))

    def cancel(self, *numbers: int) -> None:
        for number in numbers:
            with self.engine.begin() as connection:
                jobs.request_cancel(connection, f"job_{number:02}", datetime.now(UTC))

    def states(self, *numbers: int) -> set[str]:
        with self.engine.connect() as connection:
            found = [vms.of_job(connection, f"job_{number:02}") for number in numbers]
        return {vm.state for machines in found for vm in machines}

    def watch(self, port: int, what: str, seconds: float) -> bool:
        """Ask for pages and look at the heartbeat for a while; whether both were soon enough."""
        pages, lag, end = list[float](), 0.0, time.monotonic() + seconds
        headers = {"Authorization": f"Bearer {KEYS.home_token}"}
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", headers=headers) as client:
            while (began := time.monotonic()) < end:
                client.get("/v1/jobs?limit=50").raise_for_status()
                pages.append(time.monotonic() - began)
                lag = max(lag, self.loop.periodic.heartbeat.lag)
                time.sleep(0.02)
        late = percentile(sorted(pages), 0.99)
        print(
            f"{what:28s} page of jobs p50 {percentile(sorted(pages), 0.5) * 1e3:5.1f} ms, "
            f"p99 {late * 1e3:5.1f} ms of {PAGE * 1e3:.0f} ms; "
            f"longest without a pass {lag:4.2f} s of {LAG:.0f} s",
            flush=True,
        )
        return late <= PAGE and lag <= LAG


def main() -> int:
    """Measure; returns 1 if a limit was missed."""
    reader = argparse.ArgumentParser(description=__doc__)
    reader.add_argument("--seconds", type=float, default=120.0, help="for how long the cloud hangs")
    asked = reader.parse_args()
    cloud = FakeCloud(VirtualClock(), Settings(boot=0.0, ending=0.0))
    with tempfile.TemporaryDirectory() as place, CloudServer(cloud) as server:
        directory = Path(place)
        directory.chmod(0o755)
        with EmbeddedPostgres(directory / "postgres") as postgres:
            run(postgres, "CREATE DATABASE slow")
            with connected(postgres.url("slow")) as engine:
                bench = Bench(engine, HangingProvider(server.url))
                with serving(bench) as port:
                    return measure(bench, port, asked.seconds)


def measure(bench: Bench, port: int, seconds: float) -> int:
    old, new = range(JOBS), range(JOBS, JOBS + CHANGED)
    bench.submit(*old)
    until(lambda: bench.states(*old) == {"launched"}, 60)
    is_calm = bench.watch(port, "the cloud answers", seconds / 4)
    for operation in ("list", "launch", "terminate"):
        bench.provider.hang(operation)
    bench.submit(*new)
    bench.cancel(*old[:CHANGED])
    is_good = bench.watch(port, f"it hangs for {seconds:.0f} s", seconds)
    bench.provider.release()
    began = time.monotonic()
    until(
        lambda: bench.states(*new) == {"launched"} and bench.states(*old[:CHANGED]) == {"gone"}, 60
    )
    print(f"all is as wanted {time.monotonic() - began:.1f} s after it answers again")
    return 0 if is_calm and is_good else 1


@contextmanager
def serving(bench: Bench) -> Iterator[int]:
    """Run the loop and the API in this process, as ``scavenger serve`` does."""
    heartbeats = {"reconciler": bench.loop.periodic.heartbeat}
    world = AppState(bench.engine, Clouds([bench.provider]), STORAGE, heartbeats)
    server = uvicorn.Server(uvicorn.Config(build_app(world, KEYS), port=0, log_level="warning"))
    thread = threading.Thread(target=server.run)
    freeze_loaded_objects()
    thread.start()
    listener = PgListener(bench.engine.url, bench.loop.nudge, bench.loop.nudge_all)
    listener.start()
    bench.loop.start()
    until(lambda: server.started)
    try:
        yield int(server.servers[0].sockets[0].getsockname()[1])
    finally:
        server.should_exit = True
        thread.join()
        listener.stop()
        bench.loop.stop()
        bench.provider.close()


if __name__ == "__main__":
    sys.exit(main())
