"""Machines of both roles, from their intent to their end: real rows, real processes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import timedelta
from decimal import Decimal
from pathlib import Path

import psutil
import pytest
from sqlalchemy import Engine

from scavenger.schemas.jobs import JobPhase
from scavenger.worker_env import WorkerEnv
from service.clouds.clouds import Clouds
from service.clouds.labels import ResourceLabels
from service.clouds.local import LocalProvider
from service.db import controllers, jobs, vms
from service.db.vms import Vm
from service.reconciler.fleet import ControllerContact, Fleet
from service.reconciler.tick import Reconciler
from tests.builders import NOW, document, spec

NO_CONTROLLER = "http://127.0.0.1:9"


def frozen() -> float:
    """Return what a stopped stopwatch shows."""
    return 0.0


WAITING = {"command": [sys.executable, "-c", "import time; time.sleep(60)"]}


@pytest.fixture
def reconciler(engine: Engine, tmp_path: Path) -> Iterator[Reconciler]:
    provider = LocalProvider(tmp_path / "machines", sys.executable)

    contact = ControllerContact(NO_CONTROLLER, "token-of-{}".format)
    ownership = ResourceLabels("here", b"secret")
    fleet = Fleet(engine, Clouds([provider]), contact, ownership, stopwatch=frozen)
    yield Reconciler(fleet, NOW)
    for instance in provider.list():
        provider.terminate(instance.provider_id)


def start(reconciler: Reconciler, **changes: object) -> tuple[str, tuple[Vm, ...]]:
    """Submit a job and launch what it needs first."""
    with reconciler.engine.begin() as connection:
        jobs.create(connection, "job_1", spec(run=WAITING, **changes), NOW)
    return tick(reconciler), machines(reconciler)


def tick(reconciler: Reconciler) -> str:
    """Act for the job as the only controller there is."""
    with reconciler.engine.begin() as connection:
        lease = controllers.acquire_lease(connection, "job_1", None, timedelta(0))
    assert lease is not None
    return reconciler.tick(lease, NOW)[0].why


def machines(reconciler: Reconciler) -> tuple[Vm, ...]:
    with reconciler.engine.connect() as connection:
        return vms.of_job(connection, "job_1")


def environments(reconciler: Reconciler, directory: Path) -> dict[str, dict[str, str]]:
    """Return what each machine was launched with, by its id."""
    told = {}
    for vm in machines(reconciler):
        file = str(directory / "machines" / f"{vm.launch_key}.pid")
        for process in psutil.process_iter(["cmdline", "environ"]):
            facts = process.info["environ"] or {}
            is_supervisor = "worker_agent.supervisor" in (process.info["cmdline"] or [])
            if is_supervisor and facts.get("SCAVENGER_PID_FILE") == file:
                told[vm.id] = facts
    return told


def test_servers_start_with_the_first_worker_and_end_with_the_job(
    reconciler: Reconciler, tmp_path: Path
) -> None:
    said, started = start(reconciler, strategy={"parameter_server": {"servers": 2}})
    assert said == "1 machine for K=1 B=32, and 2 servers"
    assert {vm.id: vm.role for vm in started} == {
        "job_1-s1": "server",
        "job_1-s2": "server",
        "job_1-w3": "worker",
    }
    assert {vm.price_per_hour for vm in started} == {Decimal("0.36")}
    told = environments(reconciler, tmp_path)
    assert {WorkerEnv.from_env(told[vm]).worker for vm in told} == {vm.id for vm in started}
    with reconciler.engine.begin() as connection:
        jobs.request_cancel(connection, "job_1", NOW)
    for _ in range(4):
        tick(reconciler)
    assert {vm.state for vm in machines(reconciler)} == {"gone"}


def test_servers_that_are_not_priced_take_nothing_from_the_cap(reconciler: Reconciler) -> None:
    # A minute of one worker, and not a second more.
    limits = {**document()["limits"], "max_cost": "0.0066 USD"}
    free = {"parameter_server": {"servers": 2, "priced": False}}
    _, started = start(reconciler, strategy=free, limits=limits)
    assert sorted(vm.price_per_hour for vm in started) == [0, 0, Decimal("0.36")]
    (worker,) = [vm for vm in started if vm.role == "worker"]
    assert worker.prepaid_until == NOW + timedelta(seconds=60)


def test_a_cap_that_does_not_pay_all_starts_none(reconciler: Reconciler) -> None:
    """Servers without a worker would only cost."""
    limits = {**document()["limits"], "max_cost": "0.004 USD"}
    said, started = start(reconciler, strategy={"parameter_server": {"servers": 2}}, limits=limits)
    assert said.startswith("max_cost leaves no room for 3 more machines")
    assert started == ()
    with reconciler.engine.connect() as connection:
        job = jobs.find(connection, "job_1")
    assert job is not None
    assert job.phase is JobPhase.CAPPED
