"""What every provider promises, and what the local one and the fake cloud's promise besides."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from scavenger.protocol import Progress, StepReport
from service.clouds.local import LocalProvider
from service.clouds.provider import Instance, InstanceState, Provider
from service.errors import (
    CloudError,
    CredentialsRefused,
    LaunchRefused,
    OutOfCapacity,
    ProviderUnavailable,
    QuotaReached,
    Throttled,
)
from tests.builders import boot
from tests.conformance.clouds import (
    Eventually,
    ProviderConformance,
    Request,
    advancing,
    is_gone,
    is_up,
    state,
)
from tests.controller_double import BOOTSTRAP, TOKEN, ControllerDouble, until
from tests.fakecloud.clock import VirtualClock
from tests.fakecloud.cloud import FakeCloud
from tests.fakecloud.faults import Fault, Garbage, LostRequest, LostResponse, Omitted, Refused, Slow
from tests.fakecloud.machine import Request as RunRequest
from tests.fakecloud.provider import FakeCloudProvider
from tests.fakecloud.server import CloudServer
from tests.fakecloud.settings import PLAIN, Settings

PROJECT = Path(__file__).parents[2]


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
    def eventually(self) -> Eventually:
        return until


@pytest.fixture
def fake() -> Iterator[CloudServer]:
    tariffs = {"small": PLAIN, "rare": PLAIN}
    settings = Settings(seed=1, tariffs=tariffs, capacity={"rare@a": 0}, list_lag=5.0, page=2)
    with CloudServer(FakeCloud(VirtualClock(), settings)) as server:
        yield server


@pytest.fixture
def reach(fake: CloudServer) -> Iterator[Callable[..., FakeCloudProvider]]:
    with ExitStack() as opened:

        def open_provider(installation: str = "ours", **options: Any) -> FakeCloudProvider:
            provider = FakeCloudProvider(fake.url, installation, **options)
            opened.callback(provider.close)
            return provider

        yield open_provider


Reach = Callable[..., FakeCloudProvider]


class TestFakeCloudProvider(ProviderConformance):
    @pytest.fixture
    def provider(self, reach: Reach) -> Callable[[], Provider]:
        return reach

    @pytest.fixture
    def destroy(self, fake: CloudServer) -> Callable[[Instance], None]:
        return lambda machine: fake.cloud.interrupt(machine.provider_id)

    @pytest.fixture
    def eventually(self, fake: CloudServer) -> Eventually:
        return advancing(fake.cloud)

    def test_installations_do_not_see_each_other(
        self, reach: Reach, request_for: Request, eventually: Eventually
    ) -> None:
        machine = reach("ours").launch(request_for())
        eventually(lambda: is_up(reach("ours"), machine))
        assert reach("theirs").list() == ()

    def test_all_pages_of_a_list_are_read(
        self, fake: CloudServer, reach: Reach, request_for: Request
    ) -> None:
        machines = [reach().launch(request_for(key=f"key-{n}")) for n in range(5)]
        fake.cloud.clock.advance(5.0)
        assert reach().list() == tuple(machines)

    def test_a_key_repeated_with_another_environment_waits_until_its_machine_is_shown(
        self, reach: Reach, request_for: Request
    ) -> None:
        reach().launch(request_for())
        with pytest.raises(ProviderUnavailable, match="not shown yet"):
            reach().launch(request_for(prepaid=59.0))

    def test_an_accepted_end_is_shown_ending_before_it_is_gone(
        self, fake: CloudServer, reach: Reach, request_for: Request, eventually: Eventually
    ) -> None:
        machine = reach().launch(request_for())
        eventually(lambda: is_up(reach(), machine))
        reach().terminate(machine.provider_id)
        assert is_up(reach(), machine)
        eventually(lambda: state(reach(), machine) is InstanceState.ENDING)
        eventually(lambda: is_gone(reach(), machine))
        eventually(lambda: fake.cloud.clock.advance(600.0) and not reach().list())

    def test_the_cloud_itself_ends_what_runs_too_long(
        self, fake: CloudServer, reach: Reach, request_for: Request, eventually: Eventually
    ) -> None:
        machine = reach().launch(replace(request_for(), max_run_seconds=20.0))
        eventually(lambda: is_gone(reach(), machine))
        (truth,) = fake.cloud.machines()
        assert truth.description.reason == "longest run"

    def test_a_type_that_is_sold_out_is_out_of_capacity(
        self, fake: CloudServer, reach: Reach, request_for: Request
    ) -> None:
        rare = request_for(machine_type="rare")
        with pytest.raises(OutOfCapacity, match="rare"):
            reach().launch(rare)
        fake.cloud.stock("rare@a", 1)
        assert reach().launch(rare).state is InstanceState.PENDING

    @pytest.mark.parametrize(
        ("fault", "error"),
        [
            (LostRequest(), ProviderUnavailable),
            (LostResponse(), ProviderUnavailable),
            (Garbage(), ProviderUnavailable),
            (Refused("RequestLimitExceeded"), Throttled),
            (Refused("InternalError"), ProviderUnavailable),
            (Refused("InstanceLimitExceeded"), QuotaReached),
            (Refused("InsufficientInstanceCapacity"), OutOfCapacity),
            (Refused("UnauthorizedOperation"), CredentialsRefused),
        ],
    )
    def test_repeating_a_launch_after_any_fault_makes_one_machine(
        self,
        fake: CloudServer,
        reach: Reach,
        request_for: Request,
        fault: Fault,
        error: type[CloudError],
    ) -> None:
        fake.cloud.faults.next("launch", fault)
        with pytest.raises(error):
            reach().launch(request_for())
        reach().launch(request_for())
        assert len(fake.cloud.machines()) == 1
        assert not fake.cloud.faults.unfired()

    def test_an_end_that_was_refused_is_tried_again(
        self, fake: CloudServer, reach: Reach, request_for: Request, eventually: Eventually
    ) -> None:
        machine = reach().launch(request_for())
        eventually(lambda: is_up(reach(), machine))
        fake.cloud.faults.next(
            "terminate", Refused("OperationNotPermitted"), about=machine.provider_id
        )
        with pytest.raises(ProviderUnavailable, match="OperationNotPermitted"):
            reach().terminate(machine.provider_id)
        reach().terminate(machine.provider_id)
        eventually(lambda: is_gone(reach(), machine))

    def test_a_list_that_leaves_all_out_is_believed(
        self, fake: CloudServer, reach: Reach, request_for: Request, eventually: Eventually
    ) -> None:
        machine = reach().launch(request_for())
        eventually(lambda: is_up(reach(), machine))
        fake.cloud.faults.next("list", Omitted())
        assert reach().list() == ()
        assert is_up(reach(), machine)

    def test_an_answer_that_does_not_come_is_not_waited_for(
        self, fake: CloudServer, reach: Reach, request_for: Request
    ) -> None:
        fake.cloud.faults.next("launch", Slow(60.0))
        with pytest.raises(ProviderUnavailable):
            reach(patience=0.05).launch(request_for())
        assert len(fake.cloud.machines()) == 1
        fake.cloud.clock.advance(60.0)

    def test_a_machine_labelled_by_hand_is_not_taken_for_ours(
        self, fake: CloudServer, reach: Reach
    ) -> None:
        copied = {"scavenger-installation": "ours"}
        fake.cloud.launch("by hand", RunRequest("small", "a", labels=copied))
        fake.cloud.clock.advance(5.0)
        assert reach().list() == ()


@pytest.fixture
def local(root: Path) -> LocalProvider:
    return LocalProvider(root, sys.executable)


def test_a_local_machine_is_gone_when_its_end_has_been_ordered(
    local: LocalProvider, request_for: Request
) -> None:
    machine = local.launch(request_for())
    local.terminate(machine.provider_id)
    assert is_gone(local, machine)


def test_nothing_is_left_of_a_local_machine_that_is_forgotten(
    local: LocalProvider, request_for: Request
) -> None:
    machine = local.launch(request_for())
    local.terminate(machine.provider_id)
    local.forget(machine.provider_id)
    assert local.list() == ()


def test_who_only_looks_at_a_machine_is_not_killed_with_it(
    local: LocalProvider, root: Path, request_for: Request
) -> None:
    machine = local.launch(request_for())
    look = f"open({str(root / machine.provider_id) + '.vm'!r}); print(flush=True); input()"
    onlooker = subprocess.Popen(
        [sys.executable, "-c", f"file = {look.replace(';', '; ', 1)}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert onlooker.stdout is not None
    onlooker.stdout.readline()
    local.terminate(machine.provider_id)
    assert onlooker.poll() is None
    onlooker.communicate(b"\n")
    assert onlooker.returncode == 0


def test_the_record_of_an_earlier_version_has_no_labels(
    local: LocalProvider, root: Path, request_for: Request
) -> None:
    machine = local.launch(request_for())
    local.terminate(machine.provider_id)
    record = root / f"{machine.provider_id}.vm"
    facts = json.loads(record.read_text())
    del facts["labels"]
    record.write_text(json.dumps(facts))
    assert [instance.labels for instance in local.list()] == [{}]


def pid_of(root: Path, machine: Instance) -> int:
    return int((root / f"{machine.provider_id}.pid").read_text())


def said(root: Path, machine: Instance) -> str:
    return (root / f"{machine.provider_id}.log").read_text()


def lives(pid: int) -> bool:
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


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
    until(lambda: not lives(int(said(root, machine))))


def test_a_process_that_outlived_its_machine_keeps_it_listed_until_it_is_terminated(
    local: LocalProvider, root: Path, controller: ControllerDouble, request_for: Request
) -> None:
    machine = local.launch(request_for("sh", "-c", "setsid sleep 600 & echo $!"))
    until(lambda: controller.exits)
    until(lambda: not lives(pid_of(root, machine)))
    assert state(local, machine) is InstanceState.RUNNING
    local.terminate(machine.provider_id)
    assert state(local, machine) is InstanceState.GONE
    until(lambda: not lives(int(said(root, machine))))


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
from service.clouds.provider import Boot, LaunchRequest
from tests.builders import offer
request = LaunchRequest("key-1", offer(), Boot(**json.loads(sys.argv[2])))
LocalProvider(__import__("pathlib").Path(sys.argv[1]), sys.executable).launch(request)
os.kill(os.getpid(), signal.SIGKILL)
"""
    told = json.dumps(asdict(request_for().boot))
    killed = subprocess.run([sys.executable, "-c", code, str(root), told], cwd=PROJECT)
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


