"""Where training stands (`TrainingProgress`), and all of its state (`TrainingSnapshot`).

Also the interface of a training strategy, which works with both, whatever the framework.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from pydantic import JsonValue, TypeAdapter

from scavenger.measurement.noise import SmoothedNoise
from scavenger.protocol import Directive, Member
from worker_agent.sampler import SampleIndices


@dataclass(frozen=True, slots=True)
class TrainingProgress:
    """Where training stands; it travels with the weights.

    Attributes:
        iteration: Iterations applied over the whole job.
        samples: Samples consumed, the position in the data order.
        epochs: Progress in reference epochs.
        provisional: The part of it that was counted while noise had not settled.
        learning_rate_factor: What the script's learning rates were last multiplied with.
        noise: The noise averages, as the leader keeps them.
    """

    iteration: int = 0
    samples: int = 0
    epochs: float = 0.0
    provisional: float = 0.0
    learning_rate_factor: float = 1.0
    noise: SmoothedNoise = SmoothedNoise()  # noqa: RUF009

    def after_iteration(self, directive: Directive) -> TrainingProgress:
        """Return where training stands one iteration of a generation later."""
        worth = directive.progress_per_iteration
        return replace(
            self,
            iteration=self.iteration + 1,
            samples=self.samples + directive.config.global_batch,
            epochs=self.epochs + worth,
            provisional=self.provisional + worth * directive.is_provisional,
        )

    def entering(self, directive: Directive) -> TrainingProgress:
        """Return where training stands as a generation counts it; doing so again changes nothing.

        Progress that was counted by noise that had not settled is corrected as soon as it has.
        """
        if directive.is_provisional or not self.provisional:
            return self
        corrected = self.epochs + self.provisional * (directive.correction - 1)
        return replace(self, epochs=corrected, provisional=0.0)


_PROGRESS = TypeAdapter(TrainingProgress)


@dataclass(frozen=True, slots=True)
class JoinRole:
    """Where a worker stands in a generation that is being formed.

    Attributes:
        rank: Its rank, from 0; None for the leader of the generation before that only hands its
            state over.
        donor: That leader, when it is no member of the new generation.
    """

    rank: int | None
    donor: Member | None = None


@dataclass(frozen=True, slots=True)
class BatchSlice:
    """The part of an iteration that one forward and backward pass covers.

    Attributes:
        share_of_worker: Fraction of this worker's samples, 1 unless the batch is split.
        share_of_batch: Fraction of the global batch this worker's samples are, b_k / B.
        is_last: Whether the gradient is complete after this slice.
    """

    share_of_worker: float
    share_of_batch: float
    is_last: bool


@dataclass(frozen=True, slots=True)
class ControlFlags:
    """What a worker says to the others with its gradients.

    Attributes:
        announced: Newest generation the leader has announced; only the leader's counts.
        is_over: Whether the target is reached; only the leader's counts.
        is_leaving: Whether this worker wants to be left out from the next iteration on.
        learning_rate_factor: What all are to multiply the script's learning rates with as soon as
            they have heard it; only the leader's counts.
    """

    announced: int
    is_over: bool
    is_leaving: bool
    learning_rate_factor: float


@dataclass(frozen=True, slots=True)
class StepSummary:
    """What all workers agree on about one iteration.

    Attributes:
        announced: Newest generation the leader has announced.
        is_over: Whether the leader has seen the target reached.
        leaving: Ranks that want to be left out.
        learning_rate_factor: What the leader wants the script's learning rates multiplied with.
        shards: Shards the norms were taken over; 1 when they say nothing about noise.
        local_norm_sq: Mean over shards of ||g_k||².
        mean_norm_sq: ||ḡ||², known to the leader only.
        compute_time: Seconds from first forward to last local gradient, slowest worker.
        previous_sync_time: Exposed seconds of synchronisation of the iteration before, of the
            worker that waited least.
        mean_compute_time: The mean over workers of what compute_time is the largest of.
        fastest_compute_time: The smallest.
    """

    announced: int
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


@dataclass(frozen=True, slots=True)
class Invitation:
    """A leader summons a newcomer.

    Attributes:
        directive: The generation it is to be in.
        caller: The leader, where all meet.
    """

    directive: Directive
    caller: Member


class Rendezvous(Protocol):
    """Where workers agree who forms the next generation; see ``sessions.membership``."""

    @property
    def address(self) -> str:
        """``host:port`` where others find this worker."""

    def called(self) -> Invitation | None:
        """Return the newest call a leader made to this worker."""

    def call(self, directive: Directive, newcomers: Sequence[Member]) -> None:
        """As leader, summon newcomers and wait until all have come; raises Broken."""

    def told(self, generation: int, leader: Member) -> Directive:
        """Return the Directive this leader announced for a generation; raises Broken."""

    def agree(
        self, directive: Directive, expected: Sequence[Member], host: Member, *, may_abort: bool
    ) -> None:
        """Wait until all that are expected have come to the host; raises Broken or Aborted."""

    def repair(self, directive: Directive) -> Directive | None:
        """Agree with the other survivors of a broken generation; None when not yet."""

    def dead(self, members: Iterable[Member]) -> set[str]:
        """Return those of the others that are proven dead."""

    def renew(self) -> None:
        """Go on at another address, where nothing of the meetings so far is known."""

    def close(self) -> None:
        """Stop serving others."""


class TrainingStrategy(Protocol):
    """A framework's way of averaging gradients over a changing set of workers."""

    @property
    def meeting(self) -> Rendezvous:
        """Where members and newcomers of a generation find each other."""

    def join(
        self, directive: Directive, place: JoinRole, clock: TrainingProgress, *, is_new: bool
    ) -> TrainingProgress:
        """Form the generation and take the state of its most advanced member; raises Broken.

        The old generation is left only once the new one stands.
        """

    def begin(self, part: BatchSlice, words: ControlFlags) -> None:
        """Prepare for one forward and backward pass; the words travel with its gradients."""

    def end(self) -> bool:
        """Close the iteration; False when its collective failed and it must be redone."""

    def tally(self) -> StepSummary | None:
        """Return what was agreed one iteration ago; None in a generation's first iteration."""

    def snapshot(self, clock: TrainingProgress) -> TrainingSnapshot:
        """Return a copy of everything that training goes on from; raises StateRefused."""

    def scale_learning_rate(self, factor: float) -> None:
        """Let the steps from now on use the script's learning rates times this factor."""

    def seed(self, number: int, position: int) -> None:
        """Set all random streams as a function of a seed and of the first sample's position."""

    def to_batch(self, indices: SampleIndices) -> Any:
        """Return indices as the framework's own integer tensor."""

    def leave(self) -> None:
        """Leave the generation; another one may follow."""

    def close(self) -> None:
        """Leave the group and release its resources."""


