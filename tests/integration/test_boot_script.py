"""A computer boots: the real script, the real agent, and a controller and a cloud that answer."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from ipaddress import IPv4Address
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from service.agent_package import AgentPackage
from service.clouds.boot import render_boot_script
from tests.builders import boot
from tests.controller_double import BOOTSTRAP, ControllerDouble, until
from tests.fakecloud.http_server import HttpServer
from tests.machines.computer import Computer, kill
from tests.machines.metadata import Kind, Metadata
from worker_agent.supervisor.power import PowerOffTimer, uptime

PACKAGE = AgentPackage.build()
NOWHERE = {
    "AWS_EC2_METADATA_SERVICE_ENDPOINT": "http://127.0.0.1:9",
    "GCE_METADATA_HOST": "127.0.0.1:9",
}
LATE = 2.0  # seconds that the timer may be late
SHOW = """
import os, sys, worker_agent
print(os.environ.get("SCAVENGER_HOST"), worker_agent.__file__, os.getcwd(), os.umask(0), flush=True)
"""


@pytest.fixture
def controller() -> Iterator[ControllerDouble]:
    double = ControllerDouble()
    double.package = PACKAGE.content
    double.assign(command=("python", "-c", SHOW))
    yield double
    double.close()


@pytest.fixture
def computer(tmp_path: Path) -> Iterator[Computer]:
    computer = Computer(tmp_path / "computer")
    yield computer
    computer.unplug()


def script(controller: ControllerDouble | None, **changes: object) -> str:
    address = "http://127.0.0.1:9" if controller is None else controller.url
    told = {"controller": address, "token": BOOTSTRAP, "agent": PACKAGE.digest, **changes}
    return render_boot_script(boot(**told))


def may_be_protected() -> bool:
    """Whether this user may keep the kernel from ending a process when memory runs out."""
    command = ["sh", "-c", "echo -1000 >/proc/self/oom_score_adj"]
    return subprocess.run(command, capture_output=True).returncode == 0


def is_off(computer: Computer) -> bool:
    return computer.off_at is not None


# The dead man's timer, with nothing else that works.


def deadline(computer: Computer) -> float:
    return int(computer.deadline_file.read_text()) / 100


def test_the_power_goes_soon_after_the_prepaid_time_even_if_nothing_else_lives(
    computer: Computer,
) -> None:
    before = uptime()
    computer.boot(script(None, prepaid=1.0), **NOWHERE)
    until(computer.has_deadline)
    until(computer.timer)
    timer = computer.timer()
    assert timer is not None
    for process in computer.processes():
        if process.pid != timer.pid:
            kill(process)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGPIPE):
        timer.send_signal(number)
    if may_be_protected():
        assert Path(f"/proc/{timer.pid}/oom_score_adj").read_text() == "-1000\n"
    due = deadline(computer)
    assert due - before >= 6.0
    until(lambda: is_off(computer))
    assert computer.off_at is not None
    assert due <= computer.off_at <= due + LATE


def test_a_later_deadline_counts_and_an_earlier_one_too(computer: Computer) -> None:
    computer.boot(script(None, prepaid=600.0), **NOWHERE)
    until(computer.has_deadline)
    timer = PowerOffTimer(computer.deadline_file)
    assert 550.0 < timer.lease_left() <= 600.0
    timer.write(0.2 - 5.0)
    timer.write(2.0 - 5.0)
    due = deadline(computer)
    until(lambda: is_off(computer))
    assert computer.off_at is not None
    assert due <= computer.off_at <= due + LATE


@pytest.mark.parametrize("content", [None, "", "soon\n", "-1\n", "1e99\n"])
def test_the_power_goes_when_the_deadline_cannot_be_read(
    computer: Computer, content: str | None
) -> None:
    computer.boot(script(None, prepaid=600.0), **NOWHERE)
    until(computer.has_deadline)
    if content is None:
        computer.deadline_file.unlink()
    else:
        computer.deadline_file.write_text(content)
    gone_at = uptime()
    until(lambda: is_off(computer))
    assert computer.off_at is not None
    assert computer.off_at <= gone_at + LATE


# From power to training.


@pytest.mark.parametrize("kind", ["aws", "google"])
def test_a_machine_boots_trains_and_powers_itself_off(
    computer: Computer, controller: ControllerDouble, kind: Kind
) -> None:
    metadata = Metadata(kind, "i-0123456789", "127.0.0.7")
    with HttpServer(metadata.answer) as server:
        computer.boot(script(controller), **metadata.variables(server.url))
        until(lambda: is_off(computer))
    (ending,) = controller.exits
    assert ending.code == 0, ending.tail
    address, agent, directory, umask = ending.tail.split()
    assert address == "127.0.0.7"
    assert agent.startswith(f"{computer.root}/opt/scavenger/{PACKAGE.digest}/lib/")
    assert (directory, umask) == (f"{computer.root}/opt/scavenger/work", str(0o022))
    assert f"i-0123456789 at 127.0.0.7, agent {PACKAGE.digest}" in computer.console
    assert BOOTSTRAP not in computer.console


def test_a_machine_without_metadata_has_the_address_from_which_it_reaches_the_controller(
    computer: Computer, controller: ControllerDouble
) -> None:
    computer.boot(script(controller), **NOWHERE)
    until(lambda: is_off(computer))
    assert f"at 127.0.0.1, agent {PACKAGE.digest}" in computer.console
    assert controller.exits[0].code == 0


def test_leases_postpone_the_deadline_and_their_end_ends_the_computer(
    computer: Computer, controller: ControllerDouble
) -> None:
    controller.assign(command=("sleep", "600"))
    controller.lease = 3000.0
    computer.boot(script(controller, prepaid=30.0), **NOWHERE)
    until(computer.has_deadline)
    until(lambda: PowerOffTimer(computer.deadline_file).lease_left() > 2000.0)
    controller.lease = 0.0
    until(lambda: is_off(computer))
    assert controller.exits == []


def test_a_computer_goes_off_with_its_supervisor(
    computer: Computer, controller: ControllerDouble
) -> None:
    controller.assign(command=("sleep", "600"))
    computer.boot(script(controller), **NOWHERE)
    until(lambda: controller.asked)
    supervisor = next(p for p in computer.processes() if "worker_agent.supervisor" in p.cmdline())
    os.killpg(supervisor.pid, signal.SIGKILL)
    until(lambda: is_off(computer))
    assert "the supervisor has ended: powering off" in computer.console


def test_a_package_with_another_hash_is_not_installed(
    computer: Computer, controller: ControllerDouble
) -> None:
    controller.package += b"\n"
    computer.boot(script(controller), **NOWHERE)
    until(lambda: is_off(computer))
    assert "package is not what this machine was launched for" in computer.console
    assert list((computer.root / "opt" / "scavenger").iterdir()) == [
        computer.root / "opt" / "scavenger" / "work"
    ]
    assert controller.enrolments == []


def test_a_computer_whose_token_is_refused_goes_off(
    computer: Computer, controller: ControllerDouble
) -> None:
    computer.boot(script(controller, token="scb_w1_wrong"), **NOWHERE)
    until(lambda: is_off(computer))
    assert "the controller refuses package: 401" in computer.console


def test_a_second_boot_finds_its_token_used_and_goes_off(
    computer: Computer, controller: ControllerDouble
) -> None:
    metadata = Metadata("google", "42", "127.0.0.7")
    with HttpServer(metadata.answer) as server:
        computer.boot(script(controller), **metadata.variables(server.url))
        until(lambda: is_off(computer))
        computer.unplug()
        computer.boot(script(controller), **metadata.variables(server.url))
        until(lambda: is_off(computer))
    assert "enrolment was refused" in computer.console
    assert len(controller.exits) == 1
    assert controller.got == ["/v1/agent/package"], "what is installed is not fetched again"


def test_an_image_without_the_agents_dependencies_goes_off(
    computer: Computer, controller: ControllerDouble
) -> None:
    (computer.root / "image" / "httpx").unlink()
    computer.boot(script(controller), **NOWHERE)
    until(lambda: is_off(computer))
    assert "No module named 'httpx'" in computer.console
    assert controller.enrolments == []


def test_a_supervisor_whose_script_was_killed_powers_the_computer_off(
    computer: Computer, controller: ControllerDouble
) -> None:
    controller.assign(command=("sh", "-c", "while [ ! -e over ]; do sleep 0.05; done"))
    computer.boot(script(controller), **NOWHERE)
    until(lambda: controller.asked)
    assert computer.process is not None
    computer.process.kill()
    (computer.root / "opt" / "scavenger" / "work" / "over").touch()
    until(lambda: is_off(computer))
    assert controller.exits[0].code == 0


def certificate(directory: Path, name: str) -> tuple[Path, Path]:
    """Make a certificate of 127.0.0.1 that signs itself, and its key."""
    made, file = directory / f"{name}.pem", directory / f"{name}.key"
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    address = x509.IPAddress(IPv4Address("127.0.0.1"))
    now = datetime.now(UTC)
    signed = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    made.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    pkcs8, open_key = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    file.write_bytes(key.private_bytes(serialization.Encoding.PEM, pkcs8, open_key))
    return made, file


def test_a_machine_trusts_the_certificate_authority_it_was_launched_with(
    computer: Computer, controller: ControllerDouble, tmp_path: Path
) -> None:
    ca, key = certificate(tmp_path, "ours")
    controller.ca = ca.read_bytes()
    controller.secure(ca, key)
    computer.boot(script(controller, ca=sha256(controller.ca).hexdigest()), **NOWHERE)
    until(lambda: is_off(computer))
    assert controller.exits[0].code == 0, controller.exits[0].tail


@pytest.mark.parametrize("claim", ["its own", "ours"])
def test_a_stranger_in_the_controllers_place_never_sees_the_token(
    computer: Computer, controller: ControllerDouble, tmp_path: Path, claim: str
) -> None:
    ours, _ = certificate(tmp_path, "ours")
    stranger, key = certificate(tmp_path, "stranger")
    controller.ca = (stranger if claim == "its own" else ours).read_bytes()
    controller.secure(stranger, key)
    expected = sha256(ours.read_bytes()).hexdigest()
    computer.boot(script(controller, ca=expected, prepaid=1.0), **NOWHERE)
    until(lambda: is_off(computer))
    assert set(controller.got) == {"/v1/agent/ca"}
    assert controller.shown == []


@pytest.mark.slow
def test_a_wheel_is_what_pip_takes_it_for(tmp_path: Path) -> None:
    name = "scavenger-0.1.0-py3-none-any.whl"
    (tmp_path / name).write_bytes(PACKAGE.content)
    pip = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--target"]
    subprocess.run([*pip, str(tmp_path / "there"), str(tmp_path / name)], check=True)
    assert (tmp_path / "there" / "bin" / "scavenger").exists()
    assert (tmp_path / "there" / "worker_agent" / "supervisor" / "power.py").exists()


def test_every_build_of_the_package_is_the_same_and_holds_nothing_of_the_controller() -> None:
    assert AgentPackage.build() == PACKAGE
    assert sha256(PACKAGE.content).hexdigest() == PACKAGE.digest
    assert b"service/" not in PACKAGE.content
