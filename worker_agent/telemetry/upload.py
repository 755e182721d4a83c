"""Uploads what a process left in its spool, after a command has ended or by hand."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import httpx
from pydantic import TypeAdapter, ValidationError

from scavenger.protocol import Hello, Reply, StepReport
from worker_agent.controller import STATUS_TOO_MANY_REQUESTS
from worker_agent.errors import ControllerRefused, ControllerUnreachable, SpoolUnusable
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


RATE_LIMIT_PAUSE = 1.0  # seconds, while the controller wants to hear less
_REPORT, _REPLY = TypeAdapter(StepReport), TypeAdapter(Reply)


class TelemetryUploader:
    """Speaks for any machine of a controller, with the token of a person.

    Args:
        url: Address of the controller.
        token: Token that people use; a machine's token speaks for that machine only, elsewhere.
    """

    def __init__(self, url: str, token: str) -> None:
        self._http = httpx.Client(
            base_url=url, headers={"Authorization": f"Bearer {token}"}, timeout=30.0
        )

    def __enter__(self) -> TelemetryUploader:
        """Use it with ``with``: its connections are closed at the end."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the connections."""
        self._http.close()

    def hello(self, hello: Hello) -> Reply:
        """Nothing to say: the controller knows its machines, and nobody trains here."""
        return Reply(None, 0)

    def report(self, report: StepReport) -> Reply:
        """Hand over a report of a spool.

        Raises:
            ControllerUnreachable: No answer that makes sense; try again later.
            ControllerRefused: It said no; its text says why.
        """
        headers = {"Content-Type": "application/json"}
        content = _REPORT.dump_json(report)
        while True:
            try:
                answer = self._http.post("/v1/deliveries", content=content, headers=headers)
            except httpx.HTTPError as error:
                raise ControllerUnreachable(str(error) or type(error).__name__) from error
            if answer.status_code != STATUS_TOO_MANY_REQUESTS:
                break
            time.sleep(RATE_LIMIT_PAUSE)
        if answer.is_client_error:
            raise ControllerRefused(answer.status_code, answer.text)
        if not answer.is_success:
            raise ControllerUnreachable(f"status {answer.status_code}")
        try:
            return _REPLY.validate_json(answer.content)
        except ValidationError as error:
            raise ControllerUnreachable("an answer that is not a controller's") from error
