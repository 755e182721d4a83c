"""The first process of a machine, with commands that do what commands should not do."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import psutil
import pytest

from scavenger.client.code import pack_code
from scavenger.layout import PLAIN, Layout
from scavenger.protocol import CommandExit
from tests.controller_double import BOOTSTRAP, TOKEN, ControllerDouble, until

PROJECT = Path(__file__).parents[2]
# What the agent may add to the end of a command: a few seconds, which are more on a busy computer.
# What it must not wait for takes 60 s or longer.
IN_TIME = 30.0
STARTS = """
from worker_agent.supervisor.lifetime import RestartBudget
from worker_agent.supervisor.supervisor import main
main(RestartBudget((0.05, 0.1, 0.2)))
"""
PREAMBLE = """
import os, resource, signal, socket, subprocess, sys, threading, time

def last_moment():
    print(f"at {time.monotonic()}", flush=True)

def opened():
    from worker_agent.heartbeat import Heartbeat, TrainingPhase
    heartbeat = Heartbeat(os.environ["SCAVENGER_HEARTBEAT"])
    heartbeat.publish_phase(TrainingPhase.TRAINING)
    return heartbeat, TrainingPhase
"""


@dataclass
class Machine:
    """A supervisor with a command of a few lines of Python."""

    directory: Path
    controller: ControllerDouble
    environment: dict[str, str] = field(default_factory=dict)
    starts: str = STARTS
    process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> Path:
        return self.directory / "machine.log"

    def start(self, script: str, **environment: str) -> None:
        self.run([sys.executable, "-c", PREAMBLE + script], **environment)

    def run(self, command: list[str], **environment: str) -> None:
        self.controller.assign(command=tuple(command))
        if self.controller.enrolled.worker.code is None:  # else the code is where it runs
            self.controller.assign(directory=str(self.directory))
        ours = {
            "SCAVENGER_JOB": "job-1",
            "SCAVENGER_WORKER": "w1",
            "SCAVENGER_CONTROLLER": self.controller.url,
            "SCAVENGER_TOKEN": BOOTSTRAP,
            "SCAVENGER_PREPAID": "60",
            "SCAVENGER_PID_FILE": str(self.directory / "machine.pid"),
            "SCAVENGER_SPOOL": str(self.directory / "machine.spool"),
            "PYTHONPATH": str(PROJECT),
        }
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", self.starts],
                env={**os.environ, **ours, **environment},
                cwd=PROJECT,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def said(self) -> str:
        return self.log.read_text(errors="replace")

    def told_to_end(self) -> None:
        os.kill(self.pid, signal.SIGTERM)

    def ended(self) -> bool:
        assert self.process is not None
        return self.process.poll() is not None

    def ending(self) -> CommandExit:
        """Wait for the end; returns what the controller heard of it."""
        until(self.ended)
        (ending,) = self.controller.exits
        return ending

    def members(self) -> list[int]:
        """The processes that are left of the machine."""
        return [p.pid for p in psutil.process_iter() if group_of(p.pid) == self.pid]


def group_of(pid: int) -> int | None:
    try:
        is_dead = psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
        return None if is_dead else os.getpgid(pid)
    except (psutil.Error, ProcessLookupError):
        return None


@pytest.fixture
def controller() -> Iterator[ControllerDouble]:
    double = ControllerDouble()
    yield double
    double.close()


@pytest.fixture
def machine(tmp_path: Path, controller: ControllerDouble) -> Iterator[Machine]:
    machine = Machine(tmp_path, controller)
    yield machine
    if machine.process is not None:
        for pid in machine.members():
            os.kill(pid, signal.SIGKILL)
        machine.process.wait()


FAILING = {
    "raises": (
        "last_moment(); raise ValueError('no such column')",
        1,
        "exit code 1",
        "ValueError: no such column",
    ),
    "leaves by os._exit": ("last_moment(); os._exit(7)", 7, "exit code 7", "at "),
    "asks for more memory than there is": (
        "last_moment(); bytearray(2**60)",
        1,
        "exit code 1: probably out of memory: MemoryError",
        "MemoryError",
    ),
    "fills the disk": (
        "last_moment()\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, 2**20))\n"
        "open('weights', 'wb').write(bytes(2**21))",
        1,
        "exit code 1",
        "File too large",
    ),
    "passes on what a shell says of a killed command": (
        "last_moment(); sys.exit(137)",
        137,
        "exit code 137",
        "at ",
    ),
    "fails beside threads of its own": (
        "threading.Thread(target=time.sleep, args=(0.5,)).start(); last_moment(); 1 / 0",
        1,
        "exit code 1",
        "ZeroDivisionError",
    ),
    "leaves a daemon that keeps its output open": (
        "subprocess.Popen(['sleep', '600']); last_moment(); sys.exit(5)",
        5,
        "exit code 5",
        "at ",
    ),
    "closes its output": (
        "last_moment(); os.close(1); os.close(2); os._exit(3)",
        3,
        "exit code 3",
        "at ",
    ),
}


@pytest.mark.parametrize(("script", "code", "words", "line"), FAILING.values(), ids=FAILING)
def test_a_script_that_fails_keeps_its_exit_code_and_is_not_started_again(
    machine: Machine, script: str, code: int, words: str, line: str
) -> None:
    machine.start(script)
    ending = machine.ending()
    heard_at = machine.controller.heard_at
    assert (ending.code, ending.in_words) == (code, words)
    assert line in ending.tail
    (said,) = [line for line in ending.tail.splitlines() if line.startswith("at ")]
    assert heard_at - float(said.split()[1]) < IN_TIME
    assert not machine.controller.restarts
    until(lambda: not machine.members())


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT])
def test_a_command_that_dies_by_a_signal_is_started_again_three_times(
    machine: Machine, number: signal.Signals
) -> None:
    machine.start(f"print('dying', flush=True); os.kill(os.getpid(), {number.value})")
    ending = machine.ending()
    heard = [*machine.controller.restarts, ending]
    assert [told.code for told in heard] == [-number] * 4
    assert {told.in_words for told in heard} == {f"killed by {number.name}"}
    assert machine.said().count("dying\n") == 4


def test_a_command_that_lives_the_second_time_ends_as_if_nothing_had_been(
    machine: Machine,
) -> None:
    machine.start(
        "subprocess.Popen(['sleep', '600'])\n"
        "if not os.path.exists('tried'):\n"
        "    open('tried', 'w').close()\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "def is_ours(pid):\n"
        "    try:\n"
        "        name = open(f'/proc/{pid}/cmdline', 'rb').read()\n"
        "        return name.startswith(b'sleep') and os.getpgid(int(pid)) == os.getpgrp()\n"
        "    except OSError:\n"
        "        return False  # it ended while it was read\n"
        "found = 0\n"
        "while not found:  # a process that was just started has no name yet\n"
        "    found = sum(is_ours(pid) for pid in os.listdir('/proc') if pid.isdigit())\n"
        "print(found)"
    )
    assert (machine.ending().code, len(machine.controller.restarts)) == (0, 1)
    assert machine.ending().tail == "1", "what the first attempt left behind was ended"


def test_a_command_that_crashes_after_its_session_has_closed_is_not_started_again(
    machine: Machine,
) -> None:
    machine.start("beats, Phase = opened(); beats.publish_phase(Phase.OVER); os.abort()")
    assert machine.ending().in_words == "killed by SIGABRT: training was done by then"
    assert not machine.controller.restarts


def test_a_restart_does_not_wait_for_a_controller_that_is_away(machine: Machine) -> None:
    machine.controller.is_silent.set()
    machine.start("print('dying', flush=True); os.kill(os.getpid(), 9)")
    until(lambda: machine.said().count("dying\n") == 2)
    machine.controller.is_silent.clear()
    assert machine.ending().code == -9


@pytest.mark.slow
def test_a_script_that_prints_without_end_fills_neither_memory_nor_the_log(
    machine: Machine,
) -> None:
    machine.start(
        "line = b'x' * 1023 + b'\\n'\n"
        "os.write(1, b'first\\n')\n"
        "for _ in range(2**8): os.write(1, line * 2**10)\n"
        "os.write(1, b'last\\n')"
    )
    most = 0
    while not machine.ended():
        try:
            most = max(most, psutil.Process(machine.pid).memory_info().rss)
        except psutil.NoSuchProcess:
            break
        assert machine.log.stat().st_size < 34 * 2**20
    ending = machine.ending()
    assert (ending.code, ending.tail.splitlines()[-1]) == (0, "last")
    assert most < 150 * 2**20
    text = machine.log.read_bytes()
    assert text.startswith(b"first\n")
    assert text.endswith(b"last\n")
    assert b"bytes of output were cut out here" in text


STUCK = """
beats, Phase = opened()
def hang_here():
    time.sleep(600)
