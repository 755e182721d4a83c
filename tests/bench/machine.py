"""The computer's own speed, measured in the same run as what is held against it.

A figure in milliseconds says little on another computer. Beside it stand how long the same computer
takes to write a page through to its disk, to commit one row, and to run a loop of Python.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Engine, text

from tests.bench.load import percentile

PAGE = b"\0" * 8192
REPEATS = 200
LOOP = 100_000


@dataclass(frozen=True, slots=True)
class Speed:
    """How long this computer takes, in seconds.

    Attributes:
        sync: To write 8 KiB through to the disk, each time, ascending.
        commit: To commit one row, each time, ascending.
        loop: For a loop of 100 000 additions in Python, at best.
    """

    sync: tuple[float, ...]
    commit: tuple[float, ...]
    loop: float

    def __str__(self) -> str:
        sync, commit = (
            f"p50 {percentile(taken, 0.5) * 1e3:.2f} ms, p99 {percentile(taken, 0.99) * 1e3:.2f} ms"
            for taken in (self.sync, self.commit)
        )
        return (
            f"this computer: fdatasync of 8 KiB {sync}; commit of one row {commit}; "
            f"{LOOP:,} additions in Python {self.loop * 1e3:.1f} ms"
        )


def measure(directory: Path, engine: Engine) -> Speed:
    """Measure the disk under a directory, a database, and the processor."""
    with (directory / "page").open("wb", buffering=0) as page:
        sync = repeat(lambda: write_through(page.fileno()))
    (directory / "page").unlink()
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE IF NOT EXISTS speed (n bigint)"))
    commit = repeat(lambda: commit_row(engine))
    with engine.begin() as connection:
        connection.execute(text("DROP TABLE speed"))
    return Speed(sync, commit, min(repeat(add_up, 20)))


def repeat(do: Callable[[], object], times: int = REPEATS) -> tuple[float, ...]:
    """Return the seconds that each repeat took, ascending."""
    taken = []
    for _ in range(times):
        began = time.perf_counter()
        do()
        taken.append(time.perf_counter() - began)
    return tuple(sorted(taken))


def write_through(file: int) -> None:
    os.pwrite(file, PAGE, 0)
    os.fdatasync(file)


def commit_row(engine: Engine) -> None:
    with engine.begin() as connection:
        connection.execute(text("INSERT INTO speed VALUES (1)"))


def add_up() -> int:
    total = 0
    for number in range(LOOP):
        total += number
    return total
