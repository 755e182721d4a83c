"""Outcome: what a seed showed, and what happened besides."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from scavenger.protocol import Directive
from tests.chaos.controller import Controller
from tests.chaos.diaries import Diaries, Iteration, Turn, applied
from tests.chaos.script import Kind


@dataclass
class Outcome:
    """What a seed showed.

    Attributes:
        plan: How the workers trained together.
        wrong: What is wrong, in sentences; empty when all is well.
        fired: Faults that struck, by kind.
        recoveries: Seconds from the kill of a worker to the survivors' next iteration.
        helped: The same where the controller's Directive was needed.
        pause: Longest time without an applied iteration.
    """

    seed: int
    plan: str = ""
    wrong: list[str] = field(default_factory=list)
    fired: Counter[Kind] = field(default_factory=Counter)
    recoveries: list[float] = field(default_factory=list)
    helped: list[float] = field(default_factory=list)
    iterations: int = 0
    resizes: int = 0
    repairs: int = 0
    parted: int = 0
    ordered: int = 0
    aborts: int = 0
    refusals: int = 0
    silenced: int = 0
    restarts: int = 0
    returned: int = 0
    resumed: int = 0
    pause: float = 0.0
    duration: float = 0.0


@dataclass(frozen=True)
class Kill:
    """A worker that was killed while it trained with others."""

    worker: str
    at: float


def describe(
    outcome: Outcome, controller: Controller, kills: Sequence[Kill], diaries: Diaries
) -> None:
    """Count what happened besides."""
    if controller.script.strategy == "sandblaster":
        describe_visits(outcome, diaries)
        return
    order = applied(diaries.attempts)
    outcome.iterations = len(order)
    outcome.pause = max((b.at - a.at for a, b in pairwise(order)), default=0.0)
    ways = {turn: order_of(order, turn)[0] for turn in sorted({it.turn for it in order})}
    generations = {generation for generation, _ in ways}
    outcome.resizes = len(generations) - 1
    killed = {kill.worker for kill in kills} | controller.lost
    for before, after in pairwise(ways.values()):
        if after.turn[1] == 0:
            continue
        gone = set(before.attempts[0].members) - set(after.attempts[0].members)
        outcome.repairs += bool(gone & killed)
        outcome.parted += not gone & killed
    directives = [directive for _, directive in controller.published]
    outcome.ordered = sum(d.repairs and d.generation in generations for d in directives)
    outcome.silenced = controller.silenced
    log = "".join(
        path.read_text(errors="replace") for path in controller.conductor.directory.glob("*.log")
    )
    outcome.aborts = len({line for line in log.splitlines() if "is cancelled" in line})
    outcome.refusals = len({line for line in log.splitlines() if "is refused" in line})
    outcome.resumed = log.count("training continues from iteration")
    outcome.returned = comebacks(directives)
    attempted = [attempt for attempt in diaries.attempts if attempt.iteration == 0]
    outcome.restarts = len({attempt.turn for attempt in attempted}) - 1
    measure_recoveries(outcome, kills, order)


def describe_visits(outcome: Outcome, diaries: Diaries) -> None:
    """Count what happened besides in a job whose iterations are evaluations of L-BFGS."""
    first: dict[int, float] = {}
    for visit in diaries.visits:
        first[visit.evaluation] = min(visit.at, first.get(visit.evaluation, visit.at))
    outcome.iterations = len(first)
    outcome.resizes = len({visit.generation for visit in diaries.visits}) - 1
    outcome.pause = max((b - a for a, b in pairwise(sorted(first.values()))), default=0.0)


def comebacks(directives: list[Directive]) -> int:
    """Count the times a worker that stood by was named again."""
    aside: set[str] = set()
    count = 0
    for directive in directives:
        named = {member.worker for member in directive.members}
        count += len(aside & named)
        aside = (aside | set(directive.standby)) - named
    return count


def order_of(order: list[Iteration], turn: Turn) -> list[Iteration]:
    """Return a turn's applied iterations."""
    return [it for it in order if it.turn == turn]


def measure_recoveries(outcome: Outcome, kills: Sequence[Kill], order: list[Iteration]) -> None:
    """Note how long survivors took from a kill to their next iteration."""
    for kill in kills:
        before = [it for it in order if it.at <= kill.at]
        if not before or kill.worker not in before[-1].attempts[0].members:
            continue
        then = before[-1]
        now = next((it for it in order if it.at > kill.at and it.turn > then.turn), None)
        if now is None:
            continue
        survivors = set(then.attempts[0].members) & set(now.attempts[0].members)
        if not survivors or kill.worker in now.attempts[0].members:
            continue
        is_alone = now.turn[1] > 0
        (outcome.recoveries if is_alone else outcome.helped).append(now.at - kill.at)
