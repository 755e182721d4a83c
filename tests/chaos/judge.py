"""Judge: from what the workers wrote down, whether training was what it had to be.

A turn is one attempt to form a generation, ordered by generation and revision. A turn begins at the
first iteration it attempts; it undoes what older turns attempted from there on.
"""

from __future__ import annotations

import json
import math
import threading
from collections import defaultdict
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from scavenger.layout import Layout
from tests.chaos.networks import SAMPLES, SEED, find_network
from tests.chaos.script import EPOCHS, Script
from tests.chaos.shared_workers import PLAN
from tests.integration.shared import join_weights
from worker_agent.sampler import SampleOrder, SampleRange

CLOSE = 1e-9
ALONE = threading.Lock()
STRAGGLING = 2  # attempts of a worker that woke up late: one may be complete, one fails

Turn = tuple[int, int]


@dataclass(frozen=True)
class Attempt:
    """What one worker wrote before it sent its gradient of an iteration."""

    worker: str
    turn: Turn
    members: tuple[str, ...]
    batch: int
    iteration: int
    start: int
    indices: tuple[int, ...]
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


def read(directory: Path, layout: Layout) -> Diaries:
    """Read the diaries of workers with a layout; a killed one may have written half a line."""
    attempts, endings = [], []
    for path in sorted(directory.glob("*.jsonl")):
        for line in path.read_text().splitlines():
            try:
                row = json.loads(line)
            except ValueError:
                continue
            if "ended" in row:
                weights = row["weights"]
                if not layout.is_plain:
                    stem, places = path.stem, range(layout.processes)
                    parts = [directory / f"{stem}.{place}.part" for place in places]
                    if not all(part.exists() for part in parts):  # one was struck as it ended
                        continue
                    own = [json.loads(part.read_text()) for part in parts]
                    weights = join_weights(own, layout, PLAN)
                endings.append(Ending(path.stem, row["ended"], row["samples"], tuple(weights)))
                continue
            turn, members = (row["turn"][0], row["turn"][1]), tuple(row["members"])
            facts = (row["batch"], row["iteration"], row["start"], tuple(row["indices"]), row["at"])
            attempts.append(Attempt(path.stem, turn, members, *facts))
    return Diaries(tuple(attempts), tuple(endings))


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


def verdict(script: Script, diaries: Diaries) -> list[str]:
    """Return everything that is wrong with a run, in sentences."""
    order = applied(diaries.attempts)
    done = [ending for ending in diaries.endings if ending.ended == "target"]
    if not order or not done:
        return ["no worker finished"]
    wrong = [*wrong_reductions(diaries.attempts), *wrong_samples(order), *zombies(diaries.attempts)]
    expected = replay(tuple(part for it in order for part in it.parts), boundaries(order), script)
    if script.is_steady:
        expected = fault_free(order[0].batch, script.framework)
        if len(order) != iterations_without_faults(order[0].batch):
            wrong.append(f"{len(order)} iterations instead of those of a run without faults")
    last = {attempt.worker for attempt in order[-1].attempts}
    for ending in done:
        distance = max(abs(a - b) for a, b in zip(ending.weights, expected, strict=True))
        if ending.worker in last and not distance <= CLOSE:
            wrong.append(f"{ending.worker} ends with weights {distance:.1e} off")
    return wrong


def wrong_reductions(attempts: tuple[Attempt, ...]) -> list[str]:
    """Name iterations that some went on from though not all members of their turn took part."""
    wrong = []
    for turn, iterations in by_turn(attempts).items():
        groups = {attempt.members for tried in iterations.values() for attempt in tried}
        if len(groups) > 1:
            wrong.append(f"turn {turn} has members {groups}")
        for number in sorted(iterations)[:-1]:
            there = {attempt.worker for attempt in iterations[number]}
            if there != set(iterations[number][0].members):
                wrong.append(f"iteration {number} of turn {turn} went on with only {there}")
    return wrong


def wrong_samples(order: list[Iteration]) -> list[str]:
    """Name applied iterations that do not take exactly the samples that come next."""
    samples, wrong, position = SampleOrder(SAMPLES, SEED), [], 0
    for number, it in enumerate(order):
        taken = [index for attempt in it.attempts for index in attempt.indices]
        expected = samples.indices(SampleRange(position, it.batch)).tolist()
        if (it.number, it.start) != (number, position) or taken != expected:
            wrong.append(f"iteration {it.number} of turn {it.turn} takes wrong samples")
        position += it.batch
    return wrong[:3]


def zombies(attempts: tuple[Attempt, ...]) -> list[str]:
    """Name workers that trained on in a turn that others had left behind."""
    began = {turn: min(a.at for its in t.values() for a in its) for turn, t in turns(attempts)}
    wrong = []
    for worker in sorted({attempt.worker for attempt in attempts}):
        mine = [attempt for attempt in attempts if attempt.worker == worker]
        late = [
            a.iteration
            for a in mine
            if any(turn > a.turn and at < a.at for turn, at in began.items())
        ]
        if len(set(late)) > STRAGGLING:
            wrong.append(f"{worker} trained {len(set(late))} iterations in a turn left behind")
    return wrong


def turns(attempts: tuple[Attempt, ...]) -> list[tuple[Turn, dict[int, list[Attempt]]]]:
    """Return the turns, oldest first."""
    return list(by_turn(attempts).items())


def boundaries(order: list[Iteration]) -> tuple[int, ...]:
    """Return how many passes each iteration was made of."""
    return tuple(len(it.attempts) for it in order)


def iterations_without_faults(batch: int) -> int:
    """Return how many iterations a run of one batch takes, counted as the agent counts."""
    epochs, iterations = 0.0, 0
    while epochs < EPOCHS:
        epochs, iterations = epochs + batch / SAMPLES, iterations + 1
    return iterations


@lru_cache
def fault_free(batch: int, framework: str) -> list[float]:
    """Return the weights of one process that nothing ever happens to."""
    count = iterations_without_faults(batch)
    parts = tuple(Part(number * batch, batch) for number in range(count))
    return train(parts, (1,) * count, dropout=0.0, framework=framework)


def replay(parts: tuple[Part, ...], passes: tuple[int, ...], script: Script) -> list[float]:
    """Return the weights of one process that makes the same passes, one after the other."""
    if script.is_steady:
        return []
    return train(parts, passes, dropout=script.dropout, framework=script.framework)


def train(
    parts: tuple[Part, ...], passes: tuple[int, ...], *, dropout: float, framework: str
) -> list[float]:
    """Train one process on these passes, so many of them per iteration."""
    with ALONE:  # a process has one random stream
        samples = SampleOrder(SAMPLES, SEED)
        network = find_network(framework)(dropout)
        left = iter(parts)
        for count in passes:
            mine = [next(left) for _ in range(count)]
            batch = math.fsum(part.count for part in mine)
            for part in mine:
                network.seed(part.start)
                indices = samples.indices(SampleRange(part.start, part.count))
                network.add(indices, part.count / batch)
            network.step()
        return network.weights()
