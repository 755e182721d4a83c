"""The main job on rented computers: each boots by its script, at an address of its own.

The controller is the one that people run, with the provider and the SDK of the cloud. Behind the
cloud's own protocol is a fake cloud, whose hooks boot a computer for each machine.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from scavenger.schemas.jobs import JobPhase
from tests.acceptance.test_digits_job import digits
from tests.controller import Controller
from tests.controller_double import until
from tests.fakecloud.machine import Reason
from tests.machines.computer import processes_of
from tests.machines.lab import Lab, open_lab, open_loopback
from tests.machines.narration import is_covered
from tests.machines.rental import (
    COMPUTE_ENGINE,
    EC2,
    SDK_ENVIRONMENT,
    StandIn,
    controller_options,
    open_rental,
)

GOAL = 0.9


@pytest.mark.parametrize(
    ("stand_in", "opened"),
    [
        pytest.param(EC2, open_loopback, id="aws-loopback", marks=pytest.mark.slow),
        pytest.param(EC2, open_lab, id="aws", marks=pytest.mark.slow),
        pytest.param(COMPUTE_ENGINE, open_lab, id="google", marks=pytest.mark.slow),
    ],
)
def test_the_digits_job_trains_on_computers_that_boot(
    open_directory: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
    stand_in: StandIn,
    opened: Callable[[], AbstractContextManager[Lab]],
) -> None:
    for name, value in SDK_ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    root = open_directory / f"rented-{request.node.callspec.id}"
    root.mkdir()
    document = digits()
    document["run"]["command"] = ["python", "train.py"]
    document["target"]["goal"] = GOAL
    if stand_in is EC2:
        del document["price"]  # it is known; prices of Google on demand have to be imported
    with opened() as lab, open_rental(stand_in, lab, root) as rental:
        options = controller_options(lab, rental.clouds_file)
        with Controller(root / "home", options) as controller:
            job = controller.submit(document)
            controller.finished(job)
            resizes = [each for each in controller.curve(job).resizes if each.pause is not None]
            controller.wait(rental.is_empty)
            last = controller.job(job)
        assert is_covered(rental.cloud, last), (rental.cloud.bill(), last.cost)
        ended = [rental.cloud.find(each).stop.reason for each in rental.computers.computers]
    until(lambda: not list(processes_of(root)))
    assert last.phase is JobPhase.SUCCEEDED, last.reason
    assert last.progress.metrics["accuracy"] >= GOAL
    assert len(resizes) >= 2
    assert all(each.iterations_lost == 0 for each in resizes)
    assert len(ended) >= 2
    assert set(ended) <= {Reason.POWERED_OFF, Reason.ORDERED}
