"""What a framework provides: its training strategies, batches and random streams; the registry.

A training script imports its framework itself, so the agent looks for one that is loaded and owns
the model. Nothing else in the agent names a framework, and ``worker_agent.pytorch`` implements this
interface for PyTorch. docs/adding-a-framework.md adds another one step by step.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, fields
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, Protocol

from scavenger.layout import Layout
from scavenger.protocol import Directive, Member, TrainingStrategyName
from scavenger.stack import Stack, StackCheck
from worker_agent.errors import UnsupportedModel
from worker_agent.rendezvous.rendezvous import StoreRendezvous
from worker_agent.sampler import SampleAssignment, SampleIndices, SampleRange
from worker_agent.state.progress import Stateful, TrainingProgress, TrainingSnapshot
from worker_agent.transport.process_link import FollowerLinks, LeaderLink

# The module that a script imports, and where the agent's implementation is: one line each.
FRAMEWORKS = {
    "torch": "worker_agent.pytorch.framework:FRAMEWORK",
    "tensorflow": "worker_agent.tensorflow.framework:TENSORFLOW",
}
# Parameter servers run the optimizers of this framework only; all others step on the workers.
SHARD_FACTORY = "worker_agent.pytorch.server_shard:shard_factory"
# The line search of L-BFGS, which sees numbers only, is PyTorch's own, too.
LINE_SEARCH_RULE = "worker_agent.pytorch.line_search:line_search_rule"


class Framework(Protocol):
    """One framework, such as PyTorch."""

    @property
    def name(self) -> str:
        """Its name in job documents and in signatures of stored models."""

    def owns(self, model: Any) -> bool:
        """Whether the model is one of this framework's."""

    def strategy(self, rendezvous: StoreRendezvous, context: StrategyContext) -> TrainingStrategy:
        """Hook into the model and its optimizer, to train with others in lockstep.

        Args:
            rendezvous: Where the workers find each other.
            context: What else the strategy needs.

        Raises:
            UnsupportedStrategy: The framework has no strategy of that name.
            UnsupportedOptimizer: The strategy cannot follow this optimizer.
        """

    def asynchronous_strategy(self, context: StrategyContext) -> AsynchronousStrategy:
        """The same, to train with others at this worker's own pace."""

    def model_steps(self, model: Any, loss: Callable[[Any, Any], Any], scaler: Any) -> ModelSteps:
        """Return what trains the whole model on a batch; raises UnsupportedModel."""

    def to_batch(self, indices: SampleIndices) -> Any:
        """Return indices as the framework's integer tensor on the host."""

    def seed(self, seed: int, sample_position: int) -> None:
        """Set all random streams from a seed and the position of the iteration's first sample."""

    def detach(self, value: Any) -> Any | None:
        """Return a tensor of this framework so that ``float()`` can read it later; else None.

        Reading a value waits for the device, so a session reads it one iteration later. If what is
        returned has a method ``is_there``, it waits until that returns True.
        """


class ModelSteps(Protocol):
    """Forward and backward passes that the agent makes, so that a model may be shared."""

    @property
    def staleness(self) -> int | None:
        """Steps that the most late gradient does not include; None where none comes late."""

    def step(self, inputs: Any, targets: Any) -> Any:
        """Make forward and backward pass of a batch; returns its mean loss, on all processes."""

    def predict(self, inputs: Any) -> Any:
        """Return the model's outputs without gradients, on all processes."""


def find_framework(model: Any) -> Framework:
    """Return the framework of a model.

    Raises:
        UnsupportedModel: No framework that is loaded knows the model.
    """
    for framework in _loaded():
        if framework.owns(model):
            return framework
    kind = type(model)
    raise UnsupportedModel(
        f"{kind.__module__}.{kind.__qualname__} is no model of a supported framework"
        f" ({', '.join(FRAMEWORKS)}): pass the model itself to job.prepare, without a wrapper"
    )


def load_shard_factory() -> Any:
    """Return the factory of shards of parameter servers; loads a framework, which takes seconds."""
    return resolve_name(SHARD_FACTORY)()


def load_line_search_rule() -> Any:
    """Return what a line search does next; loads a framework, which takes seconds."""
    return resolve_name(LINE_SEARCH_RULE)()


