"""Uploads what a process left in its spool, after a command has ended or by hand."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from scavenger.protocol import Hello, Reply, StepReport
from worker_agent.errors import ControllerRefused, SpoolUnusable
from worker_agent.telemetry.reporter import (
    UNKNOWN_WORKER_STATUS,
    UNUSABLE_STATUSES,
    TelemetryEndpoint,
)
from worker_agent.telemetry.spool import Spool, sequence_after

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class UploadResult:
    """Result of the upload of one spool.

    Attributes:
        rows: Rows that the controller has stored now.
        is_complete: Whether no row was lost and none is left.
        why: What is missing, as a sentence; empty if it is complete.
    """

    rows: int
    is_complete: bool
    why: str = ""


def replay_spool(
    directory: Path,
    controller: TelemetryEndpoint,
    on_rows: Callable[[int, int], None] = lambda sent, total: None,
) -> UploadResult:
    """Send all rows of a spool, and the final report of its process if there is one.

    May be repeated: the controller stores each row once, by its number.

    Args:
        directory: The spool; a missing one counts as empty.
        controller: Where to send.
        on_rows: Called with the rows sent so far and the total, before and after each batch.

    Raises:
        ControllerUnreachable: Nothing is lost; call again later.
        ControllerRefused: The controller does not accept this worker; nothing is lost. Try another
            controller or token.
    """
    if not directory.exists():
        return UploadResult(0, is_complete=True)
    try:
        spool = Spool(directory, None)
    except (SpoolUnusable, OSError) as error:
        return UploadResult(0, is_complete=False, why=str(error))
    try:
        return _replay(spool, controller, on_rows)
    except OSError as error:
        return UploadResult(0, is_complete=False, why=str(error))
    finally:
        spool.close()


def _replay(
    spool: Spool, controller: TelemetryEndpoint, on_rows: Callable[[int, int], None]
) -> UploadResult:
    missing, waiting, skipped, sent = spool.unreadable, spool.waiting(), 0, 0
    on_rows(0, waiting)
    for report in spool.reports():
        refused = _send(spool, controller, report)
        # Trimmed after every report: an interrupted upload continues where it stopped.
        spool.trim(sequence_after(report))
        skipped += refused
        sent += len(report.steps) - refused
        on_rows(sent + skipped, waiting)
    final = spool.final_report()
    if final is not None:
        _send(spool, controller, final)
    spool.clear()
    why = _describe_missing_rows(missing, skipped)
    return UploadResult(sent, is_complete=not why, why=why)


def _describe_missing_rows(missing: int, skipped: int) -> str:
    parts = []
    if missing:
        parts.append(f"{missing} rows were damaged on disk")
    if skipped:
        parts.append(f"the controller rejected {skipped} rows")
    return " and ".join(parts)


def _send(spool: Spool, controller: TelemetryEndpoint, report: StepReport) -> int:
    """Send one report; returns how many of its rows the controller cannot use."""
    report = replace(report, dropped=spool.dropped)
    try:
        return len(_report(spool, controller, report).rejected)
    except ControllerRefused as error:
        if error.status not in UNUSABLE_STATUSES:
            raise
        log.warning("the controller refused a report; its rows are skipped: %s", error)
        return len(report.steps)


def _report(spool: Spool, controller: TelemetryEndpoint, report: StepReport) -> Reply:
    """Send a report; send a Hello first if the controller does not know the worker."""
    try:
        return controller.report(report)
    except ControllerRefused as error:
        if error.status != UNKNOWN_WORKER_STATUS:
            raise
    header = spool.header
    controller.hello(Hello(header.worker, header.address, header.role))
    return controller.report(report)