class Stateful(Protocol):
    """Anything whose state can be asked for and given back, as PyTorch's objects do it."""

    def state_dict(self) -> Any:
        """Return the state: numbers, text, lists, tuples, sets, dicts and tensors."""

    def load_state_dict(self, state_dict: Any, /) -> Any:
        """Take over a state that ``state_dict`` returned."""


def collect_states(carried: Mapping[str, Stateful]) -> dict[str, Any]:
    """Return the state of each object by name.

    A method that somebody replaced on the object itself is no state, though PyTorch's schedulers,
    which return all their attributes, say so.
    """
    return {name: without_methods(each, each.state_dict()) for name, each in carried.items()}


def without_methods(owner: Stateful, state: Any) -> Any:
    """Leave out what hides a method of the owner's class."""
    if type(state) is not dict:
        return state
    return {
        name: value
        for name, value in state.items()
        if not (callable(value) and callable(getattr(type(owner), str(name), None)))
    }


@dataclass(frozen=True, slots=True)
class HostArray:
    """One tensor in host memory.

    Attributes:
        dtype: Name of its type as PyTorch says it, such as ``float32``.
        shape: Its sizes; empty for a scalar.
        content: Its values, row by row, in the byte order of the machine.
    """

    dtype: str
    shape: tuple[int, ...]
    content: bytes | bytearray | memoryview


def do_nothing() -> None:
    """Do nothing."""


@dataclass(frozen=True, slots=True)
class TrainingSnapshot:
    """Everything of a training process that the next iteration depends on.

    Attributes:
        clock: Where training stands.
        tree: The plain part of the state as ``strategies.tree`` encodes it.
        arrays: Its tensors by name.
        wait: Returns when the arrays hold their values; a device may still be copying.
        release: Gives the arrays' memory back; nobody may read them afterwards.
    """

    clock: TrainingProgress
    tree: JsonValue
    arrays: Mapping[str, HostArray]
    wait: Callable[[], None] = do_nothing
    release: Callable[[], None] = do_nothing
