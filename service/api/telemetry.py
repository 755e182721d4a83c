"""Reports of workers: parse and validate their rows, then store each row once.

A row that cannot be used costs itself and not its report: the others are stored, and the answer
lists the rejected rows with reasons. A report that cannot be parsed at all is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

import numpy as np
from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails, from_json
from sqlalchemy import Connection

from scavenger.protocol import RejectedRow, Reply, StepReport
from service.api.problems import ApiProblem
from service.db import telemetry, workers
from service.db.jobs import record_event
from service.db.step_arrays import StepArrays, invalid_rows, to_arrays
from service.db.telemetry import NewRows, StoredRows
from service.db.workers import WorkerRow
from service.observability import metrics

REPORT_BODY = TypeAdapter(StepReport)
MAX_REJECTED_LISTED = 1_000
MAX_GAP = 10**12  # rows; a worker that measures for years stays below


@dataclass(frozen=True, slots=True)
class ValidatedReport:
    """A report, and what is left of its rows.

    Attributes:
        message: The report; its columns hold the rows that could be parsed.
        row_count: Number of rows it came with.
        rows: The rows that can be used.
        rejected: The others, in order.
    """

    message: StepReport
    row_count: int
    rows: StepArrays
    rejected: tuple[RejectedRow, ...]

    @property
    def next_sequence(self) -> int:
        """Number of the row after its last."""
        return self.message.sequence + self.row_count


def parse_report(body: bytes) -> ValidatedReport:
    """Parse a report, and validate each of its rows.

    Raises:
        ApiProblem: It is no report, or has an error that lies in no single row.
    """
    # Nearly all reports pass the first time; only a bad one is parsed again, without its bad rows.
    try:
        return validate_rows(REPORT_BODY.validate_json(body), {})
    except ValidationError as error:
        reasons = unparsed_rows(error)
    content = from_json(body)
    columns = content["steps"]
    if len({len(column) for column in columns.values() if column}) > 1:
        raise ApiProblem("validation", "steps: columns differ in length")
    content["steps"] = {
        name: [value for place, value in enumerate(column) if place not in reasons]
        for name, column in columns.items()
    }
    try:
        return validate_rows(REPORT_BODY.validate_python(content), reasons)
    except ValidationError as error:
        raise unparsed_problem(errors_of(error)[0]) from None


def unparsed_rows(error: ValidationError) -> dict[int, str]:
    """Return why rows could not be parsed, by their place in the report.

    Raises:
        ApiProblem: Something outside the rows could not be parsed.
    """
    reasons: dict[int, str] = {}
    for problem in errors_of(error):
        match problem["loc"]:
            case ("steps", str(name), int(place), *_):
                reasons.setdefault(place, f"{name}: {problem['msg']}")
            case _:
                raise unparsed_problem(problem)
    return reasons


def errors_of(error: ValidationError) -> list[ErrorDetails]:
    """Return what is wrong, without repeating what was sent."""
    return error.errors(include_url=False, include_context=False, include_input=False)


def unparsed_problem(error: ErrorDetails) -> ApiProblem:
    """Say where a report cannot be parsed."""
    return ApiProblem(
        "validation", f"{'.'.join(str(part) for part in error['loc'])}: {error['msg']}"
    )


def validate_rows(message: StepReport, unparsed: Mapping[int, str]) -> ValidatedReport:
    """Leave out the rows whose values would ruin a fit.

    Args:
        message: The report without the rows that could not be parsed.
        unparsed: Why these could not, by their place in the report.
    """
    rows = to_arrays(message.steps)
    row_count = len(rows) + len(unparsed)
    if unparsed:  # the others keep the places they had in the report
        places = np.delete(np.arange(row_count), list(unparsed))
        rows = StepArrays(places, rows.values)
    invalid = invalid_rows(rows)
    if invalid:
        rows = rows.where(~np.isin(rows.offset, list(invalid)))
    reasons = {**unparsed, **invalid}
    rejected = [RejectedRow(message.sequence + place, reasons[place]) for place in sorted(reasons)]
    return ValidatedReport(message, row_count, rows, tuple(rejected))


def store_report(
    connection: Connection, report: ValidatedReport, now: datetime
) -> tuple[StoredRows, Reply]:
    """Store the rows of a report that are new; return what the database said, and the answer.

    Raises:
        ApiProblem: The worker never said hello; it should, and then send the report again.
    """
    message = report.message
    # The row expected is nearly always the first of the report: that is tried without a lock, and
    # only if it is another is the position of the worker locked and compared.
    new_rows = new_rows_of(report, message.sequence)
    stored = telemetry.store_rows(connection, new_rows, now)
    if stored is None:
        known = workers.lock(connection, message.worker)
        if known is None:
            raise ApiProblem("sequence_gap", f"{message.worker} reports before its hello")
        new_rows = new_rows_of(report, known.next_sequence)
        new_rows = replace(new_rows, dropped=record_gap(connection, message, known, now))
        # A copy that comes after a later report says nothing of where its worker stands now.
        if report.next_sequence < known.next_sequence:
            new_rows = replace(new_rows, position=known)
        stored = telemetry.store_rows(connection, new_rows, now)
        assert stored is not None
    if new_rows.rejected and stored.rejected == new_rows.rejected:
        rejected = report.rejected[-new_rows.rejected :]
        record_rejected(connection, stored.job, message.worker, rejected, now)
    reply = Reply(
        stored.directive,
        new_rows.next_sequence,
        accepted=len(new_rows.rows),
        duplicates=len(report.rows) - len(new_rows.rows),
        rejected=report.rejected[:MAX_REJECTED_LISTED],
    )
    metrics.TELEMETRY_RECORDS.labels("accepted").inc(reply.accepted)
    metrics.TELEMETRY_RECORDS.labels("duplicate").inc(reply.duplicates)
    metrics.TELEMETRY_RECORDS.labels("rejected").inc(new_rows.rejected)
    seconds = {"compute": new_rows.rows["compute_time"], "sync": new_rows.rows["sync_time"]}
    metrics.ITERATION_SECONDS.observe(seconds)
    return stored, reply


def new_rows_of(report: ValidatedReport, expected: int) -> NewRows:
    """Return the rows of a report from the one on that the database expects."""
    message = report.message
    return NewRows(
        expected,
        sequence=max(expected, message.sequence),
        next_sequence=max(expected, report.next_sequence),
        generation=message.progress.generation,
        rejected=sum(row.sequence >= expected for row in report.rejected),
        rows=report.rows.since(expected - message.sequence),
        position=message,
    )


def record_gap(connection: Connection, message: StepReport, known: WorkerRow, now: datetime) -> int:
    """Record a gap before the rows of a report; returns how many of them the worker gave up.

    Raises:
        ApiProblem: No worker can have measured so many rows.
    """
    gap = max(0, message.sequence - known.next_sequence)
    if gap > MAX_GAP:
        raise ApiProblem("validation", f"sequence: {known.next_sequence} is expected")
    metrics.TELEMETRY_RECORDS.labels("dropped").inc(gap)
    dropped = min(gap, max(0, message.dropped - known.dropped))
    if dropped:
        why = f"{dropped} measured iterations of {message.worker} were dropped: its spool was full"
        record_event(connection, known.job, now, "rows_dropped", why, {"rows": dropped})
    if gap > dropped:
        lost = f"{gap - dropped} measured iterations of {message.worker} never arrived"
        record_event(connection, known.job, now, "rows_lost", lost, {"rows": gap - dropped})
    return dropped


def record_rejected(
    connection: Connection, job: str, worker: str, rejected: Sequence[RejectedRow], now: datetime
) -> None:
    """Record the first rows of a worker that cannot be used; later ones are only counted."""
    row = rejected[0]
    why = (
        f"{len(rejected)} measured iterations of {worker} cannot be used and are left out: "
        f"row {row.sequence}: {row.why}; more of them are counted and not told again"
    )
    facts = {"worker": worker, "rows": len(rejected), "first": row.sequence}
    record_event(connection, job, now, "rows_rejected", why, facts)
