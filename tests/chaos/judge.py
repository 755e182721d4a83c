"""Judge: from what the workers wrote down, whether training was what it had to be."""

from __future__ import annotations

import math
import threading
from functools import lru_cache

from tests.chaos import pipedream, sandblaster
from tests.chaos.diaries import Attempt, Diaries, Iteration, Part, Turn, applied, by_turn
from tests.chaos.networks import SAMPLES, SEED, find_network
from tests.chaos.script import EPOCHS, Script
from worker_agent.sampler import SampleOrder, SampleRange

CLOSE = 1e-9
ALONE = threading.Lock()
STRAGGLING = 2  # attempts of a worker that woke up late: one may be complete, one fails


def verdict(script: Script, diaries: Diaries) -> list[str]:
    """Return everything that is wrong with a run, in sentences."""
    order = applied(diaries.attempts)
    done = [ending for ending in diaries.endings if ending.ended == "target"]
    if not done:
        return ["no worker finished"]
    if script.strategy == "sandblaster":
        with ALONE:
            return sandblaster.wrong_points(diaries, done)
    wrong = [*wrong_reductions(diaries.attempts), *wrong_samples(order), *zombies(diaries.attempts)]
    if script.strategy == "pipedream":
        wrong += pipedream.wrong_minibatches(order)
        with ALONE:
            expected = pipedream.replay(script, order)
    elif script.is_steady:
        expected = fault_free(order[0].batch, script.framework)
        if len(order) != iterations_without_faults(order[0].batch):
            wrong.append(f"{len(order)} iterations instead of those of a run without faults")
    else:
        parts = tuple(part for it in order for part in it.parts)
        expected = replay(parts, boundaries(order), script)
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
