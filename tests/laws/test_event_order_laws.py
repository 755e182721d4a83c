"""Events become visible in the order of their numbers, in any order of commits: none is skipped."""

from __future__ import annotations

import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import count
from typing import Literal

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection, Engine, text

from scavenger.schemas.events import EventView
from service.db import jobs
from tests.builders import NOW, spec
from tests.controller_double import until

NUMBERS = count(1)
WRITERS, FOLLOWERS, JOBS = 4, 3, 2

Act = Literal["say", "say and take it back", "commit", "roll back"]


@dataclass(frozen=True, slots=True)
class Write:
    """One writer does something; what it says is about one of the jobs."""

    writer: int
    act: Act
    job: int


@dataclass(frozen=True, slots=True)
class Read:
    """One follower asks for what comes after the last event that it keeps of those it has seen.

    Attributes:
        kept: Share of them, as one that connects again has lost the rest.
    """

    follower: int
    kept: float
    limit: int


WRITES = st.builds(
    Write,
    st.integers(0, WRITERS - 1),
    st.sampled_from(["say", "say and take it back", "commit", "roll back"]),
    st.integers(0, JOBS - 1),
)
READS = st.builds(
    Read,
    st.integers(0, FOLLOWERS - 1),
    st.sampled_from([1.0, 1.0, 0.5, 0.0]),
    st.integers(1, 5),
)


@dataclass
class Writer:
    """A connection that says things in transactions.

    Attributes:
        open: What it has said in the transaction that is open.
        committed: What it has said in each that ended well.
    """

    connection: Connection
    open: list[str] = field(default_factory=list)
    committed: list[list[str]] = field(default_factory=list)

    def act(self, act: Act, job: str) -> None:
        """Do one thing."""
        match act:
            case "say":
                self.open.append(self._say(job))
            case "say and take it back":
                step = self.connection.begin_nested()
                self._say(job)
                step.rollback()
            case "commit":
                self.connection.commit()
                self.committed.append(self.open)
                self.open = []
            case "roll back":
                self.connection.rollback()
                self.open = []

    def _say(self, job: str) -> str:
        message = f"{job}: {next(NUMBERS)}"
        jobs.record_event(self.connection, job, NOW, "test", message)
        return message


@dataclass
class Follower:
    """Follows the events of one job, or of all."""

    engine: Engine
    job: str | None
    seen: list[EventView] = field(default_factory=list)

    def read(self, kept: float = 1.0, limit: int = 1000) -> None:
        """Ask for the next events; what was seen before must come again, and as it was."""
        place = round(kept * len(self.seen))
        before, known = self.seen[:place], self.seen[place:]
        found = self._after(before[-1].sequence if before else 0, limit)
        assert found[: len(known)] == known[: len(found)]
        self.seen = [*before, *(found if len(found) > len(known) else known)]

    def _after(self, number: int, limit: int) -> Sequence[EventView]:
        with self.engine.connect() as connection:
            return jobs.events_after(connection, self.job, number, limit)


LATE = [
    Write(0, "say", 0),
    Write(1, "say", 0),
    Write(1, "commit", 0),
    Read(0, 1.0, 5),
    Write(0, "commit", 0),
]


@given(steps=st.lists(WRITES | READS, max_size=40))
@example(steps=LATE)
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_follower_loses_an_event_or_sees_one_twice(
    engine: Engine, steps: list[Write | Read]
) -> None:
    names = [f"job_{next(NUMBERS)}" for _ in range(JOBS)]
    with engine.begin() as connection:
        for name in names:
            jobs.create(connection, name, spec(), NOW)
    watched = (*names, None)
    with ExitStack() as stack:
        writers = [Writer(stack.enter_context(engine.connect())) for _ in range(WRITERS)]
        followers = [Follower(engine, job) for job in watched]
        followers[-1].read()  # what was said before this example began
        known = len(followers[-1].seen)
        for step in steps:
            match step:
                case Write(writer, act, job):
                    writers[writer].act(act, names[job])
                case Read(follower, kept, limit):
                    followers[follower].read(kept, limit)
        for writer in writers:
            writer.act("commit", "")
    told = [one for writer in writers for one in writer.committed]
    for follower in followers:
        follower.read()
        said = [event.message for event in follower.seen]
        follower_sees_all(said[known:] if follower.job is None else said, told, follower.job)


def follower_sees_all(said: list[str], told: list[list[str]], job: str | None) -> None:
    """Check that every transaction's events were seen once, in order."""
    mine = [[m for m in each if job in (None, m.partition(":")[0])] for each in told]
    assert sorted(said) == sorted(message for each in mine for message in each)
    for each in mine:
        assert [message for message in said if message in each] == each


def test_writers_that_commit_at_once_hide_nothing_from_a_follower(engine: Engine) -> None:
    names = [f"job_{number}" for number in range(JOBS)]
    with engine.begin() as connection:
        for name in names:
            jobs.create(connection, name, spec(), NOW)

    def write(seed: int) -> list[list[str]]:
        chance = random.Random(seed)
        with engine.connect() as connection:
            writer = Writer(connection)
            for _ in range(300):
                writer.act(
                    chance.choice(["say", "say", "commit", "roll back"]), chance.choice(names)
                )
            writer.act("commit", "")
        return writer.committed

    followers = [Follower(engine, job) for job in (*names, None)]
    with ThreadPoolExecutor(WRITERS) as pool:
        writers = [pool.submit(write, seed) for seed in range(WRITERS)]
        while not all(writer.done() for writer in writers):
            for follower in followers:
                follower.read()
    told = [each for writer in writers for each in writer.result()]
    for follower in followers:
        follower.read()
        follower_sees_all([event.message for event in follower.seen], told, follower.job)


def test_a_number_that_is_drawn_holds_back_all_later_ones(engine: Engine) -> None:
    """Between the number and the commit is an instant, in which no test above ever looked."""
    with engine.begin() as connection:
        jobs.create(connection, "job_1", spec(), NOW)
    follower = Follower(engine, "job_1")
    with engine.connect() as early, engine.connect() as late, ThreadPoolExecutor(1) as pool:
        writers = [Writer(early), Writer(late)]
        for writer in writers:
            writer.act("say", "job_1")
        early.execute(text("SET CONSTRAINTS ALL IMMEDIATE"))
        committed = pool.submit(writers[1].act, "commit", "job_1")
        until(lambda: committed.done() or is_lock_awaited(engine))
        follower.read()
        writers[0].act("commit", "job_1")
        committed.result()
    follower.read()
    told = [each for writer in writers for each in writer.committed]
    follower_sees_all([event.message for event in follower.seen], told, "job_1")


def is_lock_awaited(engine: Engine) -> bool:
    with engine.connect() as connection:
        query = "SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype = 'advisory'"
        return bool(connection.execute(text(query)).scalar())
