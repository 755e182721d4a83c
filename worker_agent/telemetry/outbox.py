"""`Outbox`: a worker's rows from the moment of measurement until the controller has stored them.

Training puts rows into memory and goes on. The outbox's own thread numbers them, writes them
ahead to the spool, and prepares the next report; only this thread touches the disk, so a disk
that is full, broken or hung costs rows in the end, which are counted, and no training or
reporting time.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from itertools import islice, takewhile

from scavenger.measurement.steps import StepColumns, StepRow
from scavenger.protocol import Progress, StepReport
from worker_agent.errors import SpoolUnusable
from worker_agent.telemetry.spool import BATCH_ROWS, Spool, drop_before, sequence_after

log = logging.getLogger(__name__)

MAX_QUEUED_ROWS = 100_000
SPOOL_WRITE_INTERVAL = 1.0
DISK_RETRY = 30.0
SPOOL_ANSWER_TIMEOUT = 0.2


class Outbox:
    """Rows in order, each with a number; a row that is lost is counted.

    Args:
        worker: Whose rows they are.
        open_spool: Opens the spool, on the outbox's thread; None keeps rows in memory only. May
            raise SpoolUnusable and OSError.

    Attributes:
        progress: Progress of training, as written beside the rows.
        dropped: Rows dropped so far because too many were waiting.
        acknowledged: Rows below this number are stored by the controller.
    """

    def __init__(self, worker: str, open_spool: Callable[[], Spool] | None) -> None:
        self.worker, self._open_spool = worker, open_spool
        self.progress = Progress(0, 0, 0, 0.0, {})
        self.dropped = 0
        self._fresh: deque[StepRow] = deque()
        self._sequence = 0  # of the first fresh row
        self._held: StepReport | None = None  # numbered, not on disk
        self._next: StepReport | None = None  # what to send
        self._first = 0  # number of the first row of this process
        self.acknowledged = 0
        self._expected: int | None = None
        self._is_numbered = False
        self._final_report: StepReport | None = None
        self._is_final_report_written = False
        self._spool: Spool | None = None
        self._try_disk_at = 0.0
        self._requested = self._answered = 0
        self._is_over = self._is_delivered = False
        self._state = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="scavenger-outbox", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def put(self, row: StepRow) -> None:
        """Queue one row; a full queue drops the oldest one and counts it."""
        with self._state:
            # The sequence advances over a dropped row, so the controller sees the gap and counts
            # it.
            if len(self._fresh) >= MAX_QUEUED_ROWS:
                self._fresh.popleft()
                self._sequence += 1
                self.dropped += 1
            self._fresh.append(row)

    def expect(self, sequence: int) -> None:
        """Take the sequence that the controller expects next, from its answer to a Hello."""
        with self._state:
            if self._expected is None:
                self._expected = sequence
            else:
                self._forget_stored(sequence)

    def next_report(self) -> tuple[StepReport | None, int]:
        """Return the rows to send next, None if there are none, and how many follow them.

        Does not wait for a disk that hangs: then there is nothing to send, and something follows.
        """
        with self._state:
            self._request()
            requested = self._requested
            is_done = self._state.wait_for(
                lambda: self._is_over or self._answered >= requested, SPOOL_ANSWER_TIMEOUT
            )
            end = self._sequence if self._next is None else sequence_after(self._next)
            behind = max(0, self._sequence - end) + len(self._fresh)
            return self._next, behind if is_done else max(1, behind)

    def acknowledge(self, next_sequence: int) -> None:
        """Delete the rows below a sequence: the controller has stored them."""
        with self._state:
            self._forget_stored(next_sequence)

    def write_final_report(self, final_report: StepReport) -> None:
        """Write what is left, then the final report, to the spool: this process is about to end."""
        with self._state:
            self._final_report = final_report
            self._request()

    def close(self, *, is_delivered: bool, timeout: float) -> None:
        """End the thread; if everything was delivered, empty the spool."""
        with self._state:
            self._is_over, self._is_delivered = True, is_delivered
            self._request()
        if self._thread.ident is not None:
            self._thread.join(timeout)

    # The outbox's thread.

    def _run(self) -> None:
        try:
            self._spool = self._open()
            while not self._is_over:
                requested = self._requested
                self._run_once()
                with self._state:
                    self._answered = requested
                    self._state.notify_all()
                    self._state.wait_for(self._has_request, SPOOL_WRITE_INTERVAL)
            if not self._is_delivered:
                self._run_once()
        except Exception:  # a bug in telemetry must not end the training
            log.exception("measurements are no longer kept; training goes on without them")
        finally:
            self._is_over = True
            self._close_spool()

    def _open(self) -> Spool | None:
        """Open the spool and continue where the previous process ended."""
        try:
            spool = None if self._open_spool is None else self._open_spool()
        except (SpoolUnusable, OSError) as error:
            log.warning("measurements are kept in memory only: %s", error)
            return None
        if spool is not None:
            with self._state:
                self._first = spool.following
                self._sequence += spool.following
                self.dropped += spool.dropped
        return spool

    def _close_spool(self) -> None:
        if self._spool is None:
            return
        with suppress(OSError):
            if self._is_delivered:
                self._spool.clear()
            self._spool.close()

    def _run_once(self) -> None:
        """Number the rows, write them, delete what is stored, and prepare what to send next."""
        self._continue_numbering()
        while (report := self._hold()) is not None and self._write(report):
            with self._state:
                self._held = None
        self._append_final_report()
        self._prepare_next()

    def _continue_numbering(self) -> None:
        """Number the rows of this process from the sequence that the controller expects."""
        with self._state:
            expected = self._expected
            if expected is None or self._is_numbered:
                return
            by = max(0, expected - self._first)
        if by and self._spool is not None:
            # The previous process sent rows, under numbers used here, that never reached this disk.
            self._renumber(self._spool, by)
        with self._state:
            self._sequence += by
            if self._held is not None:
                self._held = replace(self._held, sequence=self._held.sequence + by)
            self._is_numbered = True
            self._next = None
            self._forget_stored(expected)

    def _renumber(self, spool: Spool, by: int) -> None:
        try:
            spool.renumber(self._first, by)
        except OSError as error:
            lost = spool.following - self._first
            log.warning("%d measured iterations are dropped: %s", lost, error)
            spool.trim(spool.following)
            with self._state:
                self.dropped += lost

    def _hold(self) -> StepReport | None:
        """Take the next rows from the queue; they are held until they are written or stored."""
        with self._state:
            if self._held is None and self._fresh:
                generation = self._fresh[0].generation
                # A report has one generation, because progress and configuration are per
                # generation.
                same = takewhile(lambda row: row.generation == generation, self._fresh)
                rows = list(islice(same, BATCH_ROWS))
                for _ in rows:
                    self._fresh.popleft()
                progress = replace(self.progress, generation=generation)
                self._held = StepReport(
                    self.worker,
                    progress,
                    sequence=self._sequence,
                    steps=StepColumns.from_rows(rows),
                )
                self._sequence += len(rows)
            return self._held

    def _write(self, report: StepReport) -> bool:
        """Write a report to the spool; False without a spool, and while the disk refuses."""
        if self._spool is None or time.monotonic() < self._try_disk_at:
            return False
        try:
            dropped_now = self._spool.append(replace(report, dropped=self.dropped))
        except OSError as error:
            log.warning("the spool cannot be written, measurements are kept in memory: %s", error)
            self._try_disk_at = time.monotonic() + DISK_RETRY
            return False
        with self._state:
            self.dropped += dropped_now
        return True

    def _append_final_report(self) -> None:
        if self._final_report is None or self._is_final_report_written or self._held is not None:
            return
        words = replace(self._final_report, sequence=self._sequence)
        self._is_final_report_written = self._write(words)

    def _prepare_next(self) -> None:
        """Choose what to send next: rows on disk come before rows in memory."""
        with self._state:
            if not self._is_numbered or self._next is not None:
                return
            start = self.acknowledged
        report = self._read(start)
        with self._state:
            if report is None and self._held is not None:
                report = drop_before(self._held, self.acknowledged)
            self._next = report

    def _read(self, start: int) -> StepReport | None:
        if self._spool is None:
            return None
        try:
            self._spool.trim(start)
            return next(self._spool.reports(start), None)
        except OSError as error:
            log.warning("the spool cannot be read: %s", error)
            return None

    # With the state held.

    def _has_request(self) -> bool:
        return self._requested > self._answered

    def _request(self) -> None:
        self._requested += 1
        self._state.notify_all()

    def _forget_stored(self, next_sequence: int) -> None:
        self.acknowledged = max(self.acknowledged, next_sequence)
        if self._held is not None and sequence_after(self._held) <= self.acknowledged:
            self._held = None
        if self._next is not None and sequence_after(self._next) <= self.acknowledged:
            self._next = None
        elif self._next is not None:
            self._next = drop_before(self._next, self.acknowledged)
