"""Follower: reads all events while they happen, of each job and over all jobs."""

from __future__ import annotations

import random
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress

import httpx
from sqlalchemy import Connection, Engine, select
from sqlalchemy.exc import DBAPIError

from service.db import jobs as events
from service.db import schema

PAUSE = 0.1
Numbers = list[int]


class Follower:
    """Asks any controller for what comes after the last event it saw, again and again.

    Args:
        jobs: Those that are followed, which become more.
        ask: Returns the answer of some controller to a path.
        engine: The database, where all jobs are followed at once.
        chance: Draws how much is asked for, and how much of what was seen is forgotten.

    Attributes:
        wrong: What was told one way and then another.
    """

    def __init__(
        self,
        jobs: Mapping[str, int],
        ask: Callable[[str], httpx.Response],
        engine: Engine,
        chance: random.Random,
    ) -> None:
        self.jobs, self.ask, self.engine, self.chance = jobs, ask, engine, chance
        self.wrong: list[str] = []
        self._seen: defaultdict[str, Numbers] = defaultdict(list)
        self._all: Numbers = []
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="follower")

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join()

    def judge(self) -> Iterator[str]:
        """Look once more, when nothing happens any longer, and say what was missed."""
        with self.engine.connect() as connection:
            connection.execution_options(isolation_level="REPEATABLE READ")
            rows = connection.execute(select(schema.events.c.sequence, schema.events.c.job)).all()
            for job in self.jobs:
                seen = self._seen[job]
                seen += [
                    one.sequence
                    for one in events.events_after(connection, job, last_of(seen), 1000)
                ]
                yield from missed(job, seen, [row.sequence for row in rows if row.job == job])
            everything = self._all + numbers_after(connection, last_of(self._all), len(rows))
            yield from missed("all jobs", everything, [row.sequence for row in rows])
        yield from self.wrong

    def _run(self) -> None:
        while not self._stopping.wait(PAUSE):
            with suppress(httpx.TransportError, DBAPIError):
                for job in list(self.jobs):
                    self._follow(job, self.chance.randint(1, 5))
                self._follow_all(self.chance.randint(1, 20))

    def _follow(self, job: str, limit: int) -> None:
        kept = self._kept(self._seen[job])
        answer = self.ask(f"/v1/jobs/{job}/events?after={last_of(kept)}&limit={limit}")
        if answer.is_success:
            found = [event["sequence"] for event in answer.json()["events"]]
            self._seen[job] = self._joined(job, kept, self._seen[job], found)

    def _follow_all(self, limit: int) -> None:
        kept = self._kept(self._all)
        with self.engine.connect() as connection:
            found = numbers_after(connection, last_of(kept), limit)
        self._all = self._joined("all jobs", kept, self._all, found)

    def _kept(self, seen: Numbers) -> Numbers:
        """Return what is still known, as one that was cut off may have lost the end."""
        is_cut_off = seen and self.chance.random() < 0.1
        return seen[: self.chance.randrange(len(seen))] if is_cut_off else seen

    def _joined(self, what: str, kept: Numbers, seen: Numbers, found: Numbers) -> Numbers:
        known = seen[len(kept) :]
        if found[: len(known)] != known[: len(found)]:
            self.wrong.append(f"{what}: after {kept[-1:]} came {known}, and then {found}")
        return seen if len(found) < len(known) else kept + found


def last_of(seen: Numbers) -> int:
    """Return the number after which to ask."""
    return seen[-1] if seen else 0


def numbers_after(connection: Connection, after: int, limit: int) -> Numbers:
    """Return the numbers of the next events of all jobs."""
    number = schema.events.c.sequence
    query = select(number).where(number > after).order_by(number).limit(limit)
    return list(connection.execute(query).scalars())


def missed(what: str, seen: Sequence[int], there: Sequence[int]) -> Iterator[str]:
    """Say which events a follower did not see, or saw in another order."""
    if list(seen) != sorted(there):
        yield f"{what}: of {len(there)} events a follower saw {len(seen)}, not in order or not all"
