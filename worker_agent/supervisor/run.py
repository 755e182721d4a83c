"""One run of the training command, from its start to its `RunResult`, and its output.

A run ends by itself, or because the supervisor ends it: the lease has expired, the machine was
told to shut down, or training has stopped advancing.
"""

from __future__ import annotations

import fcntl
import logging
import os
import signal
import stat
import subprocess
import threading
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import IO

from worker_agent.heartbeat import HeartbeatPage, TrainingPhase
from worker_agent.supervisor.exit_reason import (
    EXIT_NOT_STARTED,
    Drained,
    ExitedAfterTraining,
    ExitedByItself,
    ExitReason,
    KilledForMemory,
    NotStarted,
    RunResult,
    Stalled,
)
from worker_agent.supervisor.lifetime import LeaseKeeper, ShutdownSignal
from worker_agent.supervisor.processes import (
    count_oom_kills,
    dump_stacks,
    kill_others,
    terminate_training,
    training_cpu_time,
)
from worker_agent.supervisor.watchdog import Watchdog

RUN_POLL = 0.1  # a lease that was shortened, or a wish to end, is noticed this late
TERMINATION_GRACE = (
    4.5  # between asking the command to end and ending the machine, its time used up
)
OUTPUT_GRACE = 0.5  # for what it said last, after that
STACK_DUMP_TIME = 1.0  # for writing stacks, before the process that hangs is killed
KILLED_CODES = (-signal.SIGKILL, 128 + signal.SIGKILL)  # the second by a shell that saw it
MIN_REDACTED_LENGTH = 6  # what is shorter stands in many words that are none

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TrainingCommand:
    """The user's training command.

    Attributes:
        arguments: Program and arguments.
        directory: Where it starts; None for where the supervisor is.
    """

    arguments: tuple[str, ...]
    directory: str | None


@dataclass(frozen=True, slots=True)
class RunContext:
    """What an attempt has around it.

    Attributes:
        page: Where the training process says how it advances.
        log: Where the command's output goes.
        prepaid: How long the machine may go on.
        notice: Whether the machine was told to end.
        drain: Seconds the command has to end in order, once told.
        stall: Seconds without an iteration that are always allowed.
    """

    page: HeartbeatPage
    log: BoundedLog
    prepaid: LeaseKeeper
    notice: ShutdownSignal
    drain: float
    stall: float


def run_command(
    command: TrainingCommand,
    environment: Mapping[str, str],
    around: RunContext,
    secrets: Collection[str] = (),
) -> RunResult | None:
    """Run the command once; return None if the prepaid time ended before it did.

    Args:
        command: What to run.
        environment: Its variables.
        around: What it has around it.
        secrets: What is taken out of its last lines.
    """
    around.page.clear()
    kills = count_oom_kills()
    try:
        child = _start(command, environment)
    except OSError as error:
        return RunResult(
            EXIT_NOT_STARTED, f"cannot start {command.arguments[0]}: {error}", NotStarted()
        )
    if child.stdout is None:
        raise AssertionError("the command was started with a pipe")
    output = OutputCopier(child.stdout, around.log)
    cause = _watch_run(child, around)
    if cause is None:
        output.wait(OUTPUT_GRACE)
        return None
    if isinstance(cause, ExitedByItself):
        cause = _classify_end(child.returncode, kills, around.page)
    return RunResult(child.returncode, redact_secrets(output.tail(), secrets), cause)


def redact_secrets(text: str, secrets: Collection[str]) -> str:
    """Return last lines as the controller may show them; scripts print their environment."""
    for secret in sorted(secrets, key=len, reverse=True):  # one may be a part of another
        if len(secret) >= MIN_REDACTED_LENGTH:
            text = text.replace(secret, "[redacted]")
    return text


def _start(command: TrainingCommand, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command.arguments,
        bufsize=0,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd=command.directory,
        env=environment,
        # The only inheritable descriptor is the machine's lock, which lives as long as the command.
        close_fds=False,
    )


def _watch_run(child: subprocess.Popen[bytes], around: RunContext) -> ExitReason | None:
    """Wait for the end of the command, or bring it about; None when its time was used up."""
    watchdog = Watchdog(around.stall, time.monotonic())
    while True:
        if _has_ended(child, min(RUN_POLL, around.prepaid.left())):
            return ExitedByItself()
        if not around.prepaid.left():
            log.warning("the prepaid time is over")
            terminate_training(around.page.pulse())
            _has_ended(child, TERMINATION_GRACE)
            return None
        if around.notice.is_received:
            return _drain(child, around)
        pulse = around.page.pulse()
        stalled_for = watchdog.look(pulse, time.monotonic(), training_cpu_time(pulse))
        if stalled_for is not None:
            return _end_stalled(child, around.page, stalled_for)


