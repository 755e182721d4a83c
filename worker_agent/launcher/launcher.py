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
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NoReturn

from scavenger.measurement.steps import StepRow
from scavenger.protocol import Directive, FinishReason, Hello, Regrouped, StopAtProgress
from scavenger.worker_env import WorkerEnv
from worker_agent.controller import ControllerClient
from worker_agent.launcher.environment import (
    LOST_PEERS,
    NOT_DISTRIBUTED,
    STOPPED_AT_BOUNDARY,
    LauncherFiles,
    MasterPort,
    find_master_port,
    generation_environment,
    instrumented_environment,
)
from worker_agent.launcher.step_records import (
    JobProgress,
    MeasuredStep,
    StepFileReader,
    read_job_progress,
    write_job_progress,
)
from worker_agent.telemetry.reporter import CALM_INTERVAL, PROBING_INTERVAL, Reporter, spool_opener

log = logging.getLogger(__name__)

RunLevel = Literal["observe", "advise", "control"]

LAUNCHER_POLL = 0.05
FINAL_REPORT_TIMEOUT = 5.0
LINGER_TIMEOUT = 10.0  # seconds a command may take to end once its script has stopped in order
EXIT_REFUSED = 2  # exit code, as for wrong usage
MAX_LOSSES = 3  # starts in a row that lost the others before they measured anything
FORWARDED_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


@dataclass(frozen=True, slots=True)
class StartResult:
    """The command ended.

    Attributes:
        code: Its exit code, negative for a signal.
        word: What its processes said about it.
        rows: Iterations it had measured on this machine.
    """

    code: int
    word: str
    rows: int


