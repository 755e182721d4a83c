"""The first process of a machine: it runs the training command and ends the machine in time.

A machine never outlives the time paid for it, even when the controller or the network fails.
However this process ends on its own, the machine ends with it. A command that dies through no
error of its own is started again; SIGTERM lets it end cleanly, and then the machine ends.
"""

from __future__ import annotations

import atexit
import logging
import math
import os
import secrets
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from scavenger.layout import PLAIN, Layout
from scavenger.protocol import EnrolmentReply, EnrolmentRequest, InterruptionNotice, WorkerSpec
from scavenger.worker_env import WorkerEnv
from worker_agent.controller import ControllerClient
from worker_agent.errors import AgentError, ControllerRefused, ControllerUnreachable
from worker_agent.heartbeat import HeartbeatPage
from worker_agent.settings import read_settings, training_environment, user_environment
from worker_agent.state.bucket import open_bucket
from worker_agent.supervisor.code import CodeDelivery, code_directory
from worker_agent.supervisor.exit_reason import (
    EXIT_NOT_STARTED,
    ChangesLayout,
    Drained,
    ExitedAfterTraining,
    RunResult,
    Unprepared,
)
from worker_agent.supervisor.layout import profiling_command, read_next_layout, read_report
from worker_agent.supervisor.lifetime import LeaseKeeper, RestartBudget, ShutdownSignal
from worker_agent.supervisor.log_lines import LogSender
from worker_agent.supervisor.metadata import CloudNotice, NoticeWatcher, notice_source
from worker_agent.supervisor.mirror import CheckpointMirror
from worker_agent.supervisor.power import power_off, power_off_computer
from worker_agent.supervisor.processes import kill_others
from worker_agent.supervisor.run import BoundedLog, RunContext, TrainingCommand, run_command
from worker_agent.telemetry.upload import replay_spool

CLEANUP_TIMEOUT = 1.0  # for processes that a command left behind to end
DELIVERY_POLL = 0.1  # delay until the end of a lease is noticed while code is fetched
ENROL_RETRY = 0.5  # between two attempts to enrol
LAST_CHECKPOINT_TIMEOUT = 20.0  # for the checkpoint that was written last to reach the bucket
LAST_LINES_TIMEOUT = 2.0  # for the lines that were printed last to reach the controller
FAREWELL_TIMEOUT = 5.0  # to reach the controller after the machine was told to shut down

log = logging.getLogger(__name__)


def main(restarts: RestartBudget) -> None:
    """Supervise a machine until it ends, within a budget of restarts of its command."""
    logging.basicConfig(format="supervisor: %(message)s")
    if os.getpgrp() != os.getpid():
        os.setpgid(0, 0)  # the machine is this process group, so no other process may be in it
    # Runs last, after the traceback of an unhandled exception has been written.
    atexit.register(power_off)
    shutdown_signal = ShutdownSignal()
    signal.signal(signal.SIGTERM, shutdown_signal.handle)
    settings = read_settings()
    if settings is None:
        raise ValueError("SCAVENGER_JOB is not set")
    if settings.owns_computer:
        atexit.register(power_off_computer)
    if settings.pid_file is not None:
        # Written after the handlers are in place: from now on the cloud may send SIGTERM.
        _write_pid(Path(settings.pid_file))
    Supervisor(settings, shutdown_signal, restarts).supervise()


def command_of(worker: WorkerSpec, default_directory: str | None) -> TrainingCommand:
    """Return what this machine runs: the user's command, or a parameter server of our own."""
    if not worker.command:
        return TrainingCommand((sys.executable, "-m", "worker_agent.parameter_server"), None)
    return TrainingCommand(worker.command, worker.directory or default_directory)


