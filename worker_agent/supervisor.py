"""The first process of a machine: it runs the training command and ends the machine in time.

A machine never outlives the time paid for it, whatever happens to the controller or the network.
Whichever way this process ends on its own, the machine ends with it.
"""

from __future__ import annotations

import atexit
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, NoReturn

from scavenger.protocol import Exit
from worker_agent.client import ControllerClient
from worker_agent.errors import AgentError, ControllerRefused, ControllerUnreachable
from worker_agent.settings import (
    AgentSettings,
    Command,
    read_command,
    read_settings,
    training_environment,
)

RENEW_EVERY = 5.0
LOOK_EVERY = 0.5  # a lease that was shortened is noticed this late
FAREWELL = 5.0  # between asking the command to end and ending the machine
TAIL_LINES = 50
TAIL_BYTES = 16 * 1024
NOT_STARTED = 127  # what a shell answers for a command it cannot run

log = logging.getLogger(__name__)


def main(arguments: Sequence[str]) -> None:
    """Supervise the machine whose file is named by the only argument."""
    (machine,) = arguments
    _write_pid(Path(machine).with_suffix(".pid"))
    settings = read_settings()
    if settings is None:
        raise ValueError("SCAVENGER_JOB is not set")
    supervise(settings, read_command(), Path(machine).with_suffix(".report"))


def supervise(settings: AgentSettings, command: Command, last_report: Path) -> None:
    """Boot, run the command, and report how it ended unless the prepaid time ended first."""
    controller = ControllerClient(settings)
    prepaid = Prepaid(controller, settings)
    time.sleep(min(settings.boot_delay, prepaid.left()))
    if not prepaid.left():
        return
    threading.Thread(target=prepaid.keep_renewing, daemon=True).start()
    ending = _run(command, training_environment(last_report), settings.worker, prepaid)
    if ending is None:
        return
    if last_report.exists():
        content = last_report.read_bytes()
        _insist(lambda: controller.report_as_written(content), prepaid)
    _insist(lambda: controller.exit(ending), prepaid)


def power_off() -> None:
    """End every process of the machine, this one included."""
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)


class Prepaid:
    """How long this machine may go on.

    Lease requests run in a thread of their own: a controller that is slow to answer must delay
    neither the training command's output nor the end of the prepaid time.
    """

    def __init__(self, controller: ControllerClient, settings: AgentSettings) -> None:
        self._controller = controller
        self._worker = settings.worker
        self._period = min(RENEW_EVERY, settings.prepaid / 3)
        self._end = time.monotonic() + settings.prepaid

    def left(self) -> float:
        """Return the prepaid seconds left, 0 or more."""
        return max(0.0, self._end - time.monotonic())

    def keep_renewing(self) -> NoReturn:
        """Ask for more time again and again; without an answer the end stays where it is."""
        while True:
            self._renew()
            time.sleep(self._period)

    def _renew(self) -> None:
        # Counted from before the request, so a slow network shortens the lease, never extends it.
        asked = time.monotonic()
        try:
            self._end = asked + self._controller.lease(self._worker).remaining
        except AgentError as error:
            log.warning("no new lease, %.0f s left: %s", self.left(), error)


class Output:
    """Copies what the command says to the log and keeps its end, however much it is."""

    def __init__(self, source: IO[bytes]) -> None:
        self._source = source
        self._end = b""
        self._thread = threading.Thread(target=self._copy, daemon=True)
        self._thread.start()

    def tail(self) -> str:
        """Return the last lines; call it when the command has ended."""
        # A background process of the command may keep the pipe open; do not wait for that.
        self._thread.join(timeout=1.0)
        # Postgres stores no NUL in text.
        text = self._end.decode(errors="replace").replace("\0", "")
        return "\n".join(text.splitlines()[-TAIL_LINES:])

    def _copy(self) -> None:
        while chunk := self._source.read(65536):
            # A full disk must not stop the command: it would wait for ever with a full pipe.
            with suppress(OSError):
                os.write(sys.stdout.fileno(), chunk)
            self._end = (self._end + chunk)[-TAIL_BYTES:]


def _write_pid(path: Path) -> None:
    fresh = path.with_suffix(".pid.new")
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(str(os.getpid()))
    fresh.replace(path)


def _run(
    command: Command, environment: dict[str, str], worker: str, prepaid: Prepaid
) -> Exit | None:
    """Run the command; return None if the prepaid time ended before it did."""
    try:
        child = _start(command, environment)
    except OSError as error:
        return Exit(worker, NOT_STARTED, f"cannot start {command.words[0]}: {error}")
    if child.stdout is None:
        raise AssertionError("the command was started with a pipe")
    output = Output(child.stdout)
    code = _wait(child, prepaid)
    return None if code is None else Exit(worker, code, output.tail())


def _start(command: Command, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command.words,
        bufsize=0,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd=command.directory,
        env=environment,
        # The only inheritable descriptor is the machine's lock, which lives as long as the command.
        close_fds=False,
    )


def _wait(child: subprocess.Popen[bytes], prepaid: Prepaid) -> int | None:
    while left := prepaid.left():
        with suppress(subprocess.TimeoutExpired):
            return child.wait(min(left, LOOK_EVERY))
    log.warning("the prepaid time is over")
    child.terminate()
    with suppress(subprocess.TimeoutExpired):
        child.wait(FAREWELL)
    return None


def _insist(tell: Callable[[], object], prepaid: Prepaid) -> None:
    """Tell the controller something; while it is away, again, as long as the machine may run."""
    while True:
        try:
            tell()
        except ControllerRefused as error:
            return log.warning("the end of the command is not wanted: %s", error)
        except ControllerUnreachable as error:
            if not prepaid.left():
                return log.warning("nobody heard that the command ended: %s", error)
        else:
            return None
        time.sleep(0.5)


if __name__ == "__main__":
    logging.basicConfig(format="supervisor: %(message)s")
    # Last of all, after the traceback of whatever went wrong has been written.
    atexit.register(power_off)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("supervisor: told to end"))
    main(sys.argv[1:])
