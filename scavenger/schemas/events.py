"""Schemas of events: what happened to jobs, in the order in which it became visible."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from scavenger.schemas.base import MoneyView, View
from scavenger.schemas.jobs import EtaView, JobPhase, ProgressView


class EventView(View):
    """One event of a job, with a sentence that explains it.

    Attributes:
        sequence: Its number among the events of all jobs, which grows, with gaps.
        job: Its job; empty in an answer of a controller of before.
    """

    sequence: int
    job: str = ""
    at: datetime
    kind: str
    message: str
    data: dict[str, Any]


class EventList(View):
    """One page of events, oldest first."""

    events: list[EventView]
    next_cursor: str | None = None


class JobNewsView(View):
    """What changed about a job, as a stream says it.

    Attributes:
        tag: ETag of the job; one that differs from that of an earlier answer says that it is old.
        accrued: Spent so far.
    """

    job: str
    tag: str
    phase: JobPhase
    progress: ProgressView
    accrued: MoneyView
    eta: EtaView | None = None
