"""What every provider promises, and what the local one promises besides."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from scavenger.protocol import Progress, StepReport
from service.clouds.local import LocalProvider
from service.clouds.provider import Instance, InstanceState, LaunchRequest, Provider
from service.errors import LaunchRefused
from tests.controller_double import TOKEN, ControllerDouble, until

PROJECT = Path(__file__).parents[2]
FOREVER = ("sleep", "600")


@pytest.fixture
def controller() -> Iterator[ControllerDouble]:
    double = ControllerDouble()
    yield double
    double.close()


@pytest.fixture
def request_for(controller: ControllerDouble) -> Callable[..., LaunchRequest]:
    def make(*command: str, key: str = "key-1", prepaid: float = 60.0) -> LaunchRequest:
        return LaunchRequest(
            launch_key=key,
            job="job-1",
            command=command or FOREVER,
            environment={
                "SCAVENGER_CONTROLLER": controller.url,
                "SCAVENGER_TOKEN": TOKEN,
                "SCAVENGER_PREPAID": str(prepaid),
            },
            directory=None,
            price_per_hour=0.5,
        )

    return make


def state(provider: Provider, instance: Instance) -> InstanceState | None:
    found = {i.provider_id: i.state for i in provider.list()}
    return found.get(instance.provider_id)


Request = Callable[..., LaunchRequest]


class ProviderConformance:
    """Every implementation inherits this and supplies ``provider`` and ``destroy``.

    ``provider`` makes a new provider object of the same installation whenever it is called;
    ``destroy`` ends a machine behind its provider's back.
    """

    def test_nothing_exists_at_first(self, provider: Callable[[], Provider]) -> None:
        assert provider().list() == ()

    def test_a_machine_is_known_by_its_launch(
        self, provider: Callable[[], Provider], request_for: Request
    ) -> None:
        launched = provider().launch(request_for())
        (listed,) = provider().list()
        assert (listed.launch_key, listed.job, listed.price_per_hour) == ("key-1", "job-1", 0.5)
        assert replace(listed, state=launched.state) == launched
        assert listed.state is not InstanceState.GONE

    def test_a_machine_comes_up(
        self, provider: Callable[[], Provider], request_for: Request
    ) -> None:
        cloud = provider()
        machine = cloud.launch(request_for())
        until(lambda: state(cloud, machine) is InstanceState.RUNNING)

    def test_a_launch_key_never_makes_a_second_machine(
        self, provider: Callable[[], Provider], request_for: Request
    ) -> None:
        with ThreadPoolExecutor(8) as threads:
            launched = list(threads.map(lambda _: provider().launch(request_for()), range(8)))
        assert len({machine.provider_id for machine in launched}) == 1
        assert len(provider().list()) == 1

    def test_another_key_makes_another_machine(
        self, provider: Callable[[], Provider], request_for: Request
    ) -> None:
        cloud = provider()
        machines = [cloud.launch(request_for(key=key)) for key in ("key-1", "key-2")]
        cloud.terminate(machines[0].provider_id)
        assert state(cloud, machines[0]) is InstanceState.GONE
        assert state(cloud, machines[1]) is not InstanceState.GONE

    def test_a_machine_that_died_is_listed_gone_and_its_key_is_used_up(
        self,
        provider: Callable[[], Provider],
        request_for: Request,
        destroy: Callable[[Instance], None],
    ) -> None:
        cloud = provider()
        machine = cloud.launch(request_for())
        until(lambda: state(cloud, machine) is InstanceState.RUNNING)
        destroy(machine)
        until(lambda: state(cloud, machine) is InstanceState.GONE)
        with pytest.raises(LaunchRefused, match="key-1"):
            cloud.launch(request_for())

    def test_terminating_is_done_on_return_and_may_be_repeated(
        self, provider: Callable[[], Provider], request_for: Request
    ) -> None:
        cloud = provider()
        machine = cloud.launch(request_for())
        cloud.terminate(machine.provider_id)
        assert state(cloud, machine) is InstanceState.GONE
        cloud.terminate(machine.provider_id)
        with pytest.raises(LaunchRefused):
            cloud.launch(request_for())

    def test_terminating_what_never_existed_succeeds(
        self, provider: Callable[[], Provider]
    ) -> None:
        provider().terminate("never-launched")

    def test_machines_outlive_the_provider_object(
        self, provider: Callable[[], Provider], request_for: Request
    ) -> None:
        machine = provider().launch(request_for())
        assert state(provider(), machine) is not InstanceState.GONE
        assert provider().launch(request_for()).provider_id == machine.provider_id
        provider().terminate(machine.provider_id)
        assert state(provider(), machine) is InstanceState.GONE

    def test_only_what_is_gone_can_be_forgotten(
        self, provider: Callable[[], Provider], request_for: Request
    ) -> None:
        cloud = provider()
        machine = cloud.launch(request_for())
        with pytest.raises(ValueError, match="not gone"):
            cloud.forget(machine.provider_id)
        cloud.terminate(machine.provider_id)
        cloud.forget(machine.provider_id)
        cloud.forget(machine.provider_id)
        assert cloud.list() == ()


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    machines = tmp_path / "machines"
    yield machines
    cloud = LocalProvider(machines, sys.executable)
    for machine in cloud.list():
        cloud.terminate(machine.provider_id)


class TestLocalProvider(ProviderConformance):
    @pytest.fixture
    def provider(self, root: Path) -> Callable[[], Provider]:
        return lambda: LocalProvider(root, sys.executable)

    @pytest.fixture
    def destroy(self, root: Path) -> Callable[[Instance], None]:
        return lambda machine: os.killpg(pid_of(root, machine), signal.SIGKILL)


@pytest.fixture
def local(root: Path) -> LocalProvider:
    return LocalProvider(root, sys.executable)


def pid_of(root: Path, machine: Instance) -> int:
    return int((root / f"{machine.provider_id}.pid").read_text())


def said(root: Path, machine: Instance) -> str:
    return (root / f"{machine.provider_id}.log").read_text()


def lives(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def test_terminating_kills_grandchildren_even_in_a_session_of_their_own(
    local: LocalProvider, root: Path, request_for: Request
) -> None:
    script = "sleep 600 & echo $! ; setsid sleep 600 & echo $! ; wait"
    machine = local.launch(request_for("sh", "-c", script))
    until(lambda: said(root, machine).count("\n") == 2)
    pids = [int(line) for line in said(root, machine).split()]
    assert all(map(lives, pids))
    local.terminate(machine.provider_id)
    until(lambda: not any(map(lives, pids)))


def test_a_machine_whose_supervisor_was_killed_is_still_seen_and_terminated(
    local: LocalProvider, root: Path, request_for: Request
) -> None:
    machine = local.launch(request_for("sh", "-c", "echo $$; exec sleep 600"))
    until(lambda: said(root, machine))
    os.kill(pid_of(root, machine), signal.SIGKILL)
    until(lambda: not lives(pid_of(root, machine)))
    assert state(local, machine) is InstanceState.RUNNING
    local.terminate(machine.provider_id)
    assert not lives(int(said(root, machine)))


def test_a_process_that_outlived_its_machine_keeps_it_listed_until_it_is_terminated(
    local: LocalProvider, root: Path, controller: ControllerDouble, request_for: Request
) -> None:
    machine = local.launch(request_for("sh", "-c", "setsid sleep 600 & echo $!"))
    until(lambda: controller.exits)
    until(lambda: not lives(pid_of(root, machine)))
    assert state(local, machine) is InstanceState.RUNNING
    local.terminate(machine.provider_id)
    assert state(local, machine) is InstanceState.GONE
    assert not lives(int(said(root, machine)))


def test_a_stranger_with_the_pid_of_a_machine_is_left_alone(
    local: LocalProvider, root: Path, request_for: Request
) -> None:
    machine = local.launch(request_for())
    until(lambda: state(local, machine) is InstanceState.RUNNING)
    group = pid_of(root, machine)
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as stranger:
        (root / "key-1.pid").write_text(str(stranger.pid))
        os.killpg(group, signal.SIGKILL)
        local.terminate(machine.provider_id)
        assert stranger.poll() is None
        stranger.kill()


def test_a_machine_outlives_a_killed_controller(
    local: LocalProvider, root: Path, request_for: Request
) -> None:
    code = """
