"""Troupe: processes that play stories side by side, each on a database of its own."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from multiprocessing import get_context

from sqlalchemy import create_engine, make_url, text
from sqlalchemy.pool import NullPool

from service.db import partitions
from tests.crash import crashline, virtual_time
from tests.crash.crashline import Kill, Lines
from tests.crash.play import Outcome, Plain, Theatre
from tests.crash.points import borders_of
from tests.crash.scenario import NAMED
from tests.fakecloud.emulator import open_emulator

# The same order of sets, and no threads, in every process.
ENVIRONMENT = {"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
THEATRES: list[Theatre] = []
KEPT = ExitStack()  # until the process ends


@contextmanager
def troupe(template: str, processes: int, cloud: str = "fake") -> Iterator[ProcessPoolExecutor]:
    """Offer processes whose databases are copies of the one at a URL, and which play a cloud."""
    before = dict(os.environ)
    os.environ.update(ENVIRONMENT)
    try:
        with ProcessPoolExecutor(
            processes, get_context("spawn"), initializer=build, initargs=(template, cloud)
        ) as pool:
            yield pool
    finally:
        os.environ.clear()
        os.environ.update(before)


def build(template: str, cloud: str) -> None:
    """Build this process's theatre."""
    crashline.watch(cloud)
    logging.getLogger("service").setLevel(logging.ERROR)
    url = make_url(template)
    name = f"crash{os.getpid()}"
    admin = create_engine(
        url.set(database="postgres"), poolclass=NullPool, isolation_level="AUTOCOMMIT"
    )
    with admin.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name} TEMPLATE {url.database}"))
    mine = url.set(database=name).render_as_string(hide_password=False)
    plain = create_engine(mine, poolclass=NullPool)
    virtual_time.install(plain)
    engine = virtual_time.connect(mine)
    with engine.begin() as connection:
        partitions.create_ahead(connection)
    emulator = KEPT.enter_context(open_emulator(cloud))
    THEATRES.append(Theatre(engine, virtual_time.connect(mine), emulator))


def plain_of(scenario: str) -> Plain:
    """Play a story without a kill."""
    return THEATRES[0].plain(NAMED[scenario])


def play(scenario: str, stories: list[tuple[Kill, ...]]) -> list[Outcome]:
    """Play a story once for each set of kills."""
    theatre, story = THEATRES[0], NAMED[scenario]
    plain = theatre.plain(story)
    return [theatre.play(story, plain, kills) for kills in stories]


def play_borders(scenarios: list[str]) -> list[tuple[str, Outcome]]:
    """Play stories once for each effect at its border, killed right after it."""
    seen: set[object] = set()
    found: list[tuple[str, Outcome]] = []
    for name in scenarios:
        plain = THEATRES[0].plain(NAMED[name])
        kills = borders_of(plain.run, seen)
        found += [(name, one) for one in play(name, [(kill,) for kill in kills])]
    return found


def play_pair(scenario: str, first: float, second: float) -> Outcome:
    """Play a story that is killed at two shares of its lines, the second of those after the first.

    The second is a share of its square, since what a controller does first is what recovery is.
    """
    theatre, story = THEATRES[0], NAMED[scenario]
    plain = theatre.plain(story)
    kill = plain.run.kill(place(first, plain.run))
    rest = theatre.recover(story, plain, kill)
    return theatre.play(story, plain, (kill, rest.kill(place(second**2, rest))))


def place(share: float, run: Lines) -> int:
    """Return the line at a share of all, counted from 1."""
    return 1 + int(share * (len(run.lines) - 1))
