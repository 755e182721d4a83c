"""Reporter: a background thread that sends what was measured and brings Directives back.

Training only appends to a bounded queue and reads one attribute; the thread does the waiting. A
controller that cannot be reached costs rows in the end, never time.
"""

from __future__ import annotations

import logging
import math
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from scavenger.protocol import (
    Directive,
    Finished,
    Hello,
    Progress,
    Regrouped,
    Reply,
    StepColumns,
    StepReport,
)
from worker_agent.errors import ControllerRefused, ControllerUnreachable

log = logging.getLogger(__name__)

QUEUE_ROWS = 100_000
BATCH_ROWS = 1_000
CALM = 1.0
PROBING = 0.25
AWAITING = 0.1


class Controller(Protocol):
    """The two calls the reporter makes."""

    def hello(self, hello: Hello) -> Reply:
        """Announce the worker."""

    def report(self, report: StepReport) -> Reply:
        """Report and learn the newest Directive."""


@dataclass(frozen=True, slots=True)
class Row:
    """One measured iteration and the generation it belongs to."""

    generation: int
    iteration: int
    shards: int
    local_norm_sq: float | None
    mean_norm_sq: float | None
    compute_time: float
    sync_time: float
    step_time: float
    loss: float | None
    mean_compute_time: float
    fastest_compute_time: float


class Reporter:
    """Sends rows and notes in order, each at least once, and keeps the newest Directive.

    Args:
        controller: Where to send.
        worker: This worker's id.
        on_directive: Called on the reporter's thread with every Directive that is newer than all
            before; it may raise nothing.
    """

    def __init__(
        self, controller: Controller, worker: str, on_directive: Callable[[Directive], None]
    ) -> None:
        self.controller, self.worker, self.on_directive = controller, worker, on_directive
        self.rows: deque[Row] = deque()
        self.sequence = 0
        self.progress = Progress(0, 0, 0, 0.0, {})
        self.note = StepReport(worker, self.progress)
        self.newest: Directive | None = None
        self.interval = AWAITING
        self.is_closing = False
        self.state = threading.Condition()
        self.thread = threading.Thread(target=self._run, name="scavenger-reporter", daemon=True)

    def start(self, hello: Hello) -> None:
        """Start the thread; it says hello before anything else."""
        self.greeting: Hello | None = hello
        self.thread.start()

    def record(self, row: Row) -> None:
        """Queue one iteration; a full queue drops the oldest, a gap that the controller counts."""
        with self.state:
            if len(self.rows) >= QUEUE_ROWS:
                self.rows.popleft()
                self.sequence += 1
            self.rows.append(row)

    def tell(
        self,
        progress: Progress,
        *,
        regrouped: Regrouped | None = None,
        broken: int | None = None,
    ) -> None:
        """Update what the next report says besides its rows; news is sent at once."""
        with self.state:
            self.progress = progress
            if self.note.broken is not None and progress.generation > self.note.broken:
                self.note = replace(self.note, broken=None)
            if regrouped is not None:
                self.note = replace(self.note, regrouped=regrouped)
            if broken is not None:
                self.note = replace(self.note, broken=broken)
            if regrouped is not None or broken is not None:
                self.state.notify()

    def refuse(self, generation: int) -> None:
        """Say that a generation could not be prepared; training goes on as it was."""
        with self.state:
            self.note = replace(self.note, refused=generation)
            self.state.notify()

    def pace(self, interval: float) -> None:
        """Report that often, in seconds, from now on: the answer brings the next Directive."""
        with self.state:
            self.interval = interval
            self.state.notify()

    def flush(self) -> None:
        """Send what there is now, without waiting for it."""
        with self.state:
            self.state.notify()

    def close(self, progress: Progress, finished: Finished, timeout: float) -> StepReport | None:
        """Send the last report, for at most this many seconds; returns it if nobody heard it."""
        with self.state:
            self.progress = progress
            self.note = replace(self.note, finished=finished, broken=None)
            self.is_closing = True
            self.state.notify()
        if self.thread.ident is not None:
            self.thread.join(timeout)
        is_told = self.thread.ident is not None and not self.thread.is_alive()
        return None if is_told else replace(self.note, progress=progress, sequence=self.sequence)

    def _run(self) -> None:
        try:
            while not self._is_done(self._exchange()):
                with self.state:
                    self.state.wait(AWAITING if self.is_closing else self.interval)
        except Exception:  # the agent adds nothing to the damage: training goes on
            log.exception("reporting stopped; training goes on without the controller")

    def _is_done(self, delivered: StepReport | None) -> bool:
        return delivered is not None and delivered.finished is not None and not self.rows

    def _exchange(self) -> StepReport | None:
        """Send one report; returns it once the controller has it."""
        report, sent = self._compose()
        try:
            reply = self._send(report)
        except ControllerUnreachable as error:
            log.debug("controller unreachable: %s", error)
            return None
        except ControllerRefused as error:
            log.warning("the controller refused a report, its rows are skipped: %s", error)
            self._acknowledge(report, report.sequence + sent)
            return report
        self._acknowledge(report, reply.next_sequence)
        self._receive(reply.directive)
        return report

    def _send(self, report: StepReport) -> Reply:
        if self.greeting is None:
            return self.controller.report(report)
        reply = self.controller.hello(self.greeting)
        self.greeting = None
        return replace(reply, next_sequence=self.sequence)

    def _compose(self) -> tuple[StepReport, int]:
        """Build a report of queued rows; all rows of one report share a generation."""
        with self.state:
            if self.greeting is not None:
                return StepReport(self.worker, self.progress), 0
            rows: list[Row] = []
            for row in self.rows:
                if len(rows) == BATCH_ROWS or row.generation != self.rows[0].generation:
                    break
                rows.append(row)
            progress = self.progress
            if rows:
                progress = replace(progress, generation=rows[0].generation)
            report = replace(
                self.note, progress=progress, sequence=self.sequence, steps=to_columns(rows)
            )
            return report, len(rows)

    def _acknowledge(self, report: StepReport, next_sequence: int) -> None:
        """Forget what the controller has stored, and news it has heard."""
        with self.state:
            stored = min(max(next_sequence - self.sequence, 0), len(self.rows))
            for _ in range(stored):
                self.rows.popleft()
            self.sequence = max(self.sequence, next_sequence)
            if self.note.regrouped is report.regrouped:
                self.note = replace(self.note, regrouped=None)

    def _receive(self, directive: Directive | None) -> None:
        if directive is None:
            return
        if self.newest is None or directive.generation > self.newest.generation:
            with self.state:
                self.note = replace(self.note, refused=None)
            self.newest = directive
            self.on_directive(directive)


def to_columns(rows: Sequence[Row]) -> StepColumns:
    """Turn rows into columns, with None where a value is not finite."""
    return StepColumns(
        iteration=tuple(row.iteration for row in rows),
        shards=tuple(row.shards for row in rows),
        local_norm_sq=tuple(finite(row.local_norm_sq) for row in rows),
        mean_norm_sq=tuple(finite(row.mean_norm_sq) for row in rows),
        compute_time=tuple(row.compute_time for row in rows),
        sync_time=tuple(row.sync_time for row in rows),
        step_time=tuple(row.step_time for row in rows),
        loss=tuple(finite(row.loss) for row in rows),
        mean_compute_time=tuple(row.mean_compute_time for row in rows),
        fastest_compute_time=tuple(row.fastest_compute_time for row in rows),
    )


def finite(value: float | None) -> float | None:
    """Return the value, or None when it is NaN or infinite."""
    return None if value is None or not math.isfinite(value) else value
