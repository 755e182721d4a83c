"""Jobs whose configuration no search chooses: advised ones, and workers that wait for none."""

from __future__ import annotations

import sys

import pytest
import yaml

from scavenger.schemas.jobs import JobPhase, JobView
from tests.acceptance.test_digits_job import EXAMPLE, digits
from tests.controller import Controller


@pytest.mark.slow
def test_a_job_that_is_advised_stays_and_hears_what_would_be_better(
    controller: Controller,
) -> None:
    limits = {"workers": "1..4", "batch": [8, 256], "max_cost": "50 USD"}
    target = {"epochs": 2000, "at_batch": 8}
    model = {"key": "tests/advised", "dataset_size": 1437}  # which no other job has measured
    job = controller.submit(digits(level="advise", limits=limits, target=target, model=model))

    def advised() -> JobView | None:
        view = controller.job(job)
        return view if view.advice is not None and view.applied is not None else None

    view = controller.wait(advised)
    assert view.phase is JobPhase.TRAINING
    assert view.applied is not None
    assert (view.applied.workers, view.applied.global_batch) == (1, 8)
    assert view.advice is not None
    assert view.advice.config is not None
    assert view.advice.config != view.applied
    assert view.workers_alive == 1
    kinds = [event.kind for event in controller.events(job)]
    assert kinds.count("advice") == 1
    assert kinds.count("launch") == 1
    controller.ask("POST", f"/v1/jobs/{job}/actions/cancel")
    controller.finished(job)


@pytest.mark.slow  # the integration tests have its parts
def test_digits_by_sandblaster_reach_their_goal(controller: Controller) -> None:
    example = EXAMPLE.parent / "digits-sandblaster"
    document = yaml.safe_load((example / "job.yaml").read_text())
    document["run"] = {"command": [sys.executable, "train.py"], "directory": str(example)}
    job = controller.submit(document)
    view = controller.finished(job)
    assert view.phase is JobPhase.SUCCEEDED, view.reason
    assert view.progress.metrics["accuracy"] >= 0.95
    assert "sandblaster is not searched" in " ".join(e.message for e in controller.events(job))
