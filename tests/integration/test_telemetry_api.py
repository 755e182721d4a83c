"""Measured series through the API: what was reported comes out, in buckets and as a table."""

from __future__ import annotations

import csv
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import numpy as np
import pytest
from sqlalchemy import Engine

from scavenger.measurement.steps import StepColumns
from scavenger.protocol import Hello, NotFinite, Progress, StepReport
from scavenger.schemas.telemetry import TelemetryView
from service.api.telemetry import parse_report, store_report
from service.db import clock, directives, jobs, measurements, partitions, vms, workers
from tests.builders import directive, offer, probe, spec
from tests.integration.house import House
from tests.integration.test_api import REPORT

WORKER, REPORTS, ROWS = "job_9-w1", 4, 50


@pytest.fixture
def began(house: House, engine: Engine) -> datetime:
    """Store a job that measured 200 iterations of 10 ms with 2 workers, its loss falling."""
    now = clock.now(engine)
    began = now - timedelta(hours=1)
    with engine.begin() as connection:
        partitions.create_ahead(connection)
        jobs.create(connection, "job_9", spec(), began, "alpha")
        vms.record_intent(connection, "job_9", 1, offer(), began, timedelta(hours=2))
        workers.record_hello(connection, "job_9", Hello(WORKER, "h:1"), began)
        directives.publish(connection, "job_9", directive(1, 64), began)
        for number in range(REPORTS):
            store(connection, number, now)
    return began


def store(connection: Any, number: int, now: datetime, **changes: Any) -> None:
    """Store a report of 50 iterations; the last has no loss."""
    places = range(number * ROWS, (number + 1) * ROWS)
    times = (0.01,) * ROWS
    columns = StepColumns(
        tuple(places),
        (2,) * ROWS,
        (2.0,) * ROWS,
        (1.0,) * ROWS,
        times,
        (0.002,) * ROWS,
        times,
        tuple(None if place == REPORTS * ROWS - 1 else 1 / (1 + place) for place in places),
    )
    odd = {"loss": NotFinite("NaN", REPORTS * ROWS - 1, None)}
    progress = Progress(1, places[-1], 1, 0.1, {}, odd)
    report = StepReport(worker=WORKER, progress=progress, sequence=places[0], steps=columns)
    store_report(connection, parse_report(REPORT.dump_json(report)), now)


def ask(house: House, **query: Any) -> TelemetryView:
    path = "/v1/jobs/job_9/telemetry"
    answer = house.ask("GET", path, house.token("viewer", "alpha"), params=query)
    assert answer.status_code == 200, answer.text
    return TelemetryView.model_validate_json(answer.text)


def test_every_iteration_is_shown_where_there_is_room(house: House, began: datetime) -> None:
    names = "loss,step_time,sync_time,noise,noise_scale,samples_per_second,workers,global_batch"
    found = ask(house, series=names)
    assert [each.name for each in found.series] == names.split(",")
    loss, step, sync, noise, scale, rate, workers_, batch = found.series
    assert loss.low[:-1] == pytest.approx([1 / (1 + place) for place in range(199)], rel=1e-6)
    assert (loss.low[-1], loss.nonfinite, step.nonfinite) == (None, 1, 0)
    assert set(np.round(step.high, 6)) == {0.01}
    assert set(np.round(sync.low, 6)) == {0.002}
    assert noise.low == pytest.approx([2.0] * 200)
    assert scale.unit == "samples"
    assert rate.low == pytest.approx([6400.0] * 200)
    assert (set(workers_.low), set(batch.low)) == ({1.0}, {64.0})
    assert step.at == sorted(step.at)
    assert found.since == began
    pauses = np.diff([at.timestamp() for at in step.at])
    assert pauses.max() < 5


def test_buckets_hold_every_extreme_and_a_table_says_the_same(
    house: House, began: datetime
) -> None:
    (loss,) = ask(house, series="loss", points=20).series
    assert len(loss.at) <= 20
    known = [value for value in loss.high if value is not None]
    assert (max(known), loss.nonfinite) == (1.0, 1)
    path, query = "/v1/jobs/job_9/telemetry.csv", {"series": "loss", "points": 20}
    answer = house.ask("GET", path, house.token("viewer", "alpha"), params=query)
    assert answer.headers["content-type"].startswith("text/csv")
    heading, *rows = csv.reader(answer.text.splitlines())
    assert heading == ["series", "unit", "at", "low", "high"]
    assert [float(row[4]) for row in rows] == known


def test_probes_stand_for_iterations_that_are_no_longer_kept(
    house: House, engine: Engine, began: datetime
) -> None:
    old = began - timedelta(days=40)
    settled = replace(probe(4, 64), settled_at=old)
    with engine.begin() as connection:
        measurements.record_probe(connection, "job_9", settled)
    wanted = "step_time,noise,samples_per_second,loss"
    found = ask(house, series=wanted, **{"from": (old - timedelta(days=1)).isoformat()})
    assert found.iterations_from is not None
    assert old < found.iterations_from <= clock.now(engine)
    step, noise, rate, loss = found.series
    indicators = settled.observation.indicators
    assert (step.at[0], step.low[0], step.low[1]) == (old, indicators.step_time, None)
    assert rate.low[0] == pytest.approx(64 / indicators.step_time)
    assert noise.low[0] == indicators.noise
    assert len(step.at) == 202, "a probe, a gap and all iterations"
    assert loss.at[0] >= began
    later = ask(house, series=wanted, **{"from": found.iterations_from.isoformat()})
    assert later.iterations_from is None


def test_a_span_leaves_out_the_rest(house: House, began: datetime) -> None:
    (whole,) = ask(house, series="step_time").series
    middle = whole.at[100]
    (part,) = ask(house, series="step_time", **{"from": middle.isoformat()}).series
    assert part.at == whole.at[100:]
    (before,) = ask(house, series="step_time", to=began.isoformat()).series
    assert before.at == []


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ({"series": "lost"}, "did you mean loss? this job has loss, step_time"),
        ({"series": "loss,"}, "there is no such series"),
        ({"points": 1}, "points"),
        ({"from": "2030-01-01T00:00:00Z", "to": "2029-01-01T00:00:00Z"}, "from lies behind to"),
        ({"span": "1h"}, "this route takes"),
    ],
)
def test_a_request_that_means_nothing_is_refused(
    house: House, began: datetime, query: dict[str, Any], words: str
) -> None:
    path = "/v1/jobs/job_9/telemetry"
    answer = house.ask("GET", path, house.token("viewer", "alpha"), params=query)
    assert answer.status_code == 422
    assert words in answer.json()["detail"]


def test_the_targets_metric_is_a_series(house: House, engine: Engine, began: datetime) -> None:
    told = directive(1, 64)
    with engine.begin() as connection:
        for epochs, value in ((1.0, 0.5), (2.0, 0.7)):
            progress = Progress(1, 10, 640, epochs, {"accuracy": value}, {})
            measurements.record_reading(connection, "job_9", told, progress)
    (found,) = ask(house, series="accuracy").series
    assert found.low == found.high == [0.5, 0.7]


def test_a_job_without_iterations_has_empty_series(house: House) -> None:
    path = f"/v1/jobs/{house.job}/telemetry"
    answer = house.ask("GET", path, house.token("viewer", "alpha"))
    found = TelemetryView.model_validate_json(answer.text)
    assert [len(each.at) for each in found.series] == [0, 0, 0]
