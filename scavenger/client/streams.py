"""Follows events and printed lines over server-sent events, and connects again when that breaks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import httpx

from scavenger.client.core import (
    JOB_LOOK_INTERVAL,
    MAX_PAGE_SIZE,
    PATIENT_ATTEMPTS,
    ApiRequest,
    Conversation,
    EventStream,
    Found,
    Listing,
    QueryParameters,
    Sleep,
    get,
    job_path,
    next_page,
    read_error,
    send,
    send_patiently,
)
from scavenger.client.errors import Unreachable
from scavenger.schemas.events import EventList, EventView, JobNewsView
from scavenger.schemas.jobs import JobView
from scavenger.schemas.telemetry import LogLineView

COMMENT = ":"
News = EventView | JobNewsView


def follow_news(wanted: QueryParameters, after: int | None) -> Listing[News]:
    """Yield what happens, without an end.

    Args:
        wanted: Query parameters, such as ``job``.
        after: Number of the event after which to begin; None begins now.
    """
    stream, silence = open_stream("/v1/events", wanted, after), 0
    news = yield from next_news(stream)
    while True:
        silence = 0 if news is not None else silence + 1
        if isinstance(news, EventView):
            after = news.sequence
        if isinstance(news, News):
            yield Found(news)
        if news is None:
            yield Sleep(JOB_LOOK_INTERVAL)
            stream = open_stream("/v1/events", wanted, after)
        try:
            news = yield from next_news(stream)
        except Unreachable:
            if silence >= PATIENT_ATTEMPTS:
                raise
            news = None


def follow_job_events(job: str, after: int) -> Listing[EventView]:
    """Yield the events of a job after a number, until it has ended."""
    path, look = f"{job_path(job)}/events", get(JobView, job_path(job))
    found = yield from send(look)
    stream: EventStream | None = None
    while not found.phase.is_final:
        stream = stream or open_stream(path, {}, after)
        try:
            news = yield from next_news(stream)
        except Unreachable:
            news = None
        match news:
            case EventView():
                after = news.sequence
                yield Found(news)
            case JobNewsView() if not news.phase.is_final:
                continue
            case None:
                stream = None
                yield Sleep(JOB_LOOK_INTERVAL)
                found = yield from send_patiently(look)
            case _:
                # Silence for a while: the end may have come before the stream began.
                found = yield from send_patiently(look)
    yield from list_job_events(path, after)


def listen_once(job: str, after: int) -> Listing[News | None]:
    """Yield what one stream of a job says after an event, None where it says nothing yet."""
    stream = open_stream(f"{job_path(job)}/events", {}, after)
    while (news := (yield from next_news(stream))) is not None:
        yield Found(news if isinstance(news, News) else None)


def list_job_events(path: str, after: int) -> Listing[EventView]:
    """Yield the events of a job after a number that there are by now."""
    following: ApiRequest[EventList] | None
    following = get(EventList, path, {"after": after, "limit": MAX_PAGE_SIZE})
    while following is not None:
        page = yield from send_patiently(following)
        for event in page.events:
            yield Found(event)
        following = next_page(following, page)


def open_stream(path: str, wanted: QueryParameters, after: int | None) -> EventStream:
    """Return a stream of what comes after a number, or from now on."""
    return EventStream(path, wanted if after is None else {**wanted, "after": after})


def next_news(stream: EventStream) -> Conversation[News | str | None]:
    """Return the next news of a stream, a comment where it is silent, None where it ended.

    Raises:
        Unreachable: The connection broke.
        ErrorResponse: The controller refuses the stream.
    """
    while True:
        frame = yield from next_frame(stream)
        if not isinstance(frame, StreamFrame):
            return frame
        read = READERS.get(frame.kind)
        if read is not None:
            return read(frame.data)


READERS: dict[str, Callable[[str], News]] = {
    "event": EventView.model_validate_json,
    "job": JobNewsView.model_validate_json,
}


def follow_lines(path: str, wanted: QueryParameters) -> Listing[LogLineView]:
    """Yield lines of a job's commands as they come, until it has ended.

    Args:
        path: Path of the job's logs.
        wanted: Query parameters: ``tail``, and ``machine`` or not.

    Raises:
        Unreachable: The controller was away for long.
        ErrorResponse: It refuses the stream, such as to a token that was revoked meanwhile.
    """
    stream, silence = EventStream(path, wanted), 0
    while True:
        try:
            frame = yield from next_frame(stream)
        except Unreachable:
            if silence >= PATIENT_ATTEMPTS:
                raise
            frame = None
        match frame:
            case StreamFrame("end"):
                return
            case StreamFrame("line", data):
                line = LogLineView.model_validate_json(data)
                wanted = {**wanted, "after": line.number}
                yield Found(line)
            case _:
                pass  # a comment, a frame of a newer controller, or the end of the connection
        silence = 0 if frame is not None else silence + 1
        if frame is None:
            yield Sleep(JOB_LOOK_INTERVAL)
            stream = EventStream(path, wanted)


@dataclass(frozen=True, slots=True)
class StreamFrame:
    """One frame of a stream.

    Attributes:
        kind: What its data are.
        data: A document.
    """

    kind: str
    data: str


def next_frame(stream: EventStream) -> Conversation[StreamFrame | str | None]:
    """Return the next frame of a stream, a comment where it is silent, None where it ended.

    Raises:
        Unreachable: The connection broke.
        ErrorResponse: The controller refuses the stream, or does not know it.
    """
    fields = dict[str, str]()
    while True:
        line = yield stream
        if isinstance(line, httpx.Response):
            raise read_error(line, stream.path)
        if line is None:
            return None
        if line.startswith(COMMENT):
            return COMMENT
        if line:
            name, _, value = line.partition(":")
            fields[name] = value.removeprefix(" ")
            continue
        if "event" in fields:
            return StreamFrame(fields["event"], fields.get("data", ""))
        fields = {}  # such as `retry`
