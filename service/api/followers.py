"""What an open stream shows and remembers, and the frames that it sends."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field

from sqlalchemy import Connection

from scavenger.schemas.base import View
from scavenger.schemas.events import EventView, JobNewsView
from scavenger.schemas.jobs import JobView
from scavenger.schemas.telemetry import LogLineView
from service.auth.permissions import EVERY_PROJECT, UserPrincipal
from service.db import jobs, log_lines
from service.db.jobs import ToldEvent

MAX_LINES_READ = 500


@dataclass(frozen=True, slots=True)
class StreamFilter:
    """What a stream shows.

    Attributes:
        project: The project of its token, or every one.
        job: The one job; None for all.
        kinds: Of which kinds its events are; empty for all.
    """

    project: str
    job: str | None = None
    kinds: frozenset[str] = frozenset()

    def shows_job(self, job: str, project: str) -> bool:
        """Tell whether a job may be shown, and is wanted."""
        return self.project in (EVERY_PROJECT, project) and self.job in (None, job)

    def shows(self, event: ToldEvent) -> bool:
        """Tell whether an event may be shown, and is wanted."""
        is_wanted = not self.kinds or event.view.kind in self.kinds
        return is_wanted and self.shows_job(event.view.job, event.project)


@dataclass(frozen=True, slots=True)
class LineFilter:
    """Which lines of a job's commands a stream shows.

    Attributes:
        job: The job.
        machine: The one machine; None for all.
    """

    job: str
    machine: str | None = None


@dataclass(slots=True)
class EventWindow:
    """The newest events, without a gap.

    Attributes:
        floor: Number below which events may be missing here.
        events: All events above it, by number.
    """

    floor: int
    events: list[ToldEvent] = field(default_factory=list)

    @property
    def newest(self) -> int:
        """The number up to which every event is known."""
        return self.events[-1].view.sequence if self.events else self.floor

    def add(self, found: Sequence[ToldEvent], most: int) -> None:
        """Add the events that follow, and forget the oldest beyond so many."""
        self.events += found
        if surplus := self.events[:-most]:
            self.floor = surplus[-1].view.sequence
            del self.events[: len(surplus)]

    def after(self, number: int) -> Sequence[ToldEvent] | None:
        """Return the events after a number; None where some may be missing here."""
        if number < self.floor:
            return None
        return self.events[bisect_right(self.events, number, key=event_number) :]


def event_number(event: ToldEvent) -> int:
    """Return the number of an event, by which a window is in order."""
    return event.view.sequence


@dataclass(frozen=True, slots=True)
class JobNews:
    """What changed about a job, as it is sent.

    Attributes:
        number: Counts all such changes that this controller has sent.
        tag: Version of the job.
        looked_at: When the job was last compared with this, by the clock of this computer.
    """

    number: int
    job: str
    project: str
    tag: str
    frame: bytes
    looked_at: float


@dataclass(eq=False, slots=True)
class OpenStream:
    """A stream that a follower reads.

    Attributes:
        wanted: What it shows: events and changes of jobs, or lines.
        position: Number of the last event or line that was sent, or left out on purpose.
        news: Number of the last change of a job that was sent.
        has_news: Set when there may be more to send, or the stream is over.
        is_over: Whether it ends as soon as its follower has taken what was sent.
        dropped: How many lines it has said are not kept.
    """

    holder: UserPrincipal
    wanted: StreamFilter | LineFilter
    position: int
    news: int
    has_news: asyncio.Event = field(default_factory=asyncio.Event)
    is_over: bool = False
    dropped: int = 0

    def end(self) -> None:
        """End the stream; its follower connects again, or is refused."""
        self.is_over = True
        self.has_news.set()


def missed_events(
    wanted: StreamFilter, after: int, most: int, connection: Connection
) -> tuple[int, list[EventView]]:
    """Return a number up to which all events are visible, and the wanted ones after another."""
    # In this order: all up to the first answer are in the second.
    newest = jobs.newest_event_number(connection)
    found = jobs.events_after(
        connection,
        wanted.job,
        after,
        most,
        project=wanted.project,
        kinds=wanted.kinds,
    )
    return newest, found


def missed_lines(
    wanted: LineFilter, after: int, connection: Connection
) -> tuple[list[LogLineView], int, bool]:
    """Return the lines after a number, how many are not kept, and whether it is the job's end.

    What is not kept is counted only where there are new lines, since that takes longest.
    """
    # The job first: once it has ended, the lines that follow are all there will be.
    is_over = jobs.has_ended(connection, wanted.job)
    found = log_lines.lines_after(connection, wanted.job, after, MAX_LINES_READ, wanted.machine)
    dropped = log_lines.count_dropped(connection, wanted.job, wanted.machine) if found else 0
    return found, dropped, is_over and len(found) < MAX_LINES_READ


def event_frame(kind: str, view: View, number: int | None = None) -> bytes:
    r"""Return a frame; one with a number can be continued from.

    >>> event_frame("job", View())
    b'event: job\ndata: {}\n\n'
    """
    start = "" if number is None else f"id: {number}\n"
    return f"{start}event: {kind}\ndata: {view.model_dump_json()}\n\n".encode()


def job_news_view(job: JobView, tag: str) -> JobNewsView:
    """Show what of a job changes while it runs."""
    return JobNewsView(
        job=job.id,
        tag=tag,
        phase=job.phase,
        progress=job.progress,
        accrued=job.cost.accrued,
        eta=job.eta,
    )
