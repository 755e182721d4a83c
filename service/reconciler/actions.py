"""Actions: a tick does exactly one of these."""

from __future__ import annotations

from dataclasses import dataclass

from scavenger.cluster import ClusterConfig
from scavenger.layout import Layout
from scavenger.measurement.profiling import ProbeComplete
from scavenger.planning.search.strategy import TrainOn
from scavenger.protocol import Directive
from scavenger.report import CurveReport
from scavenger.schemas.jobs import JobPhase
from scavenger.schemas.orders import OrderState
from service.offers import Offer


@dataclass(frozen=True, slots=True)
class Launch:
    """Start so many more machines, all at once or none.

    Attributes:
        workers: How many workers' machines.
        offer: Where they are rented.
        servers: How many parameter servers.
    """

    workers: int
    offer: Offer
    why: str
    servers: int = 0


@dataclass(frozen=True, slots=True)
class Terminate:
    """End these machines."""

    vms: tuple[str, ...]
    why: str


@dataclass(frozen=True, slots=True)
class PublishDirective:
    """Tell the workers a new Directive."""

    directive: Directive
    why: str


@dataclass(frozen=True, slots=True)
class StoreProbe:
    """Store a settled probe.

    Attributes:
        order: The order that asked for it; None for a probe of the search.
    """

    settled: ProbeComplete
    why: str
    order: int | None = None


@dataclass(frozen=True, slots=True)
class ChooseConfig:
    """Fix the configuration to train on."""

    run: TrainOn
    why: str


@dataclass(frozen=True, slots=True)
class KeepConfig:
    """Train on the configuration the job has, without choosing one."""

    config: ClusterConfig
    why: str


@dataclass(frozen=True, slots=True)
class Advise:
    """Say which configuration the job would do better with.

    Attributes:
        config: It; None when none meets the limits.
        curve: What it is read from.
    """

    config: ClusterConfig | None
    why: str
    curve: CurveReport


@dataclass(frozen=True, slots=True)
class Replan:
    """Plan what is left with the noise scale of now.

    Attributes:
        config: The configuration to train on from now on; None to stay.
        noise_scale: φ in samples the plan is made with.
        curve: The curve of what is left, from which that was chosen; None to stay.
    """

    config: ClusterConfig | None
    noise_scale: float
    why: str
    curve: CurveReport | None = None


@dataclass(frozen=True, slots=True)
class ObeyOrder:
    """Train on another configuration from now on, as an order asks; that ends the order.

    Attributes:
        order: Number of the order.
        curve: The curve it was chosen from.
    """

    order: int
    config: ClusterConfig
    why: str
    curve: CurveReport


@dataclass(frozen=True, slots=True)
class EndOrder:
    """Write down what became of an order that changes nothing else."""

    order: int
    state: OrderState
    why: str


@dataclass(frozen=True, slots=True)
class NoteBudget:
    """Write down how much of its cap a job has spent.

    Attributes:
        share: Percent.
        is_news: Whether an event tells it.
    """

    share: int
    why: str
    is_news: bool = False


@dataclass(frozen=True, slots=True)
class NoteFramework:
    """Write down what a job's workers train with.

    Attributes:
        framework: As they say it.
        is_news: Whether an event tells it.
        searches_anew: Whether what was chosen rests on times of another framework.
    """

    framework: str
    why: str
    is_news: bool = False
    searches_anew: bool = False


@dataclass(frozen=True, slots=True)
class RefuseLayout:
    """Write down that a job does without a layout.

    Attributes:
        layout: The layout.
        worker: Which could not train in it, or not begin to.
    """

    layout: Layout
    worker: str
    why: str


@dataclass(frozen=True, slots=True)
class SearchAnew:
    """Forget what was chosen, as it can no longer be trained on."""

    why: str


@dataclass(frozen=True, slots=True)
class Finish:
    """Write down how the job ended.

    Attributes:
        exit_code: Exit code of the user's command when that failed the job.
        epochs: Reference epochs the target took, when it was reached.
        remedy: What to do next, to be added to the reason unless something says more.
        has_diverged: Whether the loss or the target's metric was not finite in the end.
    """

    phase: JobPhase
    why: str
    exit_code: int | None = None
    epochs: float | None = None
    remedy: str = ""
    has_diverged: bool = False


@dataclass(frozen=True, slots=True)
class Idle:
    """Do nothing; wait for what the sentence names."""

    why: str


@dataclass(frozen=True, slots=True)
class Blocked:
    """Do nothing, and say once what keeps the job from going on."""

    why: str


@dataclass(frozen=True, slots=True)
class Unblocked:
    """Say that nothing keeps the job from going on any more."""

    why: str


RecordedAction = (
    PublishDirective
    | StoreProbe
    | ChooseConfig
    | KeepConfig
    | Advise
    | Replan
    | ObeyOrder
    | EndOrder
    | NoteBudget
    | NoteFramework
    | RefuseLayout
    | SearchAnew
    | Finish
    | Blocked
    | Unblocked
)
Action = Launch | Terminate | Idle | RecordedAction
