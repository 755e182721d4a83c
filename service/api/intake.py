"""Intake of measured iterations: each is stored once, and what is missing is said."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Connection

from scavenger.profiling import rows_from
from scavenger.protocol import StepReport
from service import meters
from service.api.refusal import Refusal
from service.db import workers
from service.db.events import say
from service.db.workers import Stream


def take_in(connection: Connection, job: str, message: StepReport, now: datetime) -> int:
    """Store the rows of a report that are new; returns the number of the row expected next.

    Raises:
        Refusal: The worker never said hello; it should, and then send the report again.
    """
    worker = message.worker
    known = workers.stream(connection, worker)
    if known is None:
        raise Refusal("sequence_gap", f"{worker} reports before its hello")
    first = max(known.next_sequence, message.sequence)
    count(message, first, known)
    dropped = say_missing(connection, job, message, known, now)
    fresh = rows_from(message.steps, first - message.sequence)
    if len(fresh):
        workers.store_steps(connection, job, first, message, fresh)
    following = first + len(fresh)
    workers.advance(connection, worker, Stream(following, dropped))
    return following


def count(message: StepReport, first: int, known: Stream) -> None:
    """Count what becomes of the rows of a report, and what is missing before them."""
    repeated = min(first - message.sequence, len(message.steps))
    gap = max(0, message.sequence - known.next_sequence)
    meters.RECORDS.labels("duplicate").inc(repeated)
    meters.RECORDS.labels("accepted").inc(len(message.steps) - repeated)
    meters.RECORDS.labels("dropped").inc(gap)


def say_missing(
    connection: Connection, job: str, message: StepReport, known: Stream, now: datetime
) -> int:
    """Tell about a gap before the rows of a report; returns the rows the worker gave up so far."""
    gap = max(0, message.sequence - known.next_sequence)
    dropped = min(gap, max(0, message.dropped - known.dropped))
    if dropped:
        why = f"{dropped} measured iterations of {message.worker} were dropped: its spool was full"
        say(connection, job, now, "rows_dropped", why, {"rows": dropped})
    if gap > dropped:
        lost = f"{gap - dropped} measured iterations of {message.worker} never arrived"
        say(connection, job, now, "rows_lost", lost)
    return known.dropped + dropped