def detach_tensor(value: Any) -> Any | None:
    """Return a value that is a tensor of some framework, to be read later; None for others."""
    held = (framework.detach(value) for framework in _loaded())
    return next((each for each in held if each is not None), None)


def _loaded() -> Iterator[Framework]:
    for imported, place in FRAMEWORKS.items():
        # Importing a framework takes seconds, so the agent never loads one that the script does
        # not use.
        if imported in sys.modules:
            framework: Framework = resolve_name(place)
            yield framework


def ignore_work(*, is_called_by_script: bool) -> None:
    """Do nothing when the script begins to work on a batch."""


class WorkListener(Protocol):
    """Called when the script begins to work on its samples."""

    def __call__(self, *, is_called_by_script: bool) -> None:
        """Take notice.

        Args:
            is_called_by_script: Whether a function of the script is on the stack, rather than a
                thread of the device.
        """


class BundleStore(Protocol):
    """Compiled code that machines of a project share; it is signed, as loading it executes it."""

    @property
    def folder(self) -> Path:
        """Folder of this machine that compiled code may be in."""

    @property
    def secret(self) -> bytes:
        """What the machines of the project sign with."""

    def fetch(self, key: str) -> bytes | None:
        """Return the archive of a key; None without one; raises ConnectionError."""

    def store(self, key: str, archive: bytes) -> None:
        """Keep an archive for the project; raises ConnectionError."""


def keep_progress(_: Any, progress: TrainingProgress) -> TrainingProgress:
    """Restore nothing: there is no checkpoint."""
    return progress


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedModel:
    """How this process shares the script's model with the other processes of its worker.

    Attributes:
        layout: How the model is shared.
        position: Which of the processes this is, from 0; the first one leads.
        directory: Where they meet.
        link: Connections to the others.
        loss: The script's mean loss over a batch.
        blocks: What the model is a chain of; None for the model's own.
        tensor_plan: How modules are cut, by patterns of their names; None for well-known names.
    """

    layout: Layout
    position: int
    directory: Path
    link: FollowerLinks | LeaderLink
    loss: Callable[[Any, Any], Any]
    blocks: Sequence[Any] | None
    tensor_plan: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategyContext:
    """What a session passes to the strategy that it creates.

    Attributes:
        name: The job's strategy.
        model: The script's model.
        optimizer: Its optimizer.
        worker: This worker's id.
        secret: Secret that workers and parameter servers of the job share.
        micro_batches: Backward passes that the script makes per batch.
        extra_state: Objects whose state travels with the weights, besides the optimizer, by name.
        should_abort: Called while waiting for others; True gives up the iteration.
        on_work: Called when the script begins to work on a batch.
        restore_checkpoint: Restores the newest checkpoint when no member has state; returns its
            progress.
        bundles: Compiled code of other machines; None to share none.
        loss: The script's mean loss over a batch; None if it was not passed.
        shared: How this process shares the model; None if it has the whole model.
    """

    name: TrainingStrategyName
    model: Any
    optimizer: Any
    worker: str
    secret: str = field(repr=False)
    micro_batches: int = 1
    extra_state: Mapping[str, Stateful] = field(default_factory=dict)
    should_abort: Callable[[], bool]
    on_work: WorkListener = ignore_work
    restore_checkpoint: Callable[[Any, TrainingProgress], TrainingProgress] = keep_progress
    bundles: BundleStore | None = None
    loss: Callable[[Any, Any], Any] | None = None
    shared: SharedModel | None = None


@dataclass(frozen=True, slots=True)
class JoinRole:
    """Role of a worker in a generation that is being formed.

    Attributes:
        rank: Its rank, from 0; None for the previous leader that only hands its state over.
        donor: That leader, if it is no member of the new generation.
    """

    rank: int | None
    donor: Member | None = None


@dataclass(frozen=True, slots=True)
class BatchSlice:
    """The part of an iteration that one forward and backward pass covers.

    Attributes:
        slice_fraction_of_worker: Fraction of this worker's samples, 1 unless the batch is split.
        worker_fraction_of_batch: Fraction of the global batch this worker's samples are, b_k / B.
        is_last: Whether the gradient is complete after this slice.
        samples: The samples themselves.
    """

    slice_fraction_of_worker: float
    worker_fraction_of_batch: float
    is_last: bool
    samples: SampleRange = SampleRange(0, 0)  # noqa: RUF009


