"""The main job on rented computers: each boots by its script, at an address of its own.

The controller is the one that people run, with the provider and the SDK of the cloud. Behind the
cloud's own protocol is a fake cloud, whose hooks boot a computer for each machine.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest

from scavenger.schemas import JobPhase
from tests.acceptance.test_digits_job import digits
from tests.conformance.google.rental import ENTRY, GCE_TYPE, ZONE
from tests.controller import Controller
from tests.fakecloud.aws_region import GROUP, IMAGE
from tests.fakecloud.bill import Tariff
from tests.fakecloud.clock import RealClock
from tests.fakecloud.cloud import FakeCloud
from tests.fakecloud.ec2_door import USER_DATA, AwsDoor
from tests.fakecloud.google_door import GoogleDoor
from tests.fakecloud.google_rules import STARTUP_SCRIPT
from tests.fakecloud.http_server import HttpServer
from tests.fakecloud.machine import Machine, Reason
from tests.fakecloud.settings import Settings
from tests.machines.lab import Lab, open_lab
from tests.machines.metadata import Kind
from tests.machines.rented import RentedComputers

Serve = Callable[[FakeCloud], AbstractContextManager[dict[str, object]]]

MACHINE_TYPE = "m7i.xlarge"
MANNERS = Settings(
    tariffs={kind: Tariff(0.13402, minimum=60.0) for kind in (MACHINE_TYPE, GCE_TYPE)},
    has_zonal_tokens=True,
    boot=0.1,
    ending=0.1,
    lateness=1.0,
    page=1000,
)
GOOGLE_MANNERS = replace(MANNERS, are_tokens_free_again=True, memory=0.0, page=500)


@contextmanager
def aws(cloud: FakeCloud) -> Iterator[dict[str, object]]:
    """Serve a fake cloud as EC2; returns the entry of a clouds file that leads there."""
    with HttpServer(AwsDoor(cloud).answer) as server:
        yield {
            "provider": "aws",
            "region": "eu-central-1",
            "subnets": {"eu-central-1a": "subnet-000a"},
            "security_group": GROUP,
            "image": IMAGE,
            "machine_type": MACHINE_TYPE,
            "endpoint": server.url,
        }


@contextmanager
def google(cloud: FakeCloud) -> Iterator[dict[str, object]]:
    """Serve a fake cloud as Compute Engine."""
    with HttpServer(GoogleDoor(cloud).answer) as server:
        yield {
            "provider": "google",
            **ENTRY,
            "zones": [ZONE],
            "machine_type": GCE_TYPE,
            "endpoint": server.url,
        }


def controller_of(lab: Lab, home: Path, clouds: Path) -> Controller:
    """Return a controller that its machines reach through a lab."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = int(probe.getsockname()[1])
    url = lab.url_of(port)
    host = url.removeprefix("http://").rpartition(":")[0]
    options = ("--port", str(port), "--address", url, "--names", host, "--clouds", str(clouds))
    return Controller(home, options)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "serve", "manners", "script"),
    [
        ("aws", aws, MANNERS, USER_DATA),
        ("google", google, GOOGLE_MANNERS, STARTUP_SCRIPT),
    ],
    ids=["aws", "google"],
)
def test_the_digits_job_trains_on_computers_that_boot(
    open_directory: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: Kind,
    serve: Serve,
    manners: Settings,
    script: str,
) -> None:
    for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY"):
        monkeypatch.setenv(f"AWS_{name}", "of-a-fake-cloud")
    home = open_directory / f"rented-{kind}" / "home"
    home.mkdir(parents=True)
    cloud = FakeCloud(RealClock(), manners)
    file = home.with_name("clouds.yaml")
    document = digits()
    document["run"]["command"] = ["python", "train.py"]
    with open_lab() as lab, serve(cloud) as entry:
        file.write_text(json.dumps({"clouds": {"rented": entry}}))

        def script_of(machine: Machine) -> str:
            return machine.request.environment[script]

        rented = RentedComputers(cloud, lab, home.parent, kind, script_of, modules=None)
        rented.attach()
        with controller_of(lab, home, file) as controller:
            job = controller.submit(document)
            last = controller.finished(job)
            resizes = [each for each in controller.curve(job).resizes if each.pause is not None]
            controller.wait(lambda: all(one.gone_at is not None for one in cloud.machines()))
            accrued = controller.job(job).cost.accrued.amount
    assert cloud.bill().total <= accrued <= Decimal("1"), "the bill is covered, below the cap"
    assert last.phase is JobPhase.SUCCEEDED, last.reason
    assert last.progress.metrics["accuracy"] >= 0.97
    assert len(resizes) >= 2
    assert all(each.iterations_lost == 0 for each in resizes)
    ended = [cloud.find(machine).stop.reason for machine in rented.computers]
    assert len(ended) >= 2
    assert set(ended) <= {Reason.POWERED_OFF, Reason.ORDERED}
