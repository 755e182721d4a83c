"""Messages between agent and controller: workers report, the reply is a Directive.

A worker needs no inbound port for the controller: it says Hello once, then sends reports, and every
answer carries the newest Directive. Messages are plain frozen dataclasses; both programs read and
write them as JSON with ``pydantic.TypeAdapter``.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from signal import Signals
from typing import Annotated, Literal

from annotated_types import Ge, Le, MaxLen, Predicate
from pydantic import AwareDatetime

from scavenger.cluster import ClusterConfig
from scavenger.layout import PLAIN, Layout
from scavenger.learning_rate import LearningRateScaling
from scavenger.measurement.layout_profile import LayoutProfile
from scavenger.measurement.steps import FINITE_FLOATS, Count, StepColumns
from scavenger.stack import EAGER_NAME, MAX_REFUSAL_LENGTH, Stack, StackCheck

ProcessExitCode = Annotated[int, Ge(-255), Le(255)]
ShortText = Annotated[str, MaxLen(256), Predicate(str.isprintable)]

MAX_STACK_CHECKS = 256

FinishReason = Literal["target", "exhausted", "released"]
FrameworkName = Literal["pytorch", "tensorflow"]
TrainingStrategyName = Literal[
    "all_reduce", "parameter_server", "downpour", "sandblaster", "pipedream"
]
Role = Literal["worker", "server"]


@dataclass(frozen=True, slots=True)
class Member:
    """One worker of a generation.

    Attributes:
        worker: The worker's id, equal to the id of the VM it runs on.
        address: ``host:port`` of the rendezvous store this worker serves.
    """

    worker: str
    address: str


@dataclass(frozen=True, slots=True)
class StopAtMetric:
    """Stop when a logged metric reaches the goal, or when the allowed progress is used up.

    Attributes:
        metric: Name under which the training script logs the value.
        goal: Value to reach.
        direction: ``at_least`` for metrics that grow, ``at_most`` for losses.
        max_progress: Reference epochs after which training stops without success.
    """

    metric: str
    goal: float
    direction: Literal["at_least", "at_most"]
    max_progress: float
    kind: Literal["metric"] = "metric"

    def reached(self, value: float) -> bool:
        """Tell whether a logged value meets the goal; one that is infinite meets none."""
        if not math.isfinite(value):
            return False
        return value >= self.goal if self.direction == "at_least" else value <= self.goal


@dataclass(frozen=True, slots=True)
class StopAtProgress:
    """Stop after this many reference epochs of progress."""

    max_progress: float
    kind: Literal["progress"] = "progress"


StopRule = StopAtMetric | StopAtProgress


@dataclass(frozen=True, slots=True)
class ExchangeInterval:
    """How often a worker of Downpour SGD speaks to the servers, counted in its own iterations.

    Attributes:
        n_push: Iterations whose gradients are pushed at once.
        n_fetch: Iterations after which weights are fetched.
    """

    n_push: int = 1
    n_fetch: int = 1

    def __post_init__(self) -> None:
        if min(self.n_push, self.n_fetch) < 1:
            raise ValueError(f"must be at least 1, got {self}")


@dataclass(frozen=True, slots=True)
class LbfgsSettings:
    """How the servers of a Sandblaster job step.

    Attributes:
        history: Pairs of steps and gradient changes that a direction is made from.
        portions: Parts into which the batch of an iteration is cut.
    """

    history: int = 10
    portions: int = 80

    def __post_init__(self) -> None:
        if min(self.history, self.portions) < 1:
            raise ValueError(f"must be at least 1, got {self}")


@dataclass(frozen=True, slots=True)
class Directive:
    """What the controller wants every worker to do from the next iteration boundary on.

    Attributes:
        generation: Counts resizes from 1; a larger number replaces a smaller one.
        config: Workers and global batch; ``config.workers == len(members)``.
        members: The workers of this generation in rank order; the first is the leader.
        purpose: Whether this configuration is being probed or trained on.
        progress_per_iteration: Reference epochs of progress one iteration is worth (SCIENCE §2).
        learning_rate: How the learning rate the script was written with follows the batch.
        stop: When to stop.
        split_every: With one worker, split one of this many iterations in two shards so that
            noise can be measured; 0 never splits.
        report_after: Iterations after which the leader sends its first report of this generation
            at once, so that a probe does not wait for the reporting interval.
        repairs: The generation before cannot go on; who waits in one of its collectives gives up.
        fence: Newest generation that repaired one, this one included; 0 while none has. A worker in
            an older generation that is neither a member nor hands over is out.
        why: One sentence for people.
        strategy: How the workers train together.
        servers: The parameter servers, in the order of their shards; none for ``all_reduce``.
        handover: Leader of the generation before, who hands its state over at the change; None when
            there is none or it is lost.
        most_local_batch: Samples a worker's memory holds; None when that is not known.
        revision: Counts the times the members of this generation regrouped by themselves because
            one had left or was lost; the controller's Directives have 0.
        exchange: How often a worker speaks to the servers.
        lbfgs: How the servers step by L-BFGS.
        standby: Workers that are left out and wait to be named again, instead of ending.
        is_provisional: Whether ``progress_per_iteration`` rests on noise that has not settled.
        correction: Factor on what provisional generations counted as progress, once the noise has
            settled; it applies once to all of it.
        nan_guard: Whether a step does nothing if its averaged gradient is not finite.
        layout: How the processes of each worker share the model, as ``Layout`` writes it; empty
            where they do as they were started. Workers that do otherwise start again.
        restarts: Whether that differs from the Directive before, so that the workers start again
            before they enter this generation.
    """

    generation: int
    config: ClusterConfig
    members: tuple[Member, ...]
    purpose: Literal["probe", "train"]
    progress_per_iteration: float
    learning_rate: LearningRateScaling
    stop: StopRule
    split_every: int
    report_after: int
    why: str
    repairs: bool = False
    fence: int = 0
    strategy: TrainingStrategyName = "all_reduce"
    servers: tuple[Member, ...] = ()
    handover: Member | None = None
    most_local_batch: int | None = None
    revision: int = 0
    exchange: ExchangeInterval = ExchangeInterval()
    lbfgs: LbfgsSettings = LbfgsSettings()
    standby: tuple[str, ...] = ()
    is_provisional: bool = False
    correction: float = 1.0
    nan_guard: bool = False
    layout: str = ""
    restarts: bool = False

    def __post_init__(self) -> None:
        if len(self.members) != self.config.workers:
            raise ValueError(f"{len(self.members)} members for {self.config}")
        Stack.parse(self.config.stack)
        if self.layout:
            Layout.parse(self.layout)
        if self.repairs:
            object.__setattr__(self, "fence", self.generation)

    def rank_of(self, worker: str) -> int | None:
        """Return the worker's rank in this generation, or None if it is not a member."""
        for rank, member in enumerate(self.members):
            if member.worker == worker:
                return rank
        return None

    def without(self, lost: Collection[str]) -> Directive:
        """Return the next revision of this generation, for the members that are left.

        The global batch stays, unless the workers' memory does not hold their larger parts.

        Raises:
            ValueError: No member is left.
        """
        members = tuple(member for member in self.members if member.worker not in lost)
        if not members:
            raise ValueError(f"no member is left of generation {self.generation}")
        batch = self.config.global_batch
        if self.most_local_batch is not None:
            batch = min(batch, len(members) * self.most_local_batch)
        share = batch / self.config.global_batch
        return replace(
            self,
            config=replace(self.config, workers=len(members), global_batch=batch),
            members=members,
            progress_per_iteration=self.progress_per_iteration * share,
            handover=None,
            revision=self.revision + 1,
        )


