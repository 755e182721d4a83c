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
from worker_agent.telemetry.spool import Spool
from worker_agent.telemetry.steps import sequence_after

log = logging.getLogger(__name__)


def ignore_progress(done: int, waiting: int) -> None:
    """Do nothing about progress."""


@dataclass(frozen=True, slots=True)
class UploadResult:
    """What became of a spool.

    Attributes:
        rows: Rows the controller has now and was not known to have before.
        is_complete: Whether nothing was lost and nothing is left to deliver.
        why: What is missing, for people; empty when it is complete.
    """

    rows: int
    is_complete: bool
    why: str = ""


def replay_spool(
    directory: Path,
    controller: TelemetryEndpoint,
    on_rows: Callable[[int, int], None] = ignore_progress,
) -> UploadResult:
    """Send everything that lies in a spool and the last words of its process, if it left any.

    May be called again and again: the controller stores each row once, by its number.

    Args:
        directory: The spool; one that does not exist holds nothing.
        controller: Where to send.
        on_rows: Told how many rows were sent, and of how many, before and after each batch.

    Raises:
        ControllerUnreachable: Nothing is lost; call again later.
        ControllerRefused: The controller does not accept this worker; nothing is lost. Ask
            another controller or with another token, or give up.
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
        spool.trim(sequence_after(report))
        skipped += refused
        sent += len(report.steps) - refused
        on_rows(sent + skipped, waiting)
    words = spool.final_report()
    if words is not None:
        _send(spool, controller, words)
    spool.clear()
    why = _describe_losses(missing, skipped)
    return UploadResult(sent, is_complete=not why, why=why)


def _describe_losses(missing: int, skipped: int) -> str:
    parts = []
    if missing:
        parts.append(f"{missing} rows lie in a ruined part of a file")
    if skipped:
        parts.append(f"the controller found no use for {skipped} rows")
    return " and ".join(parts)


def _send(spool: Spool, controller: TelemetryEndpoint, report: StepReport) -> int:
    """Send one report; returns how many of its rows the controller cannot use."""
    told = replace(report, dropped=spool.dropped)
    try:
        return len(_insist(spool, controller, told).rejected)
    except ControllerRefused as error:
        if error.status not in UNUSABLE_STATUSES:
            raise
        log.warning("the controller refused a report, its rows are skipped: %s", error)
        return len(report.steps)


def _insist(spool: Spool, controller: TelemetryEndpoint, report: StepReport) -> Reply:
    """Send a report; introduce the worker first if the controller never heard of it."""
    try:
        return controller.report(report)
    except ControllerRefused as error:
        if error.status != UNKNOWN_WORKER_STATUS:
            raise
    header = spool.header
    controller.hello(Hello(header.worker, header.address, header.role))
    return controller.report(report)