def has_secret(text: str) -> bool:
    return TOKEN in text or BOOTSTRAP in text


def test_secrets_are_neither_on_command_lines_nor_in_files(
    local: LocalProvider, root: Path, request_for: Request
) -> None:
    machine = local.launch(request_for("sh", "-c", "echo up; sleep 600; true"))
    until(lambda: said(root, machine))
    supervisor = psutil.Process(pid_of(root, machine))
    for process in (supervisor, *supervisor.children(recursive=True)):
        assert not has_secret(" ".join(process.cmdline()))
    assert root.stat().st_mode & 0o777 == 0o700
    assert not has_secret(repr(request_for()))
    for file in root.iterdir():
        assert file.stat().st_mode & 0o777 == 0o600
        assert not has_secret(file.read_text())


def test_the_command_gets_its_environment_and_nothing_of_the_controllers(
    local: LocalProvider,
    root: Path,
    controller: ControllerDouble,
    request_for: Request,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("CONTROLLERS_OWN", "secret")
    script = 'pwd; echo "$SCAVENGER_WORKER $SCAVENGER_TOKEN $OMP_NUM_THREADS $CONTROLLERS_OWN."'
    request = request_for("sh", "-c", f"{script}; sleep 600")
    controller.assign(directory=str(tmp_path))
    machine = local.launch(request)
    until(lambda: said(root, machine).count("\n") == 2)
    assert said(root, machine) == f"{tmp_path}\nkey-1 {TOKEN} 1 .\n"


def test_a_user_may_choose_the_number_of_threads(
    local: LocalProvider, root: Path, controller: ControllerDouble, request_for: Request
) -> None:
    request = request_for("sh", "-c", "echo $OMP_NUM_THREADS; sleep 600")
    controller.assign(variables={"OMP_NUM_THREADS": "3"})
    machine = local.launch(request)
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
    until(lambda: not lives(int(said(root, machine))))


def test_leases_keep_a_machine_alive_and_their_end_powers_it_off(
    local: LocalProvider, controller: ControllerDouble, request_for: Request
) -> None:
    machine = local.launch(request_for(prepaid=0.9))
    until(lambda: len(controller.asked) >= 4)
    assert controller.asked[-1] - controller.asked[0] > 0.8
    assert state(local, machine) is InstanceState.RUNNING
    controller.lease = 0.0
    until(lambda: state(local, machine) is InstanceState.GONE)
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
    request = request_for("sh", "-c", "while :; do echo tick; sleep 0.01; done", prepaid=1.5)
    controller.lease = 1.5  # one that is granted before the silence begins adds no minute
    began = time.monotonic()
    machine = local.launch(request)
    until(lambda: controller.enrolments)
    controller.is_silent.set() if is_silent else controller.close()
    until(lambda: state(local, machine) is InstanceState.GONE)
    assert time.monotonic() - began >= 1.5
    assert said(root, machine).count("tick") >= 5


def test_a_refused_machine_runs_to_the_end_of_its_prepaid_time(
    local: LocalProvider, controller: ControllerDouble, root: Path, request_for: Request
) -> None:
    request = request_for("sh", "-c", "echo up; sleep 600", prepaid=1.0)
    controller.enrolled = replace(controller.enrolled, token="wrong")
    machine = local.launch(request)
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
from worker_agent.telemetry.spool import Spool, SpoolHeader

spool = Spool(Path(os.environ["SCAVENGER_SPOOL"]), SpoolHeader("job", "w1", "", ""))
spool.append(StepReport("w1", Progress(1, 9, 9, 0.9, {"accuracy": 0.98}), finished="target"))
print("left", flush=True)
"""


def test_a_last_report_that_was_lost_is_delivered_before_the_end(
    local: LocalProvider, controller: ControllerDouble, root: Path, request_for: Request
) -> None:
    report = StepReport("w1", Progress(1, 9, 9, 0.9, {"accuracy": 0.98}), finished="target")
    controller.is_silent.set()
    machine = local.launch(request_for(sys.executable, "-c", LEAVE))
    until(lambda: "left" in said(root, machine))
    controller.is_silent.clear()
    until(lambda: controller.exits)
    assert controller.reports == [report]


@pytest.mark.parametrize(
    "change",
    [
        {"launch_key": "../etc"},
        {"launch_key": ""},
        {"launch_key": "Key"},
        {"labels": {"a": ""}},
        {"labels": {"A": "b"}},
        {"labels": {"a": "b.c"}},
        {"labels": {"a b": "c"}},
        {"labels": {"a": "c" * 64}},
        {"labels": {f"key-{n}": "value" for n in range(17)}},
        {"max_run_seconds": 0.0},
        {"max_run_seconds": float("nan")},
    ],
)
def test_a_request_that_makes_no_sense_is_not_made(
    request_for: Request, change: dict[str, object]
) -> None:
    with pytest.raises(ValueError):
        replace(request_for(), **change)


@pytest.mark.parametrize(
    "change",
    [
        {"controller": "ftp://127.0.0.1"},
        {"controller": "http://127.0.0.1:9/ rm"},
        {"controller": "http://$(id)"},
        {"job": "a b"},
        {"worker": "a'b"},
        {"token": "two\nlines"},
        {"token": ""},
        {"prepaid": 0.0},
        {"prepaid": float("nan")},
        {"prepaid": float("inf")},
    ],
)
def test_a_boot_that_would_need_quoting_or_makes_no_sense_is_not_made(
    change: dict[str, object],
) -> None:
    with pytest.raises(ValueError):
        boot(**change)
