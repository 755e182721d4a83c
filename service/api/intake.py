"""Intake of measured iterations: each is stored once, and what is missing is said."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection

from scavenger.protocol import Rejected, Reply, StepReport
from service import meters
from service.api.refusal import Refusal
from service.api.sieve import Sieved
from service.db import streams
from service.db.batch import NAMES, Batch, Series
from service.db.events import say
from service.db.streams import Condition, Piece, Stored, Stream

COMPUTE, SYNC = NAMES.index("compute_time"), NAMES.index("sync_time")
MOST_VERDICTS = 1_000
LARGEST_GAP = 10**12


@dataclass(frozen=True, slots=True)
class Intake:
    """What became of a report.

    Attributes:
        stored: What the database said.
        reply: The answer.
    """

    stored: Stored
    reply: Reply


def take_in(connection: Connection, sieved: Sieved, now: datetime) -> Intake:
    """Store the rows of a report that are new.

    The row expected is nearly always the first of the report, so that is tried at once; only if it
    is another are they compared, while nobody else may move the cursor.

    A copy that comes after a later report says nothing of where its worker stands now.

    Raises:
        Refusal: The worker never said hello; it should, and then send the report again.
    """
    message = sieved.message
    first, dropped, condition = message.sequence, 0, Condition.of(message)
    stored = streams.store(connection, first, piece_of(sieved, first, dropped, condition), now)
    if stored is None:
        known = streams.hold(connection, message.worker)
        if known is None:
            raise Refusal("sequence_gap", f"{message.worker} reports before its hello")
        dropped = say_missing(connection, message, known, now)
        first = known.next_sequence
        condition = known.condition if sieved.following < first else condition
        stored = streams.store(connection, first, piece_of(sieved, first, dropped, condition), now)
        assert stored is not None
    rejected = [row for row in sieved.rejected if row.sequence >= first]
    if rejected and stored.rejected == len(rejected):
        say_rejected(connection, stored.job, message.worker, rejected, now)
    reply = reply_to(sieved, first, stored)
    count(len(rejected), reply)
    meters.ITERATIONS.observe(parts_of(sieved.batch.since(first - message.sequence)))
    return Intake(stored, reply)


def count(rejected: int, reply: Reply) -> None:
    """Count what became of the rows of a report."""
    meters.RECORDS.labels("accepted").inc(reply.accepted)
    meters.RECORDS.labels("duplicate").inc(reply.duplicates)
    meters.RECORDS.labels("rejected").inc(rejected)


def parts_of(batch: Batch) -> dict[str, Series]:
    """Return what the seconds of iterations were spent on."""
    return {"compute": batch.series[COMPUTE], "sync": batch.series[SYNC]}


def piece_of(sieved: Sieved, expected: int, dropped: int, condition: Condition) -> Piece:
    """Return what is new in a report, once it is known which row is expected."""
    message = sieved.message
    return Piece(
        message.worker,
        message.progress.generation,
        sequence=max(expected, message.sequence),
        following=max(expected, sieved.following),
        dropped=dropped,
        rejected=sum(row.sequence >= expected for row in sieved.rejected),
        batch=sieved.batch.since(expected - message.sequence),
        condition=condition,
    )


def reply_to(sieved: Sieved, expected: int, stored: Stored) -> Reply:
    """Say what became of each row."""
    sequence = sieved.message.sequence
    accepted = len(sieved.batch.since(expected - sequence))
    return Reply(
        stored.directive,
        max(expected, sieved.following),
        accepted=accepted,
        duplicates=len(sieved.batch) - accepted,
        rejected=sieved.rejected[:MOST_VERDICTS],
    )


def say_missing(connection: Connection, message: StepReport, known: Stream, now: datetime) -> int:
    """Tell about a gap before the rows of a report; returns how many of them were given up.

    Raises:
        Refusal: So many rows that nobody can have measured them.
    """
    gap = max(0, message.sequence - known.next_sequence)
    if gap > LARGEST_GAP:
        raise Refusal("validation", f"sequence: {known.next_sequence} is expected")
    meters.RECORDS.labels("dropped").inc(gap)
    dropped = min(gap, max(0, message.dropped - known.dropped))
    if dropped:
        why = f"{dropped} measured iterations of {message.worker} were dropped: its spool was full"
        say(connection, known.job, now, "rows_dropped", why, {"rows": dropped})
    if gap > dropped:
        lost = f"{gap - dropped} measured iterations of {message.worker} never arrived"
        say(connection, known.job, now, "rows_lost", lost, {"rows": gap - dropped})
    return dropped


def say_rejected(
    connection: Connection, job: str, worker: str, rejected: list[Rejected], now: datetime
) -> None:
    """Tell about the first rows of a worker that cannot be used; later ones are only counted."""
    row = rejected[0]
    why = f"{len(rejected)} measured iterations of {worker} cannot be used and are left out: "
    more = "; more of them are counted and not told again"
    facts = {"worker": worker, "rows": len(rejected), "first": row.sequence}
    say(connection, job, now, "rows_rejected", f"{why}row {row.sequence}: {row.why}{more}", facts)
