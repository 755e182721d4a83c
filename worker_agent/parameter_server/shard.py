"""`ShardState`: what one server holds, and the rules by which workers change it.

Workers decide on membership: they say which generation they are in. The server makes sure that
no iteration mixes two generations. The first existing member to join a generation ends the
previous one; a newcomer's join waits until then, so an early newcomer disturbs no iteration. When
a member's connection breaks, the iteration cannot be completed and all members that wait for it
are told.

Shards apply an iteration one after the other. When a worker dies in between, the others redo it
from the weights before; a shard that had applied it already still holds those for newcomers.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from worker_agent.errors import Fenced, MalformedFrame
from worker_agent.parameter_server.lbfgs_shard import EvaluationBoard, LbfgsShard
from worker_agent.parameter_server.messages import (
    IterationOutcome,
    JoinRequest,
    PushRequest,
    ShardManifest,
    ShardValues,
)
from worker_agent.sampler import SampleRange
from worker_agent.transport.connection import Numbers

GenerationKey = tuple[int, int]  # generation and revision, in the order of replacement

LIVENESS_CHECK_EVERY = 0.5  # seconds between two looks whether a waiting worker is still there
NO_SHARD = -1


class ShardWeights(Protocol):
    """The values of a shard and the optimizer that moves them; each framework has its own.

    Attributes:
        iteration: Iterations applied so far.
    """

    iteration: int

    @property
    def values(self) -> ShardValues:
        """The values, shape (size,)."""

    def values_after(self, iteration: int) -> ShardValues | None:
        """Return the values after so many iterations; the last one and the one before are kept."""

    def step(self, gradient: ShardValues, rates: Numbers) -> None:
        """Apply an iteration; without rates it is only counted."""

    def step_in_place(self, gradient: ShardValues, rates: Numbers) -> None:
        """Apply an update of one worker, without keeping the values before."""

    def export(self, clock: str, samples: int) -> tuple[ShardManifest, list[ShardValues]]:
        """Return the shard as it is handed to another process: description, and all values."""

    def add(
        self, total: ShardValues, gradient: ShardValues, share: float, *, is_first: bool
    ) -> None:
        """Add a share of a gradient to a sum; the first overwrites it."""

    def squared_norm(self, values: ShardValues) -> float:
        """Return the sum of squares."""


# Allocates a shard after so many iterations; returns it and what is to be filled in, weights first.
# Raises UnsupportedServerOptimizer.
ShardFactory = Callable[[int, ShardManifest], tuple[ShardWeights, Sequence[ShardValues]]]


@dataclass(frozen=True, slots=True)
class Contribution:
    """What one worker pushes.

    Attributes:
        gradient: Mean gradient over its samples, this shard's part, shape (size,).
        norm_sq: ||gradient||² of this part.
        request: What came with it; learning rates and clock of the leader count.
    """

    gradient: ShardValues
    norm_sq: float
    request: PushRequest


class GatheredIteration:
    """Adds gradients up in rank order, not as they come: the sum has the same bits every time.

    Args:
        number: Iterations applied before this one.
        workers: How many contributions make it complete.
        mean: Where the mean gradient is built, shape (size,); may hold anything.
    """

    def __init__(self, number: int, workers: int, mean: ShardValues) -> None:
        self.number, self.workers, self.mean = number, workers, mean
        self.contributions: dict[int, Contribution] = {}
        self.added = 0
        self.outcome: IterationOutcome | None = None

    @property
    def rates(self) -> Numbers:
        """Learning rates to step with; none when a member did not step."""
        if any(each.request.is_skipped for each in self.contributions.values()):
            return np.empty(0)
        return self.contributions[0].request.rates

    def add(self, rank: int, contribution: Contribution, weights: ShardWeights) -> bool:
        """Take a contribution, whose gradient must stay unchanged; returns whether it was the last.

        Raises:
            MalformedFrame: This worker has contributed already.
        """
        if rank in self.contributions:
            raise MalformedFrame(f"rank {rank} contributes twice to iteration {self.number}")
        self.contributions[rank] = contribution
        # Added as soon as all lower ranks are: then little is left to do when the last one comes.
        while (following := self.contributions.get(self.added)) is not None:
            share, is_first = following.request.share, self.added == 0
            weights.add(self.mean, following.gradient, share, is_first=is_first)
            self.added += 1
        return self.added == self.workers

    def conclude(self, weights: ShardWeights) -> None:
        """Say what to tell all members."""
        ranked = [self.contributions[rank] for rank in range(self.workers)]
        self.outcome = IterationOutcome(
            norms_sq=np.array([each.request.share * each.norm_sq for each in ranked]),
            mean_norm_sq=weights.squared_norm(self.mean) if len(self.rates) else math.nan,
            rows=np.stack([each.request.row for each in ranked]),
        )


class ShardState:
    """The state of one server; every method may be called from any thread.

    A method that waits takes ``is_gone``, which tells whether the asking worker still listens.
    """

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.generation_key: GenerationKey = (0, 0)
        self.members: tuple[str, ...] = ()
        self.present: dict[str, object] = {}
        self.gone: set[str] = set()
        self.lost: set[str] = set()
        self.clocks: dict[int, str] = {}
        self.weights: ShardWeights | None = None
        self.lbfgs: LbfgsShard | None = None
        self.iteration: GatheredIteration | None = None
        self.samples = SampleAllocator()
        self.is_over = False

    # Presence.

    def register(self, worker: str, connection: object) -> None:
        """Note through which connection a worker speaks from now on."""
        with self.changed:
            self.present[worker] = connection
            self.gone.discard(worker)
            self._give_back(worker)  # by the connection before, whose end may come later

    def unregister(self, worker: str, connection: object, *, is_moving: bool) -> None:
        """Note that a worker's connection is closed; a moving one will be back by another."""
        with self.changed:
            if self.present.get(worker) is not connection:
                return
            del self.present[worker]
            self.samples.give_back(worker)
            self._give_back(worker)
            if not is_moving:
                self.gone.add(worker)
                self.lost = self.lost | {worker}.intersection(self.members)
            self.changed.notify_all()

    def join(
        self, key: GenerationKey, iteration: int, request: JoinRequest, is_gone: Callable[[], bool]
    ) -> int:
        """Enter a generation; returns the iterations applied here, or NO_SHARD.

        The iteration is the worker's own, to which its clock belongs. NO_SHARD is answered to the
        leader only, who then puts a shard; the others wait for it.

        Raises:
            Fenced: A newer generation was entered by another worker.
        """
        with self.changed:
            if key > self.generation_key and request.is_new:
                self._wait(
                    lambda: key <= self.generation_key or self._is_deserted(request.worker), is_gone
                )
            if key > self.generation_key:
                # Nothing of the generation before can be completed any more.
                self.generation_key, self.members = key, request.members
                self.lost, self.iteration = self.gone.intersection(request.members), None
                self.changed.notify_all()
            self._check(key)
            if request.clock:
                self.clocks[iteration] = request.clock
            if request.worker != next(iter(request.members), request.worker):
                self._wait(lambda: self._applied >= 0 or self.generation_key != key, is_gone)
                self._check(key)
            return self._applied

    # The shard.

    def install_shard(
        self, key: GenerationKey, weights: ShardWeights, clock: str, samples: int
    ) -> None:
        """Give all workers the shard that one of them has put here."""
        with self.changed:
            self._check(key)
            self.weights, self.iteration, self.lbfgs = weights, None, None
            self.clocks = {weights.iteration: clock}
            self.samples = SampleAllocator(samples)
            self.changed.notify_all()

    def weights_after(self, key: GenerationKey, iteration: int) -> tuple[ShardValues, str]:
        """Return weights and clock after so many iterations; they do not change meanwhile.

        Raises:
            Fenced: They are no longer there.
        """
        with self.changed:
            self._check(key)
            values = None if self.weights is None else self.weights.values_after(iteration)
            if values is None:
                raise Fenced(f"the weights after {iteration} iterations are not here")
            return values, self.clocks.get(iteration, "")

    def export_shard(self, key: GenerationKey) -> tuple[int, ShardManifest, list[ShardValues]]:
        """Return iteration and state of the shard, to be saved between two iterations."""
        with self.changed:
            self._check(key)
            iteration = self.require_weights().iteration
            clock = self.clocks.get(iteration, "")
            return iteration, *self.require_weights().export(clock, self.samples.samples_used)

    def install_lbfgs(self, shard: LbfgsShard) -> None:
        """Give all workers of a Sandblaster job the shard that their leader has put here.

        Raises:
            Fenced: A later leader was faster.
        """
        with self.changed:
            before, start = self.lbfgs, shard.request.evaluation
            if before is not None and start < before.request.evaluation:
                raise Fenced(f"the start {start} is before {before.request.evaluation}")
            self.lbfgs = shard
            self.changed.notify_all()
        if before is not None:
            before.retire()

    def require_lbfgs(self) -> LbfgsShard:
        """Return the vectors of a Sandblaster job; raises Fenced while there are none."""
        if self.lbfgs is None:
            raise Fenced("this server has no vectors yet")
        return self.lbfgs

    def require_board(self) -> EvaluationBoard:
        """Return the first server's board; raises Fenced on any other server."""
        board = self.require_lbfgs().board
        if board is None:
            raise Fenced("only the first server has a board")
        return board

    def require_weights(self) -> ShardWeights:
        """Return the weights; raises Fenced while there are none."""
        if self.weights is None:
            raise Fenced("this server has no weights yet")
        return self.weights

    # Synchronous training.

    def push(
        self,
        key: GenerationKey,
        worker: str,
        iteration: int,
        contribution: Contribution,
        is_gone: Callable[[], bool],
    ) -> tuple[IterationOutcome, ShardValues]:
        """Contribute to an iteration and wait for all others; returns the weights after it.

        An iteration that was applied already is not applied again: some other server had lost a
        worker in the middle of it.

        Raises:
            Fenced: The generation is over, or a member of it is lost.
        """
        with self.changed:
            self._check(key)
            current = self._current(iteration)
            if current.add(self.members.index(worker), contribution, self.require_weights()):
                self._complete(current)
            self._wait(
                lambda: current.outcome is not None or self.generation_key != key or self.lost,
                is_gone,
            )
            if current.outcome is None:
                self._check(key)
                raise Fenced(f"lost in the iteration: {', '.join(sorted(self.lost))}")
            values = self.require_weights().values_after(iteration + 1)
            if values is None:
                why = "are no longer kept: the other workers are further"
                raise Fenced(f"the weights after iteration {iteration + 1} {why}")
            return current.outcome, values

    # Downpour.

    def apply_update(
        self, worker: str, gradient: ShardValues, rates: Numbers, shares: Sequence[SampleRange]
    ) -> tuple[int, int]:
        """Apply one worker's update at once; returns updates before it, and samples used."""
        with self.changed:
            before = self.require_weights().iteration
            self.require_weights().step_in_place(gradient, rates)
            self.samples.finish(worker, shares)
            return before, self.samples.samples_used

    def mark_samples_used(self, worker: str, shares: Sequence[SampleRange]) -> int:
        """Note samples that one worker used without an update; returns samples used."""
        with self.changed:
            self.samples.finish(worker, shares)
            return self.samples.samples_used

    def copy_weights_into(self, into: ShardValues) -> int:
        """Copy the weights as they are between two updates; returns the updates so far."""
        with self.changed:
            np.copyto(into, self.require_weights().values)
            return self.require_weights().iteration

    def take(self, worker: str, count: int, limit: int) -> tuple[SampleRange | None, bool]:
        """Hand out samples below the limit; says also whether all have been used."""
        with self.changed:
            if self.is_over:
                return None, True
            share = self.samples.take(worker, count, limit)
            return share, share is None and self.samples.is_over(limit)

    def finish(self) -> None:
        """Hand out no more samples: the target is reached."""
        with self.changed:
            self.is_over = True
        if self.lbfgs is not None:
            self.require_board().end()

    # Rules; all of them run under the lock.

    @property
    def _applied(self) -> int:
        """Iterations applied here; in a Sandblaster job, the evaluation it began with instead."""
        if self.lbfgs is not None:
            return self.lbfgs.request.evaluation
        return NO_SHARD if self.weights is None else self.weights.iteration

    def _give_back(self, worker: str) -> None:
        if self.lbfgs is not None and self.lbfgs.board is not None:
            self.lbfgs.board.give_back(worker)

    def _check(self, key: GenerationKey) -> None:
        if key != self.generation_key:
            current = self.generation_key
            raise Fenced(f"generation {key[0]}.{key[1]} is not {current[0]}.{current[1]}")

    def _is_deserted(self, newcomer: str) -> bool:
        """Whether no member is left that could close this generation."""
        return not any(member in self.present for member in self.members if member != newcomer)

    def _current(self, iteration: int) -> GatheredIteration:
        """Return the iteration that is being gathered."""
        weights = self.require_weights()
        if self.lost:
            raise Fenced(f"lost: {', '.join(sorted(self.lost))}")
        if self.iteration is None or self.iteration.outcome is not None:
            mean = np.empty_like(weights.values) if self.iteration is None else self.iteration.mean
            self.iteration = GatheredIteration(iteration, len(self.members), mean)
        if self.iteration.number != iteration or weights.iteration - iteration not in (0, 1):
            raise MalformedFrame(
                f"iteration {iteration} while {self.iteration.number} is gathered "
                f"and {weights.iteration} are applied"
            )
        return self.iteration

    def _complete(self, iteration: GatheredIteration) -> None:
        """Step once: all members have contributed."""
        weights = self.require_weights()
        if iteration.number == weights.iteration:
            weights.step(iteration.mean, iteration.rates)
            # The clock before stays with the weights before, for a newcomer that redoes this.
            before = self.clocks.get(iteration.number)
            self.clocks = {weights.iteration: iteration.contributions[0].request.clock}
            if before is not None:
                self.clocks[iteration.number] = before
        iteration.conclude(weights)
        self.changed.notify_all()

    def _wait(self, is_there: Callable[[], object], is_gone: Callable[[], bool]) -> None:
        while not self.changed.wait_for(is_there, LIVENESS_CHECK_EVERY):
            if is_gone():
                raise ConnectionResetError("the worker that waits here is gone")


