"""Health: who may be sent requests, and what monitoring reads of it."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import Engine, create_engine, text

from scavenger.protocol import Hello
from scavenger.schemas.jobs import JobPhase
from scavenger.schemas.problems import ProblemView
from service import ledger
from service.api.dependencies import AppState
from service.api.health import BACKGROUND_TASKS, DATABASE_TIMEOUT
from service.app import build_app
from service.auth.tokens import ControllerKeys
from service.background import TaskHeartbeat
from service.clouds.storage import CheckpointStorage
from service.db import clock, jobs, sweeps, vms, workers
from service.observability import metrics as meters
from service.reconciler.actions import ChooseConfig
from service.reconciler.apply import estimate_eta, record_action
from service.reconciler.plan import plan
from tests.builders import HERE, NOW, document, job, offer, orphan, probe, snapshot, spec

KEYS = ControllerKeys(home_token="scv_token", secret="s" * 48)
DOCS = Path(__file__).parents[2] / "docs"


def heartbeats(*standing: str) -> dict[str, TaskHeartbeat]:
    """Of all parts, those that are named standing still."""
    return {name: TaskHeartbeat(0.0 if name in standing else 3600.0) for name in BACKGROUND_TASKS}


def ask(
    engine: Engine, beats: dict[str, TaskHeartbeat] | None = None, *, timeout: float = 600.0
) -> TestClient:
    beats = heartbeats() if beats is None else beats
    world = AppState(engine, HERE, CheckpointStorage(Path("/srv/scavenger")), beats)
    headers = {"Authorization": f"Bearer {KEYS.home_token}"}
    app = build_app(world, KEYS)
    app.state.health.timeout = timeout  # a busy computer is no database that is away
    return TestClient(app, headers=headers, raise_server_exceptions=False)


@pytest.fixture
def client(engine: Engine) -> Iterator[TestClient]:
    with ask(engine) as client:
        yield client


@contextmanager
def refusing() -> Iterator[Engine]:
    """A database whose computer refuses connections."""
    engine = create_engine("postgresql+psycopg://x@127.0.0.1:1/none")
    yield engine
    engine.dispose()


@contextmanager
def silent() -> Iterator[Engine]:
    """A database that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        engine = create_engine(f"postgresql+psycopg://x@127.0.0.1:{server.getsockname()[1]}/none")
        yield engine
    engine.dispose()


def test_a_controller_is_ready_when_all_its_parts_work(client: TestClient) -> None:
    for path in ("/readyz", "/healthz"):
        answer = client.get(path, headers={"Authorization": ""})
        assert (answer.status_code, answer.json()) == (200, {"status": "ok"})


@pytest.mark.parametrize("name", BACKGROUND_TASKS)
def test_a_part_that_stands_still_is_named(engine: Engine, name: str) -> None:
    assert refused(ask(engine, heartbeats(name))) == f"these do not work now: {name}"


def test_parts_that_were_not_started_are_named(engine: Engine) -> None:
    assert refused(ask(engine, {})) == "these do not work now: reconciler, sweeper"


def test_a_database_of_another_version_is_named(engine: Engine) -> None:
    with engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '0001'"))
    assert refused(ask(engine)) == "these do not work now: migrations"


@pytest.mark.parametrize("away", [refusing, silent])
def test_without_a_database_a_controller_is_alive_but_not_ready(
    away: Callable[[], AbstractContextManager[Engine]],
) -> None:
    with away() as engine:
        client = ask(engine, timeout=DATABASE_TIMEOUT)
        assert client.get("/healthz").status_code == 200
        assert refused(client) == "these do not work now: database"
        families = families_in(client.app.state.health.scrape().decode())
    assert families["scavenger_database_up"] == {(): 0.0}
    assert "scavenger_jobs" not in families
    assert "scavenger_build_info" in families


def refused(client: TestClient) -> str:
    answer = client.get("/readyz", headers={"Authorization": ""})
    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "2"
    problem = ProblemView.model_validate_json(answer.text)
    assert problem.code == "not_ready"
    return problem.detail


def scrape(client: TestClient) -> dict[str, dict[tuple[str, ...], float]]:
    return families_in(client.get("/metrics").text)


def families_in(text: str) -> dict[str, dict[tuple[str, ...], float]]:
    """Every sample by name and the values of its labels."""
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sample.labels.values())] = sample.value
    return found


def test_metrics_need_a_token(client: TestClient) -> None:
    assert client.get("/metrics", headers={"Authorization": ""}).status_code == 401


