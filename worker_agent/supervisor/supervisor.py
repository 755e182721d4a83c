"""The first process of a machine: it runs the training command and ends the machine in time.

A machine never outlives the time paid for it, even when the controller or the network fails.
However this process ends on its own, the machine ends with it. A command that dies through no
error of its own is started again; SIGTERM lets it end in order, and then the machine ends.
"""

from __future__ import annotations

import atexit
import logging
import os
import secrets
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from scavenger.protocol import EnrolmentRequest
from scavenger.worker_env import WorkerEnv
from worker_agent.controller import ControllerClient
from worker_agent.errors import AgentError, ControllerRefused, ControllerUnreachable
from worker_agent.heartbeat import HeartbeatPage
from worker_agent.settings import (
    LAUNCH_CREDENTIAL_PREFIX,
    read_settings,
    training_environment,
)
from worker_agent.supervisor.exit_reason import RunResult
from worker_agent.supervisor.lifetime import LeaseKeeper, RestartBudget, ShutdownSignal
from worker_agent.supervisor.processes import kill_others
from worker_agent.supervisor.run import BoundedLog, RunContext, TrainingCommand, run_command
from worker_agent.telemetry.upload import replay_spool

CLEANUP_TIMEOUT = 1.0  # for what a command left behind to be gone
ENROL_RETRY = 0.5  # while a machine waits to be let in
FAREWELL_TIMEOUT = 5.0  # to reach the controller once the machine was told to end

log = logging.getLogger(__name__)


def main(arguments: Sequence[str], restarts: RestartBudget) -> None:
    """Supervise the machine whose file is named by the only argument, and end it."""
    (machine,) = arguments
    logging.basicConfig(format="supervisor: %(message)s")
    if os.getpgrp() != os.getpid():
        os.setpgid(0, 0)  # the machine is this group: nobody else's processes may be in it
    # Last of all, after the traceback of whatever went wrong has been written.
    atexit.register(power_off)
    notice = ShutdownSignal()
    signal.signal(signal.SIGTERM, notice.hear)
    _write_pid(Path(machine).with_suffix(".pid"))
    settings = read_settings()
    if settings is None:
        raise ValueError("SCAVENGER_JOB is not set")
    spool = Path(machine).with_suffix(".spool")
    Supervisor(settings, notice, restarts).supervise(command_of(settings), spool)


def command_of(settings: WorkerEnv) -> TrainingCommand:
    """Return what this machine runs: the user's command, or a parameter server."""
    if settings.role == "server":
        return TrainingCommand((sys.executable, "-m", "worker_agent.parameter_server"), None)
    if not settings.command:
        raise ValueError("SCAVENGER_COMMAND is not set")
    return TrainingCommand(settings.command, settings.directory)


def power_off() -> None:
    """End every process of the machine, this one included."""
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)


class Supervisor:
    """Runs a command and speaks for its machine.

    Args:
        settings: Who this machine is.
        notice: Whether it was told to end.
        restarts: How often the command may be started again.
    """

    def __init__(
        self, settings: WorkerEnv, notice: ShutdownSignal, restarts: RestartBudget
    ) -> None:
        self._settings, self._notice, self._restarts = settings, notice, restarts
        self._controller = ControllerClient(settings)
        self._prepaid = LeaseKeeper(self._controller, settings)
        self._secrets: Mapping[str, str] = {}

    def supervise(self, command: TrainingCommand, spool: Path) -> None:
        """Boot, run the command, and report how it ended unless the prepaid time ended first."""
        self._notice.sleep(min(self._settings.boot_delay, self._prepaid.left()))
        if not (self._may_go_on() and self._is_let_in()):
            return
        threading.Thread(target=self._prepaid.keep_renewing, daemon=True).start()
        ending = self._last_ending(command, spool)
        if ending is None or not self._prepaid.left():
            return
        self._insist(lambda: replay_spool(spool, self._controller))
        self._insist(lambda: self._controller.exit(ending.to_message(self._settings.worker)))

    def _is_let_in(self) -> bool:
        """Get a token for what the machine was launched with; False if it may not go on."""
        if not self._settings.token.startswith(LAUNCH_CREDENTIAL_PREFIX):
            return True
        enrol = EnrolmentRequest(self._settings.worker, secrets.token_hex(16))
        while self._may_go_on():
            try:
                enrolled = self._controller.enrol(enrol)
            except ControllerRefused as error:
                log.warning("this machine is not let in, so it ends: %s", error)
                return False
            except ControllerUnreachable as error:
                log.warning("nobody lets this machine in yet: %s", error)
                self._notice.sleep(ENROL_RETRY)
            else:
                self._secrets = enrolled.secrets | {"SCAVENGER_JOB_SECRET": enrolled.job_secret}
                return True
        return False

    def _last_ending(self, command: TrainingCommand, spool: Path) -> RunResult | None:
        """Run the command as often as it may be; None when the prepaid time is over."""
        settings, page = self._settings, HeartbeatPage()
        around = RunContext(
            page,
            BoundedLog(sys.stdout.fileno()),
            self._prepaid,
            self._notice,
            drain=settings.drain,
            stall=settings.stall,
        )
        while True:
            mine = {**self._secrets, "SCAVENGER_TOKEN": self._controller.token}
            environment = training_environment(spool, page.path, mine)
            ending = run_command(command, environment, around, mine.values())
            if ending is None or not self._starts_again(ending):
                return ending

    def _starts_again(self, ending: RunResult) -> bool:
        """Decide on another attempt, tell the controller, and wait until it is time."""
        message = ending.to_message(self._settings.worker, restarts=True)
        if message.code or message.cause:
            log.warning("the command ended: %s", message.in_words)
        if self._notice.is_received or not ending.is_retryable:
            return False
        began = time.monotonic()
        pause = self._restarts.pause(began)
        if pause is None:
            log.warning("it was started again often enough")
            return False
        kill_others(CLEANUP_TIMEOUT)  # they would hold memory, ports and devices
        try:
            self._controller.exit(message)
        except AgentError as error:
            log.warning("the controller did not hear that the command starts again: %s", error)
        self._notice.sleep(began + pause - time.monotonic())
        return self._may_go_on()

    def _may_go_on(self) -> bool:
        return not self._notice.is_received and self._prepaid.left() > 0

    def _insist(self, tell: Callable[[], object]) -> None:
        """Tell the controller something; while it is away, again, as long as the machine may."""
        deadline = time.monotonic() + FAREWELL_TIMEOUT
        while True:
            try:
                tell()
            except ControllerRefused as error:
                return log.warning("the end of the command is not wanted: %s", error)
            except ControllerUnreachable as error:
                is_late = self._notice.is_received and time.monotonic() > deadline
                if is_late or not self._prepaid.left():
                    return log.warning("nobody heard that the command ended: %s", error)
            else:
                return None
            time.sleep(0.5)


def _write_pid(path: Path) -> None:
    fresh = path.with_suffix(".pid.new")
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(str(os.getpid()))
    fresh.replace(path)


if __name__ == "__main__":
    main(sys.argv[1:], RestartBudget())
