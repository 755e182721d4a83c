"""All machines of a job are taken at once: it goes on from the newest checkpoint in a bucket.

Controller, SDK, boot script, agent and training are the real ones; each new machine has an empty
disk. The cloud and its bucket are doors that speak the protocols of EC2 and S3.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.controller import Controller
from tests.fakecloud.cloud import FakeCloud
from tests.fakecloud.object_doors import bucket_entry, credentials, open_s3
from tests.machines.lab import open_loopback
from tests.machines.rental import (
    EC2,
    SDK_ENVIRONMENT,
    controller_options,
    open_rental,
    serve_ec2,
)

TRAINEE = Path(__file__).parents[1] / "integration" / "trainee.py"


def training(work: Path) -> dict[str, Any]:
    """A job of two workers that never ends by itself."""
    return {
        "model": {"key": "tests/lost", "dataset_size": 240},
        "target": {"epochs": 100_000, "at_batch": 24},
        "limits": {"workers": 2, "batch": 24, "max_cost": "1 USD"},
        "level": "observe",
        "run": {
            "command": ["python", str(TRAINEE)],
            "directory": str(work),
            "env": {"PACE": "0.01"},
            "checkpoints": {"every": "1s", "keep": 2},
        },
    }


@contextmanager
def serve_with_bucket(url: str, cloud: FakeCloud) -> Iterator[dict[str, object]]:
    """Serve EC2 with an entry that names a bucket."""
    with serve_ec2(cloud) as entry:
        yield {**entry, "checkpoints": bucket_entry(url)}


def first_iterations(work: Path) -> dict[str, int]:
    """Return the first iteration that each worker trained."""
    found = {}
    for file in work.glob("*.jsonl"):
        lines = file.read_text().splitlines()
        if lines:
            found[file.stem] = int(json.loads(lines[0])["iteration"])
    return found


def event_of(controller: Controller, job: str, kind: str) -> str | None:
    return next((each.message for each in controller.events(job) if each.kind == kind), None)


@pytest.mark.slow
def test_a_job_whose_machines_are_all_taken_goes_on_from_the_bucket(
    open_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in SDK_ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    root = open_directory / "all-lost"
    work = root / "work"
    work.mkdir(parents=True)
    with ExitStack() as stack:
        stack.enter_context(credentials(root))
        bucket = stack.enter_context(open_s3())
        # On this network every computer reaches the bucket at the address that is signed.
        lab = stack.enter_context(open_loopback())
        stand_in = replace(EC2, serve=partial(serve_with_bucket, bucket.url))
        rental = stack.enter_context(open_rental(stand_in, lab, root))
        options = controller_options(lab, rental.clouds_file)
        with Controller(root / "home", options) as controller:
            job = controller.submit(training(work))
            controller.wait(lambda: event_of(controller, job, "checkpoints"))
            reached = controller.job(job).progress.iteration
            controller.wait(lambda: controller.job(job).progress.iteration > reached + 100)
            before = set(first_iterations(work))
            # One that is only half there may be the newest; what is offered is no older than this.
            kept = min(int(name.split("/")[-2].split("-")[1]) for name in bucket.shelf.names())
            for machine in list(rental.computers.computers):
                rental.cloud.interrupt(machine)
            controller.wait(lambda: len(set(first_iterations(work)) - before) == 2)
            began = first_iterations(work)
            view = controller.job(job)
            controller.ask("POST", f"/v1/jobs/{job}/actions/cancel")
            controller.wait(rental.is_empty)
    assert view.checkpoints == f"s3://kept/team/ours/{job}"
    assert {began[worker] for worker in before} == {1}
    assert {began[worker] > kept for worker in set(began) - before} == {True}
    assert "X-Amz-Signature" not in controller.log()