@dataclass(frozen=True, slots=True)
class Hello:
    """A worker is up and ready to join a generation, or a parameter server to serve one.

    Attributes:
        worker: Its id, equal to the id of the VM it runs on.
        address: ``host:port`` at which the others reach it.
        role: What it is there for; old agents, which leave it out, are workers.
        framework: What trains, such as ``pytorch``; empty while the worker does not know it.
    """

    worker: ShortText
    address: ShortText
    role: Role = "worker"
    framework: ShortText = ""


@dataclass(frozen=True, slots=True)
class Regrouped:
    """The leader entered a generation: what the change took.

    Attributes:
        generation: The generation entered.
        pause: Seconds between the last iteration of the old and the first of the new generation.
        iterations_lost: Applied iterations that the new generation does not contain.
    """

    __pydantic_config__ = FINITE_FLOATS

    generation: Count
    pause: float
    iterations_lost: Count


@dataclass(frozen=True, slots=True)
class NotFinite:
    """What the script logged under one name was NaN or infinite.

    Attributes:
        value: What it was first.
        first: Iteration in which it was that.
        since: Iteration since which no finite value was logged; None after one was.
    """

    value: Literal["NaN", "Infinity", "-Infinity"]
    first: Count
    since: Count | None


@dataclass(frozen=True, slots=True)
class Progress:
    """Where training stands on the reporting worker.

    Attributes:
        generation: Generation the worker is in; 0 before the first.
        iteration: Iterations applied so far, over the whole job.
        samples: Samples consumed so far, the position in the data order.
        epochs: Progress in reference epochs.
        metrics: Last finite value of everything the script logged.
        not_finite: What of it was not finite, as far as this process has seen; left out by old
            agents.
        stack_checks: What this process found out about stacks.
    """

    __pydantic_config__ = FINITE_FLOATS

    generation: Count
    iteration: Count
    samples: Count
    epochs: float
    metrics: dict[ShortText, float]
    not_finite: dict[ShortText, NotFinite] = field(default_factory=dict)
    stack_checks: Annotated[tuple[StackCheck, ...], MaxLen(MAX_STACK_CHECKS)] = ()


