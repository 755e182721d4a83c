"""A loss or a metric that is no number any more is told when it happens, and in the end."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from scavenger.schemas.jobs import JobPhase, JobView
from tests.acceptance.test_digits_job import digits
from tests.controller import Controller

# Trains a line to the end; from some iterations on what it logs is not finite.
SCRIPT = """
import torch
import worker_agent

BROKEN = range({first}, {end})
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
with worker_agent.session() as job:
    job.prepare(model, optimizer)
    for indices in job.batches(640, 64, epochs=1):
        optimizer.zero_grad()
        loss = model(torch.ones(len(indices), 4)).square().mean()
        loss.backward()
        optimizer.step()
        broken = job.iteration + 1 in BROKEN
        job.log(loss=loss.detach() * float("nan") if broken else loss, accuracy={accuracy})
"""


def trained(controller: Controller, accuracy: str, first: int, end: int, **more: Any) -> JobView:
    script = SCRIPT.format(accuracy=accuracy, first=first, end=end)
    document = digits(
        model={"key": f"line/{end % 97}", "dataset_size": 640},
        target={"metric": "accuracy", "goal": 0.9, "max_epochs": 30, "at_batch": 64},
        limits={"workers": 1, "batch": 64, "max_cost": "0.10 USD"},
        run={"command": [sys.executable, "-c", script]},
        **more,
    )
    return controller.finished(controller.submit(document))


def told(controller: Controller, job: JobView) -> list[tuple[str, str]]:
    events = controller.events(job.id)
    return [(event.kind, event.message) for event in events if event.kind == "not_finite"]


def watch(controller: Controller, job: JobView) -> int:
    command = [Path(sys.executable).parent / "scavenger", "watch", job.id]
    connection = controller.connection
    known = {"SCAVENGER_URL": connection["url"], "SCAVENGER_TOKEN": connection["token"]}
    return subprocess.run(command, env=known, capture_output=True).returncode


@pytest.mark.slow  # tests/unit/test_divergence.py has the decision
def test_what_stays_nan_ends_as_diverged(controller: Controller) -> None:
    job = trained(controller, "0.5 if job.iteration < 60 else float('inf')", 40, 10**9)
    worker = f"{job.id}-w1"
    assert job.phase is JobPhase.FAILED
    for series, value, iteration in (("loss", "NaN", 40), ("accuracy", "Infinity", 61)):
        said = f"{series} became {value} at iteration {iteration} on {worker}"
        assert f"{said} and has not been finite since" in job.reason
        assert sum(said in message for _, message in told(controller, job)) == 1
    assert len(told(controller, job)) == 2
    assert job.progress.metrics["accuracy"] == 0.5
    assert job.diverged
    assert watch(controller, job) == 13


@pytest.mark.slow
def test_a_loss_that_recovers_fails_no_job(controller: Controller) -> None:
    job = trained(controller, "0.5 if job.iteration < 100 else 0.95", 40, 41)
    assert job.phase is JobPhase.SUCCEEDED, job.reason
    ((_, message),) = told(controller, job)
    assert message.startswith(f"loss became NaN at iteration 40 on {job.id}-w1")
    assert (job.diverged, watch(controller, job)) == (False, 0)
