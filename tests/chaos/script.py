"""Script: what happens in one seed, drawn at random before it begins."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from random import Random
from typing import Literal

from scavenger.layout import PLAIN, Layout
from scavenger.stack import EAGER_NAME

BATCHES = (12, 24, 37, 60)
MOST_WORKERS, MOST_SHARED = 4, 3
EPOCHS = 16
# Of half of the jobs in PyTorch each step has one of these, which compute what eager does.
STACKS = (EAGER_NAME, "fused", "compiled_whole", "compiled_whole+fused")
# Of a third of the jobs in PyTorch each worker is two processes that share the model.
LAYOUTS = (
    Layout(2),
    Layout(2, micro_batches=2),
    Layout(2, micro_batches=3),
    Layout(tensor=2),
    Layout(shard=2),
)
SHARED = 1 / 3
SAME = 0.15  # of the steps surely keep their number of workers: who they are changes, or the batch
MIDST = 0.06  # seconds after a Directive is out: the change is under way


class Kind(Enum):
    """What can go wrong; the value is what the table calls it."""

    KILL = "a worker killed"
    KILL_LEADER = "the leader killed"
    KILL_NEWCOMER = "a newcomer killed"
    KILL_TWO = "two killed at once"
    KILL_AT_MEETING = "a worker killed on its way to a change"
    STOP = "a worker stopped for a while"
    STOP_AT_MEETING = "a worker stopped on its way to a change"
    DRAIN = "a worker told to end"
    DROP = "connections dropped"
    REFUSE = "controller down"
    MUTE = "controller never answers"
    ERROR = "controller answers 500"
    FORGET = "controller's answers lost"


TRAPS = (Kind.KILL_AT_MEETING, Kind.STOP_AT_MEETING)  # laid before the change, for one follower
OUTAGES = (Kind.REFUSE, Kind.MUTE, Kind.ERROR, Kind.FORGET)
WEIGHTS = {
    Kind.KILL: 3,
    Kind.KILL_LEADER: 3,
    Kind.KILL_NEWCOMER: 3,
    Kind.KILL_TWO: 1,
    Kind.KILL_AT_MEETING: 2,
    Kind.STOP: 4,
    Kind.STOP_AT_MEETING: 2,
    Kind.DRAIN: 3,
    Kind.DROP: 4,
    Kind.REFUSE: 1,
    Kind.MUTE: 1,
    Kind.ERROR: 1,
    Kind.FORGET: 1,
}
Swap = Literal["none", "leader", "follower", "all"]


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that goes wrong.

    Attributes:
        after: Seconds after its moment.
        moment: The step's beginning, or the moment its Directive is out.
        length: Seconds it lasts, if it lasts.
        pick: Number from 0 to 1 that picks the victim.
    """

    kind: Kind
    after: float
    moment: Literal["begin", "published"]
    length: float
    pick: float


@dataclass(frozen=True, slots=True)
class Step:
    """One change of plan, and what goes wrong meanwhile.

    Attributes:
        swap: Who is replaced by a new machine.
        keeps: Whether workers that are left out stand by, to be named again later.
        rest: Seconds from its Directive to the next step.
        stack: Stack of each worker.
    """

    workers: int
    global_batch: int
    swap: Swap
    keeps: bool
    faults: tuple[Fault, ...]
    rest: float
    stack: str = EAGER_NAME


@dataclass(frozen=True, slots=True)
class Script:
    """Everything that is decided before a seed is played.

    Attributes:
        is_steady: Whether the global batch never changes; then the weights in the end must be those
            of one process that nothing happens to.
        dropout: Fraction of activations dropped.
        most_local_batch: Samples a worker's memory holds; None when it is unknown.
        split_every: How often a lone worker splits its batch.
        pace: Seconds between two iterations at the least.
        framework: What the workers train with.
        layout: How the processes of each worker share the model.
    """

    seed: int
    is_steady: bool
    dropout: float
    most_local_batch: int | None
    split_every: int
    pace: float
    steps: tuple[Step, ...]
    framework: str = "pytorch"
    layout: Layout = PLAIN


def write(seed: int, framework: str = "pytorch") -> Script:
    """Draw the script of a seed."""
    random = Random(seed)
    is_steady = seed % 2 == 0
    is_dropping = not is_steady and random.random() < 0.6
    is_tight = not is_steady and random.random() < 0.3
    first = random.choice((24, 30))
    steps = []
    for number in range(random.randint(3, 5)):
        workers = random.randint(1, MOST_WORKERS)
        if steps and random.random() < SAME:
            workers = steps[-1].workers
        batch = first if is_steady else random.choice(BATCHES)
        batch = min(batch, 24 * workers) if is_tight else batch
        steps.append(write_step(random, workers, batch, is_first=number == 0))
    choices = Random(f"stacks of {seed}")
    if framework == "pytorch" and choices.random() < 0.5:
        steps = [replace(step, stack=choices.choice(STACKS)) for step in steps]
    made = Script(
        seed=seed,
        is_steady=is_steady,
        dropout=0.2 if is_dropping else 0.0,
        most_local_batch=24 if is_tight else None,
        split_every=random.choice((0, 0, 5)),
        pace=random.choice((0.004, 0.008, 0.012)),
        steps=tuple(steps),
        framework=framework,
    )
    draws = Random(f"layout of {seed}")
    is_shared = framework == "pytorch" and draws.random() < SHARED
    return share(made, draws.choice(LAYOUTS)) if is_shared else made


def share(script: Script, layout: Layout) -> Script:
    """Return the same with workers of several processes, as far as those can do it.

    Stacks are for models of one process, and micro-batches drop activations of their own. Processes
    of one machine lose no connections to each other; what drops all of a process's is left out.
    """
    steps = tuple(
        replace(
            step,
            stack=EAGER_NAME,
            workers=min(step.workers, MOST_SHARED),
            faults=tuple(fault for fault in step.faults if fault.kind is not Kind.DROP),
        )
        for step in script.steps
    )
    return replace(script, layout=layout, dropout=0.0, steps=steps)


def write_step(random: Random, workers: int, batch: int, *, is_first: bool) -> Step:
    """Draw one step; the first one only lets training begin, more often than not unharmed."""
    swap: Swap = "none"
    if not is_first and random.random() < 0.35:
        swap = random.choice(("leader", "follower", "all"))
    most = random.choice((0, 0, 1)) if is_first else random.choice((0, 1, 1, 2))
    faults = tuple(write_fault(random) for _ in range(most))
    keeps = random.random() < 0.5
    return Step(workers, batch, swap, keeps, faults, rest=random.uniform(0.15, 0.5))


def write_fault(random: Random) -> Fault:
    """Draw one fault; most fall into the midst of a change."""
    (kind,) = random.choices(list(WEIGHTS), list(WEIGHTS.values()))
    moment: Literal["begin", "published"] = "published"
    if kind in (*OUTAGES, *TRAPS) or random.random() < 0.15:
        moment = "begin"
    after = random.uniform(0, MIDST) if random.random() < 0.65 else random.uniform(MIDST, 0.4)
    if kind in TRAPS:
        after = 0.0
    length = random.choice((random.uniform(0.1, 0.6), random.uniform(0.6, 3.0)))
    return Fault(kind, after, moment, length, random.random())
