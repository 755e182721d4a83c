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
from collections.abc import Collection, Mapping, Sequence
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
from worker_agent.supervisor.log_lines import LineBuffer, redact_secrets
from worker_agent.supervisor.processes import (
    count_oom_kills,
    dump_stacks,
    kill_others,
    terminate_training,
    training_cpu_time,
)
from worker_agent.supervisor.watchdog import Watchdog

TURN = 0.05  # until one of several processes that has ended is noticed
FOLLOWER_GRACE = 5.0  # for the processes that follow, once the leading one has ended well
RUN_POLL = 0.1  # delay until a shortened lease or a shutdown signal is noticed
TERMINATION_GRACE = 4.5  # from SIGTERM to the end of the machine, after its lease has expired
OUTPUT_GRACE = 0.5  # for the last output, after that
STACK_DUMP_TIME = 1.0  # to write stacks before a process that hangs is killed
KILLED_CODES = (-signal.SIGKILL, 128 + signal.SIGKILL)  # the second as a shell reports it

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
    """What surrounds one run of the command.

    Attributes:
        page: Where the training process publishes its progress.
        log: Where the command's output goes.
        lines: Takes the output on its way to the controller.
        lease: Lease of the machine.
        shutdown_signal: Whether the machine was told to shut down.
        drain_timeout: Seconds the command has to end cleanly after that.
        stall_timeout: Seconds without an iteration that are always allowed.
    """

    page: HeartbeatPage
    log: BoundedLog
    lines: LineBuffer
    lease: LeaseKeeper
    shutdown_signal: ShutdownSignal
    drain_timeout: float
    stall_timeout: float


def run_command(
    command: TrainingCommand,
    environments: Sequence[Mapping[str, str]],
    context: RunContext,
    secrets: Collection[str] = (),
) -> RunResult | None:
    """Run the command once; returns None if the lease expired first.

    Args:
        command: What to run.
        environments: Environment variables of each of its processes; the first one leads.
        context: What surrounds the run.
        secrets: Secrets to redact in its last lines.
    """
    context.page.clear()
    kills = count_oom_kills()
    try:
        child = TrainingProcesses(command, environments)
    except OSError as error:
        return RunResult(
            EXIT_NOT_STARTED, f"cannot start {command.arguments[0]}: {error}", NotStarted()
        )
    output = OutputCopier(child.output, context.log, context.lines)
    reason = _watch_run(child, context)
    if reason is None:
        output.wait(OUTPUT_GRACE)
        return None
    # After the exit the page still holds the last phase, which tells an error in the script's own
    # epilogue.
    if isinstance(reason, ExitedByItself):
        reason = _classify_end(child.returncode, kills, context.page)
    return RunResult(child.returncode, redact_secrets(output.tail(), secrets), reason)


class TrainingProcesses:
    """The processes of a command: one, or as many as share a model, of which the first leads.

    They end together. One that fails ends the others, which would wait for it in vain.

    Args:
        command: What each of them runs.
        environments: The environment variables of each.

    Attributes:
        output: What they print, in one stream.
        returncode: Exit code of the one that ended first with another than 0, else of the first.
    """

    def __init__(self, command: TrainingCommand, environments: Sequence[Mapping[str, str]]) -> None:
        self.returncode = 0
        self.processes: list[subprocess.Popen[bytes]] = []
        reader, writer = os.pipe()
        self.output: IO[bytes] = os.fdopen(reader, "rb", buffering=0)
        try:
            for environment in environments:
                self.processes.append(_start(command, environment, writer))
        except OSError:
            self.kill()
            self.output.close()
            raise
        finally:
            os.close(writer)

    def wait(self, timeout: float) -> None:
        """Wait until all have ended; raises subprocess.TimeoutExpired."""
        leading, following = self.processes[0], self.processes[1:]
        deadline = time.monotonic() + timeout
        while True:
            # Of one process alone the end is told at once; several are looked at in turns.
            pause = max(0.0, deadline - time.monotonic())
            with suppress(subprocess.TimeoutExpired):
                leading.wait(min(pause, TURN) if following else pause)
            codes = [process.poll() for process in self.processes]
            failed = next((code for code in codes if code), None)
            if failed is not None or leading.returncode == 0:
                self._end_others(failed or 0)
                return
            if time.monotonic() >= deadline:
                raise subprocess.TimeoutExpired(leading.args, timeout)

    def kill(self) -> None:
        """Kill those that still run, and wait for their end."""
        for process in self.processes:
            process.kill()
        codes = [process.wait() for process in self.processes]
        self.returncode = self.returncode or next(iter(codes), 0)

    def _end_others(self, code: int) -> None:
        self.returncode = code
        patience = time.monotonic() + (0.0 if code else FOLLOWER_GRACE)
        for process in self.processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, patience - time.monotonic()))
        late = [process for process in self.processes if process.poll() is None]
        for process in late:
            process.kill()
            process.wait()


