"""Computers of a fake cloud, each with an address and processes of its own, boot and end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from service.clouds.boot import render_boot_script
from tests.builders import boot
from tests.controller_double import BOOTSTRAP, ControllerDouble, until
from tests.fakecloud.clock import RealClock
from tests.fakecloud.cloud import FakeCloud
from tests.fakecloud.machine import Machine, Reason, Request, State
from tests.integration.test_boot_script import PACKAGE, controller
from tests.machines.computer import Computer, processes_of
from tests.machines.lab import Lab, open_lab, open_loopback
from tests.machines.metadata import Kind
from tests.machines.rented import RentedComputers

LABS = {"best": open_lab, "loopback": open_loopback}
__all__ = ["controller"]
SCRIPT = "script"
# The first to come serves its address; the other fetches it.
MEET = """
import os, sys, time, urllib.request
from http.server import HTTPServer, SimpleHTTPRequestHandler
host = os.environ["SCAVENGER_HOST"]
if os.environ["SCAVENGER_WORKER"] == "w1":
    open("hello", "w").write("from w1")
    print(host, flush=True)
    HTTPServer((host, 7777), SimpleHTTPRequestHandler).serve_forever()
peer = os.environ["PEER"]
print(host, urllib.request.urlopen(f"http://{peer}:7777/hello").read().decode())
"""


@pytest.fixture(params=LABS)
def lab(request: pytest.FixtureRequest) -> Iterator[Lab]:
    with LABS[request.param]() as lab:
        yield lab


def script(lab: Lab, controller: ControllerDouble, **changes: object) -> str:
    url = lab.url_of(controller.server.server_port)
    told = {"controller": url, "token": BOOTSTRAP, "agent": PACKAGE.digest, **changes}
    return render_boot_script(boot(**told))


@pytest.mark.parametrize("kind", ["aws", "google"])
def test_computers_reach_one_another_at_the_address_that_their_metadata_tells(
    lab: Lab, controller: ControllerDouble, tmp_path: Path, kind: Kind
) -> None:
    first, second = (Computer(tmp_path / name) for name in ("first", "second"))
    controller.assign(command=("python", "-c", MEET))
    here = lab.boot(first, script(lab, controller, worker="w1"), kind, "i-1")
    until(lambda: here.address in first.console.splitlines())
    controller.assign(variables={"PEER": here.address})
    there = lab.boot(second, script(lab, controller, worker="w2"), kind, "i-2")
    second.wait_until_off()
    assert controller.exits[0].tail == f"{there.address} from w1"
    assert there.address != here.address
    assert "machine i-2 at" in second.console


def script_of(machine: Machine) -> str:
    return machine.request.environment[SCRIPT]


@pytest.fixture
def rented(lab: Lab, tmp_path: Path) -> Iterator[RentedComputers]:
    cloud = FakeCloud(RealClock())
    with RentedComputers(cloud, lab, tmp_path, "google", script_of) as computers:
        yield computers


def launch(rented: RentedComputers, script: str) -> str:
    (made,) = rented.cloud.launch("key-1", Request("small", "a", environment={SCRIPT: script}))
    return made.id


def test_a_machine_of_the_cloud_ends_when_its_computer_powers_itself_off(
    rented: RentedComputers, lab: Lab, controller: ControllerDouble
) -> None:
    controller.assign(command=("true",))
    machine = launch(rented, script(lab, controller))
    until(lambda: rented.cloud.find(machine).stop.reason is Reason.POWERED_OFF)
    assert controller.exits[0].code == 0


def test_a_computer_ends_when_the_cloud_ends_its_machine(
    rented: RentedComputers, lab: Lab, controller: ControllerDouble
) -> None:
    machine = launch(rented, script(lab, controller))
    until(lambda: controller.asked)
    process = rented.computers[machine].process
    assert process is not None
    rented.cloud.terminate(machine)

    def is_ended() -> bool:
        rented.cloud.settle()
        return process.poll() is not None

    until(is_ended)
    assert rented.cloud.find(machine).state_at(rented.cloud.clock.now()) is not State.RUNNING
    assert controller.exits == []


def test_nothing_stays_of_a_machine_that_powered_itself_off(
    rented: RentedComputers, lab: Lab, controller: ControllerDouble
) -> None:
    escaped = "import os, time; os.setsid(); time.sleep(600)"
    controller.assign(command=("sh", "-c", f"(python -c '{escaped}' &) ; sleep 0.2"))
    machine = launch(rented, script(lab, controller))
    computer = rented.computers[machine]
    until(lambda: computer.off_at is not None)
    until(lambda: not list(processes_of(computer.root)))
