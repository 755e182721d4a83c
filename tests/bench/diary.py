"""Diary: when a training process did what, so that both ways of resizing are timed alike."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Boot:
    """A process came up; moments are seconds of the clock all processes share.

    Attributes:
        started: Before it imported anything.
        imported: When it had imported all it needs.
    """

    started: float
    imported: float


@dataclass(frozen=True, slots=True)
class Iteration:
    """An iteration was completed.

    Attributes:
        workers: Workers that shared its batch.
        began: When its samples were known.
        ended: When the optimizer had stepped.
    """

    workers: int
    began: float
    ended: float


@dataclass(frozen=True, slots=True)
class Gap:
    """No iteration ran while the number of workers changed.

    Attributes:
        change: Workers of the last iteration and of the next.
        began: When the last iteration ended.
        duration: Seconds until the next began.
        boots: The processes that came up meanwhile.
    """

    change: tuple[int, int]
    began: float
    duration: float
    boots: tuple[Boot, ...]


class Diary:
    """A file of one JSON object per line; processes that follow each other append to it."""

    def __init__(self, path: Path) -> None:
        self.lines = path.open("a", buffering=1)

    def note(self, entry: Boot | Iteration) -> None:
        """Append an entry."""
        self.lines.write(json.dumps(asdict(entry)) + "\n")


def read(path: Path) -> list[Boot | Iteration]:
    """Return the entries so far; a line that is being written is left out."""
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    facts = [json.loads(line) for line in lines]
    return [Iteration(**each) if "workers" in each else Boot(**each) for each in facts]


def gaps(entries: list[Boot | Iteration]) -> list[Gap]:
    """Find the changes of the number of workers."""
    found, boots = [], []
    last: Iteration | None = None
    for entry in entries:
        if isinstance(entry, Boot):
            boots.append(entry)
            continue
        if last is not None and last.workers != entry.workers:
            change, duration = (last.workers, entry.workers), entry.began - last.ended
            found.append(Gap(change, last.ended, duration, tuple(boots)))
        last, boots = entry, []
    return found
