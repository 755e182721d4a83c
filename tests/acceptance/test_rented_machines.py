"""The main job on rented computers: each boots by its script, at an address of its own.

The controller is the one that people run, with the provider and the SDK of the cloud. Behind the
cloud's own protocol is a fake cloud, whose hooks boot a computer for each machine.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from scavenger.schemas import JobPhase
from tests.acceptance.test_digits_job import digits
from tests.controller import Controller
from tests.fakecloud.aws_region import GROUP, IMAGE
from tests.fakecloud.bill import Tariff
from tests.fakecloud.clock import RealClock
from tests.fakecloud.cloud import FakeCloud
from tests.fakecloud.ec2_door import USER_DATA, AwsDoor
from tests.fakecloud.http_server import HttpServer
from tests.fakecloud.machine import Machine, Reason
from tests.fakecloud.settings import Settings
from tests.machines.lab import Lab, open_lab
from tests.machines.rented import RentedComputers

MACHINE_TYPE = "m7i.xlarge"
MANNERS = Settings(
    tariffs={MACHINE_TYPE: Tariff(0.2, minimum=60.0)},
    has_zonal_tokens=True,
    boot=0.1,
    ending=0.1,
    lateness=1.0,
    page=1000,
)


def user_data(machine: Machine) -> str:
    return machine.request.environment[USER_DATA]


@contextmanager
def aws(home: Path, cloud: FakeCloud) -> Iterator[Path]:
    """Serve a fake cloud as EC2; returns the clouds file that leads there."""
    with HttpServer(AwsDoor(cloud).answer) as server:
        entry = {
            "provider": "aws",
            "region": "eu-central-1",
            "subnets": {"eu-central-1a": "subnet-000a"},
            "security_group": GROUP,
            "image": IMAGE,
            "machine_type": MACHINE_TYPE,
            "endpoint": server.url,
        }
        file = home.with_name("clouds.yaml")
        file.write_text(json.dumps({"clouds": {"aws-frankfurt": entry}}))
        yield file


def controller_of(lab: Lab, home: Path, clouds: Path) -> Controller:
    """Return a controller that its machines reach through a lab."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = int(probe.getsockname()[1])
    url = lab.url_of(port)
    host = url.removeprefix("http://").rpartition(":")[0]
    options = ("--port", str(port), "--address", url, "--names", host, "--clouds", str(clouds))
    return Controller(home, options)


@pytest.mark.slow
def test_the_digits_job_trains_on_computers_that_boot(
    open_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY"):
        monkeypatch.setenv(f"AWS_{name}", "of-a-fake-cloud")
    home = open_directory / "rented" / "home"
    home.mkdir(parents=True)
    cloud = FakeCloud(RealClock(), MANNERS)
    document = digits()
    document["run"]["command"] = ["python", "train.py"]
    with open_lab() as lab, aws(home, cloud) as clouds:
        rented = RentedComputers(cloud, lab, home.parent, "aws", user_data, modules=None)
        rented.attach()
        with controller_of(lab, home, clouds) as controller:
            job = controller.submit(document)
            last = controller.finished(job)
            resizes = [each for each in controller.curve(job).resizes if each.pause is not None]
    assert last.phase is JobPhase.SUCCEEDED, last.reason
    assert last.progress.metrics["accuracy"] >= 0.97
    assert len(resizes) >= 2
    assert all(each.iterations_lost == 0 for each in resizes)
    ended = [cloud.find(machine).stop.reason for machine in rented.computers]
    assert len(ended) >= 2
    assert set(ended) <= {Reason.POWERED_OFF, Reason.ORDERED}
