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
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Literal, NoReturn

from scavenger.measurement.steps import StepRow
from scavenger.protocol import (
    Directive,
    FinishReason,
    Hello,
    Progress,
    Regrouped,
    StopAtMetric,
    StopAtProgress,
)
from scavenger.worker_env import WorkerEnv
from worker_agent.launcher.environment import (
    LOST_PEERS,
    NOT_DISTRIBUTED,
    STOPPED_AT_BOUNDARY,
    LauncherFiles,
    MachinePort,
    fill_command,
    find_places,
    generation_environment,
    instrumented_environment,
)
from worker_agent.launcher.step_records import (
    MeasuredStep,
    StepFileReader,
    read_job_progress,
    write_job_progress,
)
from worker_agent.state.bucket import open_bucket, progress_of
from worker_agent.state.progress import TrainingProgress
from worker_agent.telemetry.metrics import MetricRecorder
from worker_agent.telemetry.reporter import (
    DEFAULT_REPORT_INTERVAL,
    PROBING_REPORT_INTERVAL,
    open_reporter,
)

log = logging.getLogger(__name__)

# Columns that the script's processes measure under the same name; they count iterations anew.
MEASURED_COLUMNS = {f.name for f in fields(StepRow)} & {f.name for f in fields(MeasuredStep)}
MEASURED_COLUMNS -= {"iteration"}

RunLevel = Literal["observe", "advise", "control"]

