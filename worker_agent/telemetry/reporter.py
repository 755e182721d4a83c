"""`Reporter`: a background thread that sends measurements and receives Directives.

Training only appends to a bounded queue and reads one attribute; the thread does the waiting. A
controller that cannot be reached costs rows in the end, never training time.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from scavenger.measurement.steps import StepRow
from scavenger.protocol import (
    Directive,
    FinishReason,
    Hello,
    Progress,
    Regrouped,
    Reply,
    StepReport,
)
from scavenger.worker_env import WorkerEnv
from worker_agent.controller import ControllerClient
from worker_agent.errors import ControllerRefused, ControllerUnreachable
from worker_agent.telemetry.outbox import Outbox
from worker_agent.telemetry.spool import BATCH_ROWS, Spool, SpoolHeader, sequence_after

log = logging.getLogger(__name__)

DEFAULT_REPORT_INTERVAL = 1.0
PROBING_REPORT_INTERVAL = 0.25
WAITING_REPORT_INTERVAL = 0.1
MAX_RETRY_PAUSE = 15.0  # between two attempts to reach a controller that is away
MAX_WAITING_PAUSE = 3.0  # the same while a worker waits for a Directive
MAX_CLOSING_PAUSE = 0.5  # the same once training has ended
UNUSABLE_STATUSES = (400, 413, 415, 422)  # statuses of reports that would be refused again
UNKNOWN_WORKER_STATUS = 409  # status of a controller that has not heard the Hello, or forgot it


class TelemetryEndpoint(Protocol):
    """The two requests that the reporter makes."""

    def hello(self, hello: Hello) -> Reply: ...

    def report(self, report: StepReport) -> Reply:
        """Send measurements; the reply contains the newest Directive."""


class Reporter:
    """Sends rows and news in order, each at least once, and keeps the newest Directive.

    Args:
        controller: Where to send.
        worker: This worker's id.
        on_directive: Called on the reporter's thread with every Directive that is newer than all
            before; must not raise.
        open_spool: Opens the spool of this worker, given its Hello; None keeps rows in memory
            only. Runs on a background thread; may raise SpoolUnusable and OSError.

    Attributes:
        newest: The newest Directive from the controller.
    """

    def __init__(
        self,
        controller: TelemetryEndpoint,
        worker: str,
        on_directive: Callable[[Directive], None],
        *,
        open_spool: Callable[[Hello], Spool] | None = None,
    ) -> None:
        self.controller, self.worker, self.on_directive = controller, worker, on_directive
        self.newest: Directive | None = None
        # The Hello is read when the spool is opened: a worker gets its address from its strategy.
        self.outbox = Outbox(
            worker, None if open_spool is None else lambda: open_spool(self._hello)
        )
        self._hello = Hello(worker, "")
        self._unsent_hello: Hello | None = None
        self._progress = Progress(0, 0, 0, 0.0, {})
        self._pending = StepReport(worker, self._progress)
        self._interval = WAITING_REPORT_INTERVAL
        self._failures = self._begun = self._ended = 0
        # A generator of its own: a draw from the shared one would change what the script draws.
        self._jitter = random.Random()  # noqa: S311
        self._has_news = self._is_closing = self._is_given_up = self._is_warned = False
        self._state = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="scavenger-reporter", daemon=True)

    def start(self, hello: Hello) -> None:
        """Start the threads; the Hello is sent before anything else."""
        self._hello = self._unsent_hello = hello
        self.outbox.start()
        self._thread.start()

    def tell_framework(self, framework: str) -> None:
        """Say what trains, once that is known."""
        with self._state:
            self._hello = self._unsent_hello = replace(self._hello, framework=framework)
            self._wake()

    def send_hello(self, address: str, progress: Progress) -> None:
        """Send a Hello with another address, before any report with this progress."""
        with self._state:
            self._hello = self._unsent_hello = replace(self._hello, address=address)
            self._progress = self.outbox.progress = progress
            self._pending = replace(self._pending, broken=None)
            self._wake()

    def record(self, row: StepRow) -> None:
        """Queue one iteration; when too many wait, the oldest are dropped and counted."""
        self.outbox.put(row)

    def update_progress(
        self,
        progress: Progress,
        *,
        regrouped: Regrouped | None = None,
        broken: int | None = None,
    ) -> None:
        """Update what the next report says besides its rows; news is sent at once.

        Without ``broken`` the worker's generation counts as repaired.
        """
        with self._state:
            self._progress = self.outbox.progress = progress
            self._pending = replace(self._pending, broken=broken)
            if regrouped is not None:
                self._pending = replace(self._pending, regrouped=regrouped)
            if regrouped is not None or broken is not None:
                self._wake()

    def report_refused(self, generation: int) -> None:
        """Report that a generation could not be prepared; training goes on unchanged."""
        with self._state:
            self._pending = replace(self._pending, refused=generation)
            self._wake()

    def set_interval(self, interval: float) -> None:
        """Set the seconds between reports; the reply to a report brings the next Directive."""
        with self._state:
            if interval < self._interval:
                self._failures = 0
            self._interval = interval
            self._wake()

    def flush(self) -> None:
        """Send what there is at once, without waiting for the reply."""
        with self._state:
            self._wake()

    def wait_for_reply(self, timeout: float) -> None:
        """Wait for the end of an exchange with the controller that begins now, at most so long."""
        with self._state:
            mine = self._begun + 1
            self._wake()
            self._state.wait_for(lambda: self._ended >= mine, timeout)

    def close(self, progress: Progress, finished: FinishReason, timeout: float) -> bool:
        """Send the final report, for at most this many seconds.

        Returns:
            Whether the controller received everything; the rest stays in the spool.
        """
        deadline = time.monotonic() + timeout
        with self._state:
            self._progress = self.outbox.progress = progress
            self._pending = replace(self._pending, finished=finished, broken=None)
            self._is_closing = True
            self._wake()
        if self._thread.ident is None:
            return False
        final_report = replace(self._pending, progress=progress, regrouped=None, refused=None)
        self.outbox.write_final_report(final_report)
        self._thread.join(timeout)
        with self._state:
            is_delivered = not self._thread.is_alive() and not self._is_given_up
            self._is_given_up = not is_delivered
        self.outbox.close(is_delivered=is_delivered, timeout=max(0.0, deadline - time.monotonic()))
        return is_delivered

    def stop_without_final_report(self, timeout: float) -> None:
        """End without a final report; waiting rows stay in the spool for the supervisor."""
        with self._state:
            self._is_given_up = True
            self._wake()
        if self._thread.ident is not None:
            self.outbox.close(is_delivered=False, timeout=timeout)

    # The reporter's thread.

    def _run(self) -> None:
        try:
            while not self._is_given_up and not self._count_exchange():
                self._wait()
        except Exception:  # a bug in telemetry must not end the training
            self._is_given_up = True
            log.exception("reporting stopped; training goes on without the controller")

    def _wait(self) -> None:
        """Wait for the next exchange; news ends the wait, unless the controller does not answer."""
        with self._state:
            self._state.wait_for(self._is_awake, self._pause())
            self._has_news = False

    def _is_awake(self) -> bool:
        is_answered = not self._failures or self._is_closing
        return self._is_given_up or (self._has_news and is_answered)

    def _pause(self) -> float:
        """Return the seconds until the next exchange, which grow while no answer comes."""
        interval = (
            min(self._interval, WAITING_REPORT_INTERVAL) if self._is_closing else self._interval
        )
        if not self._failures:
            return interval
        longest = MAX_RETRY_PAUSE if interval >= DEFAULT_REPORT_INTERVAL else MAX_WAITING_PAUSE
        # The exponent is bounded, or the float would overflow after a day without a controller.
        grown = interval * 2.0 ** min(self._failures, 10)
        last = MAX_CLOSING_PAUSE if self._is_closing else longest
        # Jitter, or all workers would come back to a restarted controller at once.
        return min(grown, last) * self._jitter.uniform(0.5, 1.0)

    def _count_exchange(self) -> bool:
        """Make one exchange, and wake threads in ``wait_for_reply``."""
        with self._state:
            self._begun += 1
        is_over = self._exchange()
        with self._state:
            self._ended = self._begun
            self._state.notify_all()
        return is_over

    def _exchange(self) -> bool:
        """Send what there is; True once the controller has received the final report."""
        try:
            is_over = self._send_all()
        except ControllerUnreachable as error:
            log.debug("controller unreachable: %s", error)
            self._failures += 1
            return False
        except ControllerRefused as error:
            self._handle_refusal(error)
            return False
        self._failures = 0
        return is_over

    def _handle_refusal(self, error: ControllerRefused) -> None:
        """Keep the rows: the controller does not accept this worker now."""
        if not self._failures:
            log.warning("the controller refuses this worker; its rows are kept: %s", error)
        self._failures += 1
        if error.status == UNKNOWN_WORKER_STATUS:
            self._unsent_hello = self._hello
        elif self._is_closing:
            self._is_given_up = True

    def _exchange_hello(self, hello: Hello) -> None:
        reply = self.controller.hello(hello)
        with self._state:
            # The worker may have moved while the controller answered; then another Hello is due.
            if self._unsent_hello is hello:
                self._unsent_hello = None
        self.outbox.expect(reply.next_sequence)
        self._receive(reply.directive)

    def _send_all(self) -> bool:
        """Send waiting rows, batch after batch; True if the final report was among them."""
        while True:
            if self._unsent_hello is not None:
                self._exchange_hello(self._unsent_hello)
            composed = self._compose()
            if composed is None:
                continue
            report, behind = composed
            self._send(report)
            is_more_due = behind >= BATCH_ROWS or (self._is_closing and behind > 0)
            if not is_more_due or not len(report.steps) or self._is_given_up:
                return report.finished is not None and not behind

    def _send(self, report: StepReport) -> None:
        try:
            reply = self.controller.report(report)
        except ControllerRefused as error:
            if error.status not in UNUSABLE_STATUSES:
                raise
            log.warning("the controller refused a report; its rows are skipped: %s", error)
            self._acknowledge(report, sequence_after(report))
        else:
            self._acknowledge(report, reply.next_sequence)
            self._log_rejections(reply)
            self._receive(reply.directive)

    def _log_rejections(self, reply: Reply) -> None:
        """Log once that the controller rejects rows; it counts them and stores the others."""
        if reply.rejected and not self._is_warned:
            self._is_warned = True
            row = reply.rejected[0]
            log.warning("the controller rejects rows, first %d: %s", row.sequence, row.why)

    def _compose(self) -> tuple[StepReport, int] | None:
        """Build a report of waiting rows; returns it and how many rows follow it.

        None if the worker's address has changed meanwhile: its Hello must be sent first.
        """
        rows, behind = self.outbox.next_report()
        with self._state:
            if self._unsent_hello is not None:
                return None
            report = replace(self._pending, progress=self._progress, dropped=self.outbox.dropped)
        if rows is None:
            return replace(report, sequence=self.outbox.acknowledged), behind
        progress = replace(report.progress, generation=rows.progress.generation)
        return replace(report, progress=progress, sequence=rows.sequence, steps=rows.steps), behind

    def _acknowledge(self, report: StepReport, next_sequence: int) -> None:
        """Delete rows that the controller has stored, and news that it has received."""
        self.outbox.acknowledge(next_sequence)
        with self._state:
            # Identity, not equality: news that came meanwhile may be equal and must still be sent.
            if self._pending.regrouped is report.regrouped:
                self._pending = replace(self._pending, regrouped=None)

    def _receive(self, directive: Directive | None) -> None:
        if directive is None:
            return
        if self.newest is None or directive.generation > self.newest.generation:
            with self._state:
                self._pending = replace(self._pending, refused=None)
            self.newest = directive
            self.on_directive(directive)

    # With the state held.

    def _wake(self) -> None:
        self._has_news = True
        self._state.notify_all()


def open_reporter(settings: WorkerEnv, on_directive: Callable[[Directive], None]) -> Reporter:
    """Return the reporter of this machine, with its spool if it has one."""

    def open_spool(hello: Hello) -> Spool:
        assert settings.spool is not None
        header = SpoolHeader(
            settings.job, settings.worker, settings.controller, hello.address, hello.role
        )
        return Spool(Path(settings.spool), header)

    return Reporter(
        ControllerClient(settings),
        settings.worker,
        on_directive,
        open_spool=None if settings.spool is None else open_spool,
    )
