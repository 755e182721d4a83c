"""What is made of how a command ended."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from scavenger.layout import Layout
from worker_agent.supervisor.exit_reason import (
    ChangesLayout,
    Drained,
    ExitedAfterTraining,
    ExitedByItself,
    ExitReason,
    KilledForMemory,
    NotStarted,
    RunResult,
    Stalled,
)
from worker_agent.supervisor.lifetime import HOUR, RestartBudget
from worker_agent.supervisor.processes import count_oom_kills
from worker_agent.supervisor.run import BoundedLog

ENDINGS: dict[str, tuple[int, ExitReason, str, bool, str]] = {
    "well": (0, ExitedByItself(), "MemoryError was caught", False, "exit code 0"),
    "by an error": (3, ExitedByItself(), "NameError: x", False, "exit code 3"),
    "by a crash": (-11, ExitedByItself(), "", True, "killed by SIGSEGV"),
    "by an error about memory": (
        1,
        ExitedByItself(),
        "step 8\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB\nbye",
        False,
        "exit code 1: probably out of memory: torch.OutOfMemoryError: CUDA out of memory. "
        "Tried to allocate 2 GiB",
    ),
    "by C++ that found no memory": (
        -6,
        ExitedByItself(),
        "terminate called after throwing an instance of 'std::bad_alloc'",
        True,
        "killed by SIGABRT: probably out of memory: terminate called after throwing an instance "
        "of 'std::bad_alloc'",
    ),
    "by the kernel": (
        -9,
        KilledForMemory(),
        "",
        True,
        "killed by SIGKILL: out of memory: the kernel ended a process of this machine",
    ),
    "by the kernel, below a shell": (
        137,
        KilledForMemory(),
        "",
        True,
        "exit code 137: out of memory: the kernel ended a process of this machine",
    ),
    "by the watchdog": (
        -9,
        Stalled(312.4, 77),
        "Thread 0x1 (most recent call first):",
        True,
        "killed by SIGKILL: no progress for 312 s after iteration 77; killed by the supervisor, "
        "its stacks are in the last lines",
    ),
    "by the watchdog, in its sleep": (
        -9,
        Stalled(312.4, 77),
        "",
        True,
        "killed by SIGKILL: no progress for 312 s after iteration 77; killed by the supervisor, "
        "it showed no stacks",
    ),
    "as it was asked to": (
        0,
        Drained(0.42, was_killed=False),
        "",
        False,
        "killed by SIGTERM: the machine was told to end; the command ended 0.4 s later",
    ),
    "with an error when it was asked to end": (
        1,
        Drained(2.0, was_killed=False),
        "KeyboardInterrupt",
        False,
        "killed by SIGTERM: the machine was told to end; the command ended 2.0 s later",
    ),
    "after training": (
        -6,
        ExitedAfterTraining(),
        "",
        False,
        "killed by SIGABRT: training was done by then",
    ),
    "before it began": (127, NotStarted(), "cannot start x", False, "exit code 127"),
}


@pytest.mark.parametrize(
    ("code", "cause", "tail", "is_tried_again", "words"), ENDINGS.values(), ids=ENDINGS
)
def test_an_ending_says_what_happened_and_whether_to_try_again(
    code: int, cause: ExitReason, tail: str, is_tried_again: bool, words: str
) -> None:
    ending = RunResult(code, tail, cause)
    assert (ending.is_retryable, ending.to_message("w1").in_words) == (is_tried_again, words)


def test_a_drained_machine_never_counts_as_a_script_that_failed() -> None:
    assert RunResult(1, "", Drained(1.0, was_killed=False)).to_message("w1").code == -signal.SIGTERM


def test_a_machine_that_ends_during_a_change_of_layout_has_not_failed() -> None:
    left = RunResult(75, "", ChangesLayout(Layout(2)))
    assert left.to_message("w1").code == -signal.SIGTERM


def test_there_are_three_restarts_within_an_hour() -> None:
    restarts = RestartBudget((1.0, 4.0, 16.0))
    assert [restarts.next_delay(now) for now in (0.0, 10.0, 20.0, 30.0)] == [1.0, 4.0, 16.0, None]
    assert restarts.next_delay(HOUR + 5.0) == 16.0, "one is forgotten by then"
    assert restarts.next_delay(3 * HOUR) == 1.0


KERNELS = {
    "control groups 2": (
        {
            "proc/self/cgroup": "0::/machines/w1\n",
            "sys/fs/cgroup/machines/w1/memory.events": "low 0\noom 4\noom_kill 3\n",
            "proc/vmstat": "oom_kill 9\n",
        },
        3,
    ),
    "control groups 2 in a container": (
        {
            "proc/self/cgroup": "0::/\n",
            "sys/fs/cgroup/memory.events": "oom_kill 2\n",
        },
        2,
    ),
    "control groups 1": (
        {
            "proc/self/cgroup": "9:name=systemd:/\n4:cpu,memory:/w1\n0::/\n",
            "sys/fs/cgroup/memory/w1/memory.oom_control": "under_oom 0\noom_kill 5\n",
        },
        5,
    ),
    "an old kernel": (
        {
            "proc/self/cgroup": "4:memory:/\n",
            "sys/fs/cgroup/memory/memory.oom_control": "under_oom 0\n",
        },
        None,
    ),
    "no control groups": ({"proc/vmstat": "pgfault 1\noom_kill 7\n"}, 7),
    "another system": ({}, None),
}


@pytest.mark.parametrize(("files", "kills"), KERNELS.values(), ids=KERNELS)
def test_the_kernel_says_how_often_memory_ran_out(
    tmp_path: Path, files: dict[str, str], kills: int | None
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert count_oom_kills(tmp_path) == kills


def test_a_log_keeps_its_beginning_and_its_end_within_its_bound(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with path.open("wb") as file:
        log = BoundedLog(file.fileno(), beginning=100, end=200)
        for number in range(1000):
            log.write(b"%08d\n" % number)
            assert path.stat().st_size <= 100 + 200 + 9
    text = path.read_bytes()
    assert text.startswith(b"00000000\n00000001\n")
    assert text.endswith(b"00000998\n00000999\n")
    assert text.count(b"of output were cut out here") == 1
