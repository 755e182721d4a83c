"""`TrainingStrategy`: how the workers of a job average their gradients, whatever the framework.

The session calls it around every iteration; each framework implements it once per way of
training. The dataclasses here are what the session and a strategy tell each other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from scavenger.protocol import Directive, Member
from worker_agent.rendezvous.rendezvous import Rendezvous
from worker_agent.sampler import SampleIndices
from worker_agent.state.progress import TrainingProgress, TrainingSnapshot


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
