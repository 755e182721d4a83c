"""Script: what happens in one seed; `tests.chaos.draw` makes one at random."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Literal

from scavenger.layout import PLAIN, Layout
from scavenger.protocol import TrainingStrategyName
from scavenger.stack import EAGER_NAME

EPOCHS = 16


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
    KILL_COORDINATOR = "the coordinator killed"
    REPEAT = "a result pushed twice"


TRAPS = (Kind.KILL_AT_MEETING, Kind.STOP_AT_MEETING)  # laid before the change, for one follower
# Of jobs whose workers push to servers; the second waits for the worker's next push.
SERVED = (Kind.KILL_COORDINATOR, Kind.REPEAT)
OUTAGES = (Kind.REFUSE, Kind.MUTE, Kind.ERROR, Kind.FORGET)
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
        strategy: How the workers train together.
        servers: Parameter servers.
        checkpoint_every: Seconds between two checkpoints; 0 for none.
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
    strategy: TrainingStrategyName = "all_reduce"
    servers: int = 0
    checkpoint_every: float = 0.0