@dataclass(frozen=True, slots=True)
class StepReport:
    """What a worker tells the controller; the reply is the newest Directive.

    Attributes:
        worker: Who reports.
        progress: Where it stands.
        sequence: Number of the first row of ``steps`` in this worker's stream, from 0.
        steps: Iterations measured since the last report; all of ``progress.generation``.
        regrouped: Set once after a change of generation, by the leader.
        broken: Generation whose collective failed, while the worker waits for a new one.
        refused: Generation that could not be formed, so the old one goes on.
        finished: Why training ended, once it has; None while it runs.
        dropped: Rows of this stream that were given up so far because too many were waiting.
    """

    worker: ShortText
    progress: Progress
    sequence: Count = 0
    steps: StepColumns = StepColumns()  # noqa: RUF009
    regrouped: Regrouped | None = None
    broken: Count | None = None
    refused: Count | None = None
    finished: FinishReason | None = None
    dropped: Count = 0


@dataclass(frozen=True, slots=True)
class RejectedRow:
    """A row that cannot be used, and is not to be sent again.

    Attributes:
        sequence: Its number in the worker's stream.
        why: What is wrong with it.
    """

    sequence: int
    why: str


@dataclass(frozen=True, slots=True)
class Reply:
    """The controller's answer to Hello and to every report.

    Attributes:
        directive: The newest Directive of the job; None before the first.
        next_sequence: Sequence the controller expects next; rows below it are stored or rejected.
        accepted: Rows of the report that were stored.
        duplicates: Rows of it that had been stored before.
        rejected: Rows of it that cannot be used, the first thousand of them.
    """

    directive: Directive | None
    next_sequence: int
    accepted: int = 0
    duplicates: int = 0
    rejected: tuple[RejectedRow, ...] = ()


@dataclass(frozen=True, slots=True)
class InterruptionNotice:
    """The cloud has told a machine that it will take it back; the worker leaves meanwhile.

    Attributes:
        worker: Which machine, by its worker.
        reason: What the cloud said.
        ends_at: When the cloud takes it, by the cloud's clock; None where it did not say.
    """

    worker: ShortText
    reason: ShortText
    ends_at: AwareDatetime | None = None


# Header of an answer that brings a machine its next token.
RENEWAL_HEADER = "Scavenger-Token"