class Launcher:
    """Runs a command in the generations of a job.

    Args:
        settings: Who this machine is.
        words: The command.
        level: Only ``control`` ever starts the command again.
        environment: What the command inherits.
    """

    def __init__(
        self,
        settings: WorkerEnv,
        words: Sequence[str],
        level: RunLevel,
        environment: Mapping[str, str],
    ) -> None:
        self.settings, self.words, self.level = settings, list(words), level
        self.environment = dict(environment)
        self.directory = Path(tempfile.mkdtemp(prefix="scavenger-run-"))
        self.files = LauncherFiles(
            rows=self.directory / "rows.jsonl",
            wish=self.directory / "wish",
            ended=self.directory / "ended",
            checkpoints=Path(settings.checkpoints or self.directory / "checkpoints"),
        )
        self.meeting = MasterPort(settings.host)
        self.reporter = Reporter(
            ControllerClient(settings),
            settings.worker,
            lambda _: None,
            open_spool=spool_opener(settings),
        )
        self.directive: Directive | None = None
        self.child: subprocess.Popen[bytes] | None = None
        self.standing = JobProgress()
        self.is_told_to_end = self.is_over = self.has_gone_on = self.has_warned = False
        self.news: Regrouped | None = None
        self.row_at = time.monotonic()

    def run(self) -> int:
        """Run until the command ends by itself or this machine is released; returns its code."""
        for number in FORWARDED_SIGNALS:
            signal.signal(number, self._forward)
        self.reporter.start(Hello(self.settings.worker, self.meeting.address))
        try:
            return self._train()
        finally:
            self.meeting.close()
            shutil.rmtree(self.directory, ignore_errors=True)

    def _train(self) -> int:
        losses = 0
        while self._await_directive():
            ended = self._start_once()
            losses = 0 if ended.rows else losses + 1
            if ended.word == NOT_DISTRIBUTED:
                return self._refuse()
            if self.is_told_to_end or self.is_over or not self._goes_on(ended, losses):
                return self._conclude(ended.code)
        return self._say_finished("released")

    def _goes_on(self, ended: StartResult, losses: int) -> bool:
        """Whether the command is to be started again, in the next generation."""
        if ended.word == STOPPED_AT_BOUNDARY:
            return True
        if ended.word != LOST_PEERS or losses > MAX_LOSSES or self.level != "control":
            return False
        generation = self._now.generation
        log.warning("generation %d lost one of its members", generation)
        self.reporter.tell(self.standing.to_progress(generation), broken=generation)
        return self._now.config.workers > 1

    def _refuse(self) -> int:
        """Several machines would be paid for what one does."""
        log.error(
            "stopped: each of the %d workers trains by itself, for the script never calls "
            "torch.distributed.init_process_group. Wrap the model in DistributedDataParallel, or "
            "set limits.workers to 1 in the job spec",
            self._now.config.workers,
        )
        self.reporter.flush()
        return EXIT_REFUSED

    def _conclude(self, code: int) -> int:
        """The command will not be started again: tell the controller, unless it failed."""
        # No metric is seen here, so the script's own end does not mean that one is reached.
        how: FinishReason = "target" if isinstance(self._now.stop, StopAtProgress) else "exhausted"
        if self.is_over:
            return self._say_finished(how)
        if code == 0 and self.rank == 0:
            self._say_finished(how)
        else:
            self.reporter.flush()
        return code

    def _say_finished(self, how: FinishReason) -> int:
        generation = 0 if self.directive is None else self.directive.generation
        self.reporter.close(self.standing.to_progress(generation), how, FINAL_REPORT_TIMEOUT)
        return 0

    # Directives.

    @property
    def _now(self) -> Directive:
        assert self.directive is not None
        return self.directive

    @property
    def rank(self) -> int:
        """Place of this machine among those of the generation."""
        return self._now.rank_of(self.settings.worker) or 0

    def _await_directive(self) -> bool:
        """Wait for a newer generation that names this machine; False when it is left out.

        One that is to stand by says hello again, at another address, and waits on.
        """
        self.reporter.pace(PROBING_INTERVAL)
        known = 0 if self.directive is None else self.directive.generation
        while not self.is_told_to_end:
            newest = self.reporter.newest
            if newest is not None and newest.generation > known:
                if newest.rank_of(self.settings.worker) is not None:
                    self._enter(newest)
                    return True
                if known and self.settings.worker not in newest.standby:
                    return False
                if known:
                    self._stand_by()
                    known = 0  # from now on it waits as a newcomer, which each Directive leaves out
            time.sleep(LAUNCHER_POLL)
        return False

    def _stand_by(self) -> None:
        log.info("%s stands by", self.settings.worker)
        self.meeting.close()
        self.meeting = MasterPort(self.settings.host)
        hello = Hello(self.settings.worker, self.meeting.address)
        self.reporter.greet(hello, self.standing.to_progress(0))

    def _enter(self, directive: Directive) -> None:
        self.directive = directive
        self.standing = self.standing.entering(directive)
        self.news = Regrouped(directive.generation, 0.0, 0)
        self.reporter.pace(PROBING_INTERVAL if directive.purpose == "probe" else CALM_INTERVAL)

    def _consider(self, newest: Directive | None) -> None:
        """Adopt a Directive that changes nothing for the script; ask for a stop for another."""
        now = self._now
        if newest is None or newest.generation <= now.generation:
            return
        if newest.config == now.config and newest.members == now.members and not newest.repairs:
            self._enter(newest)
        elif self.level == "control" and self.rank == 0:
            self.files.wish.touch()

    # One start of the command.

    def _start_once(self) -> StartResult:
        """Start the command in this generation, where its first rank is, and see it through."""
        try:
            port = self._meet()
        except ConnectionError as error:
            log.warning("generation %d: %s", self._now.generation, error)
            return StartResult(1, LOST_PEERS, 0)
        if port is None:  # a newer generation is there
            return StartResult(0, STOPPED_AT_BOUNDARY, 0)
        return self._run_command(port)

    def _meet(self) -> int | None:
        generation = self._now.generation
        if self.rank == 0:
            return self.meeting.choose(generation)
        return find_master_port(self._now.members[0].address, generation, self._is_superseded)

    def _is_superseded(self) -> bool:
        newest = self.reporter.newest
        is_newer = newest is not None and newest.generation > self._now.generation
        return is_newer or self.is_told_to_end

    def _run_command(self, port: int) -> StartResult:
        for path in (self.files.rows, self.files.wish, self.files.ended):
            path.unlink(missing_ok=True)
        self.standing = read_job_progress(self._place_of_standing).entering(self._now)
        self.has_gone_on = self.standing.iteration > 0
        tail, rows = StepFileReader(self.files.rows), 0
        try:
            self.child = subprocess.Popen(self.words, env=self._environment(port))
            while (code := self._wait(self.child)) is None:
                rows += self._report(tail.read())
                if self._word() == NOT_DISTRIBUTED:
                    self.child.terminate()
                self._consider(self.reporter.newest)
            rows += self._report(tail.read())
        finally:
            self.child = None
            tail.close()
        if self.rank == 0:
            write_job_progress(self._place_of_standing, self.standing)
        return StartResult(code, self._word(), rows)

    def _environment(self, port: int) -> dict[str, str]:
        ours = generation_environment(
            self.environment, self._now, self.rank, port, self.settings.job
        )
        return instrumented_environment(ours, self.files.to_environment())

    @property
    def _place_of_standing(self) -> Path:
        return self.files.checkpoints / "standing.json"

    def _word(self) -> str:
        with suppress(OSError):
            return self.files.ended.read_text()
        return ""

    def _wait(self, child: subprocess.Popen[bytes]) -> int | None:
        """Wait a moment for the command's end; help one along whose script has stopped."""
        with suppress(subprocess.TimeoutExpired):
            return child.wait(LAUNCHER_POLL)
        with suppress(OSError):
            if time.time() - self.files.ended.stat().st_mtime > LINGER_TIMEOUT:
                child.terminate()
        return None

    def _forward(self, number: int, _: object) -> None:
        """Pass a signal on to the command; a request to end is not answered with a restart."""
        if number in (signal.SIGTERM, signal.SIGINT):
            self.is_told_to_end = True
        if self.child is not None:
            with suppress(OSError):
                self.child.send_signal(number)

    # Telemetry.

    def _report(self, rows: Sequence[MeasuredStep]) -> int:
        """As first rank, tell the controller of these rows; returns how many there are."""
        if self.rank != 0 or not rows:
            return len(rows)
        self._see_whether_batch_is_read(rows[-1])
        for row in rows:
            self.standing = self.standing.after(row, self._now)
            self.reporter.record(self._to_row(row))
        self.reporter.tell(self.standing.to_progress(self._now.generation), regrouped=self._news())
        self._see_whether_it_is_over()
        return len(rows)

    def _to_row(self, row: MeasuredStep) -> StepRow:
        return StepRow(
            generation=self._now.generation,
            iteration=self.standing.iteration,
            shards=row.shards,
            local_norm_sq=row.local_norm_sq,
            mean_norm_sq=row.mean_norm_sq,
            compute_time=row.compute_time,
            sync_time=row.sync_time,
            step_time=row.step_time,
            loss=None,
            mean_compute_time=row.mean_compute_time,
            fastest_compute_time=row.fastest_compute_time,
        )

    def _news(self) -> Regrouped | None:
        """With the first rows of a generation, say how long it took to get there."""
        now, before = time.monotonic(), self.row_at
        self.row_at = now
        news, self.news = self.news, None
        return None if news is None else replace(news, pause=now - before)

    def _see_whether_batch_is_read(self, row: MeasuredStep) -> None:
        """A script that trains on another batch than was asked for is measured for the wrong one.

        A local batch is rounded down. More is not done about it: what a forward pass is given need
        not begin with its samples.
        """
        wanted = self._now.config.global_batch
        if (
            self.has_warned
            or not row.samples
            or abs(row.samples - wanted) < self._now.config.workers
        ):
            return
        self.has_warned = True
        log.warning(
            "an iteration took %d samples where the job wants %d: let the script read "
            "SCAVENGER_LOCAL_BATCH, or what is measured is counted for another batch",
            row.samples,
            wanted,
        )

    def _see_whether_it_is_over(self) -> None:
        """The script counts its own epochs, but not across starts: then the job's count holds."""
        if self.level == "control" and self.has_gone_on:
            self.is_over = self.standing.epochs >= self._now.stop.max_progress
        if self.is_over:
            self.files.wish.touch()


def exec_command(
    words: Sequence[str], environment: Mapping[str, str], out: Path | None
) -> NoReturn:
    """Let this process be the command, measured into a file if one is given.

    Raises:
        OSError: There is no such command, or it cannot be run.
    """
    if out is None:
        os.execvpe(words[0], list(words), dict(environment))  # noqa: S606
    ours = {"SCAVENGER_ROWS": str(out.resolve())}
    os.execvpe(words[0], list(words), instrumented_environment(environment, ours))  # noqa: S606