@dataclass(frozen=True, slots=True)
class ControlFlags:
    """What a worker tells the others together with its gradients.

    Attributes:
        announced_generation: Newest generation the leader has announced; only the leader's counts.
        is_over: Whether the target is reached; only the leader's counts.
        is_leaving: Whether this worker leaves before the next iteration.
        learning_rate_factor: Factor of the script's learning rates for all workers from the next
            iteration on; only the leader's counts.
    """

    announced_generation: int
    is_over: bool
    is_leaving: bool
    learning_rate_factor: float


WHOLE_BATCH = BatchSlice(1.0, 1.0, is_last=True)
NO_FLAGS = ControlFlags(0, is_over=False, is_leaving=False, learning_rate_factor=1.0)

# Each worker's row, sent in the gradients' own all-reduce: a further collective per step would cost
# time.
SUMMARY_COLUMNS = (
    *(field.name for field in fields(ControlFlags)),
    "local_norm_sq",
    "compute_time",
    "previous_sync_time",
    "is_skipped",
)


def name_columns(rows: Iterable[Sequence[float]]) -> list[dict[str, float]]:
    """Return the rows of all workers by the names of `SUMMARY_COLUMNS`."""
    return [dict(zip(SUMMARY_COLUMNS, row, strict=True)) for row in rows]


@dataclass(frozen=True, slots=True)
class LateMeasurement:
    """What all workers measured of an iteration that their devices have finished since.

    Attributes:
        place: Iterations of the generation before this one.
        sync_time: Exposed seconds of synchronisation, of the worker that waited least.
        step_time: Seconds of the whole iteration on the leader's device.
        shards: As in `StepSummary`, like all that follow.
    """

    place: int
    sync_time: float
    step_time: float
    shards: int
    local_norm_sq: float | None
    mean_norm_sq: float | None
    compute_time: float
    mean_compute_time: float
    fastest_compute_time: float


@dataclass(frozen=True, slots=True)
class StepSummary:
    """What all workers agree on about one iteration.

    Attributes:
        announced_generation: Newest generation the leader has announced.
        is_over: Whether the leader has seen the target reached.
        leaving: Ranks that leave before the next iteration.
        learning_rate_factor: Factor of the script's learning rates that the leader has chosen.
        shards: Shards the norms were taken over; 1 when they carry no information about noise.
        local_norm_sq: Mean over shards of ||g_k||².
        mean_norm_sq: ||ḡ||², known to the leader only.
        compute_time: Seconds from first forward to last local gradient, slowest worker.
        previous_sync_time: Exposed seconds of synchronisation of the iteration before, of the
            worker that waited least.
        mean_compute_time: The same, mean over workers.
        fastest_compute_time: The same, fastest worker.
        late: What became known of earlier iterations, oldest first, where a device computes: its
            norms and times are not there yet when the workers agree on the rest. Else None.
    """

    announced_generation: int
    is_over: bool
    leaving: tuple[int, ...]
    learning_rate_factor: float
    shards: int
    local_norm_sq: float | None
    mean_norm_sq: float | None
    compute_time: float
    previous_sync_time: float
    mean_compute_time: float
    fastest_compute_time: float
    late: Sequence[LateMeasurement] | None = None

    @property
    def measured(self) -> Sequence[StepSummary | LateMeasurement]:
        """The iterations whose norms are known now and were not before."""
        return [self] if self.late is None else self.late

    @classmethod
    def of_rows(
        cls,
        rows: Sequence[Mapping[str, float]],
        *,
        shards: int,
        local_norm_sq: float | None,
        mean_norm_sq: float | None,
    ) -> StepSummary:
        """Return what follows from the rows of all workers, the leader's first."""
        compute_times = [row["compute_time"] for row in rows]
        return cls(
            announced_generation=int(rows[0]["announced_generation"]),
            is_over=bool(rows[0]["is_over"]),
            leaving=tuple(rank for rank, row in enumerate(rows) if row["is_leaving"]),
            learning_rate_factor=rows[0]["learning_rate_factor"],
            shards=shards,
            local_norm_sq=local_norm_sq,
            mean_norm_sq=mean_norm_sq,
            compute_time=max(compute_times),
            previous_sync_time=min(row["previous_sync_time"] for row in rows),
            mean_compute_time=sum(compute_times) / len(rows),
            fastest_compute_time=min(compute_times),
        )