def _start(
    command: TrainingCommand, environment: Mapping[str, str], output: int
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command.arguments,
        bufsize=0,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        cwd=command.directory,
        env=environment,
        # The only inheritable descriptor is the machine's lock, which lives as long as the command.
        close_fds=False,
    )


def _watch_run(child: TrainingProcesses, context: RunContext) -> ExitReason | None:
    """Wait for the end of the command, or end it; returns None if the lease expired."""
    watchdog = Watchdog(context.stall_timeout, time.monotonic())
    while True:
        if _has_ended(child, min(RUN_POLL, context.lease.left())):
            return ExitedByItself()
        if not context.lease.left():
            log.warning("the lease has expired")
            terminate_training(context.page.read())
            _has_ended(child, TERMINATION_GRACE)
            return None
        # The lease comes first: a machine whose time is over has none left to drain.
        if context.shutdown_signal.is_received:
            return _drain(child, context)
        reading = context.page.read()
        stalled_for = watchdog.look(reading, time.monotonic(), training_cpu_time(reading))
        if stalled_for is not None:
            return _end_stalled(child, context.page, stalled_for)


def _drain(child: TrainingProcesses, context: RunContext) -> Drained:
    """Let the command end cleanly, and kill it when its time is up."""
    began = time.monotonic()
    terminate_training(context.page.read())
    was_killed = not _has_ended(child, min(context.drain_timeout, context.lease.left()))
    if was_killed:
        _kill(child)
    return Drained(time.monotonic() - began, was_killed)


def _end_stalled(child: TrainingProcesses, page: HeartbeatPage, seconds: float) -> Stalled:
    """Kill a command that does not advance, after it has dumped its stacks."""
    reading = page.read()
    log.warning("no progress for %.0f s after iteration %d", seconds, reading.iteration)
    if dump_stacks(reading):
        _has_ended(child, STACK_DUMP_TIME)
    _kill(child)
    return Stalled(seconds, reading.iteration)


def _classify_end(code: int, kills_before: int | None, page: HeartbeatPage) -> ExitReason:
    """Return why a command ended that the supervisor did not end."""
    if page.read().phase is TrainingPhase.OVER:
        return ExitedAfterTraining()
    # The count is of the whole control group, so another process may have been killed: look at
    # the code too.
    kills = count_oom_kills()
    is_more = kills is not None and kills_before is not None and kills > kills_before
    return KilledForMemory() if is_more and code in KILLED_CODES else ExitedByItself()


def _kill(child: TrainingProcesses) -> None:
    kill_others()
    child.kill()


def _has_ended(child: TrainingProcesses, timeout: float) -> bool:
    with suppress(subprocess.TimeoutExpired):
        child.wait(timeout)
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
    """A log file of bounded size; a pipe or terminal has no bound.

    When the file is full, the output between its beginning and the newest part is cut out, and a
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
        self._lock = threading.Lock()
        self._is_file = stat.S_ISREG(os.fstat(descriptor).st_mode)
        if self._is_file:
            # Without O_APPEND, the first line after a cut would be written far beyond the end.
            flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
            fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | os.O_APPEND)

    def write(self, chunk: bytes) -> None:
        """Append; errors are ignored, since the command would block on a full pipe otherwise."""
        with self._lock, suppress(OSError):
            self._remember(chunk)
            self._write(chunk)
            if self._is_file:
                self._bound()

    def _remember(self, chunk: bytes) -> None:
        self._recent += chunk
        if len(self._recent) > 2 * KEPT_AFTER_CUT:  # rarely, since it moves the rest
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
    """Copies the command's output to the log, keeps the last lines, and passes all of them on."""

    def __init__(self, source: IO[bytes], log: BoundedLog, lines: LineBuffer) -> None:
        self._source, self._log, self._lines = source, log, lines
        self._end = b""
        self._thread = threading.Thread(target=self._copy, daemon=True)
        self._thread.start()

    def wait(self, timeout: float) -> None:
        """Wait until all output of an ended command is in the log."""
        # Not for ever: a background process of the command may keep the pipe open.
        self._thread.join(timeout=timeout)

    def tail(self) -> str:
        """Return the last lines; call it after the command has ended."""
        self.wait(OUTPUT_TIMEOUT)
        # Postgres cannot store NUL in text.
        text = self._end.decode(errors="replace").replace("\0", "")
        return "\n".join(text.splitlines()[-QUOTED_LINES:])

    def _copy(self) -> None:
        with self._source:
            while chunk := self._source.read(READ_CHUNK):
                self._log.write(chunk)
                self._lines.write(chunk)
                self._end = (self._end + chunk)[-QUOTED_BYTES:]
        self._lines.end_line()