def _drain(child: subprocess.Popen[bytes], around: RunContext) -> Drained:
    """Let the command end in order, for as long as it may."""
    began = time.monotonic()
    terminate_training(around.page.pulse())
    was_killed = not _has_ended(child, min(around.drain, around.prepaid.left()))
    if was_killed:
        _kill(child)
    return Drained(time.monotonic() - began, was_killed)


def _end_stalled(child: subprocess.Popen[bytes], page: HeartbeatPage, seconds: float) -> Stalled:
    """Kill a command that does not advance, once it has shown where it hangs."""
    pulse = page.pulse()
    log.warning("no progress for %.0f s after iteration %d", seconds, pulse.iteration)
    if dump_stacks(pulse):
        _has_ended(child, STACK_DUMP_TIME)
    _kill(child)
    return Stalled(seconds, pulse.iteration)


def _classify_end(code: int, kills_before: int | None, page: HeartbeatPage) -> ExitReason:
    """Return why a command ended that nobody here ended."""
    if page.pulse().phase is TrainingPhase.OVER:
        return ExitedAfterTraining()
    kills = count_oom_kills()
    is_more = kills is not None and kills_before is not None and kills > kills_before
    return KilledForMemory() if is_more and code in KILLED_CODES else ExitedByItself()


def _kill(child: subprocess.Popen[bytes]) -> None:
    kill_others()
    child.kill()
    child.wait()


def _has_ended(child: subprocess.Popen[bytes], patience: float) -> bool:
    with suppress(subprocess.TimeoutExpired):
        child.wait(patience)
        return True
    return False


QUOTED_LINES = 50
QUOTED_BYTES = 16 * 1024
LOG_HEAD_BYTES = 16 * 2**20
LOG_TAIL_BYTES = 16 * 2**20
KEPT_AFTER_CUT = 2**20  # of the end, when a log is cut
READ_CHUNK = 2**16
OUTPUT_TIMEOUT = 1.0


class BoundedLog:
    """A log file that does not outgrow a bound; anything but a file, such as a pipe, has none.

    What lies between the beginning and the newest output is cut out when the file is full, and a
    line there says how much that was.

    Args:
        descriptor: Where to write.
        beginning: Bytes that are always kept.
        end: Bytes after them that are collected before they are cut.
    """

    def __init__(
        self, descriptor: int, beginning: int = LOG_HEAD_BYTES, end: int = LOG_TAIL_BYTES
    ) -> None:
        self._descriptor = descriptor
        self._beginning, self._full = beginning, beginning + end
        self._recent = bytearray()
        self._cut = 0
        self._turn = threading.Lock()
        self._is_file = stat.S_ISREG(os.fstat(descriptor).st_mode)
        if self._is_file:
            # Without it, the first line after a cut would be written far beyond the end.
            flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
            fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | os.O_APPEND)

    def write(self, chunk: bytes) -> None:
        """Append; a full disk must not stop the command, which would wait with a full pipe."""
        with self._turn, suppress(OSError):
            self._remember(chunk)
            self._write(chunk)
            if self._is_file:
                self._bound()

    def _remember(self, chunk: bytes) -> None:
        self._recent += chunk
        if len(self._recent) > 2 * KEPT_AFTER_CUT:  # seldom, because it moves all that is left
            del self._recent[:-KEPT_AFTER_CUT]

    def _write(self, chunk: bytes) -> None:
        while chunk:
            chunk = chunk[os.write(self._descriptor, chunk) :]

    def _bound(self) -> None:
        size = os.fstat(self._descriptor).st_size
        if size <= self._full:
            return
        kept = bytes(self._recent[-min(KEPT_AFTER_CUT, (self._full - self._beginning) // 2) :])
        self._cut += size - self._beginning - len(kept)
        os.ftruncate(self._descriptor, self._beginning)
        self._write(f"\nsupervisor: {self._cut} bytes of output were cut out here\n".encode())
        self._write(kept)


class OutputCopier:
    """Copies what the command says to the log and keeps its last lines, however much it is."""

    def __init__(self, source: IO[bytes], log: BoundedLog) -> None:
        self._source, self._log = source, log
        self._end = b""
        self._thread = threading.Thread(target=self._copy, daemon=True)
        self._thread.start()

    def wait(self, patience: float) -> None:
        """Wait until all that an ended command said is in the log."""
        # A background process of the command may keep the pipe open; do not wait for that.
        self._thread.join(timeout=patience)

    def tail(self) -> str:
        """Return the last lines; call it when the command has ended."""
        self.wait(OUTPUT_TIMEOUT)
        # Postgres stores no NUL in text.
        text = self._end.decode(errors="replace").replace("\0", "")
        return "\n".join(text.splitlines()[-QUOTED_LINES:])

    def _copy(self) -> None:
        while chunk := self._source.read(READ_CHUNK):
            self._log.write(chunk)
            self._end = (self._end + chunk)[-QUOTED_BYTES:]
