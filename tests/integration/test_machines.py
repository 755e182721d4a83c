"""Computers of a fake cloud, each with an address and processes of its own, boot and end."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from service.clouds.boot import render_boot_script
from tests.builders import boot
from tests.controller_double import BOOTSTRAP, ControllerDouble, until
from tests.fakecloud.clock import RealClock
from tests.fakecloud.cloud import FakeCloud
from tests.fakecloud.machine import Machine, Reason, Request, State
from tests.integration.test_boot_script import PACKAGE, controller
from tests.machines.computer import Computer
from tests.machines.lab import Lab, LoopbackLab, NamespaceLab, has_namespaces
from tests.machines.metadata import Kind
from tests.machines.rented import RentedComputers

LABS = {"namespaces": NamespaceLab, "loopback": LoopbackLab}
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
    if request.param == "namespaces" and not has_namespaces():
        pytest.skip("this computer allows no namespaces")
    with ExitStack() as stack:
        yield LABS[request.param](stack)


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


def test_nothing_stays_of_a_computer_that_powered_itself_off(
    controller: ControllerDouble, tmp_path: Path
) -> None:
    if not has_namespaces():
        pytest.skip("this computer allows no namespaces")
    with ExitStack() as stack:
        lab, computer = NamespaceLab(stack), Computer(tmp_path / "one")
        escaped = "import os, time; os.setsid(); time.sleep(600)"
        run = f"(python -c '{escaped}' &) ; sleep 0.2"
        controller.assign(command=("sh", "-c", run))
        lab.boot(computer, script(lab, controller), "aws", "i-1")
        assert computer.process is not None
        computer.process.wait()
        assert computer.off_at is not None
        until(lambda: not list(named(str(computer.root))))


def named(root: str) -> Iterator[int]:
    """Yield the processes whose environment names a disk."""
    for name in os.listdir("/proc"):
        try:
            if name.isdigit() and root.encode() in Path(f"/proc/{name}/environ").read_bytes():
                yield int(name)
        except OSError:
            continue


def script_of(machine: Machine) -> str:
    return machine.request.environment[SCRIPT]


@pytest.fixture
def rented(lab: Lab, tmp_path: Path) -> RentedComputers:
    computers = RentedComputers(FakeCloud(RealClock()), lab, tmp_path, "google", script_of)
    computers.attach()
    return computers


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