for iteration in range(20):
    beats.beat(iteration)
    time.sleep(0.03)
"""


def test_training_that_hangs_shows_its_stacks_and_is_started_again(machine: Machine) -> None:
    machine.controller.assign(stall=0.5)
    machine.start(
        STUCK + "if os.path.exists('tried'): sys.exit(0)\nopen('tried', 'w').close()\nhang_here()"
    )
    assert machine.ending().code == 0
    (told,) = machine.controller.restarts
    assert told.code == -9
    assert told.in_words.startswith("killed by SIGKILL: no progress for ")
    assert "after iteration 19; killed by the supervisor, its stacks are in" in told.in_words
    assert "in hang_here" in told.tail


@pytest.mark.parametrize(
    "script",
    [
        STUCK + "beats.publish_phase(Phase.WAITING); time.sleep(2)",
        STUCK + "beats.publish_phase(Phase.OVER); time.sleep(2)",
        "beats, Phase = opened(); beats.beat(7); time.sleep(2)",
        "time.sleep(2)",
    ],
    ids=[
        "waits for others",
        "is done",
        "has not finished an iteration",
        "has no session",
    ],
)
def test_who_does_not_train_is_not_watched(machine: Machine, script: str) -> None:
    machine.controller.assign(stall=0.5)
    machine.start(script)
    assert machine.ending().code == 0
    assert not machine.controller.restarts


def test_a_stopped_process_that_cannot_show_its_stacks_is_started_again_too(
    machine: Machine,
) -> None:
    machine.controller.assign(stall=0.5)
    machine.start(
        STUCK + "if os.path.exists('tried'): sys.exit(0)\n"
        "open('tried', 'w').close(); signal.signal(37, signal.SIG_DFL); hang_here()"
    )
    assert machine.ending().code == 0
    (told,) = machine.controller.restarts
    assert told.in_words.endswith("it showed no stacks")


LEAVES = """
import signal
helper = subprocess.Popen(['sleep', '600'])  # as those that load the data
beats, Phase = opened()
is_leaving = []
signal.signal(signal.SIGTERM, lambda *_: is_leaving.append(True))
print('up', flush=True)
iteration = 0
while not is_leaving:
    iteration += 1
    beats.beat(iteration)
    time.sleep(0.02)
