"""What machines left behind is deleted once no job needs it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import Engine

from service.background import Maintenance
from service.clouds.clouds import Clouds
from service.clouds.labels import ResourceLabels
from service.clouds.local import LocalProvider
from service.db import clock, controllers, jobs, vms
from service.reconciler.fleet import Fleet
from service.reconciler.tick import Reconciler
from tests.builders import CONTACT, document, spec
from tests.controller_double import until

WAITING = {"command": [sys.executable, "-c", "import time; time.sleep(60)"]}
ONE = document(run=WAITING, limits={"max_cost": "1 USD", "workers": "1..1", "batch": [32]})


@pytest.fixture
def provider(tmp_path: Path) -> Iterator[LocalProvider]:
    found = LocalProvider(tmp_path / "machines", sys.executable)
    yield found
    for instance in found.list():
        found.terminate(instance.provider_id)


def test_files_of_machines_go_long_after_the_end_of_their_job(
    engine: Engine, provider: LocalProvider, tmp_path: Path
) -> None:
    ownership = ResourceLabels("here", b"secret")
    fleet = Fleet(engine, Clouds([provider]), CONTACT, ownership)
    acting = Reconciler(fleet, clock.now(engine))
    for job in ("job_1", "job_2"):
        with engine.begin() as connection:
            jobs.create(connection, job, spec(**ONE), clock.read(connection))
        tick(acting, job)
    with engine.begin() as connection:
        jobs.request_cancel(connection, "job_1", clock.read(connection))
    until(lambda: tick(acting, "job_1") or not any(v.is_alive for v in machines(engine, "job_1")))
    assert {one.job for one in provider.list()} == {"job_1", "job_2"}
    Maintenance(engine, timedelta(days=1), Clouds([provider])).run_once()
    assert {one.job for one in provider.list()} == {"job_1", "job_2"}
    (gone,) = machines(engine, "job_1")
    assert list((tmp_path / "machines").glob(f"{gone.launch_key}.*"))
    Maintenance(engine, timedelta(0), Clouds([provider])).run_once()
    (left,) = provider.list()
    assert left.job == "job_2"
    assert not list((tmp_path / "machines").glob(f"{gone.launch_key}.*"))


def tick(acting: Reconciler, job: str) -> None:
    with acting.engine.begin() as connection:
        lease = controllers.acquire_lease(connection, job, None, timedelta(0))
    assert lease is not None
    acting.tick(lease, clock.now(acting.engine))


def machines(engine: Engine, job: str) -> tuple[vms.Vm, ...]:
    with engine.connect() as connection:
        return vms.of_job(connection, job)
