"""Without its database or its cloud a controller ends and launches nothing, and then goes on."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psycopg
import pytest
from fastapi.testclient import TestClient
from sqlalchemy import Connection, Engine, create_engine, event

from scavenger.schemas.problems import ProblemView
from service.api.dependencies import AppState
from service.app import build_app
from service.auth.tokens import ControllerKeys
from service.clouds.clouds import Clouds
from service.clouds.labels import ResourceLabels
from service.clouds.storage import CheckpointStorage
from service.db import controllers, jobs, vms
from service.db.database import migrate, open_pool
from service.db.vms import Vm
from service.postgres.server import EmbeddedPostgres
from service.reconciler import loop as loops
from service.reconciler.fleet import Fleet
from service.reconciler.loop import ReconcilerLoop
from service.reconciler.tick import Reconciler
from tests.builders import CONTACT, HERE, NOW, document, spec
from tests.controller_double import until
from tests.fakecloud.clock import VirtualClock
from tests.fakecloud.cloud import FakeCloud
from tests.fakecloud.faults import LostRequest, Omitted
from tests.fakecloud.machine import State
from tests.fakecloud.provider import FakeCloudProvider
from tests.fakecloud.server import CloudServer
from tests.fakecloud.settings import Settings
from tests.integration.test_health import silent

LAG = 60.0
KEYS = ControllerKeys(home_token="scv_token", secret="s" * 48)


@pytest.fixture
def cloud() -> FakeCloud:
    return FakeCloud(VirtualClock(), Settings())


@pytest.fixture
def provider(cloud: FakeCloud) -> Iterator[FakeCloudProvider]:
    with CloudServer(cloud) as server:
        provider = FakeCloudProvider(server.url, "account", lag=LAG)
        yield provider
        provider.close()


def reconciler(engine: Engine, provider: FakeCloudProvider) -> Reconciler:
    with engine.begin() as connection:
        ownership = ResourceLabels(controllers.installation_id(connection), b"our secret")
    fleet = Fleet(engine, Clouds([provider]), CONTACT, ownership, stopwatch=lambda: 0.0)
    return Reconciler(fleet, NOW)


def submit(engine: Engine, job: str, now: datetime) -> None:
    with engine.begin() as connection:
        jobs.create(connection, job, spec(**document()), now)


def tick(acting: Reconciler, now: datetime) -> str:
    with acting.engine.begin() as connection:
        lease = controllers.acquire_lease(connection, "job_1", None, timedelta(0))
    assert lease is not None
    return acting.tick(lease, now)[0].why


def machines(engine: Engine, job: str = "job_1") -> tuple[Vm, ...]:
    with engine.connect() as connection:
        return vms.of_job(connection, job)


def running(cloud: FakeCloud) -> list[str]:
    """Every machine that truly runs; one that was ended is not among them, a new one is."""
    found = (truth.description for truth in cloud.machines())
    return [machine.id for machine in found if machine.state in (State.PENDING, State.RUNNING)]


def test_a_controller_outlives_its_database(
    open_directory: Path,
    cloud: FakeCloud,
    provider: FakeCloudProvider,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loops, "MAX_DATABASE_SILENCE", 0.1)
    caplog.set_level(logging.WARNING)
    server = EmbeddedPostgres(open_directory / "away").start()
    urls = [server.url()]
    engine = create_engine(  # it comes back at another port
        "postgresql+psycopg://",
        creator=lambda: psycopg.connect(urls[-1].replace("+psycopg", "")),
        pool_pre_ping=True,
    )
    try:
        migrate(engine)
        submit(engine, "job_1", datetime.now(UTC))
        with looping(engine, provider) as loop:
            until(lambda: [vm.state for vm in machines(engine)] == ["launched"])
            server.stop()
            caplog.clear()
            stopped_at, before = datetime.now(UTC), running(cloud)
            until(lambda: sum("does not answer" in line for line in caplog.messages) >= 3)
            assert running(cloud) == before
            urls.append(server.start().url())
            submit(engine, "job_2", datetime.now(UTC))
            until(lambda: [vm.state for vm in machines(engine, "job_2")] == ["launched"])
            assert [vm.state for vm in machines(engine)] == ["launched"]
            assert running(cloud)[:1] == before
            assert loop.reconciler.started_at > stopped_at, "no worker could be heard meanwhile"
    finally:
        engine.dispose()
        server.stop()


@contextmanager
def looping(engine: Engine, provider: FakeCloudProvider) -> Iterator[ReconcilerLoop]:
    loop = ReconcilerLoop(reconciler(engine, provider))
    loop.start()
    try:
        yield loop
    finally:
        loop.stop()


def test_a_controller_outlives_its_cloud(
    engine: Engine, cloud: FakeCloud, provider: FakeCloudProvider
) -> None:
    submit(engine, "job_1", NOW)
    acting = reconciler(engine, provider)
    tick(acting, NOW)
    before, known = running(cloud), machines(engine)
    for operation in ("launch", "list", "describe", "terminate"):
        cloud.faults.always(operation, LostRequest())
    for minute in range(1, 9):
        tick(acting, NOW + timedelta(minutes=minute))
    assert (running(cloud), machines(engine)) == (before, known)
    cloud.faults.calm()
    assert "waiting for 1 worker to boot" in tick(acting, NOW + timedelta(minutes=9))
    assert running(cloud) == before


def test_a_list_that_shows_nothing_ends_nothing_while_lists_may_lag(
    engine: Engine, cloud: FakeCloud, provider: FakeCloudProvider
) -> None:
    submit(engine, "job_1", NOW)
    acting = reconciler(engine, provider)
    tick(acting, NOW)
    tick(acting, NOW)
    before = running(cloud)
    cloud.faults.always("list", Omitted())
    for second in range(1, int(LAG), 6):
        tick(acting, NOW + timedelta(seconds=second))
        assert [vm.state for vm in machines(engine)] == ["launched"]
        assert running(cloud) == before
    assert machines(engine)[0].missed_at == NOW + timedelta(seconds=1)
    cloud.faults.calm()
    tick(acting, NOW + timedelta(seconds=LAG))
    assert machines(engine)[0].missed_at is None, "it counts anew from the next time"
    assert running(cloud) == before


def test_a_cloud_without_machines_is_asked_ever_more_seldom_and_complained_of_once(
    engine: Engine, cloud: FakeCloud, provider: FakeCloudProvider
) -> None:
    cloud.faults.always("launch", LostRequest())
    submit(engine, "job_1", NOW)
    acting = reconciler(engine, provider)
    for second in range(0, 600, 10):
        tick(acting, NOW + timedelta(seconds=second))
    (vm,) = machines(engine)
    assert cloud.faults.counts()["LostRequest"] < 30
    with engine.connect() as connection:
        said = [event.kind for event in jobs.events_after(connection, "job_1", 0, 100)]
    assert said == ["launch", "launch_delayed", "waiting"]
    cloud.faults.calm()
    assert vm.state == "intended"
    tick(acting, NOW + timedelta(seconds=640))
    assert machines(engine)[0].state == "launched"


def test_a_silent_database_is_answered_for_within_seconds() -> None:
    with silent() as mute:
        engine = open_pool(mute.url.render_as_string(hide_password=False))
        world = AppState(engine, HERE, CheckpointStorage(Path("/srv")), {})
        client = TestClient(build_app(world, KEYS), raise_server_exceptions=False)
        began = datetime.now(UTC)
        answer = client.get("/v1/jobs", headers={"Authorization": f"Bearer {KEYS.home_token}"})
        assert (datetime.now(UTC) - began).total_seconds() < 20
        engine.dispose()
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "2")
    assert ProblemView.model_validate_json(answer.text).code == "database_unavailable"


def test_a_database_whose_connections_others_have_taken_is_away_until_they_leave(
    open_directory: Path,
) -> None:
    crowd: list[psycopg.Connection] = []
    with EmbeddedPostgres(open_directory / "crowded") as server:
        plain = server.url().replace("+psycopg", "")
        engine = open_pool(server.url())
        migrate(engine)
        world = AppState(engine, HERE, CheckpointStorage(Path("/srv")), {})
        with TestClient(build_app(world, KEYS), raise_server_exceptions=False) as client:
            client.headers["Authorization"] = f"Bearer {KEYS.home_token}"
            engine.dispose()
            with pytest.raises(psycopg.OperationalError, match="too many clients"):
                crowd.extend(psycopg.connect(plain) for _ in range(1000))
            answer = client.post("/v1/jobs", json=document())
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "2")
            assert ProblemView.model_validate_json(answer.text).code == "database_unavailable"
            for connection in crowd:
                connection.close()
            assert client.post("/v1/jobs", json=document()).status_code == 201
        engine.dispose()


def test_a_database_that_can_only_be_read_is_away(engine: Engine) -> None:
    """Like a standby before its promotion."""
    world = AppState(engine, HERE, CheckpointStorage(Path("/srv")), {})
    with TestClient(build_app(world, KEYS), raise_server_exceptions=False) as client:
        client.headers["Authorization"] = f"Bearer {KEYS.home_token}"

        @event.listens_for(engine, "begin")
        def only_read(connection: Connection) -> None:
            connection.exec_driver_sql("SET TRANSACTION READ ONLY")

        answer = client.post("/v1/jobs", json=document())
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "2")
        assert client.get("/v1/jobs").status_code == 503, "who asked is noted"
        event.remove(engine, "begin", only_read)
        assert client.post("/v1/jobs", json=document()).status_code == 201
