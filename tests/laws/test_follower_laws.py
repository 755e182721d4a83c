"""A client that follows events sees each once and in order, wherever the connection breaks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scavenger.client.core import EventStream, Found, Listing, Sleep
from scavenger.client.errors import ServerFault, TooManyRequests, Unreachable
from scavenger.client.streams import follow_job_events, follow_lines, follow_news
from scavenger.schemas.jobs import JobPhase
from scavenger.schemas.telemetry import LogLineView
from tests.builders import NOW
from tests.unit.test_cli_rendering import ID, event, job_view, problem

BREAKS = st.lists(st.tuples(st.integers(0, 4), st.sampled_from(["end", "lost"])), max_size=6)


class FakeStreams:
    """Answers streams, each for a few frames, and lists of events."""

    def __init__(self, events: int, breaks: list[tuple[int, str]], comments: bool) -> None:
        self.events, self.breaks, self.comments = events, iter(breaks), comments
        self.open: EventStream | None = None
        self.lines: Iterator[str | Unreachable | None] = iter(())

    def answer(self, step: Any) -> Any:
        if isinstance(step, Sleep):
            return None
        if isinstance(step, EventStream):
            if step is not self.open:
                self.open, self.lines = step, self.frames(int(step.parameters.get("after", 0)))
            return next(self.lines)
        if step.path.endswith("/events"):
            rest = range(int(step.parameters["after"]) + 1, self.events + 1)
            found = [json.loads(event(number).model_dump_json()) for number in rest]
            return httpx.Response(200, json={"events": found})
        is_over = next(self.breaks, None) is None
        phase = JobPhase.SUCCEEDED if is_over else JobPhase.TRAINING
        return httpx.Response(200, text=job_view(phase).model_dump_json())

    def frames(self, after: int) -> Iterator[str | Unreachable | None]:
        most, how = next(self.breaks, (self.events, "end"))
        yield from ("retry: 2000", "")
        for number in range(after + 1, min(after + most, self.events) + 1):
            if self.comments:
                yield ":"
            yield from (f"id: {number}", "event: event")
            yield from (f"data: {event(number).model_dump_json()}", "")
        yield Unreachable("", "lost") if how == "lost" else None


def carry_out(items: Listing[Any], answer: Any, most: int = 100) -> list[Any]:
    found, outcome = list[Any](), None
    while len(found) < most:
        try:
            is_lost = isinstance(outcome, Unreachable)
            step = items.throw(outcome) if is_lost else items.send(outcome)
        except StopIteration:
            break
        if isinstance(step, Found):
            found.append(step.item)
            outcome = None
        else:
            outcome = answer(step)
    return found


@given(st.integers(0, 9), BREAKS, st.booleans())
def test_no_event_of_a_job_is_lost_or_doubled(
    events: int, breaks: list[tuple[int, str]], comments: bool
) -> None:
    streams = FakeStreams(events, breaks, comments)
    found = carry_out(follow_job_events(ID, 0), streams.answer)
    assert [each.sequence for each in found] == list(range(1, events + 1))


@given(st.integers(1, 9), BREAKS, st.booleans())
def test_no_event_of_all_is_lost_or_doubled(
    events: int, breaks: list[tuple[int, str]], comments: bool
) -> None:
    streams = FakeStreams(events, [(0, "end"), *breaks], comments)
    found = carry_out(follow_news({}, 0), streams.answer, events)
    assert [each.sequence for each in found] == list(range(1, events + 1))


def test_a_refused_stream_is_an_error() -> None:
    shown = problem(429, code="too_many_requests").model_dump_json()
    with pytest.raises(TooManyRequests):
        carry_out(follow_news({}, None), lambda _: httpx.Response(429, text=shown))


def test_a_controller_that_stays_away_is_given_up() -> None:
    """One that never answered at once, one that did only after half a minute."""
    with pytest.raises(Unreachable):
        carry_out(follow_news({}, None), lambda _: Unreachable("", "refused"))
    streams, slept = FakeStreams(1, [(1, "end")], comments=False), list[float]()

    def answer(step: Any) -> Any:
        if isinstance(step, Sleep):
            slept.append(step.seconds)
            return None
        return Unreachable("", "refused") if slept else streams.answer(step)

    with pytest.raises(Unreachable):
        carry_out(follow_news({}, 0), answer)
    assert sum(slept) >= 30


class FakeLog:
    """Answers streams of lines, each for a few frames, and the job's end with the last line."""

    def __init__(self, lines: int, breaks: list[tuple[int, str]], comments: bool) -> None:
        self.count, self.breaks, self.comments = lines, iter(breaks), comments
        self.open: EventStream | None = None
        self.lines: Iterator[str | Unreachable | None] = iter(())

    def answer(self, step: Any) -> Any:
        if isinstance(step, Sleep):
            return None
        assert isinstance(step, EventStream)
        if step is not self.open:
            assert step.parameters["tail"] == 7
            self.open, self.lines = step, self.frames(int(step.parameters.get("after", 0)))
        return next(self.lines)

    def frames(self, after: int) -> Iterator[str | Unreachable | None]:
        most, how = next(self.breaks, (self.count + 1, "end"))
        yield from ("retry: 2000", ":", "")
        for number in range(after + 1, min(after + most, self.count) + 1):
            if self.comments:
                yield from (":", "event: of a newer controller", "data: x", "")
            line = LogLineView(
                number=number, machine=f"{ID}-w1", role="worker", at=NOW, text="data: \n\n:"
            )
            yield from (f"id: {number}", "event: line", f"data: {line.model_dump_json()}", "")
        if after + most > self.count:
            yield from ("event: end", "data: {}", "")
        yield Unreachable("", "lost") if how == "lost" else None


@given(st.integers(0, 9), BREAKS, st.booleans())
def test_no_line_of_a_job_is_lost_or_doubled_and_its_end_ends_the_stream(
    count: int, breaks: list[tuple[int, str]], comments: bool
) -> None:
    log = FakeLog(count, breaks, comments)
    found = carry_out(follow_lines(f"/v1/jobs/{ID}/logs", {"tail": 7}), log.answer)
    assert [each.number for each in found] == list(range(1, count + 1))


def test_a_log_that_is_no_stream_is_refused_or_stays_away_is_an_error() -> None:
    def follow(answer: Any) -> None:
        carry_out(follow_lines("/v1/jobs/job_1/logs", {"tail": 7}), answer)

    shown = problem(429, code="too_many_requests").model_dump_json()
    with pytest.raises(TooManyRequests):
        follow(lambda _: httpx.Response(429, text=shown))
    request = httpx.Request("GET", "http://here/v1/jobs/job_1/logs")
    page = httpx.Response(200, json={"lines": [], "dropped": 0}, request=request)
    with pytest.raises(ServerFault, match="no stream"):
        follow(lambda _: page)
    with pytest.raises(Unreachable):
        follow(lambda step: None if isinstance(step, Sleep) else Unreachable("", "refused"))
