"""No follower loses an event or sees one twice, on any controller, however often it connects."""

from __future__ import annotations

import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import Engine

from scavenger.schemas.events import EventView
from service.api import streams
from service.api.followers import EventWindow
from service.db import jobs
from service.db.jobs import ToldEvent
from tests.builders import NOW, spec
from tests.controller_double import until
from tests.integration.house import KEYS
from tests.laws.test_event_order_laws import Act, Writer, follower_sees_all
from tests.streams import follow, streaming

WRITERS, EVENTS_EACH, LAST = 3, 60, "the last"


def event(number: int) -> ToldEvent:
    view = EventView(
        sequence=number, job="job_0", at=datetime.now(UTC), kind="test", message="", data={}
    )
    return ToldEvent(view, "default")


@given(
    batches=st.lists(st.lists(st.integers(1, 3), max_size=4), max_size=8),
    floor=st.integers(0, 5),
    most=st.integers(1, 6),
    asked=st.lists(st.integers(0, 100), max_size=6),
)
def test_a_window_has_every_event_after_a_number_or_says_that_it_may_not(
    batches: list[list[int]], floor: int, most: int, asked: list[int]
) -> None:
    window, known, number = EventWindow(floor), [], floor
    for steps in batches:
        found = []
        for step in steps:  # numbers have gaps
            number += step
            found.append(event(number))
        window.add(found, most)
        known += found
        assert window.newest == number
        assert len(window.events) <= most
        for after in asked:
            answer = window.after(after)
            wanted = [each for each in known if each.view.sequence > after]
            assert answer is None or list(answer) == wanted
            assert (answer is None) is (after < window.floor)


@dataclass
class Reader:
    """A follower of one job, or of all, and what it was told."""

    job: str | None
    said: list[str] = field(default_factory=list)

    def has_read(self, message: str) -> bool:
        return self.job not in (None, message.partition(":")[0]) or message in self.said


def write(
    engine: Engine, names: Sequence[str], seed: int, readers: Sequence[Reader], told: list[str]
) -> list[list[str]]:
    """Say many things in transactions, and return what was committed.

    Sometimes one stays open until all readers know what any writer committed last. Its own events,
    which were inserted before, would then be lost if they had their numbers since.
    """
    chance = random.Random(seed)
    with engine.connect() as connection:
        writer = Writer(connection)
        for _ in range(EVENTS_EACH):
            act: Act = chance.choice(["say", "say", "commit", "roll back"])
            if writer.open and chance.random() < 0.3:
                until(
                    lambda last=told[-1:]: all(r.has_read(said) for r in readers for said in last)
                )
            spoken = writer.open[-1:] if act == "commit" else []
            writer.act(act, chance.choice(names))
            told += spoken
        writer.act("commit", "")
    return writer.committed


def read_on(urls: Sequence[str], reader: Reader, seed: int) -> None:
    """Follow until the last event; hang up at random, and go on at any controller."""
    chance, last = random.Random(seed), 0
    path = "/v1/events" if reader.job is None else f"/v1/jobs/{reader.job}/events"
    for connection in count():
        # The header of a browser that connects again, or the parameter of a program.
        ways = {"Last_Event_ID": str(last)} if chance.random() < 0.5 else {}
        asked = path if ways else f"{path}?after={last}"
        patience = chance.choice([1, 2, 5, 20, 1000])
        comments = 0
        assert connection < 1000
        with follow(chance.choice(urls), KEYS.home_token, asked, **ways) as frames:
            for frame in frames:
                comments += frame.kind == "comment"
                assert comments < 5, "a minute of silence: it waits for what it has lost"
                if frame.kind != "event":
                    continue
                assert frame.number == frame.data["sequence"] > last
                last = frame.number
                if frame.data["message"] == LAST:
                    return
                reader.said.append(frame.data["message"])
                patience -= 1
                if patience == 0:
                    break
    raise AssertionError


def test_no_follower_of_two_controllers_loses_an_event_or_sees_one_twice(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    # So little that followers often ask for what is not in memory any more.
    monkeypatch.setattr(streams, "MAX_EVENTS_KEPT", 10)
    monkeypatch.setattr(streams, "MAX_EVENTS_READ", 7)
    names = ["job_0", "job_1"]
    with engine.begin() as connection:
        for name in names:
            jobs.create(connection, name, spec(), NOW)
    with (
        streaming(engine, KEYS) as one,
        streaming(engine, KEYS) as other,
        ThreadPoolExecutor(WRITERS + 6) as pool,
    ):
        urls = [one.url, other.url]
        readers = [Reader(job) for job in [*names, None] * 2]
        reading = [pool.submit(read_on, urls, one, seed) for seed, one in enumerate(readers)]
        last = list[str]()
        writers = [
            pool.submit(write, engine, names, seed, readers, last) for seed in range(WRITERS)
        ]
        told = [each for writer in writers for each in writer.result()]
        with engine.begin() as connection:
            for name in names:
                jobs.record_event(connection, name, NOW, "test", LAST)
        for reader, done in zip(readers, reading, strict=True):
            done.result()
            follower_sees_all(reader.said, told, reader.job)