def test_gauges_say_how_jobs_machines_and_money_stand(engine: Engine, client: TestClient) -> None:
    hour = offer("36")
    with engine.begin() as connection:
        now = clock.read(connection)
        for number in (1, 2, 3):
            jobs.create(connection, f"job_{number}", spec(), now)
        for number, ago in ((1, 30), (2, 20), (3, 10)):
            began = now - timedelta(seconds=ago)
            vms.record_intent(connection, "job_1", number, hour, began, timedelta(seconds=100))
            vms.record_attempt(connection, f"job_1-w{number}", began, began, "a-1")
        vms.record_launch(connection, "job_1-w1", "i-1")
        for _ in range(16):
            vms.record_end_order(connection, "job_1-w2", now)
        vms.record_gone(connection, "job_1-w3", now)
        jobs.change_outcome(connection, "job_2", phase=JobPhase.FAILED, reason="", finished_at=now)
        number = sweeps.begin(connection, "local", now, timedelta(0))
        assert number is not None
        held = tuple(orphan(f"i-{n}", f"k{n}", "", "hold", "", now) for n in range(4))
        kept = orphan("i-9", "k9", "", "keep", "", None)
        sweeps.record(connection, number, shown=9, suspects=(*held, kept), tripped="too many")
    said = scrape(client)
    assert said["scavenger_jobs"] == {
        (phase,): {"pending": 2, "failed": 1}.get(phase, 0) for phase in JobPhase
    }
    assert said["scavenger_vms"] == {("intended",): 0, ("launched",): 1, ("ending",): 1}
    assert said["scavenger_vm_undeletable"] == {(): 1}
    assert said["scavenger_orphan_candidates"] == {(): 4}
    assert said["scavenger_sweep_blocked"] == {(): 1}
    money = said["scavenger_job_cost_dollars"]
    assert money["cap",] == 2
    # A cent a second: w1 and w2 reserve 100 s and the grace, w3 was 10 s.
    assert money["accrued",] + money["reserved",] == pytest.approx(
        0.01 * (2 * (100 + ledger.POWER_OFF_GRACE.total_seconds()) + 10)
    )
    assert 0.6 <= money["accrued",] < 1.2
    assert 40 < said["scavenger_vm_prepaid_remaining_seconds"][()] <= 70


def test_it_shows_how_often_targets_were_reached_when_it_was_foreseen(
    engine: Engine, client: TestClient
) -> None:
    probes = (probe(1, 32), probe(1, 128), probe(2, 128), probe(2, 32))
    seen = snapshot(job=job(spec=spec(target={"epochs": 20, "at_batch": 64})), probes=probes)
    chosen = plan(seen)
    assert isinstance(chosen, ChooseConfig)
    foreseen = estimate_eta(seen, chosen.run)
    assert foreseen is not None
    since, until = foreseen
    ends = (since, until, until + timedelta(seconds=1), None)
    with engine.begin() as connection:
        for number, end in enumerate(ends, 1):
            jobs.create(connection, f"job_{number}", spec(), NOW)
            mine = replace(seen, job=replace(seen.job, id=f"job_{number}"))
            record_action(connection, "fake", mine, chosen)
            if end is not None:
                done = {"phase": JobPhase.SUCCEEDED, "reason": "", "finished_at": end}
                jobs.change_outcome(connection, f"job_{number}", **done)
        jobs.create(connection, "job_5", spec(), NOW)
        jobs.change_outcome(connection, "job_5", phase=JobPhase.STARTING)
        jobs.change_outcome(connection, "job_5", phase=JobPhase.TRAINING)
        jobs.change_outcome(connection, "job_5", phase=JobPhase.SUCCEEDED, finished_at=NOW)
    said = scrape(client)
    assert said["scavenger_prediction_coverage80_jobs"] == {(): 3}
    assert said["scavenger_prediction_coverage80_ratio"] == {(): pytest.approx(2 / 3)}


def test_gauges_are_asked_of_the_database_once_for_many_scrapes(
    engine: Engine, client: TestClient
) -> None:
    before = scrape(client)["scavenger_jobs"]
    with engine.begin() as connection:
        jobs.create(connection, "job_1", spec(), NOW)
    assert scrape(client)["scavenger_jobs"] == before


def test_no_request_changes_the_number_of_series(client: TestClient) -> None:
    for path in ("/v1/jobs/{}", "/v1/jobs/{}/curve", "/{}", "/v1/jobs/{}/{}"):
        client.get(path.format("a", "a"))
    client.request("PAINT", "/a")
    before = set(scrape(client)["scavenger_request_seconds_count"])
    for n in range(20):
        for path in ("/v1/jobs/{}", "/v1/jobs/{}/curve", "/{}", "/v1/jobs/{}/{}"):
            client.get(path.format(f"job_{n}", f"x{n}"), params={"token": n})
        client.request(f"PAINT{n}", f"/{n}")
    assert set(scrape(client)["scavenger_request_seconds_count"]) - before <= {
        ("GET", "/metrics", "200")
    }


def test_every_metric_has_a_row_in_the_documentation(engine: Engine, client: TestClient) -> None:
    client.post("/v1/jobs", json=document())
    with engine.begin() as connection:
        job = jobs.newest(connection, None, 1)[0].id
        vms.record_intent(connection, job, 1, offer("1"), NOW, timedelta(seconds=9))
        vms.record_launch(connection, f"{job}-w1", "i-1")
        workers.record_hello(connection, job, Hello(f"{job}-w1", "a"), NOW)
        jobs.create(connection, "foreseen", spec(), NOW)
        jobs.change_outcome(connection, "foreseen", phase=JobPhase.TRAINING, due_until=NOW)
        jobs.change_outcome(connection, "foreseen", phase=JobPhase.SUCCEEDED, finished_at=NOW)
    families = [
        *text_string_to_metric_families(client.get("/metrics").text),
        *text_string_to_metric_families(client.get("/metrics/jobs").text),
        *meters.REGISTRY.collect(),
    ]
    suffix = {"counter": "_total", "info": "_info"}
    told = {f.name.removesuffix("_info") + suffix.get(f.type, "") for f in families}
    ours = {name for name in told if name.startswith("scavenger_")} - {"scavenger_build"}
    page = (DOCS / "observability.md").read_text()
    rows = {line.split("`")[1].partition("{")[0] for line in page.splitlines() if line[:3] == "| `"}
    metrics = {row for row in rows if row.startswith("scavenger_")}
    assert ours == metrics