@dataclass(frozen=True, slots=True)
class EnrolmentRequest:
    """A machine came up and wants a token of its own, for the one it was launched with.

    Attributes:
        nonce: A random word of the machine, the same when it asks again because an answer was lost.
    """

    worker: ShortText
    nonce: ShortText


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """What a machine runs: the part of a job that is the user's.

    Attributes:
        role: Whether it trains or serves parameters.
        strategy: How the workers of the job train together.
        command: The training command, program first; empty for a parameter server of the agent.
        directory: Where the command starts; None leaves it to the machine. With ``code``, a path
            inside the code; None for its top.
        code: SHA-256 of the code that the machine fetches; None for none.
        setup: Run once on the machine before the command, program first; empty for nothing.
        variables: Environment variables that the job adds, none of them ours.
        checkpoints: Directory of the job's checkpoints; None for one of the machine's own.
        checkpoint_every: Seconds between two checkpoints.
        checkpoint_keep: Number of checkpoints kept.
        checkpoint_store: Whether they are put into a bucket, too.
        drain: Seconds the command has to end in order once its machine was told to end.
        stall: Least seconds without an iteration after which training counts as stuck.
        stack: The stack it will probably compute with, to be rehearsed before it says hello.
        local_batch: Samples to rehearse with; 0 for no rehearsal.
        layout: How the processes of the worker share the model.
        profile: Whether the machine is to profile the model first, and to ask for the layout then.
        searches_layout: Whether a command that fails before it has trained may go on in another.
    """

    role: Role = "worker"
    strategy: TrainingStrategyName = "all_reduce"
    command: tuple[str, ...] = ()
    directory: str | None = None
    code: str | None = None
    setup: tuple[str, ...] = ()
    variables: dict[str, str] = field(default_factory=dict, repr=False)
    checkpoints: str | None = None
    checkpoint_every: float = 60.0
    checkpoint_keep: int = 3
    checkpoint_store: bool = False
    drain: float = 30.0
    stall: float = 300.0
    stack: str = EAGER_NAME
    local_batch: int = 0
    layout: Layout = PLAIN
    profile: bool = False
    searches_layout: bool = False

    def __post_init__(self) -> None:
        if self.role == "worker" and not self.command:
            raise ValueError("a worker needs a command")


MAX_BLOCKS = 256
MAX_FIGURE = 1e15  # bytes, seconds or processes of a profile


@dataclass(frozen=True, slots=True)
class ProfileReport:
    """What a machine measured of the model that it is to train.

    Attributes:
        worker: The worker of that machine.
        profile: The profile; None where the model could not be profiled.
        failure: Why it could not be, in a sentence; empty where it was.
    """

    worker: ShortText
    profile: LayoutProfile | None
    failure: Annotated[str, MaxLen(MAX_REFUSAL_LENGTH)] = ""

    def __post_init__(self) -> None:
        why = None if self.profile is None else objection_to_profile(self.profile)
        if why is not None:
            raise ValueError(why)


def objection_to_profile(profile: LayoutProfile) -> str | None:
    """Say why nothing follows from a profile, as of a machine that made it up; None if it does."""
    if len(profile.blocks) > MAX_BLOCKS:
        return f"the model has {len(profile.blocks)} blocks, more than {MAX_BLOCKS}"
    texts = [profile.uncut_reason, *(block.name for block in profile.blocks)]
    if any(len(text) > MAX_REFUSAL_LENGTH or "\0" in text for text in texts):
        return f"a name of a block is longer than {MAX_REFUSAL_LENGTH} characters, or holds NUL"
    counted = {
        "blocks": [
            figure
            for block in profile.blocks
            for figure in (
                *(block.fixed_seconds, block.seconds_per_sample, block.output_bytes),
                *(block.saved_bytes, block.weight_bytes, block.all_reduces),
                block.all_reduce_bytes,
            )
        ],
        "links": [
            figure
            for link in (profile.inside, profile.across)
            for figure in (link.latency_seconds, 1 / link.bytes_per_second)
        ],
        "machine": [
            *(profile.processes_per_machine, profile.concurrent_processes, profile.start_seconds),
            *(profile.optimizer_slots, profile.optimizer_seconds, profile.heads),
            profile.vocabulary,
        ],
    }
    beyond = [what for what, figures in counted.items() if max(figures) > MAX_FIGURE]
    if beyond:
        return f"figures of its {beyond[0]} are beyond {MAX_FIGURE:g}"
    if not any(block.fixed_seconds + block.seconds_per_sample for block in profile.blocks):
        return "its blocks take no time"
    return None


