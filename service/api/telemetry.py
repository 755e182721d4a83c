"""Reports of workers: parse and validate their rows, then store each row once.

A row that cannot be used costs itself and not its report: the others are stored, and the answer
lists the rejected rows with reasons. A report that cannot be parsed at all is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

import numpy as np
from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails, from_json
from sqlalchemy import Connection

from scavenger.protocol import RejectedRow, Reply, StepReport
from service.api.problems import ApiProblem
from service.db import telemetry
from service.db.jobs import record_event
from service.db.step_arrays import SERIES_NAMES, FloatArray, StepArrays, invalid_rows, to_arrays
from service.db.telemetry import NewRows, RowStream, StoredRows, WorkerCondition
from service.observability import metrics

MessageT = TypeVar("MessageT")
REPORT_BODY = TypeAdapter(StepReport)


@dataclass(frozen=True, slots=True)
class ValidatedReport:
    """A report, and what is left of its rows.

    Attributes:
        message: The report; its columns hold the rows that could be read.
        rows: How many rows it came with.
        batch: Those that can be used.
        rejected: The others, in order.
    """

    message: StepReport
    rows: int
    batch: StepArrays
    rejected: tuple[RejectedRow, ...]

    @property
    def following(self) -> int:
        """Number of the row after its last."""
        return self.message.sequence + self.rows


def parse_message(adapter: TypeAdapter[MessageT], body: bytes) -> MessageT:
    """Read a message; one that cannot be read is refused without repeating it."""
    try:
        return adapter.validate_json(body)
    except ValidationError as error:
        raise unreadable_problem(validation_errors(error)[0]) from None


def parse_report(body: bytes) -> ValidatedReport:
    """Read a report, and judge each of its rows.

    Raises:
        Refusal: It is no report, or something is wrong with it that is in no single row.
    """
    try:
        return validate_rows(REPORT_BODY.validate_json(body), {})
    except ValidationError as error:
        poisoned = unreadable_rows(error)
    content = from_json(body)
    sizes = {len(column) for column in content["steps"].values() if column}
    if len(sizes) > 1:
        raise ApiProblem("validation", "steps: columns differ in length")
    try:
        return validate_rows(REPORT_BODY.validate_python(without_rows(content, poisoned)), poisoned)
    except ValidationError as error:
        raise unreadable_problem(validation_errors(error)[0]) from None


def validate_rows(message: StepReport, misread: Mapping[int, str]) -> ValidatedReport:
    """Leave out the rows that no fit could bear.

    Args:
        message: What could be read.
        misread: Why rows could not, by their place in the report.
    """
    batch = to_arrays(message.steps)
    rows = len(batch) + len(misread)
    if misread:
        places = np.delete(np.arange(rows), list(misread))
        batch = StepArrays(places, batch.iteration, batch.shards, batch.series)
    reasons = {**misread, **(unfit := invalid_rows(batch))}
    if unfit:
        batch = batch.where(~np.isin(batch.offset, list(unfit)))
    rejected = [RejectedRow(message.sequence + place, reasons[place]) for place in sorted(reasons)]
    return ValidatedReport(message, rows, batch, tuple(rejected))


def unreadable_rows(error: ValidationError) -> dict[int, str]:
    """Return why rows could not be read, by their place in the report.

    Raises:
        Refusal: What could not be read is more than rows.
    """
    said: dict[int, str] = {}
    for problem in validation_errors(error):
        match problem["loc"]:
            case ("steps", str(name), int(place), *_):
                said.setdefault(place, f"{name}: {problem['msg']}")
            case _:
                raise unreadable_problem(problem)
    return said


def without_rows(content: dict[str, Any], places: Mapping[int, str]) -> dict[str, Any]:
    """Return a report as JSON without the rows in some places."""
    steps = {
        name: [value for place, value in enumerate(column) if place not in places]
        for name, column in content["steps"].items()
    }
    return {**content, "steps": steps}


def validation_errors(error: ValidationError) -> list[ErrorDetails]:
    """Return what is wrong, without repeating what was sent."""
    return error.errors(include_url=False, include_context=False, include_input=False)


def unreadable_problem(problem: ErrorDetails) -> ApiProblem:
    """Say where a message cannot be read."""
    place = ".".join(str(part) for part in problem["loc"])
    return ApiProblem("validation", f"{place}: {problem['msg']}")


COMPUTE_SERIES, SYNC_SERIES = SERIES_NAMES.index("compute_time"), SERIES_NAMES.index("sync_time")
MAX_REJECTED_LISTED = 1_000
MAX_GAP = 10**12


@dataclass(frozen=True, slots=True)
class StoredReport:
    """What became of a report.

    Attributes:
        stored: What the database said.
        reply: The answer.
    """

    stored: StoredRows
    reply: Reply


def store_report(connection: Connection, report: ValidatedReport, now: datetime) -> StoredReport:
    """Store the rows of a report that are new.

    The row expected is nearly always the first of the report, so that is tried at once; only if it
    is another are they compared, while nobody else may move the cursor.

    A copy that comes after a later report says nothing of where its worker stands now.

    Raises:
        Refusal: The worker never said hello; it should, and then send the report again.
    """
    message = report.message
    first, dropped, condition = message.sequence, 0, WorkerCondition.of(message)
    stored = telemetry.store_rows(
        connection, first, new_rows_of(report, first, dropped, condition), now
    )
    if stored is None:
        known = telemetry.lock_stream(connection, message.worker)
        if known is None:
            raise ApiProblem("sequence_gap", f"{message.worker} reports before its hello")
        dropped = record_gap(connection, message, known, now)
        first = known.next_sequence
        condition = known.condition if report.following < first else condition
        stored = telemetry.store_rows(
            connection, first, new_rows_of(report, first, dropped, condition), now
        )
        assert stored is not None
    rejected = [row for row in report.rejected if row.sequence >= first]
    if rejected and stored.rejected == len(rejected):
        record_rejected(connection, stored.job, message.worker, rejected, now)
    reply = reply_to(report, first, stored)
    count_records(len(rejected), reply)
    metrics.ITERATION_SECONDS.observe(iteration_parts(report.batch.since(first - message.sequence)))
    return StoredReport(stored, reply)


def count_records(rejected: int, reply: Reply) -> None:
    """Count what became of the rows of a report."""
    metrics.TELEMETRY_RECORDS.labels("accepted").inc(reply.accepted)
    metrics.TELEMETRY_RECORDS.labels("duplicate").inc(reply.duplicates)
    metrics.TELEMETRY_RECORDS.labels("rejected").inc(rejected)


def iteration_parts(batch: StepArrays) -> dict[str, FloatArray]:
    """Return what the seconds of iterations were spent on."""
    return {"compute": batch.series[COMPUTE_SERIES], "sync": batch.series[SYNC_SERIES]}


def new_rows_of(
    report: ValidatedReport, expected: int, dropped: int, condition: WorkerCondition
) -> NewRows:
    """Return what is new in a report, once it is known which row is expected."""
    message = report.message
    return NewRows(
        message.worker,
        message.progress.generation,
        sequence=max(expected, message.sequence),
        following=max(expected, report.following),
        dropped=dropped,
        rejected=sum(row.sequence >= expected for row in report.rejected),
        batch=report.batch.since(expected - message.sequence),
        condition=condition,
    )


def reply_to(report: ValidatedReport, expected: int, stored: StoredRows) -> Reply:
    """Say what became of each row."""
    sequence = report.message.sequence
    accepted = len(report.batch.since(expected - sequence))
    return Reply(
        stored.directive,
        max(expected, report.following),
        accepted=accepted,
        duplicates=len(report.batch) - accepted,
        rejected=report.rejected[:MAX_REJECTED_LISTED],
    )


def record_gap(connection: Connection, message: StepReport, known: RowStream, now: datetime) -> int:
    """Tell about a gap before the rows of a report; returns how many of them were given up.

    Raises:
        Refusal: So many rows that nobody can have measured them.
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
    connection: Connection, job: str, worker: str, rejected: list[RejectedRow], now: datetime
) -> None:
    """Tell about the first rows of a worker that cannot be used; later ones are only counted."""
    row = rejected[0]
    why = f"{len(rejected)} measured iterations of {worker} cannot be used and are left out: "
    more = "; more of them are counted and not told again"
    facts = {"worker": worker, "rows": len(rejected), "first": row.sequence}
    record_event(
        connection, job, now, "rows_rejected", f"{why}row {row.sequence}: {row.why}{more}", facts
    )
