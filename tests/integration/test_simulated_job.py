"""The simulated job of the demo is stored as one that ended, with a curve that bends."""

from __future__ import annotations

from datetime import UTC, datetime

from sqlalchemy import Engine

from scavenger.schemas.jobs import JobPhase
from service.db import jobs, measurements, vms
from service.db.curves import newest_curve
from service.simulated_job import SIMULATED_JOB, add_simulated_job

ENDED = datetime(2026, 1, 1, 12, tzinfo=UTC)


def test_a_simulated_job_has_ended_and_shows_a_front_that_bends(engine: Engine) -> None:
    for _ in range(2):  # a controller of the same home starts again
        add_simulated_job(engine, ENDED)
    with engine.connect() as connection:
        job, curve = jobs.find(connection, SIMULATED_JOB), newest_curve(connection, SIMULATED_JOB)
        probes = measurements.probes_of_jobs(connection, [SIMULATED_JOB])[SIMULATED_JOB]
        told = jobs.events_after(connection, SIMULATED_JOB, 0, 100)
        assert vms.of_job(connection, SIMULATED_JOB) == ()
        assert SIMULATED_JOB not in jobs.to_reconcile(connection)
    assert job is not None
    assert curve is not None
    assert job.phase is JobPhase.SUCCEEDED
    assert job.name.startswith("simulated")
    assert "simulated" in job.reason
    assert len(curve.points) == 16
    assert len(curve.front) > 3
    assert curve.knee_bends
    assert "no sharp bend" not in curve.why
    assert curve.chosen == curve.knee
    assert curve.knee not in (curve.fastest, curve.cheapest)
    assert {point.source for point in curve.points} >= {"measured", "predicted"}
    assert len(probes) >= 3
    assert sum(probe.cost for probe in probes) == 0
    assert [event.at for event in told] == sorted(event.at for event in told)
    assert [event.kind for event in told].count("succeeded") == 1