@dataclass(frozen=True, slots=True)
class ProfileReply:
    """How the processes of a machine are to share its model.

    Attributes:
        layout: The layout.
        refusal: Why none fits, in a sentence; empty where one does.
    """

    layout: Layout = PLAIN
    refusal: str = ""


@dataclass(frozen=True, slots=True)
class EnrolmentReply:
    """What a machine learns by enrolling, because launch parameters can be read by others.

    Attributes:
        token: Lets it speak for its job.
        job_secret: What workers and parameter servers of one job know each other by.
        secrets: Environment variables of the training command.
        worker: What the machine runs.
        bundle_secret: What the machines of the project sign compiled code with; empty from a
            controller that keeps none.
    """

    token: str = field(repr=False)
    job_secret: str = field(repr=False)
    secrets: dict[str, str] = field(repr=False)
    worker: WorkerSpec
    bundle_secret: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class VmLease:
    """How long a VM may go on.

    Attributes:
        remaining: Seconds, from when the request was sent.
        drain: Whether its worker is to save a checkpoint and leave now.
    """

    remaining: float
    drain: bool = False


@dataclass(frozen=True, slots=True)
class CommandExit:
    """The training command of a worker ended.

    Attributes:
        worker: Whose command it was.
        code: Exit code; negative for a signal, as in ``subprocess``.
        tail: Last lines of its output.
        cause: What is known of the reason beyond the code, in one sentence; empty when the code
            says all.
        restarts: Whether the supervisor starts the command again on the same machine.
        failed_layout: Layout that its processes had, if they ended before they had trained in it
            and the supervisor asks for another; None otherwise.
    """

    worker: ShortText
    code: ProcessExitCode
    tail: str
    cause: str = ""
    restarts: bool = False
    failed_layout: Layout | None = None

    @property
    def in_words(self) -> str:
        """Say how the command ended.

        >>> CommandExit("w1", -9, "", "out of memory").in_words
        'killed by SIGKILL: out of memory'
        """
        how = f"exit code {self.code}" if self.code >= 0 else f"killed by {signal_name(-self.code)}"
        return f"{how}: {self.cause}" if self.cause else how


@dataclass(frozen=True, slots=True)
class ExitReply:
    """What to do after a training command ended.

    Attributes:
        layout: Layout to start it again in; None where its end is final, or it is started again
            as it was.
    """

    layout: Layout | None = None


MAX_LINE_LENGTH, MAX_LINES_OF_BATCH = 2000, 500
LineText = Annotated[str, MaxLen(MAX_LINE_LENGTH)]


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line that a command of a machine printed.

    Attributes:
        number: Counts the lines of the machine from 1; a missing number is a line that was dropped.
        at: When it was printed, by the clock of the machine.
    """

    number: Count
    at: AwareDatetime
    text: LineText


@dataclass(frozen=True, slots=True)
class LogBatch:
    """Lines that the commands of a machine printed, in order; sending some again is no harm.

    Attributes:
        worker: Whose they are.
        printed: How many the machine has printed by now, sent or not.
    """

    worker: ShortText
    printed: Count
    lines: Annotated[tuple[LogLine, ...], MaxLen(MAX_LINES_OF_BATCH)]


def signal_name(number: int) -> str:
    """Return a signal's name, or its number if it has none.

    >>> signal_name(11), signal_name(40)
    ('SIGSEGV', 'signal 40')
    """
    try:
        return Signals(number).name
    except ValueError:
        return f"signal {number}"