assert helper.poll() is None
print('left', flush=True)
"""


def test_a_session_that_is_told_to_end_leaves_in_order(machine: Machine) -> None:
    machine.start(LEAVES)
    until(lambda: "up" in machine.said())
    machine.told_to_end()
    ending = machine.ending()
    assert ending.code == -signal.SIGTERM, "no failure and no end of the job"
    assert ending.in_words.startswith(
        "killed by SIGTERM: the machine was told to end; the command ended 0."
    )
    assert ending.tail.splitlines() == ["up", "left"]
    until(lambda: not machine.members())


def test_a_command_without_a_session_is_told_too_with_all_it_started(machine: Machine) -> None:
    machine.run(["sh", "-c", "sh -c 'trap \"echo saved; exit\" TERM; echo up; sleep 600 & wait'"])
    until(lambda: "up" in machine.said())
    machine.told_to_end()
    assert machine.ending().tail.splitlines()[-1] == "saved"


IGNORES = "signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"


def test_a_command_that_ignores_the_request_has_the_time_to_drain_and_no_more(
    machine: Machine,
) -> None:
    machine.controller.assign(drain=0.7)
    machine.start(IGNORES)
    until(lambda: "up" in machine.said())
    began = time.monotonic()
    machine.told_to_end()
    assert "still ran 1 s later and was killed" in machine.ending().in_words
    assert 0.7 <= time.monotonic() - began < 0.7 + IN_TIME
    until(lambda: not machine.members())


def test_told_twice_a_machine_ends_at_once(machine: Machine) -> None:
    machine.controller.assign(drain=6000.0)
    machine.start(IGNORES, SCAVENGER_PREPAID="6000")
    until(lambda: "up" in machine.said())
    machine.told_to_end()
    time.sleep(0.2)  # two signals at the same moment are one
    machine.told_to_end()
    until(machine.ended)
    until(lambda: not machine.members())


def test_secrets_that_a_command_prints_are_taken_out_of_its_last_words(machine: Machine) -> None:
    machine.controller.enrolled = replace(
        machine.controller.enrolled,
        secrets={"HF_TOKEN": "hf_0123456789"},
        bundle_secret="of all projects",
    )
    machine.start("raise SystemExit(repr(dict(os.environ)))")
    tail = machine.ending().tail
    assert "'HF_TOKEN': '[redacted]'" in tail
    assert "'SCAVENGER_JOB_SECRET': '[redacted]'" in tail
    assert "'SCAVENGER_BUNDLE_SECRET': '[redacted]'" in tail
    assert TOKEN not in tail
    assert BOOTSTRAP not in tail


def test_a_machine_that_drains_never_outlives_its_prepaid_time(machine: Machine) -> None:
    machine.controller.is_silent.set()
    machine.controller.assign(drain=600.0)
    machine.start(IGNORES, SCAVENGER_PREPAID="2.5")
    until(lambda: "up" in machine.said())
    machine.told_to_end()
    until(machine.ended)  # long before it has drained, though the controller is told nothing


def test_what_a_command_says_when_its_prepaid_time_ends_is_in_the_log(machine: Machine) -> None:
    machine.controller.is_silent.set()
    # A fork says it at once, where a new program would first have to be loaded.
    last = "os.fork() or (time.sleep(0.2), os.write(1, b'the last word\\n')), os._exit(0)"
    machine.start(
        f"signal.signal(15, lambda *_: ({last})); print('up', flush=True); time.sleep(600)",
        SCAVENGER_PREPAID="2",
    )
    until(machine.ended)
    assert machine.said().endswith("the last word\n")


@pytest.mark.parametrize("told_when", ["it boots", "it waits to start the command again"])
def test_a_machine_that_runs_nothing_ends_when_told(machine: Machine, told_when: str) -> None:
    boots = told_when == "it boots"
    machine.start(
        "print('dying', flush=True); os.kill(os.getpid(), 9)",
        SCAVENGER_BOOT_DELAY="30" if boots else "0",
    )
    pid_file = machine.directory / "machine.pid"
    until(lambda: pid_file.exists() if boots else machine.controller.restarts)
    machine.told_to_end()
    until(machine.ended)
    assert len(machine.controller.exits) == (0 if boots else 1)


AWAY = {
    "refuses": lambda controller: controller.close(),
    "never answers": lambda controller: controller.is_silent.set(),
}


@pytest.mark.parametrize("away", AWAY.values(), ids=AWAY)
def test_a_command_whose_controller_is_away_trains_on_to_its_own_end(
    machine: Machine, away: Callable[[ControllerDouble], None]
) -> None:
    machine.start(
        "while not os.path.exists('away'): time.sleep(0.01)\n"
        "import worker_agent\n"
        "with worker_agent.session() as job:\n"
        "    try:\n"
        "        raise RuntimeError('the script')\n"
        "    finally:\n"
        "        print(f'at {time.monotonic()}', flush=True)"
    )
    until(lambda: machine.controller.enrolments)
    away(machine.controller)
    (machine.directory / "away").touch()
    until(lambda: "the command ended: exit code 1" in machine.said())
    moment = float(machine.said().split("at ")[1].split()[0])
    assert time.monotonic() - moment < IN_TIME
    assert "RuntimeError: the script" in machine.said()


# A kernel whose files the command itself writes: a true memory limit needs rights that few have.
OWN_KERNEL = """
from functools import partial
from pathlib import Path
from worker_agent.supervisor import run
run.count_oom_kills = partial(run.count_oom_kills, Path("{root}"))
"""


@pytest.mark.parametrize(
    ("kills_after", "words"),
    [
        (4, "killed by SIGKILL: out of memory: the kernel ended a process of this machine"),
        (3, "killed by SIGKILL"),
    ],
    ids=["one more", "no more"],
)
def test_a_command_the_kernel_ends_for_lack_of_memory_is_known_as_such(
    machine: Machine, kills_after: int, words: str
) -> None:
    events = machine.directory / "kernel" / "sys/fs/cgroup/memory.events"
    groups = machine.directory / "kernel" / "proc/self/cgroup"
    for file, text in ((events, "oom_kill 3\n"), (groups, "0::/\n")):
        file.parent.mkdir(parents=True)
        file.write_text(text)
    machine.starts = OWN_KERNEL.format(root=machine.directory / "kernel") + STARTS
    machine.start(
        "if not os.path.exists('tried'):\n"
        "    open('tried', 'w').close()\n"
        f"    open({str(events)!r}, 'w').write('oom_kill {kills_after}\\n')\n"
        "    os.kill(os.getpid(), signal.SIGKILL)"
    )
    assert machine.ending().code == 0
    (told,) = machine.controller.restarts
    assert told.in_words == words


def give_code(machine: Machine, files: dict[str, str]) -> None:
    """Let the controller have code for the machine's job."""
    source = machine.directory / "source"
    for name, content in files.items():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text(content)
    with pack_code(source) as packed:
        machine.controller.code = packed.file.read()
        machine.controller.assign(code=packed.digest)
    shutil.rmtree(source)