LAUNCHER_POLL = 0.05
FINAL_REPORT_TIMEOUT = 5.0
LINGER_TIMEOUT = 10.0  # for a command to end after its script has stopped cleanly
EXIT_REFUSED = 2  # as for wrong usage
MAX_PEER_LOSSES = 3  # runs in a row that lost their peers before they measured an iteration
FORWARDED_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


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
        self.files = LauncherFiles(
            rows=self.directory / "rows.jsonl",
            stop_request=self.directory / "wish",
            outcome=self.directory / "ended",
            checkpoints=Path(settings.checkpoints or self.directory / "checkpoints"),
        )
        self.port = MachinePort(settings.host)
        self.reporter = open_reporter(settings, lambda _: None)
        self.directive: Directive | None = None
        self.child: subprocess.Popen[bytes] | None = None
        self.progress = TrainingProgress()
        self.is_ending = self.is_over = self.is_resumed = self.has_warned = False
        self.recorder = MetricRecorder()
        self.framework = ""  # only what is measured tells what a script trains with
        self.news: Regrouped | None = None
        self.row_at = time.monotonic()

    def run(self) -> int:
        """Run until the command ends or this machine is released; returns the exit code."""
        for number in FORWARDED_SIGNALS:
            signal.signal(number, self._forward)
        self.reporter.start(Hello(self.settings.worker, self.port.address))
        try:
            return self._train()
        finally:
            self.port.close()
            shutil.rmtree(self.directory, ignore_errors=True)

    def _train(self) -> int:
        # A run that measured something has proven that its peers were reachable.
        peer_losses = 0
        while self._await_directive():
            ended = self._run_once()
            peer_losses = 0 if ended.rows else peer_losses + 1
            if ended.outcome == NOT_DISTRIBUTED:
                return self._refuse()
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
        self.reporter.update_progress(self._message(), broken=generation)
        return self._current_directive.config.workers > 1

    def _refuse(self) -> int:
        """Stop a script that does not use its peers: several machines would do the work of one."""
        log.error(
            "stopped: each of the %d workers trains by itself, because the script %s, or set"
            " limits.workers to 1 in the job spec",
            self._current_directive.config.workers,
            ALONE_BECAUSE[self.framework],
        )
        self.reporter.flush()
        return EXIT_REFUSED

    def _conclude(self, code: int) -> int:
        """Report the end of the command to the controller, unless it failed."""
        # The script's own end does not mean that a metric is reached.
        stop = self._current_directive.stop
        is_reached = isinstance(stop, StopAtProgress) or self._has_reached_goal()
        how: FinishReason = "target" if is_reached else "exhausted"
        if self.is_over:
            return self._report_finish(how)
        if code == 0 and self.rank == 0:
            self._report_finish(how)
        else:
            self.reporter.flush()
        return code

    def _has_reached_goal(self) -> bool:
        stop = self._current_directive.stop
        value = self.recorder.metrics.get(stop.metric) if isinstance(stop, StopAtMetric) else None
        return isinstance(stop, StopAtMetric) and value is not None and stop.reached(value)

    def _report_finish(self, how: FinishReason) -> int:
        at_end = self.progress.to_message(0) if self.directive is None else self._message()
        self.reporter.close(at_end, how, FINAL_REPORT_TIMEOUT)
        return 0

    # Directives.

    @property
    def _current_directive(self) -> Directive:
        assert self.directive is not None
        return self.directive

    @property
    def rank(self) -> int:
        """Rank of this machine in the generation."""
        return self._current_directive.rank_of(self.settings.worker) or 0

    def _await_directive(self) -> bool:
        """Wait for a newer generation that lists this machine; False if it is released.

        A machine on standby sends a Hello with another address, and waits on.
        """
        self.reporter.set_interval(PROBING_REPORT_INTERVAL)
        known = 0 if self.directive is None else self.directive.generation
        while not self.is_ending:
            newest = self.reporter.newest
            if newest is not None and newest.generation > known:
                if newest.rank_of(self.settings.worker) is not None:
                    self._enter(newest)
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
        self.reporter.send_hello(self.port.address, self.progress.to_message(0))

    def _enter(self, directive: Directive) -> None:
        self.directive = directive
        self.progress = self.progress.corrected_for(directive)
        self.news = Regrouped(directive.generation, 0.0, 0)
        is_probe = directive.purpose == "probe"
        interval = PROBING_REPORT_INTERVAL if is_probe else DEFAULT_REPORT_INTERVAL
        self.reporter.set_interval(interval)

    def _consider(self, newest: Directive | None) -> None:
        """Adopt a Directive that changes nothing for the script; request a stop for another."""
        current = self._current_directive
        if newest is None or newest.generation <= current.generation:
            return
        if (
            newest.config == current.config
            and newest.members == current.members
            and not newest.repairs
        ):
            self._enter(newest)
        elif self.level == "control" and self.rank == 0:
            self.files.stop_request.touch()

    # One run of the command.

    def _run_once(self) -> CommandRun:
        """Run the command in this generation, once the ports of all machines are known."""
        generation = self._current_directive.generation
        self.port.choose(generation)
        machines = [member.address for member in self._current_directive.members]
        try:
            places = find_places(machines, generation, self._is_superseded)
        except ConnectionError as error:
            log.warning("generation %d: %s", generation, error)
            return CommandRun(1, LOST_PEERS, 0)
        if places is None:  # a newer generation is there
            return CommandRun(0, STOPPED_AT_BOUNDARY, 0)
        return self._run_command(places)

    def _is_superseded(self) -> bool:
        newest = self.reporter.newest
        is_newer = newest is not None and newest.generation > self._current_directive.generation
        return is_newer or self.is_ending

    def _run_command(self, places: Sequence[str]) -> CommandRun:
        # Files of the previous run would be taken for this one's.
        for path in (self.files.rows, self.files.stop_request, self.files.outcome):
            path.unlink(missing_ok=True)
        directive = self._current_directive
        if self.rank == 0 and directive.generation > 1:
            self._fetch_checkpoint()
        self.progress = read_job_progress(self._progress_file).corrected_for(directive)
        # Only then does the job's count of epochs go beyond the script's own.
        self.is_resumed = self.progress.iteration > 0
        ours = generation_environment(
            self.environment, directive, self.rank, places, self.settings.job
        )
        tail, rows = StepFileReader(self.files.rows), 0
        try:
            self.child = subprocess.Popen(
                fill_command(self.command, self.rank, places),
                env=instrumented_environment(ours, self._added_environment()),
            )
            if self.rank != 0:
                # The rows of the first rank confirm that all have met; this one has none.
                self.reporter.update_progress(self._message())
            while (code := self._wait(self.child)) is None:
                rows += self._report(tail.read())
                if self._outcome() == NOT_DISTRIBUTED:
                    self.child.terminate()
                self._consider(self.reporter.newest)
            rows += self._report(tail.read())
        finally:
            self.child = None
            tail.close()
        if self.rank == 0:
            write_job_progress(self._progress_file, self.progress)
        return CommandRun(code, self._outcome(), rows)

    def _added_environment(self) -> dict[str, str]:
        """Return what the instrumentation reads; only `control` changes what a script trains on."""
        batch = str(self._current_directive.config.global_batch)
        rebatch = {"SCAVENGER_REBATCH": batch} if self.level == "control" else {}
        return {**self.files.to_environment(), **rebatch}

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
        if self.child is not None:
            with suppress(OSError):
                self.child.send_signal(number)

    # Telemetry.

    def _report(self, rows: Sequence[MeasuredStep]) -> int:
        """As first rank, report these rows to the controller; returns how many there are."""
        if self.rank != 0 or not rows:
            return len(rows)
        if rows[-1].framework != self.framework:
            self.framework = rows[-1].framework
            self.reporter.tell_framework(self.framework)
        self._check_batch(rows[-1])
        directive = self._current_directive
        for row in rows:
            # Where no forward pass showed its samples, they are as many as the job wants.
            samples = self.progress.samples + (row.samples or directive.config.global_batch)
            self.progress = replace(self.progress.after_iteration(directive), samples=samples)
            measured = {name: getattr(row, name) for name in MEASURED_COLUMNS}
            generation, iteration = directive.generation, self.progress.iteration
            if not self._has_reached_goal():  # the steps until the script stops change no verdict
                for name, value in row.metrics.items():
                    self.recorder.record_number(name, value, iteration)
            loss = self.recorder.metrics.get("loss")
            self.reporter.record(StepRow(generation, iteration, loss=loss, **measured))
        self.reporter.update_progress(self._message(), regrouped=self._news())
        self._check_progress()
        return len(rows)

    def _message(self) -> Progress:
        """Return where training stands, with what the framework told of its metrics."""
        message = self.progress.to_message(self._current_directive.generation)
        odd = dict(self.recorder.not_finite)
        return replace(message, metrics=self.recorder.finite_metrics(), not_finite=odd)

    def _news(self) -> Regrouped | None:
        """With the first rows of a generation, report how long the change took."""
        now, before = time.monotonic(), self.row_at
        self.row_at = now
        news, self.news = self.news, None
        return None if news is None else replace(news, pause=now - before)

    def _check_batch(self, row: MeasuredStep) -> None:
        """Warn if the script trains on another batch than the Directive's.

        A local batch is rounded down, hence the tolerance. It is only a warning, because the first
        tensor of a forward pass need not have one row per sample.
        """
        config = self._current_directive.config
        if (
            self.has_warned
            or not row.samples
            or abs(row.samples - config.global_batch) < config.workers
        ):
            return
        self.has_warned = True
        log.warning(
            "an iteration took %d samples where the job wants %d: let the script read "
            "SCAVENGER_LOCAL_BATCH, or its measurements are attributed to another batch",
            row.samples,
            config.global_batch,
        )

    def _check_progress(self) -> None:
        """Stop at the job's target: the script counts its own epochs, but not across restarts."""
        most = self._current_directive.stop.max_progress
        has_used_all = self.is_resumed and self.progress.epochs >= most
        if self.level == "control" and (has_used_all or self._has_reached_goal()):
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