class Rehearsals(Protocol):
    """Stacks that a script can be trained with, each compiled and checked before it is."""

    @property
    def checks(self) -> Sequence[StackCheck]:
        """What this worker found out about stacks, oldest first."""

    def due(
        self, batches: Sequence[int], stack: Stack | None = None
    ) -> AbstractContextManager[None] | None:
        """Return what to open around a pass of the loop body that does not count, if one is due.

        Args:
            batches: Local batches in samples that will be trained on; the loop body is given the
                largest.
            stack: The stack that will be ordered, before any was; None for the one that is on.
        """


class TrainingStrategy(Protocol):
    """One way of averaging gradients in lockstep, over a set of workers that changes."""

    @property
    def rendezvous(self) -> StoreRendezvous:
        """Where members and newcomers of a generation find each other."""

    @property
    def model_steps(self) -> ModelSteps | None:
        """What trains the part of the model that this process has; None if it has the whole."""

    @property
    def rehearsals(self) -> Rehearsals | None:
        """Rehearsals of stacks; None where the script is trained with as it is."""

    def join(
        self, directive: Directive, role: JoinRole, progress: TrainingProgress, *, is_new: bool
    ) -> TrainingProgress:
        """Form the generation and take the state of its most advanced member.

        The old generation is left only once the new one stands.

        Raises:
            GenerationBroken: A member was lost meanwhile.
        """

    def begin(self, part: BatchSlice, flags: ControlFlags) -> None:
        """Prepare for one forward and backward pass; the flags travel with its gradients."""

    def end(self) -> bool:
        """Close the iteration; False if its collective failed and the iteration must be redone."""

    @property
    def previous_summary(self) -> StepSummary | None:
        """What was agreed one iteration ago; None in a generation's first iteration."""

    @property
    def skipped_steps(self) -> Any | None:
        """Steps that did nothing for a gradient that is not finite; None if none is guarded.

        It may be a tensor on the device.
        """

    def snapshot(self, progress: TrainingProgress) -> TrainingSnapshot:
        """Return a copy of everything that training goes on from; raises StateRefused."""

    def scale_learning_rate(self, factor: float) -> None:
        """Multiply the script's learning rates by this factor from the next step on."""

    def leave(self) -> None:
        """Leave the generation; another one may follow."""

    def close(self) -> None:
        """Leave the group and release its resources."""


@dataclass(frozen=True, slots=True)
class AsynchronousUpdate:
    """What one worker knows after one of its iterations.

    Attributes:
        version: Updates contained in the weights it goes on with.
        samples_used: Samples used so far, by all workers, as of the last push.
        staleness: Updates by others that its gradients were computed without; None without a push.
        compute_time: Seconds from first forward to last gradient.
        sync_time: Seconds of pushing and fetching.
        ends_iteration: Whether the iteration that is reported is over with it.
    """

    version: int
    samples_used: int
    staleness: int | None
    compute_time: float
    sync_time: float
    ends_iteration: bool = True


class AsynchronousStrategy(Protocol):
    """One way of training in which no worker waits for another.

    Attributes:
        dataset_size: Samples of an epoch, which the session sets before it connects.
    """

    dataset_size: int

    @property
    def version(self) -> int:
        """Updates contained in this worker's weights."""

    @property
    def model_steps(self) -> ModelSteps | None:
        """What makes the script's passes; None for plain ones."""

    def connect(
        self, directive: Directive, progress: TrainingProgress, *, is_new: bool
    ) -> TrainingProgress:
        """Connect to the servers of a Directive; raises GenerationBroken if one is not there."""

    def take(self, count: int, limit: int) -> SampleAssignment:
        """Take samples below the limit that no other worker has; raises GenerationBroken."""

    def begin(self, samples: SampleRange, batch_fraction: float) -> None:
        """Prepare for one forward and backward pass on these samples.

        Args:
            samples: The samples.
            batch_fraction: Their number relative to a whole batch.
        """

    def end(self) -> AsynchronousUpdate | None:
        """Close the iteration; None if the servers were lost and it counts for nothing."""

    def flush(self) -> None:
        """Push what has not been pushed yet; raises GenerationBroken."""

    def finish(self) -> None:
        """Tell all workers that the target is reached; raises GenerationBroken."""

    def close(self) -> None:
        """Close the connections; samples that were taken and not pushed go to others."""