def run_code(machine: Machine, *command: str, directory: str | None = None) -> CommandExit:
    machine.controller.assign(directory=directory)
    machine.run(list(command), SCAVENGER_CODE=str(machine.directory / "machine.code"))
    return machine.ending()


SEE = "import os, sys; print(open('seen').read(), os.getcwd(), oct(os.stat('.').st_mode & 0o777))"


@pytest.mark.parametrize("cut_off", [0, 2])
def test_code_is_fetched_unpacked_and_set_up_once(machine: Machine, cut_off: int) -> None:
    give_code(machine, {"train.py": SEE + "; sys.stdout.flush(); os.kill(os.getpid(), 9)"})
    setup = "open('seen', 'a').write('set up'); print('setting up')"
    machine.controller.assign(setup=(sys.executable, "-c", setup))
    machine.controller.cut_off = cut_off
    ending = run_code(machine, sys.executable, "train.py")
    place = machine.directory / "machine.code"
    assert ending.tail == f"set up {place} 0o700"
    assert len(machine.controller.restarts) == 3
    assert machine.said().count("setting up") == 1
    assert machine.controller.got == ["/v1/agent/code"] * (1 + cut_off)


def test_a_directory_is_one_inside_the_code(machine: Machine) -> None:
    give_code(machine, {"src/seen": "the source"})
    assert run_code(machine, sys.executable, "-c", SEE, directory="src").tail.startswith("the so")


