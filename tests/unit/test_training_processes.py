"""The processes of a worker end together, however one of them ends."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from worker_agent.supervisor import run
from worker_agent.supervisor.run import TrainingCommand, TrainingProcesses

WAITS = "import time; time.sleep(600)"
LONG = 120.0


StartAll = Callable[..., TrainingProcesses]


@pytest.fixture
def start() -> Iterator[StartAll]:
    """Start a process for each text of Python; what they print is read no more in the end."""
    command = TrainingCommand((sys.executable, "-c", "import os; exec(os.environ['CODE'])"), None)
    with ExitStack() as opened:

        def start_all(*codes: str) -> TrainingProcesses:
            started = TrainingProcesses(command, [{"CODE": code} for code in codes])
            opened.enter_context(started.output)
            return started

        yield start_all


@pytest.mark.parametrize(
    ("codes", "code"),
    [
        (["raise SystemExit(0)"], 0),
        (["raise SystemExit(3)"], 3),
        ([WAITS, "raise SystemExit(3)"], 3),
        (["raise SystemExit(4)", WAITS], 4),
        ([WAITS, "import os; os.kill(os.getpid(), 9)", WAITS], -9),
        (["pass", "import time; time.sleep(0.3)"], 0),
    ],
)
def test_one_that_fails_ends_the_others(start: StartAll, codes: list[str], code: int) -> None:
    processes = start(*codes)
    processes.wait(LONG)
    assert processes.returncode == code
    assert all(each.poll() is not None for each in processes.processes)


def test_one_that_stays_when_the_leading_one_has_ended_is_killed(
    start: StartAll, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "FOLLOWER_GRACE", 0.1)
    processes = start("pass", WAITS)
    processes.wait(LONG)
    assert processes.returncode == 0
    assert processes.processes[1].returncode == -signal.SIGKILL


def test_all_that_run_are_waited_for_and_killed_together(start: StartAll) -> None:
    processes = start(WAITS, WAITS)
    with pytest.raises(subprocess.TimeoutExpired):
        processes.wait(0.1)
    processes.kill()
    assert processes.returncode == -signal.SIGKILL


def test_a_program_that_is_not_there_starts_nothing() -> None:
    with pytest.raises(FileNotFoundError):
        TrainingProcesses(TrainingCommand(("no-such-program",), None), [{}, {}])


def test_what_all_of_them_print_comes_in_one_stream(start: StartAll) -> None:
    processes = start("print('one')", "print('two')")
    assert sorted(processes.output.read().split()) == [b"one", b"two"]
    processes.wait(LONG)
