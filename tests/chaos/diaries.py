"""Diaries: what the workers of a job wrote down, and which of it counts.

A turn is one attempt to form a generation, ordered by generation and revision. A turn begins at the
first iteration it attempts; it undoes what older turns attempted from there on.
"""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from scavenger.layout import Layout
from tests.chaos.shared_workers import PLAN
from tests.integration.shared import join_weights

Turn = tuple[int, int]


@dataclass(frozen=True)
class Attempt:
    """What one worker wrote before it sent its gradient of an iteration.

    Attributes:
        begun: Minibatches since the pipeline was empty, if it is asynchronous.
    """

    worker: str
    turn: Turn
    members: tuple[str, ...]
    batch: int
    iteration: int
    start: int
    indices: tuple[int, ...]
    at: float
    begun: int = 0


@dataclass(frozen=True)
class Visit:
    """What one worker wrote when it had fetched the weights of an evaluation of L-BFGS."""

    worker: str
    generation: int
    evaluation: int
    weights: tuple[float, ...]
    at: float


@dataclass(frozen=True)
class Ending:
    """What a worker wrote in the end."""

    worker: str
    ended: str
    samples: int
    weights: tuple[float, ...]


@dataclass(frozen=True)
class Part:
    """Samples that one worker took in one pass, from this position on."""

    start: int
    count: int


@dataclass(frozen=True)
class Iteration:
    """One applied iteration."""

    turn: Turn
    number: int
    start: int
    batch: int
    attempts: tuple[Attempt, ...]
    at: float

    @property
    def parts(self) -> tuple[Part, ...]:
        """The passes it was made of, in the order of samples."""
        parts, start = [], self.start
        for attempt in self.attempts:
            parts.append(Part(start, len(attempt.indices)))
            start += len(attempt.indices)
        return tuple(parts)


@dataclass(frozen=True)
class Diaries:
    """Everything the workers of one job wrote."""

    attempts: tuple[Attempt, ...]
    endings: tuple[Ending, ...]
    visits: tuple[Visit, ...] = ()


def read(directory: Path, layout: Layout) -> Diaries:
    """Read the diaries of workers with a layout; a killed one may have written half a line."""
    attempts, endings, visits = [], [], []
    for path in sorted(directory.glob("*.jsonl")):
        for line in path.read_text().splitlines():
            try:
                row = json.loads(line)
            except ValueError:
                continue
            if "ended" in row:
                for weights in ends_of(row["weights"], path, layout):
                    endings.append(Ending(path.stem, row["ended"], row["samples"], tuple(weights)))
            elif "evaluation" in row:
                row["weights"] = tuple(row["weights"])
                visits.append(Visit(path.stem, **row))
            else:
                row["turn"] = (row["turn"][0], row["turn"][1])
                row |= {name: tuple(row[name]) for name in ("members", "indices")}
                attempts.append(Attempt(path.stem, **row))
    return Diaries(tuple(attempts), tuple(endings), tuple(visits))


def ends_of(weights: list[float], diary: Path, layout: Layout) -> list[list[float]]:
    """Return the weights that a worker has in the end, of each replica of its stages.

    There are none if a process was struck as it ended.
    """
    if layout.is_plain:
        return [weights]
    parts = [diary.with_suffix(f".{place}.part") for place in range(layout.processes)]
    if not all(part.exists() for part in parts):
        return []
    own = [json.loads(part.read_text()) for part in parts]
    if not layout.is_asynchronous:
        return [join_weights(own, layout, PLAN)]
    plain = Layout(layout.pipeline)
    stages = [layout.positions(stage) for stage in range(layout.pipeline)]
    return [
        join_weights([own[places[turn % len(places)]] for places in stages], plain, {})
        for turn in range(max(layout.replicas))
    ]


def by_turn(attempts: tuple[Attempt, ...]) -> dict[Turn, dict[int, list[Attempt]]]:
    """Sort attempts by turn and iteration, oldest turn first."""
    turns: dict[Turn, dict[int, list[Attempt]]] = {}
    for turn in sorted({attempt.turn for attempt in attempts}):
        turns[turn] = defaultdict(list)
        for attempt in attempts:
            if attempt.turn == turn:
                turns[turn][attempt.iteration].append(attempt)
    return turns


def applied(attempts: tuple[Attempt, ...]) -> list[Iteration]:
    """Return the iterations that count, in order."""
    found: dict[int, Iteration] = {}
    for turn, iterations in by_turn(attempts).items():
        first = min(iterations)
        found = {number: it for number, it in found.items() if number < first}
        for number, tried in iterations.items():
            ranks = {worker: rank for rank, worker in enumerate(tried[0].members)}
            ordered = tuple(sorted(tried, key=lambda a: ranks.get(a.worker, -1)))
            head, at = ordered[0], max(attempt.at for attempt in ordered)
            found[number] = Iteration(turn, number, head.start, head.batch, ordered, at)
    return [found[number] for number in sorted(found)]
