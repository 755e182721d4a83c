"""Draw: makes the script of a seed at random, before it is played."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from random import Random
from typing import Literal

from scavenger.layout import Layout
from scavenger.stack import EAGER_NAME
from tests.chaos.networks import SAMPLES
from tests.chaos.script import OUTAGES, SERVED, TRAPS, Fault, Kind, Script, Step, Swap

BATCHES = (12, 24, 37, 60)
MOST_WORKERS = 4
# Of half of the jobs in PyTorch each step has one of these, which compute what eager does.
STACKS = (EAGER_NAME, "fused", "compiled_whole", "compiled_whole+fused")
# Of a third of the jobs in PyTorch each worker is several processes that share the model.
LAYOUTS = (
    Layout(2),
    Layout(2, micro_batches=2),
    Layout(2, micro_batches=3),
    Layout(3, micro_batches=2),
    Layout(tensor=2),
    Layout(shard=2),
    Layout(shard=3),
    Layout(2, tensor=2),
    Layout(2, tensor=2, micro_batches=2),
    Layout(2, shard=2),
    Layout(tensor=2, shard=2),
    Layout(2, tensor=2, shard=2),
)
MOST_SHARED, MOST_PROCESSES = 3, 16
# Of an eighth the only worker is an asynchronous pipeline.
PIPELINES = (
    Layout(2, replicas=(1, 1), cuts=("3",)),
    Layout(2, replicas=(2, 1), cuts=("3",)),
    Layout(2, replicas=(1, 2), cuts=("5",)),
    Layout(3, replicas=(1, 1, 1), cuts=("3", "5")),
    Layout(3, replicas=(2, 1, 1), cuts=("3", "7")),
)
# An eighth trains with L-BFGS on servers.
MOST_SERVERS = 3
SHARED, ASYNCHRONOUS, MINIMISED = 1 / 3, 1 / 8, 1 / 8
SAME = 0.15  # of the steps surely keep their number of workers: who they are changes, or the batch
MIDST = 0.06  # seconds after a Directive is out: the change is under way
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


def write(seed: int, framework: str = "pytorch") -> Script:
    """Draw the script of a seed."""
    random = Random(seed)
    is_steady = seed % 2 == 0
    is_dropping = not is_steady and random.random() < 0.6
    is_tight = not is_steady and random.random() < 0.3
    first = random.choice((24, 30))
    steps: list[Step] = []
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
    choice = draws.random() if framework == "pytorch" else 1.0
    if choice < SHARED:
        return share(made, draws.choice(LAYOUTS))
    if choice < SHARED + ASYNCHRONOUS:
        return overlap(made, draws)
    if choice < SHARED + ASYNCHRONOUS + MINIMISED:
        return minimise(made, draws)
    return made


def kinds_of(framework: str) -> list[Kind]:
    """Return what can go wrong with jobs of a framework."""
    return [kind for kind in Kind if framework == "pytorch" or kind not in SERVED]


def share(script: Script, layout: Layout) -> Script:
    """Return the same with workers of several processes, as far as those can do it.

    Stacks are for models of one process, and micro-batches drop activations of their own. Processes
    of one machine lose no connections to each other; what drops all of a process's is left out.
    """
    most = min(MOST_SHARED, MOST_PROCESSES // layout.processes)
    steps = tuple(
        replace(
            step,
            stack=EAGER_NAME,
            workers=min(step.workers, most),
            faults=tuple(fault for fault in step.faults if fault.kind is not Kind.DROP),
        )
        for step in script.steps
    )
    return replace(script, layout=layout, dropout=0.0, steps=steps)


def overlap(script: Script, random: Random) -> Script:
    """Return the same with one worker, an asynchronous pipeline that keeps checkpoints.

    The worker meets no other, so what strikes a meeting strikes it while it trains. In each script
    one of its processes is killed.
    """
    instead = {
        Kind.KILL_AT_MEETING: Kind.KILL,
        Kind.STOP_AT_MEETING: Kind.STOP,
        Kind.KILL_TWO: Kind.KILL,
        Kind.DROP: Kind.STOP,
    }
    steps = [
        replace(step, stack=EAGER_NAME, workers=1, faults=replace_kinds(step.faults, instead))
        for step in script.steps
    ]
    add_fault(steps, Kind.KILL, random)
    return replace(
        script,
        strategy="pipedream",
        layout=random.choice(PIPELINES),
        dropout=0.0,
        is_steady=False,
        split_every=0,
        checkpoint_every=random.choice((0.05, 0.15, 0.4)),
        steps=tuple(steps),
    )


def minimise(script: Script, random: Random) -> Script:
    """Return the same with L-BFGS on servers, over the whole data set.

    Its workers never meet, so others come and go instead: a coordinator, and results that arrive
    twice. Each script has both.
    """
    instead = {Kind.KILL_AT_MEETING: Kind.KILL_COORDINATOR, Kind.STOP_AT_MEETING: Kind.REPEAT}
    steps = [
        replace(
            step,
            stack=EAGER_NAME,
            keeps=False,
            global_batch=SAMPLES,
            faults=replace_kinds(step.faults, instead),
        )
        for step in script.steps
    ]
    for kind in SERVED:
        add_fault(steps, kind, random)
    return replace(
        script,
        strategy="sandblaster",
        servers=random.randint(1, MOST_SERVERS),
        dropout=0.0,
        is_steady=False,
        most_local_batch=None,
        split_every=0,
        steps=tuple(steps),
    )


def add_fault(steps: list[Step], kind: Kind, random: Random) -> None:
    """Let one of the steps after the first have a fault of this kind, too."""
    place = random.randrange(1, len(steps))
    fault = Fault(kind, random.uniform(0, 0.4), "begin", 0.0, random.random())
    steps[place] = replace(steps[place], faults=(*steps[place].faults, fault))


def replace_kinds(faults: tuple[Fault, ...], instead: Mapping[Kind, Kind]) -> tuple[Fault, ...]:
    """Return the same faults, some of another kind."""
    return tuple(replace(each, kind=instead.get(each.kind, each.kind)) for each in faults)


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