def test_other_code_than_the_job_names_is_not_run(machine: Machine) -> None:
    give_code(machine, {"train.py": "print('hello')"})
    machine.controller.assign(code="0" * 64)
    ending = run_code(machine, sys.executable, "train.py")
    assert ending.in_words.startswith("exit code 127: the code of this job arrived with the SHA-25")
    assert ending.in_words.endswith("submit the job again with --code; the command was not started")
    assert not (machine.directory / "machine.code").exists()


def test_a_disk_that_takes_no_code_is_told(machine: Machine) -> None:
    give_code(machine, {"train.py": "print('hello')", "data": os.urandom(200_000).hex()})
    small = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536))"
    limits = machine.directory / "sitecustomize.py"
    limits.write_text(f"import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); {small}")
    path = f"{machine.directory}:{PROJECT}"
    machine.run([sys.executable, "train.py"], PYTHONPATH=path)
    assert "File too large; the command was not started" in machine.ending().in_words


@pytest.mark.parametrize(
    ("end", "code"), [("raise SystemExit(4)", 4), ("import os; os.kill(os.getpid(), 9)", 137)]
)
def test_a_setup_that_fails_ends_the_machine_with_its_last_lines(
    machine: Machine, end: str, code: int
) -> None:
    give_code(machine, {"train.py": "print('hello')"})
    setup = f"print('no such package', flush=True); {end}"
    machine.controller.assign(setup=(sys.executable, "-c", setup))
    ending = run_code(machine, sys.executable, "train.py")
    assert (ending.code, ending.tail) == (code, "no such package")
    assert ending.in_words.startswith(f"exit code {code}: run.setup failed")
    assert "hello" not in machine.said()
    assert not machine.controller.restarts


def test_setting_up_is_no_stall(machine: Machine) -> None:
    machine.controller.assign(stall=0.1, setup=(sys.executable, "-c", "import time; time.sleep(1)"))
    machine.start("print('done')")
    assert machine.ending().tail == "done"


def test_a_machine_whose_code_never_comes_ends_with_its_lease(machine: Machine) -> None:
    give_code(machine, {"train.py": "print('hello')"})
    machine.controller.lease, machine.controller.cut_off = 2.0, 10**6
    machine.run([sys.executable, "train.py"], SCAVENGER_PREPAID="2")
    until(lambda: len(machine.controller.got) > 1)
    machine.controller.lease = 0.0
    until(machine.ended)
    assert not machine.controller.exits


