"""Event streams (server-sent events): what happened, what changed about jobs, what they print.

One task of a controller reads new events once for all its streams and keeps the last of them in
memory. A stream remembers the number of the last event it sent, and asks the database only for what
is older than that memory. Numbers appear in order (ADR 31), so none is lost and none comes twice,
whichever controller a follower connects to. A stream of lines asks for those of its own job.

Routes are synchronous elsewhere; many connections that mostly wait are what async is for.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from functools import partial
from itertools import takewhile
from typing import Annotated, TypeVar

from anyio import CapacityLimiter
from anyio.to_thread import run_sync
from fastapi import Depends, Header
from sqlalchemy import Connection
from sqlalchemy.exc import SQLAlchemyError
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from scavenger.schemas.base import View
from scavenger.schemas.jobs import JobView
from scavenger.schemas.telemetry import LogDropView
from service.api.dependencies import AppState, FromApp
from service.api.etag import JobETag
from service.api.followers import (
    EventWindow,
    JobNews,
    LineFilter,
    OpenStream,
    StreamFilter,
    event_frame,
    job_news_view,
    missed_events,
    missed_lines,
)
from service.api.negotiation import names_media
from service.api.openapi import JsonObject
from service.api.problems import ApiProblem
from service.auth.permissions import UserPrincipal
from service.db import access, jobs, sessions, workers
from service.db.jobs import StoredJob

log = logging.getLogger(__name__)

STREAM_MEDIA_TYPE = "text/event-stream"
# With a comment, by which a follower sees that from now on it misses nothing.
FIRST_FRAME = b"retry: 2000\n:\n\n"
COMMENT_FRAME = b":\n\n"
COMMENT_INTERVAL = 15.0  # a proxy closes what is silent for longer, often after a minute
AUTHORISATION_INTERVAL = 30.0
POLL_INTERVAL = 1.0  # reports of progress announce nothing, and a notification may be lost
LINES_INTERVAL = 1.0  # lines that another controller stores announce nothing
READ_INTERVAL = 0.02  # what is announced within it is read in one go
JOB_INTERVAL = 1.0  # between two frames about one job
MAX_STREAMS = 8  # of a token
MAX_EVENTS_READ = 500
MAX_EVENTS_KEPT = 2000
MAX_JOBS_READ = 16  # in one go; each takes about a millisecond of processor
JOBS_INTERVAL = 0.25  # between two goes, so that very many jobs leave the controller responsive
MAX_JOBS_KEPT = 1000
READER_THREADS = 2  # requests have others

AnswerT = TypeVar("AnswerT")
ShowJobs = Callable[[AppState, Connection, Sequence[StoredJob]], list[JobView]]


class EventStreams:
    """The open streams of a controller.

    ``wake``, ``note_job``, ``note_lines`` and ``end_streams`` may be called by any thread; all else
    belongs to the event loop. Nothing is read while no stream is open.

    Args:
        app_state: The controller.
        show_jobs: Returns jobs as the API shows them.
    """

    def __init__(self, app_state: AppState, show_jobs: ShowJobs) -> None:
        self._app_state, self._show_jobs = app_state, show_jobs
        self._threads = CapacityLimiter(READER_THREADS)
        self._streams: set[OpenStream] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._reader: asyncio.Task[None] | None = None
        self._has_news = asyncio.Event()
        self._window = EventWindow(0)
        self._changed: dict[str, None] = {}
        self._job_news: dict[str, JobNews] = {}
        self._news_count = 0
        self._reported: Mapping[str, datetime] | None = None
        self._reports_due_at = self._jobs_due_at = 0.0

    def wake(self) -> None:
        """Look for new events."""
        self._call(self._has_news.set)

    def note_job(self, job: str) -> None:
        """Look at a job that may have changed."""
        self._call(partial(self._note_jobs, [job]))

    def note_lines(self, job: str) -> None:
        """Look for new lines of a job."""
        self._call(partial(self._wake_streams, job))

    def end_streams(self, *, token: str | None = None, session: str | None = None) -> None:
        """End the streams of a token or of a session, which is not valid any more."""
        self._call(partial(self._end_streams_of, token, session))

    def close(self) -> None:
        """End all streams, before the controller ends."""
        for stream in self._streams:
            stream.end()
        if self._reader is not None:
            self._reader.cancel()

    async def open(
        self,
        request: Request,
        holder: UserPrincipal,
        wanted: StreamFilter | LineFilter,
        after: int | None,
    ) -> StreamingResponse:
        """Return a stream of what comes after a number, or of events from now on.

        Raises:
            ApiProblem: The token has as many streams as it may have.
        """
        if Counter(each.holder.token for each in self._streams)[holder.token] >= MAX_STREAMS:
            why = f"this token has {MAX_STREAMS} streams here; close one, or share one among pages"
            raise ApiProblem("too_many_requests", why)
        stream = OpenStream(holder, wanted, 0, self._news_count)
        self._streams.add(stream)
        close = partial(self._streams.discard, stream)
        is_open = False
        try:
            newest = await self._read(jobs.newest_event_number)
            # A number above the newest is from before a backup was restored.
            most = newest if isinstance(wanted, StreamFilter) else after
            stream.position = newest if after is None or most is None else min(after, most)
            if self._reader is None or self._reader.done():
                self._begin_to_read(newest)
            is_open = True
        finally:
            if not is_open:
                close()
        request.scope["is_stream"] = True
        return StreamResponse(self._frames(stream), close)

    async def _frames(self, stream: OpenStream) -> AsyncIterator[bytes]:
        """Yield the frames of a stream until it is over."""
        yield FIRST_FRAME
        now = time.monotonic()
        silent_until, valid_until = now + COMMENT_INTERVAL, now + AUTHORISATION_INTERVAL
        try:
            while not stream.is_over:
                stream.has_news.clear()
                match stream.wanted:
                    case LineFilter() as wanted:
                        frames = await self._new_lines(stream, wanted)
                        next_look = time.monotonic() + LINES_INTERVAL
                    case StreamFilter() as wanted:
                        frames, next_look = await self._new_frames(stream, wanted), silent_until
                if frames:
                    yield b"".join(frames)
                    silent_until = time.monotonic() + COMMENT_INTERVAL
                else:
                    await wait_until(stream.has_news, min(silent_until, valid_until, next_look))
                now = time.monotonic()
                if now >= silent_until:
                    yield COMMENT_FRAME
                    silent_until = now + COMMENT_INTERVAL
                if now >= valid_until:
                    if not await self._read(partial(self._is_valid, stream.holder)):
                        return
                    valid_until = now + AUTHORISATION_INTERVAL
        except SQLAlchemyError as error:
            # Its holder cannot be judged, nor what it missed be read: the follower asks again.
            log.info("a stream ends, since the database does not answer: %s", error)

    async def _new_lines(self, stream: OpenStream, wanted: LineFilter) -> list[bytes]:
        """Return the lines that a stream has not sent, and its end where none will come."""
        found, dropped, is_last = await self._read(partial(missed_lines, wanted, stream.position))
        stream.position = found[-1].number if found else stream.position
        stream.is_over |= is_last
        lines = [event_frame("line", line, line.number) for line in found]
        if dropped > stream.dropped:
            stream.dropped = dropped
            lines.insert(0, event_frame("dropped", LogDropView(dropped=dropped)))
        return [*lines, event_frame("end", View())] if is_last else lines

    async def _new_frames(self, stream: OpenStream, wanted: StreamFilter) -> list[bytes]:
        """Return what a stream has not sent, or the first ``MAX_EVENTS_READ`` events of it."""
        told = self._window.after(stream.position)
        if told is None:
            missed = partial(missed_events, wanted, stream.position, MAX_EVENTS_READ)
            newest, found = await self._read(missed)
            is_all = len(found) < MAX_EVENTS_READ
            stream.position = max([newest if is_all else 0, *(each.sequence for each in found)])
        else:
            found = [event.view for event in told if wanted.shows(event)]
            stream.position = told[-1].view.sequence if told else stream.position
        news = [
            each.frame
            for each in self._news_after(stream.news)
            if wanted.shows_job(each.job, each.project)
        ]
        stream.news = self._news_count
        return [*(event_frame("event", view, view.sequence) for view in found), *news]

    def _news_after(self, number: int) -> Iterable[JobNews]:
        """Yield the changes of jobs after a number, newest first."""
        return takewhile(lambda each: each.number > number, reversed(self._job_news.values()))

    def _is_valid(self, holder: UserPrincipal, connection: Connection) -> bool:
        """Tell whether token and session of a stream are still valid."""
        now = self._app_state.now()
        if holder.session is not None:
            session = sessions.find_session(connection, holder.session)
            return session is not None and session.invalid_reason(now) is None
        token = access.token_by_id(connection, holder.token)
        return token is not None and token.invalid_reason(now) is None

    def _begin_to_read(self, newest: int) -> None:
        """Read events after a number, and changes of jobs, as long as streams are open."""
        self._loop, self._window = asyncio.get_running_loop(), EventWindow(newest)
        self._changed, self._job_news, self._reported = {}, {}, None
        self._reader = asyncio.create_task(self._read_on())

    async def _read_on(self) -> None:
        """Read news for all streams until none is open."""
        try:
            while self._streams:
                self._has_news.clear()
                try:
                    await self._read_events()
                    await self._read_jobs()
                except SQLAlchemyError as error:
                    log.info("streams wait for the database, which does not answer: %s", error)
                await asyncio.sleep(READ_INTERVAL)
                await wait_until(self._has_news, self._next_look())
        finally:
            self._loop = None
            # However this task ended: a follower that connects again starts another.
            for stream in self._streams:
                stream.end()

    async def _read_events(self) -> None:
        """Read the events that follow, and let all streams send them."""
        after = self._window.newest
        told = await self._read(lambda each: jobs.told_after(each, after, MAX_EVENTS_READ))
        if told:
            self._window.add(told, MAX_EVENTS_KEPT)
            self._wake_streams()
            self._note_jobs(event.view.job for event in told)
        if len(told) == MAX_EVENTS_READ:
            self._has_news.set()

    async def _read_jobs(self) -> None:
        """Look at jobs that may have changed, each once a second at most."""
        now = time.monotonic()
        if now >= self._reports_due_at:
            self._reports_due_at = now + POLL_INTERVAL
            reported = await self._read(workers.last_reports)
            known, self._reported = self._reported, reported
            if known is not None:
                self._note_jobs(job for job, at in reported.items() if known.get(job) != at)
        due = [job for job in self._changed if now >= self._due_at(job)][:MAX_JOBS_READ]
        if not due or now < self._jobs_due_at:
            return
        self._jobs_due_at = now + JOBS_INTERVAL
        wanted = {s.wanted for s in self._streams if isinstance(s.wanted, StreamFilter)}
        for job in due:
            del self._changed[job]
        shown = await self._read(partial(self._look_at, due, wanted))
        for found, view in shown:
            self._add_news(found.project, view, now)
        self._wake_streams()

    def _look_at(
        self, names: Sequence[str], wanted: Iterable[StreamFilter], connection: Connection
    ) -> list[tuple[StoredJob, JobView]]:
        """Return those jobs that a stream shows, with what the API shows of them."""
        found = [jobs.find(connection, name) for name in names]
        shown = [
            job
            for job in found
            if job is not None and any(each.shows_job(job.id, job.project) for each in wanted)
        ]
        return list(zip(shown, self._show_jobs(self._app_state, connection, shown), strict=True))

    def _add_news(self, project: str, view: JobView, now: float) -> None:
        """Keep what changed about a job, unless it is as it was."""
        tag, known = str(JobETag.of(view)), self._job_news.get(view.id)
        if known is not None and known.tag == tag:
            self._job_news[view.id] = replace(known, looked_at=now)
            return
        self._news_count += 1
        # At the end of the dictionary, which is thus in order of the numbers.
        self._job_news.pop(view.id, None)
        frame = event_frame("job", job_news_view(view, tag))
        self._job_news[view.id] = JobNews(self._news_count, view.id, project, tag, frame, now)
        if len(self._job_news) > MAX_JOBS_KEPT:
            del self._job_news[next(iter(self._job_news))]

    def _note_jobs(self, names: Iterable[str]) -> None:
        self._changed |= dict.fromkeys(names)
        if self._changed:
            self._has_news.set()

    def _due_at(self, job: str) -> float:
        """Return from when on a job may be looked at again, by the clock of this computer."""
        known = self._job_news.get(job)
        return 0.0 if known is None else known.looked_at + JOB_INTERVAL

    def _next_look(self) -> float:
        """Return when to read without being woken, by the clock of this computer."""
        poll = time.monotonic() + POLL_INTERVAL
        return min(
            poll, max(min(map(self._due_at, self._changed), default=poll), self._jobs_due_at)
        )

    def _wake_streams(self, printing: str | None = None) -> None:
        """Wake the streams of events, or those of the lines of a job."""
        for stream in self._streams:
            shown = stream.wanted.job if isinstance(stream.wanted, LineFilter) else None
            if shown == printing:
                stream.has_news.set()

    def _end_streams_of(self, token: str | None, session: str | None) -> None:
        for stream in self._streams:
            is_of_session = session is not None and stream.holder.session == session
            if is_of_session or stream.holder.token == token:
                stream.end()

    async def _read(self, ask: Callable[[Connection], AnswerT]) -> AnswerT:
        """Ask the database on one of the threads for streams."""

        def ask_it() -> AnswerT:
            with self._app_state.engine.connect() as connection:
                return ask(connection)

        return await run_sync(ask_it, limiter=self._threads)

    def _call(self, act: Callable[[], None]) -> None:
        """Let the event loop do something; without streams there is nothing to do."""
        loop = self._loop
        if loop is not None:
            with suppress(RuntimeError):  # it has just ended, and its streams with it
                loop.call_soon_threadsafe(act)


class StreamResponse(StreamingResponse):
    """A stream of frames, which gives its place free however it ends."""

    media_type = STREAM_MEDIA_TYPE

    def __init__(self, frames: AsyncIterator[bytes], close: Callable[[], None]) -> None:
        # nginx would otherwise keep frames back until it has enough of them.
        super().__init__(frames, headers={"X-Accel-Buffering": "no"})
        self._close = close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._close()


Streams = Annotated[EventStreams, Depends(FromApp("streams"))]
LastNumber = Annotated[
    int | None,
    Header(
        alias="Last-Event-ID",
        description="Number of the last frame that the follower has; a stream goes on after it, "
        "and no parameter of the address says where it begins",
        ge=0,
        le=2**53,
    ),
]


def stream_content(frames: str) -> JsonObject:
    """Describe the stream that an address answers beside its document.

    Args:
        frames: Which frames it sends.
    """
    return {STREAM_MEDIA_TYPE: {"schema": {"type": "string", "description": frames}}}


def wants_stream(request: Request) -> bool:
    """Tell whether a request asks for a stream instead of a document."""
    return names_media(request.headers.get("accept", ""), STREAM_MEDIA_TYPE)


async def wait_until(event: asyncio.Event, end: float) -> None:
    """Wait for an event, or until a moment by the clock of this computer."""
    with suppress(TimeoutError):
        async with asyncio.timeout(max(0.0, end - time.monotonic())):
            await event.wait()
