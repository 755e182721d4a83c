"""`Launcher`: takes part in a job on behalf of a script, and restarts the script to resize.

The script's processes measure into a file; the launcher of the first rank reports its lines. A
newer Directive makes the launcher ask the first rank for a stop; when all ranks have stopped at
the same boundary, every launcher starts the script again with its new rank.
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NoReturn

from scavenger.protocol import Directive, FinishReason, Hello, StopAtProgress
from scavenger.worker_env import WorkerEnv
from worker_agent.launcher.cluster_member import ClusterMember
from worker_agent.launcher.coordinator import (
    COORDINATOR_VARIABLES,
    RESTART_PAUSE,
    RESTARTED,
    Coordination,
)
from worker_agent.launcher.environment import (
    LOST_PEERS,
    NOT_DISTRIBUTED,
    NOT_RESIZABLE,
    STOPPED_AT_BOUNDARY,
    LauncherFiles,
    fill_command,
    generation_environment,
    instrumented_environment,
)
from worker_agent.launcher.next_process import NextProcess, waiting_key
from worker_agent.launcher.places import MachinePort, Placement, find_places
from worker_agent.launcher.server_cluster import stopped_key
from worker_agent.launcher.step_records import (
    MeasuredStep,
    StepFileReader,
    read_job_progress,
    write_job_progress,
)
from worker_agent.launcher.telemetry import JobTelemetry
from worker_agent.state.bucket import open_bucket, progress_of
from worker_agent.telemetry.reporter import PROBING_REPORT_INTERVAL, open_reporter

log = logging.getLogger(__name__)

RunLevel = Literal["observe", "advise", "control"]

LAUNCHER_POLL = 0.05
LINGER_TIMEOUT = 10.0  # for a command to end after its script has stopped cleanly
EXIT_REFUSED = 2  # as for wrong usage
MAX_PEER_LOSSES = 3  # runs in a row that lost their peers before they measured an iteration
FORWARDED_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)

RESIZE_REMEDY = (
    "a script with ParameterServerStrategy keeps its workers and its batch: write strategy:"
    " {downpour: {servers: 1}} in the job document, which is never resized"
)
ALONE_BECAUSE = {
    "": "forms no group with the others",  # rows of another machine tell what trains
    "pytorch": "never calls torch.distributed.init_process_group. Wrap the model in"
    " DistributedDataParallel",
    "tensorflow": "trains outside of a tf.distribute.MultiWorkerMirroredStrategy. Build and train"
    " the model in its scope",
}


@dataclass(frozen=True, slots=True)
class CommandRun:
    """How one run of the command ended.

    Attributes:
        code: Its exit code, negative for a signal.
        outcome: What its processes wrote about it, such as STOPPED_AT_BOUNDARY.
        rows: Iterations measured on this machine.
    """

    code: int
    outcome: str
    rows: int


class Launcher:
    """Runs a command in the generations of a job.

    Args:
        settings: Settings of this machine.
        command: Program and arguments.
        level: Only ``control`` restarts the command to resize.
        environment: Environment that the command inherits.
    """

    def __init__(
        self,
        settings: WorkerEnv,
        command: Sequence[str],
        level: RunLevel,
        environment: Mapping[str, str],
    ) -> None:
        self.settings, self.command, self.level = settings, list(command), level
        self.environment = dict(environment)
        self.directory = Path(tempfile.mkdtemp(prefix="scavenger-run-"))
        self.port = MachinePort(settings.host)
        self.reporter = open_reporter(settings, lambda _: None)
        self.telemetry = JobTelemetry(self.reporter)
        self.member = ClusterMember(settings.worker)
        self.files = self._files_of(0)
        self.next: NextProcess | None = None
        # Of a script whose workers do not wait, on the first worker's machine.
        self.coordination: Coordination | None = None
        # Entered once the steps show its workers, where the script trains on.
        self.upcoming: Directive | None = None
        self.child: subprocess.Popen[bytes] | None = None
        self.is_ending = self.is_over = self.is_changed = False
        self.arrival_told = 0  # newest generation whose process is known to be at its gate

    def run(self) -> int:
        """Run until the command ends or this machine is released; returns the exit code."""
        for number in FORWARDED_SIGNALS:
            signal.signal(number, self._forward)
        self.reporter.start(Hello(self.settings.worker, self.port.address))
        try:
            return self._train()
        finally:
            self._drop_next()
            self.port.close()
            shutil.rmtree(self.directory, ignore_errors=True)

    def _train(self) -> int:
        # A run that measured something has proven that its peers were reachable.
        peer_losses = 0
        while self._await_directive():
            ended = self._run_once()
            peer_losses = 0 if ended.rows else peer_losses + 1
            if ended.outcome in (NOT_DISTRIBUTED, NOT_RESIZABLE):
                return self._refuse(ended.outcome)
            if self.is_ending or self.is_over or not self._goes_on(ended, peer_losses):
                return self._conclude(ended.code)
        return self._report_finish("released")

    def _goes_on(self, ended: CommandRun, peer_losses: int) -> bool:
        """Whether the command must be started again, in the next generation."""
        if ended.outcome == STOPPED_AT_BOUNDARY:
            return True
        if ended.outcome != LOST_PEERS or peer_losses > MAX_PEER_LOSSES or self.level != "control":
            return False
        generation = self._current_directive.generation
        log.warning("generation %d lost one of its members", generation)
        self.telemetry.confirm(broken=generation)
        return self._current_directive.config.workers > 1

    def _refuse(self, outcome: str) -> int:
        """Stop a script that cannot do what the job asks of it."""
        if outcome == NOT_RESIZABLE:
            log.error("stopped: %s", RESIZE_REMEDY)
        else:  # several machines would do the work of one
            log.error(
                "stopped: each of the %d workers trains by itself, because the script %s, or set"
                " limits.workers to 1 in the job spec",
                self._current_directive.config.workers,
                ALONE_BECAUSE[self.telemetry.framework],
            )
        self.reporter.flush()
        return EXIT_REFUSED

    def _conclude(self, code: int) -> int:
        """Report the end of the command to the controller, unless it failed."""
        # The script's own end does not mean that a metric is reached.
        stop = self._current_directive.stop
        is_reached = isinstance(stop, StopAtProgress) or self.telemetry.has_reached_goal()
        how: FinishReason = "target" if is_reached else "exhausted"
        if self.is_over:
            return self._report_finish(how)
        if self.is_ending and self.member.is_asynchronous and self.rank != 0:
            return self._report_finish("released")
        if code == 0 and self.rank == 0:
            self._report_finish(how)
        else:
            self.reporter.flush()
        return code

    def _report_finish(self, how: FinishReason) -> int:
        self.telemetry.finish(how)
        return 0

    # Directives.

    @property
    def _current_directive(self) -> Directive:
        assert self.telemetry.directive is not None
        return self.telemetry.directive

    @property
    def rank(self) -> int:
        """Rank of this machine in the generation."""
        return self._current_directive.rank_of(self.settings.worker) or 0

    def _await_directive(self) -> bool:
        """Wait for a newer generation that lists this machine; False if it is released.

        A machine on standby sends a Hello with another address, and waits on.
        """
        self.reporter.set_interval(PROBING_REPORT_INTERVAL)
        entered = self.telemetry.directive
        known = 0 if entered is None else entered.generation
        while not self.is_ending:
            newest = self.reporter.newest
            if newest is not None and newest.generation > known:
                if newest.rank_of(self.settings.worker) is not None:
                    self.telemetry.enter(newest)
                    return True
                if known and self.settings.worker not in newest.standby:
                    return False
                if known:
                    self._stand_by()
                    known = 0  # it waits as a newcomer now, which most Directives do not list
            time.sleep(LAUNCHER_POLL)
        return False

    def _stand_by(self) -> None:
        log.info("%s stands by", self.settings.worker)
        self.port.close()
        self.port = MachinePort(self.settings.host)
        self.reporter.send_hello(self.port.address, self.telemetry.progress.to_message(0))

    def _consider(self, newest: Directive | None) -> None:
        """Adopt a Directive that changes nothing for the script; else let its process follow."""
        current = self.upcoming or self._current_directive
        if newest is None or newest.generation <= current.generation:
            return
        if (
            newest.config == current.config
            and newest.members == current.members
            and not newest.repairs
            and self.upcoming is None
        ):
            self.telemetry.enter(newest)
        elif self.level != "control":
            return
        elif self.member.cluster is not None:
            self._consider_with_servers(newest)
        elif newest.repairs or not self.files.arrived.exists():
            if self.rank == 0:
                self.files.stop_request.touch()
        else:
            self._prepare(newest)

    def _prepare(self, newest: Directive) -> None:
        """Let the next process start beside this one; stop this one once all of them wait."""
        if self.next is None or self.next.directive != newest:
            self._drop_next()
            rank = newest.rank_of(self.settings.worker)
            if rank is not None:
                files = self._files_of(newest.generation)
                self.next = NextProcess(newest, rank, self.port, files, self._start)
        if self.next is not None:
            self.next.advance()
            if self.next.is_waiting:
                self._tell_arrival(newest.generation)
        if self.rank == 0 and (self.next is None or self.next.are_all_waiting()):
            self.files.stop_request.touch()

    def _drop_next(self) -> None:
        if self.next is not None:
            self.next.end()
        self.next = None

    def _tell_arrival(self, generation: int) -> None:
        """Publish once that the process of a generation has come to its gate."""
        if generation > self.arrival_told:
            self.arrival_told = generation
            self.port.publish(waiting_key(generation), "yes")

    def _consider_with_servers(self, newest: Directive) -> None:
        assert self.child is not None
        match self.member.consider(newest, self.port, self.files.departures):
            case "stop":
                self.files.stop_request.touch()
            case "end":
                self.files.outcome.write_text(STOPPED_AT_BOUNDARY)
                self.child.kill()  # TensorFlow may ignore other signals
            case "refuse":
                self.files.outcome.write_text(NOT_RESIZABLE)
                self.child.kill()
            case "train on" if self.coordination is not None:
                assert self.member.cluster is not None
                self.coordination.follow(self.member.cluster)
                self.telemetry.enter(newest)
                self.telemetry.confirm()
            case "train on" if self.rank == 0:
                self.upcoming = newest
            case "train on":
                self.telemetry.enter(newest)
                self.telemetry.confirm()
            case "wait":
                pass

    # One run of the command.

    def _run_once(self) -> CommandRun:
        """Run the command in this generation, once the places of all processes are known."""
        directive = self._current_directive
        self.upcoming = self.member.cluster = None
        self.member.is_asynchronous = False
        prepared = self.next
        if prepared is None or prepared.directive != directive or prepared.child is None:
            self._drop_next()
            prepared = None
            self.port.choose(directive.generation)
        try:
            placement = self._place(directive) if prepared is None else prepared.placement
        except ConnectionError as error:
            log.warning("generation %d: %s", directive.generation, error)
            return CommandRun(1, LOST_PEERS, 0)
        if placement is None:  # a newer generation is there
            return CommandRun(0, STOPPED_AT_BOUNDARY, 0)
        ended = self._run_command(placement, prepared)
        if self.member.cluster is not None and placement.task == 0:
            self.port.publish(stopped_key(self.member.cluster.started), "")
        return ended

    def _place(self, directive: Directive) -> Placement | None:
        if directive.servers:
            return self.member.place(directive, self.port, self._is_superseded)
        machines = [member.address for member in directive.members]
        places = find_places(machines, directive.generation, self._is_superseded)
        return None if places is None else Placement(tuple(places), self.rank, self.rank)

    def _is_superseded(self) -> bool:
        newest = self.reporter.newest
        is_newer = newest is not None and newest.generation > self._current_directive.generation
        return is_newer or self.is_ending

    def _run_command(self, placement: Placement, prepared: NextProcess | None) -> CommandRun:
        directive = self._current_directive
        self.files = self._files_of(directive.generation) if prepared is None else prepared.files
        if self.rank == 0 and directive.generation > 1:
            self._fetch_checkpoint()
        self.telemetry.progress = read_job_progress(self._progress_file).corrected_for(directive)
        # Only then does the job's count of epochs differ from the script's own.
        self.is_changed = self.telemetry.progress.iteration > 0
        tail, rows = StepFileReader(self.files.rows), 0
        self.files.gate.touch()
        try:
            if prepared is None:
                self.child = self._start(directive, placement, self.files)
            else:
                self.child, self.next = prepared.child, None
            assert self.child is not None
            if self.rank != 0:
                # The rows of the first rank confirm that all have met; this one has none.
                self.telemetry.confirm()
            while (code := self._wait(self.child)) is None or self._is_kept(
                code, directive, placement
            ):
                self._serve(directive, placement)
                rows += self._report(tail.read())
                if self._outcome() == NOT_DISTRIBUTED:
                    self.child.terminate()
                if self.files.arrived.exists():
                    self._tell_arrival(directive.generation)
                self._consider(self.reporter.newest)
            rows += self._report(tail.read())
        finally:
            self.child = None
            if self.coordination is not None:
                self.coordination.close()
            self.coordination = None
            tail.close()
        if self.rank == 0:
            write_job_progress(self._progress_file, self.telemetry.progress)
        return CommandRun(code, self._outcome(), rows)

    def _serve(self, directive: Directive, worker: Placement) -> None:
        """Run the coordinator besides the worker, once that has shown that it only serves."""
        if not self.files.joined.exists() or self.member.cluster is None:
            return
        self.member.is_asynchronous = True
        if self.rank == 0 and self.coordination is None:
            assert self.child is not None
            self.coordination = Coordination(
                *(self.settings.job, self.settings.host, self.member.cluster, worker, self.child),
                restart=lambda: self._start(directive, worker, self.files),
            )
            self.child = self._start(directive, self.coordination.placement, self.files)
        if self.coordination is not None:
            self.coordination.advance()

    def _is_kept(self, code: int, directive: Directive, worker: Placement) -> bool:
        """Whether a worker that has ended is started again, as others train on meanwhile."""
        if not self.member.is_asynchronous or self.rank == 0 or self.is_ending or self._outcome():
            return False
        log.warning(RESTARTED, code)
        time.sleep(RESTART_PAUSE)
        self.child = self._start(directive, worker, self.files)
        return True

    def _start(
        self, directive: Directive, placement: Placement, files: LauncherFiles
    ) -> subprocess.Popen[bytes]:
        added = files.to_environment()
        if self.level == "control":  # only that changes what a script trains on
            added["SCAVENGER_REBATCH"] = str(directive.config.global_batch)
        if self.member.cluster is not None:
            added["SCAVENGER_TASKS"] = str(self.member.cluster.capacity)
        if placement.kind == "chief":
            added |= COORDINATOR_VARIABLES
        ours = generation_environment(self.environment, directive, placement, self.settings.job)
        return subprocess.Popen(
            fill_command(self.command, placement), env=instrumented_environment(ours, added)
        )

    def _files_of(self, generation: int) -> LauncherFiles:
        """Return the files of one generation: those of another would be taken for its own."""
        checkpoints = Path(self.settings.checkpoints or self.directory / "checkpoints")
        return LauncherFiles.in_directory(self.directory / str(generation), checkpoints)

    def _fetch_checkpoint(self) -> None:
        """Fetch what machines that are gone have put into the bucket, if the disk has less."""
        bucket = open_bucket(self.settings, self.reporter.controller)
        fetched = None if bucket is None else bucket.fetch_if_newer(self.files.checkpoints)
        if fetched is not None:
            write_job_progress(self._progress_file, progress_of(fetched))

    @property
    def _progress_file(self) -> Path:
        return self.files.checkpoints / "standing.json"

    def _outcome(self) -> str:
        with suppress(OSError):
            return self.files.outcome.read_text()
        return ""

    def _wait(self, child: subprocess.Popen[bytes]) -> int | None:
        """Wait a moment for the command's end; terminate it if its script stopped long ago."""
        with suppress(subprocess.TimeoutExpired):
            return child.wait(LAUNCHER_POLL)
        with suppress(OSError):
            if time.time() - self.files.outcome.stat().st_mtime > LINGER_TIMEOUT:
                child.terminate()
        return None

    def _forward(self, number: int, _: object) -> None:
        """Forward a signal to the command; after SIGTERM or SIGINT it is not restarted."""
        if number in (signal.SIGTERM, signal.SIGINT):
            self.is_ending = True
        if self.child is None:
            return
        if number == signal.SIGTERM and self.member.is_asynchronous and self.rank != 0:
            number = signal.SIGKILL  # no worker waits for this one, which ignores other signals
        elif number == signal.SIGTERM and self.member.cluster is not None:
            self.files.stop_request.touch()  # the others would wait for a gradient of its
            return
        with suppress(OSError):
            self.child.send_signal(number)

    def _report(self, rows: Sequence[MeasuredStep]) -> int:
        """As first rank, report these rows to the controller; returns how many there are."""
        if self.rank != 0 or not rows:
            return len(rows)
        before, after = self._split(rows)
        if before:
            self.telemetry.report(before)
        if after and self.upcoming is not None:
            self.telemetry.enter(self.upcoming, pause=after[0].step_time)
            self.upcoming = None
            self.is_changed = True
            self.telemetry.report(after)
        self._check_progress()
        return len(rows)

    def _split(
        self, rows: Sequence[MeasuredStep]
    ) -> tuple[Sequence[MeasuredStep], Sequence[MeasuredStep]]:
        """Return the rows of this generation, and those of the one that is upcoming."""
        if self.upcoming is None or self.member.cluster is None:
            return rows, ()
        awaited = self.member.cluster.indexes
        is_there = (place for place, row in enumerate(rows) if awaited == set(row.tasks))
        first = next(is_there, len(rows))
        return rows[:first], rows[first:]

    def _check_progress(self) -> None:
        """Stop at the job's target: the script counts its own epochs, but not across restarts."""
        most = self._current_directive.stop.max_progress
        has_used_all = self.is_changed and self.telemetry.progress.epochs >= most
        if self.level == "control" and (has_used_all or self.telemetry.has_reached_goal()):
            self.is_over = True
        if self.is_over:
            self.files.stop_request.touch()


def exec_command(
    command: Sequence[str], environment: Mapping[str, str], out: Path | None
) -> NoReturn:
    """Replace this process by the command, measured into a file if one is given.

    Raises:
        OSError: There is no such command, or it cannot be run.
    """
    if out is None:
        os.execvpe(command[0], list(command), dict(environment))  # noqa: S606
    added = {"SCAVENGER_ROWS": str(out.resolve())}
    os.execvpe(command[0], list(command), instrumented_environment(environment, added))  # noqa: S606