def lines_of(controller: ControllerDouble) -> list[str]:
    """Return what the controller was sent of the output, each line once."""
    found = {line.number: line.text for batch in controller.logs for line in batch.lines}
    return [found[number] for number in sorted(found)]


def test_what_a_command_prints_is_sent_while_it_runs_and_its_last_line_before_the_end(
    machine: Machine,
) -> None:
    machine.controller.enrolled = replace(
        machine.controller.enrolled, secrets={"HF_TOKEN": "hf_0123456789"}
    )
    machine.start(
        "print('up', os.environ['HF_TOKEN'], flush=True)\n"
        "while not os.path.exists('seen'): time.sleep(0.01)\n"
        "print('down', end='', flush=True)",
        SCAVENGER_PREPAID="1.5",
    )
    until(lambda: lines_of(machine.controller))
    assert lines_of(machine.controller) == ["up [redacted]"]
    (machine.directory / "seen").touch()
    assert machine.ending().code == 0
    assert lines_of(machine.controller) == ["up [redacted]", "down"]


def test_a_command_that_floods_its_output_is_not_slowed_by_a_controller_that_is_away(
    machine: Machine,
) -> None:
    machine.controller.is_silent.set()
    machine.start(
        "import os, time\n"
        "for n in range(200_000): print(f'line {n}')\n"
        "open('done', 'w').close()\n"
        "while not os.path.exists('seen'): time.sleep(0.01)"
    )
    until(lambda: (machine.directory / "done").exists(), patience=IN_TIME)
    machine.controller.is_silent.clear()
    # While the command runs: the time to send what is left at its end is short.
    until(lambda: lines_of(machine.controller)[-1:] == ["line 199999"], patience=IN_TIME)
    (machine.directory / "seen").touch()
    machine.ending()
    found = lines_of(machine.controller)
    assert 0 < len(found) <= 5000 + 2 * 500
    assert machine.controller.logs[-1].printed == 200_000


FAILS_IN_LAYOUTS = """
if os.environ.get("SCAVENGER_LAYOUT", "P=1 T=1") != "P=1 T=1":
    {before}
    sys.exit("two processes are one too many")
"""


def test_a_command_that_cannot_train_in_a_layout_goes_on_in_the_one_it_is_told(
    machine: Machine, controller: ControllerDouble
) -> None:
    stages, shards = Layout(2, micro_batches=4), Layout(1, 2)
    controller.assign(layout=stages, searches_layout=True)
    controller.layouts = [shards, PLAIN]
    machine.start(FAILS_IN_LAYOUTS.format(before="pass"))
    ended = machine.ending()
    assert (ended.code, ended.failed_layout) == (0, None)
    assert [each.failed_layout for each in controller.failed] == [stages, shards]
    assert {each.code for each in controller.failed} == {1}
    assert all("one too many" in each.tail for each in controller.failed)
    assert controller.restarts == []


@pytest.mark.parametrize(
    ("before", "asks"),
    [("pass", True), ("heartbeat, _ = opened(); heartbeat.beat(1)", False)],
    ids=["no other layout is left", "it has trained"],
)
def test_a_command_that_fails_in_a_layout_ends_for_good(
    machine: Machine, controller: ControllerDouble, before: str, asks: bool
) -> None:
    controller.assign(layout=Layout(2), searches_layout=True)
    machine.start(FAILS_IN_LAYOUTS.format(before=before))
    ended = machine.ending()
    assert (ended.code, ended.failed_layout) == (1, None)
    assert len(controller.failed) == asks


def test_a_command_that_dies_in_a_layout_again_and_again_goes_on_in_another(
    machine: Machine, controller: ControllerDouble
) -> None:
    controller.assign(layout=Layout(2), searches_layout=True)
    controller.layouts = [PLAIN]
    machine.start(FAILS_IN_LAYOUTS.format(before="os.abort()"))
    assert machine.ending().code == 0
    assert [each.code for each in controller.restarts] == [-signal.SIGABRT] * 3
    assert [each.code for each in controller.failed] == [-signal.SIGABRT]


def test_a_command_whose_job_searches_no_layout_ends_at_its_first_failure(
    machine: Machine, controller: ControllerDouble
) -> None:
    controller.assign(layout=Layout(2))
    controller.layouts = [PLAIN]
    machine.start(FAILS_IN_LAYOUTS.format(before="pass"))
    assert machine.ending().code == 1
    assert controller.failed == []