def compose_worker_env(booted_with: WorkerEnv, enrolled: EnrolmentReply) -> WorkerEnv:
    """Return what the training process is told of its machine and its job."""
    worker, directory = enrolled.worker, enrolled.worker.checkpoints
    if directory is None and booted_with.spool is not None:
        directory = str(Path(booted_with.spool).with_name("checkpoints"))
    return replace(
        booted_with,
        token=enrolled.token,
        job_secret=enrolled.job_secret,
        bundle_secret=enrolled.bundle_secret,
        role=worker.role,
        strategy=worker.strategy,
        checkpoints=directory,
        checkpoint_every=worker.checkpoint_every,
        checkpoint_keep=worker.checkpoint_keep,
        checkpoint_store=worker.checkpoint_store,
        stack=worker.stack,
        local_batch=worker.local_batch,
    )


class Supervisor:
    """Runs the command of a machine and reports to the controller.

    Args:
        settings: Settings of this machine.
        shutdown_signal: Whether the machine was told to shut down.
        restarts: Budget of restarts of the command.
    """

    def __init__(
        self, settings: WorkerEnv, shutdown_signal: ShutdownSignal, restarts: RestartBudget
    ) -> None:
        self._settings, self._shutdown_signal, self._restarts = settings, shutdown_signal, restarts
        self._controller = ControllerClient(settings)
        self._lease = LeaseKeeper(self._controller, settings, on_drain=shutdown_signal.announce)
        self._output = LogSender(self._controller, settings.worker, self._lease.period)

    def supervise(self) -> None:
        """Boot, run the command, and report how it ended, unless the lease expires first."""
        self._shutdown_signal.sleep(min(self._settings.boot_delay, self._lease.left()))
        enrolled = self._enrol()
        if enrolled is None:
            return
        # A daemon thread, because a controller that hangs must not keep a finished machine alive.
        threading.Thread(target=self._lease.keep_renewing, daemon=True).start()
        self._output.start()
        watcher: NoticeWatcher | None = None
        if self._settings.metadata is not None:
            watcher = NoticeWatcher(notice_source(self._settings.metadata), self._hear)
            watcher.start()
        mirror = self._start_mirror(enrolled)
        result = self._run_until_final(enrolled)
        if mirror is not None:
            self._finish_mirror(mirror, result)
        if watcher is not None:
            watcher.finish(FAREWELL_TIMEOUT)
        if result is None or not self._lease.left():
            return
        if self._settings.spool is not None:
            spool = Path(self._settings.spool)
            self._send_persistently(
                lambda: replay_spool(spool, self._controller), "the spooled rows"
            )
        self._output.close(min(LAST_LINES_TIMEOUT, self._lease.left()))
        message = result.to_message(self._settings.worker)
        self._send_persistently(lambda: self._controller.exit(message), "the exit report")

    def _enrol(self) -> EnrolmentReply | None:
        """Exchange the bootstrap token for what to run; None if the machine must end."""
        enrol = EnrolmentRequest(self._settings.worker, secrets.token_hex(16))
        while self._may_continue():
            try:
                return self._controller.enrol(enrol)
            except ControllerRefused as error:
                log.warning("enrolment was refused, so this machine ends: %s", error)
                return None
            except ControllerUnreachable as error:
                log.warning("enrolment failed and is retried: %s", error)
                self._shutdown_signal.sleep(ENROL_RETRY)
        return None

    def _run_until_final(self, enrolled: EnrolmentReply) -> RunResult | None:
        """Run the command, with restarts; returns the last result, None if the machine must end."""
        worker, page = enrolled.worker, HeartbeatPage()
        command = command_of(worker, self._settings.directory)
        if worker.code is not None:
            place = code_directory(self._settings)
            command = replace(command, directory=str(place / (worker.directory or "")))
            failure = self._deliver_code(worker.code, place)
            if not self._may_continue():
                return None
            if failure is not None:
                return RunResult(EXIT_NOT_STARTED, "", Unprepared(failure))
        context = RunContext(
            page,
            BoundedLog(sys.stdout.fileno()),
            self._output.lines,
            self._lease,
            self._shutdown_signal,
            drain_timeout=worker.drain,
            stall_timeout=worker.stall,
        )
        if worker.setup:
            setup = replace(command, arguments=worker.setup)
            result = self._run_once(setup, enrolled, context, PLAIN)
            if result is None or result.code or isinstance(result.reason, Drained):
                return result and result.as_failed_setup()
        layout = worker.layout
        if worker.profile:
            chosen = self._profile(command, enrolled, context)
            if not isinstance(chosen, Layout):
                return chosen
            layout = chosen
        while True:
            result = self._run_once(command, enrolled, context, layout)
            if result is None:
                return None
            may_be_layout = worker.searches_layout and page.read().iteration == 0
            if may_be_layout and result.is_failure_of_command:
                other = self._ask_for_layout(result, layout)
                if other is not None:
                    layout = other
                    continue
            if self._restart_is_due(result):
                if isinstance(result.reason, ChangesLayout):
                    layout = result.reason.layout
                continue
            if not (may_be_layout and result.is_retryable):
                return result
            # It died again and again, so another layout is the last thing to try.
            other = self._ask_for_layout(result, layout)
            if other is None:
                return result
            layout = other

    def _ask_for_layout(self, result: RunResult, failed: Layout) -> Layout | None:
        """Ask for another layout, since the command failed before it had trained in this one."""
        message = replace(result.to_message(self._settings.worker), failed_layout=failed)
        log.warning("the command failed with %s: %s", failed, message.in_words)
        kill_others(CLEANUP_TIMEOUT)
        while self._may_continue():
            try:
                return self._controller.exit(message).layout
            except ControllerRefused as error:
                log.warning("the controller names no other layout: %s", error)
                return None
            except ControllerUnreachable as error:
                log.warning("another layout was not asked for and is again: %s", error)
                self._shutdown_signal.sleep(ENROL_RETRY)
        return None

    def _profile(
        self, command: TrainingCommand, enrolled: EnrolmentReply, context: RunContext
    ) -> Layout | RunResult | None:
        """Profile the model and ask how to share it; how the machine ends if it is not to train."""
        added = enrolled.worker.variables | enrolled.secrets
        self._output.add_secrets(enrolled.secrets.values())
        with TemporaryDirectory(prefix="scavenger-") as place:
            report = Path(place) / "profile.json"
            result = run_command(
                profiling_command(command, report),
                [user_environment(added)],
                context,
                tuple(enrolled.secrets.values()),
            )
            if result is None or isinstance(result.reason, Drained):
                return result
            message = read_report(self._settings.worker, result, report)
        while self._may_continue():
            try:
                reply = self._controller.send_profile(message)
            except ControllerRefused as error:
                return RunResult(EXIT_NOT_STARTED, result.tail, Unprepared(str(error)))
            except ControllerUnreachable as error:
                log.warning("the profile was not sent and is retried: %s", error)
                self._shutdown_signal.sleep(ENROL_RETRY)
                continue
            if reply.refusal:
                return RunResult(EXIT_NOT_STARTED, result.tail, Unprepared(reply.refusal))
            return reply.layout
        return None

    def _start_mirror(self, enrolled: EnrolmentReply) -> CheckpointMirror | None:
        """Begin to copy checkpoints to the job's bucket, if it has one."""
        mine = compose_worker_env(self._settings, enrolled)
        bucket = open_bucket(mine, self._controller)
        if bucket is None or mine.checkpoints is None:
            return None
        mirror = CheckpointMirror(bucket, Path(mine.checkpoints))
        mirror.start()
        return mirror

    def _finish_mirror(self, mirror: CheckpointMirror, result: RunResult | None) -> None:
        """Let the last checkpoint be sent that others go on from, while the machine may."""
        is_over = result is None or isinstance(result.reason, ExitedAfterTraining)
        mirror.close(0.0 if is_over else min(LAST_CHECKPOINT_TIMEOUT, self._lease.left()))

    def _deliver_code(self, digest: str, directory: Path) -> str | None:
        """Fetch and unpack the code while the machine may go on; returns what failed."""
        delivery = CodeDelivery(self._controller, digest, directory)
        delivery.start()
        while delivery.is_alive() and self._may_continue():
            delivery.join(DELIVERY_POLL)
        return delivery.failure

    def _run_once(
        self,
        command: TrainingCommand,
        enrolled: EnrolmentReply,
        context: RunContext,
        layout: Layout,
    ) -> RunResult | None:
        """Run one command in the environment of the job, in the processes of a layout."""
        # The token may have been renewed since the last start.
        token = self._controller.token
        mine = compose_worker_env(self._settings, enrolled)
        mine = replace(mine, token=token, heartbeat=context.page.path, layout=str(layout))
        added = enrolled.worker.variables | enrolled.secrets
        redacted = (token, enrolled.job_secret, enrolled.bundle_secret, *enrolled.secrets.values())
        self._output.add_secrets(redacted)
        with TemporaryDirectory(prefix="scavenger-") as place:
            following = Path(place) / "next_layout"
            mine = replace(mine, next_layout=str(following))
            if not layout.is_plain:
                mine = replace(mine, processes=place)
            each = [
                training_environment(replace(mine, position=position), added)
                for position in range(layout.processes)
            ]
            result = run_command(command, each, context, redacted)
            asked = read_next_layout(following)
        if result is None or asked is None:
            return result
        return replace(result, reason=ChangesLayout(asked))

    def _restart_is_due(self, result: RunResult) -> bool:
        """Decide on a restart; if there is one, tell the controller and wait for its time."""
        message = result.to_message(self._settings.worker, restarts=True)
        if message.code or message.cause:
            log.warning("the command ended: %s", message.in_words)
        if self._shutdown_signal.is_received or not result.is_retryable:
            return False
        began = time.monotonic()
        is_asked_for = isinstance(result.reason, ChangesLayout)
        pause = 0.0 if is_asked_for else self._restarts.next_delay(began)
        if pause is None:
            log.warning("the command is not started again: its restarts of this hour are used up")
            return False
        # Processes that it left behind would hold memory, ports and devices.
        kill_others(CLEANUP_TIMEOUT)
        try:
            self._controller.exit(message)
        except AgentError as error:
            log.warning("the controller could not be told about the restart: %s", error)
        self._shutdown_signal.sleep(began + pause - time.monotonic())
        return self._may_continue()

    def _hear(self, notice: CloudNotice) -> None:
        """Let the worker leave, and tell the controller meanwhile that it needs another."""
        log.warning("this machine is taken back, so its worker leaves: %s", notice.reason)
        self._shutdown_signal.announce()
        told = InterruptionNotice(self._settings.worker, notice.reason, notice.ends_at)
        self._send_persistently(lambda: self._controller.notice(told), "the notice", math.inf)

    def _may_continue(self) -> bool:
        return not self._shutdown_signal.is_received and self._lease.left() > 0

    def _send_persistently(
        self, send: Callable[[], object], what: str, patience: float = FAREWELL_TIMEOUT
    ) -> None:
        """Send a message; retry while the controller is away and the machine may continue.

        Args:
            send: Sends it.
            what: It, in words.
            patience: Seconds for it once the machine was told to shut down.
        """
        deadline = time.monotonic() + patience
        while True:
            try:
                send()
            except ControllerRefused as error:
                return log.warning("the controller refused %s: %s", what, error)
            except ControllerUnreachable as error:
                is_late = self._shutdown_signal.is_received and time.monotonic() > deadline
                if is_late or not self._lease.left():
                    return log.warning("the controller did not get %s: %s", what, error)
            else:
                return None
            time.sleep(0.5)


def _write_pid(path: Path) -> None:
    fresh = path.with_suffix(".pid.new")
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(str(os.getpid()))
    fresh.replace(path)
