"""What Prometheus reads of single jobs is what their pages show."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import Engine

from scavenger.schemas.jobs import JobList, JobPhase, JobView
from service.clouds.labels import ResourceLabels
from service.db import clock, controllers, jobs, partitions
from tests.bench.fleet import Fleet
from tests.builders import spec
from tests.fakecloud.clock import VirtualClock
from tests.fakecloud.cloud import FakeCloud
from tests.fakecloud.provider import FakeCloudProvider
from tests.fakecloud.server import CloudServer
from tests.fakecloud.settings import Settings
from tests.integration.test_health import ask, families_in

TARGET = {"target": {"epochs": 20, "at_batch": 160}}
Told = dict[str, dict[tuple[str, ...], float]]


@pytest.fixture
def training(engine: Engine) -> Iterator[TestClient]:
    """Two jobs that train, one that waits, and one that is over."""
    with CloudServer(FakeCloud(VirtualClock(), Settings())) as server:
        provider = FakeCloudProvider(server.url, "account")
        with engine.begin() as connection:
            ownership = ResourceLabels(controllers.installation_id(connection), b"a secret")
            partitions.create_ahead(connection)
        Fleet(engine, provider, ownership, 2, 400, TARGET).build()
        provider.close()
    with engine.begin() as connection:
        now = clock.read(connection)
        for job in ("job_waits", "job_over"):
            jobs.create(connection, job, spec(), now - timedelta(seconds=1))
        jobs.change_outcome(
            connection, "job_over", phase=JobPhase.CANCELLED, reason="", finished_at=now
        )
    with ask(engine) as client:
        yield client


def test_each_job_that_goes_on_has_what_its_page_shows(training: TestClient) -> None:
    told = families_in(training.get("/metrics/jobs").text)
    views = JobList.model_validate_json(training.get("/v1/jobs").text).jobs
    shown = {view.id: view for view in views if not view.phase.is_final}
    assert set(told["scavenger_job_workers"]) == {(job,) for job in shown}
    assert not any("job_over" in labels for series in told.values() for labels in series)
    for job in ("job_0000", "job_0001"):
        compare(told, shown[job])
    waits = {name for name, series in told.items() for labels in series if labels[0] == "job_waits"}
    assert waits == {"scavenger_job_workers", "scavenger_job_dollars", "scavenger_job_epochs"}


def compare(told: Told, view: JobView) -> None:
    job, known = view.id, view.indicators
    assert known is not None
    assert view.applied is not None
    assert told["scavenger_job_workers"][job,] == view.workers_alive == 5
    assert told["scavenger_job_batch_size"][job,] == view.applied.global_batch
    assert told["scavenger_job_gradient_noise_ratio"][job,] == known.noise
    assert told["scavenger_job_iteration_seconds"][job, "compute"] == known.compute_time
    assert told["scavenger_job_iteration_seconds"][job, "sync"] == known.sync_time
    assert told["scavenger_job_epochs"][job, "done"] == view.progress.epochs
    assert told["scavenger_job_epochs"][job, "expected"] == view.progress.expected_epochs
    dollars = told["scavenger_job_dollars"]
    assert dollars[job, "cap"] == 1000
    assert dollars[job, "accrued"] == pytest.approx(float(view.cost.accrued.amount), rel=0.01)
    assert dollars[job, "reserved"] > 0
    assert view.progress.expected_epochs is not None
    left, done = view.progress.expected_epochs - view.progress.epochs, view.progress.epochs
    by_now = 10_000 * known.step_time * left / done
    assert told["scavenger_job_eta_seconds"][job,] == pytest.approx(by_now, rel=1.0)
    assert -1 < told["scavenger_job_prediction_error_ratio"][job,] < 1


def test_they_need_a_token_that_sees_every_project(training: TestClient) -> None:
    answer = training.get("/metrics/jobs", headers={"Authorization": ""})
    assert answer.status_code == 401