class SampleAllocator:
    """What has been handed out, to which worker, and what has been used.

    Attributes:
        samples_used: Samples whose gradients have been applied.
    """

    def __init__(self, start: int = 0) -> None:
        self.samples_used = start
        self._next = start
        self._returned: deque[SampleRange] = deque()
        self._taken: dict[str, list[SampleRange]] = {}

    def take(self, worker: str, count: int, limit: int) -> SampleRange | None:
        """Hand out at most this many samples below the limit; None when none are left."""
        size = min(count, limit - self._next)
        if self._returned and count > 0:  # those of a dead worker first
            share = self._returned.popleft()
            if share.count > count:
                self._returned.appendleft(SampleRange(share.start + count, share.count - count))
            share = SampleRange(share.start, min(count, share.count))
        elif size > 0:
            share = SampleRange(self._next, size)
            self._next += size
        else:
            return None
        self._taken.setdefault(worker, []).append(share)
        return share

    def finish(self, worker: str, shares: Iterable[SampleRange]) -> None:
        """Note that a worker's gradients of these samples have been applied."""
        taken = self._taken.get(worker, [])
        for share in shares:
            if share in taken:
                taken.remove(share)
                self.samples_used += share.count

    def give_back(self, worker: str) -> None:
        """Hand out anew what a worker took and did not use: it is gone."""
        self._returned.extend(self._taken.pop(worker, []))

    def is_over(self, limit: int) -> bool:
        """Whether all samples below the limit have been used."""
        return self._next >= limit and not self._returned and not any(self._taken.values())
