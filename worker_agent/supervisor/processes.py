"""The processes of this machine, which are those of the supervisor's process group.

Ends them, reads their CPU time, makes them dump their stacks, and counts the kernel's OOM kills.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil

from worker_agent.heartbeat import DUMP_SIGNAL, HeartbeatReading


def terminate_training(reading: HeartbeatReading) -> None:
    """Send SIGTERM to the process with the session, which leaves cleanly, else to all processes.

    Processes that a session works with, such as data loaders, must live until it has left;
    otherwise it would fail in the middle of its last iteration.
    """
    if reading.has_open_session and _is_ours(reading.process):
        with suppress(OSError):
            os.kill(reading.process, signal.SIGTERM)
        return
    for process in _others():
        with suppress(psutil.Error):
            process.terminate()


def kill_others(timeout: float = 0.0) -> None:
    """Kill every process of the machine but this one.

    Args:
        timeout: Seconds to wait until they are gone. Only if this process has no children, whose
            exit codes would be lost.
    """
    others = list(_others())
    for process in others:
        with suppress(psutil.Error):
            process.kill()
    if timeout:
        psutil.wait_procs(others, timeout=timeout)


def training_cpu_time(reading: HeartbeatReading) -> float:
    """Return the CPU seconds of the training process so far; 0 if unknown."""
    with suppress(psutil.Error):
        if _is_ours(reading.process):
            times = psutil.Process(reading.process).cpu_times()
            return times.user + times.system
    return 0.0


def dump_stacks(reading: HeartbeatReading) -> bool:
    """Make the training process write its stacks to stderr; False if it has no handler for that."""
    if not (_is_ours(reading.process) and _catches(reading.process, DUMP_SIGNAL)):
        return False
    with suppress(OSError):
        os.kill(reading.process, DUMP_SIGNAL)
    return True


def _others() -> Iterator[psutil.Process]:
    for process in psutil.process_iter():
        if process.pid != os.getpid() and _is_ours(process.pid):
            yield process


def _is_ours(process: int) -> bool:
    with suppress(OSError):
        return process > 0 and os.getpgid(process) == os.getpgrp()
    return False


def _catches(process: int, number: int) -> bool:
    """Whether a process has a handler for a signal that would kill it otherwise."""
    with suppress(OSError, ValueError):
        for line in Path(f"/proc/{process}/status").read_text().splitlines():
            if line.startswith("SigCgt:"):
                return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False


def count_oom_kills(root: Path = Path("/")) -> int | None:
    """Return the number of OOM kills in this machine's control group; None if unknown.

    Reads both versions of control groups; without any, the count is that of the whole computer.

    Args:
        root: Directory with the kernel's files; tests have their own.
    """
    for file in _counters(root):
        with suppress(OSError, ValueError, StopIteration):
            lines = (line.split() for line in file.read_text().splitlines())
            return next(int(value) for name, value in lines if name == "oom_kill")
    return None


def _counters(root: Path) -> Iterator[Path]:
    """Yield the files that may hold the count, that of the innermost group first."""
    mounted = root / "sys/fs/cgroup"
    for controllers, group in _control_groups(root):
        if "memory" in controllers.split(","):
            yield mounted / "memory" / group / "memory.oom_control"
            yield mounted / "memory/memory.oom_control"
        if not controllers:
            yield mounted / group / "memory.events"
            yield mounted / "memory.events"
    yield root / "proc/vmstat"


def _control_groups(root: Path) -> list[tuple[str, str]]:
    """Return each hierarchy's controllers and this process's place in it."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    fields = [line.split(":", 2) for line in lines if line.count(":") >= 2]
    return [(controllers, group.lstrip("/")) for _, controllers, group in fields]
