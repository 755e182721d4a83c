"""`JobTelemetry`: what a launcher tells the controller of the steps that its script measures.

A script counts its own steps at each start; the progress here goes on over all of them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import fields, replace

from scavenger.measurement.steps import StepRow
from scavenger.protocol import Directive, FinishReason, Progress, Regrouped, StopAtMetric
from worker_agent.launcher.step_records import MeasuredStep
from worker_agent.state.progress import TrainingProgress
from worker_agent.telemetry.metrics import MetricRecorder
from worker_agent.telemetry.reporter import (
    DEFAULT_REPORT_INTERVAL,
    PROBING_REPORT_INTERVAL,
    Reporter,
)

log = logging.getLogger(__name__)

# Columns that the script's processes measure under the same name; they count iterations anew.
MEASURED_COLUMNS = {f.name for f in fields(StepRow)} & {f.name for f in fields(MeasuredStep)}
MEASURED_COLUMNS -= {"iteration"}

FINAL_REPORT_TIMEOUT = 5.0


class JobTelemetry:
    """Counts the progress of a job, and reports it.

    Args:
        reporter: Sends it.

    Attributes:
        directive: The generation that steps belong to; None before the first.
        progress: Where training stands.
        framework: What trains; empty before it is measured.
    """

    def __init__(self, reporter: Reporter) -> None:
        self.reporter = reporter
        self.directive: Directive | None = None
        self.progress = TrainingProgress()
        self.framework = ""  # only what is measured tells what a script trains with
        self.recorder = MetricRecorder()
        self.has_warned = False
        self.news: Regrouped | None = None
        self.row_at = time.monotonic()

    def enter(self, directive: Directive, pause: float = 0.0) -> None:
        """Count what follows as steps of another generation.

        Args:
            directive: The generation.
            pause: Seconds that the change took; 0 measures them up to the first steps.
        """
        self.directive = directive
        self.progress = self.progress.corrected_for(directive)
        self.news = Regrouped(directive.generation, pause, 0)
        is_probe = directive.purpose == "probe"
        interval = PROBING_REPORT_INTERVAL if is_probe else DEFAULT_REPORT_INTERVAL
        self.reporter.set_interval(interval)

    def confirm(self, *, broken: int | None = None) -> None:
        """Report that this machine has entered its generation, or that the generation is broken."""
        self.reporter.update_progress(self.message(), broken=broken)

    def report(self, rows: Sequence[MeasuredStep]) -> None:
        """Report steps of this generation."""
        assert self.directive is not None
        directive = self.directive
        if rows[-1].framework != self.framework:
            self.framework = rows[-1].framework
            self.reporter.tell_framework(self.framework)
        self._check_batch(rows[-1])
        for row in rows:
            # Where no forward pass showed its samples, they are as many as the job wants.
            samples = self.progress.samples + (row.samples or directive.config.global_batch)
            self.progress = replace(self.progress.after_iteration(directive), samples=samples)
            measured = {name: getattr(row, name) for name in MEASURED_COLUMNS}
            generation, iteration = directive.generation, self.progress.iteration
            if not self.has_reached_goal():  # the steps until the script stops change no verdict
                for name, value in row.metrics.items():
                    self.recorder.record_number(name, value, iteration)
            loss = self.recorder.metrics.get("loss")
            self.reporter.record(StepRow(generation, iteration, loss=loss, **measured))
        self.reporter.update_progress(self.message(), regrouped=self._take_news())

    def finish(self, how: FinishReason) -> None:
        """Report the end of training on this machine."""
        at_end = self.progress.to_message(0) if self.directive is None else self.message()
        self.reporter.close(at_end, how, FINAL_REPORT_TIMEOUT)

    def has_reached_goal(self) -> bool:
        """Whether a metric that the job is to reach has been told."""
        if self.directive is None or not isinstance(self.directive.stop, StopAtMetric):
            return False
        stop = self.directive.stop
        value = self.recorder.metrics.get(stop.metric)
        return value is not None and stop.reached(value)

    def message(self) -> Progress:
        """Return where training stands, with what the framework told of its metrics."""
        assert self.directive is not None
        message = self.progress.to_message(self.directive.generation)
        odd = dict(self.recorder.not_finite)
        return replace(message, metrics=self.recorder.finite_metrics(), not_finite=odd)

    def _take_news(self) -> Regrouped | None:
        """With the first rows of a generation, report how long the change took."""
        now, before = time.monotonic(), self.row_at
        self.row_at = now
        news, self.news = self.news, None
        return news and replace(news, pause=news.pause or now - before)

    def _check_batch(self, row: MeasuredStep) -> None:
        """Warn if the script trains on another batch than the Directive's.

        A local batch is rounded down, hence the tolerance. It is only a warning, because the first
        tensor of a forward pass need not have one row per sample.
        """
        assert self.directive is not None
        config = self.directive.config
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