import json, os, signal, sys
from service.clouds.local import LocalProvider
from service.clouds.provider import LaunchRequest
request = LaunchRequest("key-1", "job-1", ("sleep", "600"), json.loads(sys.argv[2]), None, 0.5)
LocalProvider(__import__("pathlib").Path(sys.argv[1]), sys.executable).launch(request)
os.kill(os.getpid(), signal.SIGKILL)
"""
    environment = json.dumps(dict(request_for().environment))
    killed = subprocess.run([sys.executable, "-c", code, str(root), environment], cwd=PROJECT)
    assert killed.returncode == -signal.SIGKILL
    (machine,) = local.list()
    until(lambda: state(local, machine) is InstanceState.RUNNING)
    local.terminate(machine.provider_id)


def test_a_launch_that_got_no_further_than_its_file_is_gone(
    root: Path, request_for: Request
) -> None:
    broken = LocalProvider(root, str(root / "no-python"))
    with pytest.raises(LaunchRefused, match="no-python"):
        broken.launch(request_for())
    assert [machine.state for machine in broken.list()] == [InstanceState.GONE]


def test_secrets_are_neither_on_command_lines_nor_in_files(
    local: LocalProvider, root: Path, request_for: Request
) -> None:
    machine = local.launch(request_for("sh", "-c", "echo up; sleep 600; true"))
    until(lambda: said(root, machine))
    supervisor = psutil.Process(pid_of(root, machine))
    for process in (supervisor, *supervisor.children(recursive=True)):
        assert TOKEN not in " ".join(process.cmdline())
    assert root.stat().st_mode & 0o777 == 0o700
    assert TOKEN not in repr(request_for())
    for file in root.iterdir():
        assert file.stat().st_mode & 0o777 == 0o600
        assert TOKEN not in file.read_text()


def test_the_command_gets_its_environment_and_nothing_of_the_controllers(
    local: LocalProvider,
    root: Path,
    request_for: Request,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("CONTROLLERS_OWN", "secret")
    script = 'pwd; echo "$SCAVENGER_WORKER $SCAVENGER_TOKEN $OMP_NUM_THREADS $CONTROLLERS_OWN."'
    request = replace(request_for("sh", "-c", f"{script}; sleep 600"), directory=str(tmp_path))
    machine = local.launch(request)
    until(lambda: said(root, machine).count("\n") == 2)
    assert said(root, machine) == f"{tmp_path}\nkey-1 {TOKEN} 1 .\n"


def test_a_user_may_choose_the_number_of_threads(
    local: LocalProvider, root: Path, request_for: Request
) -> None:
    request = request_for("sh", "-c", "echo $OMP_NUM_THREADS; sleep 600")
    chosen = replace(request, environment={**request.environment, "OMP_NUM_THREADS": "3"})
    machine = local.launch(chosen)
    until(lambda: said(root, machine) == "3\n")


def test_a_machine_boots_before_it_runs_its_command(
    root: Path, controller: ControllerDouble, request_for: Request
) -> None:
    began = time.monotonic()
    local = LocalProvider(root, sys.executable, boot_delay=0.7)
    machine = local.launch(request_for())
    until(lambda: state(local, machine) is InstanceState.RUNNING)
    until(lambda: controller.asked)
    assert controller.asked[0] - began >= 0.7


@pytest.mark.parametrize(
    ("command", "code", "tail"),
    [
        (("sh", "-c", "echo out; echo err >&2; exit 3"), 3, "out\nerr"),
        (("true",), 0, ""),
        (("seq", "1000"), 0, "\n".join(map(str, range(951, 1001)))),
        (("sh", "-c", "head -c 30000000 /dev/zero; echo; echo end"), 0, "\nend"),
        (("no-such-program",), 127, "cannot start no-such-program"),
    ],
)
def test_how_the_command_ended_is_reported_and_the_machine_is_gone(
    local: LocalProvider,
    controller: ControllerDouble,
    request_for: Request,
    command: tuple[str, ...],
    code: int,
    tail: str,
) -> None:
    machine = local.launch(request_for(*command))
    until(lambda: controller.exits)
    (ending,) = controller.exits
    assert (ending.worker, ending.code) == (machine.provider_id, code)
    assert ending.tail.startswith(tail)
    until(lambda: state(local, machine) is InstanceState.GONE)


def test_a_machine_ends_all_its_processes_with_its_command(
    local: LocalProvider, root: Path, request_for: Request
) -> None:
    machine = local.launch(request_for("sh", "-c", "sleep 600 & echo $!"))
    until(lambda: state(local, machine) is InstanceState.GONE)
    assert not lives(int(said(root, machine)))


def test_leases_keep_a_machine_alive_and_their_end_powers_it_off(
    local: LocalProvider, controller: ControllerDouble, request_for: Request
) -> None:
    machine = local.launch(request_for(prepaid=0.9))
    until(lambda: len(controller.asked) >= 4)
    assert controller.asked[-1] - controller.asked[0] > 0.8
    assert state(local, machine) is InstanceState.RUNNING
    controller.lease = 0.0
    until(lambda: state(local, machine) is InstanceState.GONE, patience=3)
    assert controller.exits == []


def test_a_command_may_save_its_work_before_the_machine_powers_off(
    local: LocalProvider, controller: ControllerDouble, root: Path, request_for: Request
) -> None:
    script = 'trap "echo saved; exit" TERM; echo up; while :; do sleep 0.05; done'
    machine = local.launch(request_for("sh", "-c", script, prepaid=0.9))
    until(lambda: said(root, machine))
    controller.lease = 0.0
    until(lambda: state(local, machine) is InstanceState.GONE)
    assert "saved" in said(root, machine)


@pytest.mark.parametrize("is_silent", [True, False])
def test_an_unreachable_controller_disturbs_nothing_until_the_prepaid_time_ends(
    local: LocalProvider,
    controller: ControllerDouble,
    root: Path,
    request_for: Request,
    is_silent: bool,
) -> None:
    request = request_for("sh", "-c", "while :; do echo tick; sleep 0.1; done", prepaid=1.5)
    if is_silent:
        controller.is_silent.set()
    else:
        environment = {**request.environment, "SCAVENGER_CONTROLLER": nobody()}
        request = replace(request, environment=environment)
    began = time.monotonic()
    machine = local.launch(request)
    until(lambda: state(local, machine) is InstanceState.GONE)
    assert 1.5 <= time.monotonic() - began < 4.0
    assert said(root, machine).count("tick") >= 5


def test_a_refused_machine_runs_to_the_end_of_its_prepaid_time(
    local: LocalProvider, controller: ControllerDouble, root: Path, request_for: Request
) -> None:
    request = request_for("sh", "-c", "echo up; sleep 600", prepaid=1.0)
    wrong = {**request.environment, "SCAVENGER_TOKEN": "wrong"}
    machine = local.launch(replace(request, environment=wrong))
    until(lambda: state(local, machine) is InstanceState.GONE)
    assert controller.refused
    assert "up" in said(root, machine)


def test_the_end_of_a_command_is_told_once_the_controller_is_back(
    local: LocalProvider, controller: ControllerDouble, root: Path, request_for: Request
) -> None:
    controller.is_silent.set()
    machine = local.launch(request_for("sh", "-c", "echo up; exit 4"))
    until(lambda: "up" in said(root, machine))
    controller.is_silent.clear()
    until(lambda: controller.exits)
    assert controller.exits[0].code == 4


LEAVE = """
import os
from pathlib import Path
from scavenger.protocol import Progress, StepReport
from worker_agent.telemetry.spool import Spool
from worker_agent.telemetry.header import Header

spool = Spool(Path(os.environ["SCAVENGER_SPOOL"]), Header("job", "w1", "", ""))
spool.append(StepReport("w1", Progress(1, 9, 9, 0.9, {"accuracy": 0.98}), finished="target"))
print("left", flush=True)
"""


def test_a_last_report_nobody_heard_is_delivered_before_the_end(
    local: LocalProvider, controller: ControllerDouble, root: Path, request_for: Request
) -> None:
    report = StepReport("w1", Progress(1, 9, 9, 0.9, {"accuracy": 0.98}), finished="target")
    controller.is_silent.set()
    machine = local.launch(request_for(sys.executable, "-c", LEAVE))
    until(lambda: "left" in said(root, machine))
    controller.is_silent.clear()
    until(lambda: controller.exits)
    assert controller.reports == [report]


def nobody() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}"


@pytest.mark.parametrize(
    "change",
    [{"launch_key": "../etc"}, {"launch_key": ""}, {"command": ()}, {"price_per_hour": -1.0}],
)
def test_a_request_that_makes_no_sense_is_not_made(
    request_for: Request, change: dict[str, object]
) -> None:
    with pytest.raises(ValueError):
        replace(request_for(), **change)
