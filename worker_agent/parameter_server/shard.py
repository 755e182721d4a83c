"""`ShardState`: what one server holds, and the rules by which workers change it.

Workers decide on membership: they say which generation they are in. The server makes sure that
no iteration mixes two generations. The first member that comes from training closes the previous
generation for good; a worker that has not trained yet waits for that, so an early newcomer
disturbs no iteration. When a member's connection breaks, the iteration cannot be completed and
all members that wait for it are told.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from worker_agent.errors import Fenced, MalformedFrame
from worker_agent.parameter_server.messages import JoinRequest, ShardManifest
from worker_agent.pytorch.server_shard import (
    Contribution,
    GatheredIteration,
    IterationOutcome,
    ShardWeights,
)
from worker_agent.sampler import SampleRange
from worker_agent.transport.connection import Numbers

GenerationKey = tuple[int, int]

LIVENESS_CHECK_EVERY = 0.5  # seconds between two looks whether who waits is still there
NO_SHARD = -1


class ShardState:
    """The state of one server; every method may be called from any thread.

    A method that waits takes ``is_gone``, which tells whether the asking worker still listens.
    """

    def __init__(self) -> None:
        self.news = threading.Condition()
        self.turn: GenerationKey = (0, 0)
        self.members: tuple[str, ...] = ()
        self.present: dict[str, object] = {}
        self.gone: set[str] = set()
        self.lost: set[str] = set()
        self.clocks: dict[int, str] = {}
        self.weights: ShardWeights | None = None
        self.iteration: GatheredIteration | None = None
        self.cursor = SampleAllocator()
        self.is_over = False

    # Who is there.

    def attend(self, worker: str, connection: object) -> None:
        """Note through which connection a worker speaks from now on."""
        with self.news:
            self.present[worker] = connection
            self.gone.discard(worker)

    def miss(self, worker: str, connection: object, *, is_moving: bool) -> None:
        """Note that a worker's connection is closed; a moving one will be back by another."""
        with self.news:
            if self.present.get(worker) is not connection:
                return
            del self.present[worker]
            self.cursor.give_back(worker)
            if not is_moving:
                self.gone.add(worker)
                self.lost = self.lost | {worker}.intersection(self.members)
            self.news.notify_all()

    def join(
        self, turn: GenerationKey, iteration: int, joining: JoinRequest, is_gone: Callable[[], bool]
    ) -> int:
        """Enter a generation; returns the iterations applied here, or NO_SHARD.

        The iteration is the worker's own, of which its clock tells. NO_SHARD is answered to the
        leader only, who then puts a shard; the others wait for it.

        Raises:
            Fenced: A newer generation was entered by another worker.
        """
        with self.news:
            if turn > self.turn and joining.is_new:
                self._wait(lambda: turn <= self.turn or self._is_deserted(joining.worker), is_gone)
            if turn > self.turn:
                self._open(turn, joining.members)
            self._check(turn)
            if joining.clock:
                self.clocks[iteration] = joining.clock
            if joining.worker != next(iter(joining.members), joining.worker):
                self._wait(lambda: self.weights is not None or self.turn != turn, is_gone)
                self._check(turn)
            return NO_SHARD if self.weights is None else self.weights.iteration

    # The shard.

    def publish(self, turn: GenerationKey, weights: ShardWeights, clock: str, samples: int) -> None:
        """Let everybody have a shard that a worker has put here."""
        with self.news:
            self._check(turn)
            self.weights, self.iteration = weights, None
            self.clocks = {weights.iteration: clock}
            self.cursor = SampleAllocator(samples)
            self.news.notify_all()

    def read(self, turn: GenerationKey, iteration: int) -> tuple[Tensor, str]:
        """Return weights and clock after so many iterations; nobody changes them meanwhile.

        Raises:
            Fenced: They are no longer there.
        """
        with self.news:
            self._check(turn)
            values = None if self.weights is None else self.weights.at(iteration)
            if values is None:
                raise Fenced(f"the weights after {iteration} iterations are not here")
            return values, self.clocks.get(iteration, "")

    def hold(self, turn: GenerationKey) -> tuple[int, ShardManifest, list[Tensor]]:
        """Return iteration and state of the shard, to be saved between two iterations."""
        with self.news:
            self._check(turn)
            weights = self._filled
            slots, vectors = weights.optimizer.slots()
            holding = ShardManifest(
                precision="float64" if weights.now.dtype == torch.float64 else "float32",
                description=weights.description,
                segments=weights.optimizer.segments,
                slots=slots,
                clock=self.clocks.get(weights.iteration, ""),
                samples=self.cursor.done,
            )
            return weights.iteration, holding, [weights.now, *vectors]

    @property
    def size(self) -> int:
        """Bytes of the shard's weights; 0 while there are none."""
        weights = self.weights
        return 0 if weights is None else weights.now.nbytes

    # Together.

    def push(
        self,
        turn: GenerationKey,
        worker: str,
        iteration: int,
        contribution: Contribution,
        is_gone: Callable[[], bool],
    ) -> tuple[IterationOutcome, Tensor]:
        """Contribute to an iteration and wait for all others; returns the weights after it.

        An iteration that was applied already is not applied again: some other server had lost a
        worker in the middle of it.

        Raises:
            Fenced: The generation is over, or a member of it is lost.
        """
        with self.news:
            self._check(turn)
            current = self._current(iteration)
            current.add(self.members.index(worker), contribution)
            if current.is_complete:
                self._complete(current)
            self._wait(
                lambda: current.outcome is not None or self.turn != turn or bool(self.lost), is_gone
            )
            if current.outcome is None:
                self._check(turn)
                raise Fenced(f"lost in the iteration: {', '.join(sorted(self.lost))}")
            values = self._filled.at(iteration + 1)
            if values is None:
                raise Fenced("the others have gone on")
            return current.outcome, values

    # Each for itself.

    def apply(
        self, worker: str, gradient: Tensor, rates: Numbers, shares: Sequence[SampleRange]
    ) -> tuple[int, int]:
        """Apply one worker's update at once; returns updates before it, and samples used."""
        with self.news:
            weights = self._filled
            before = weights.iteration
            weights.step_in_place(gradient, rates.tolist())
            self.cursor.finish(worker, shares)
            return before, self.cursor.done

    def use(self, worker: str, shares: Sequence[SampleRange]) -> int:
        """Note samples that one worker used without an update; returns samples used."""
        with self.news:
            self.cursor.finish(worker, shares)
            return self.cursor.done

    def copy(self, into: Tensor) -> int:
        """Copy the weights as they are between two updates; returns the updates so far."""
        with self.news:
            into.copy_(self._filled.now)
            return self._filled.iteration

    def take(self, worker: str, count: int, limit: int) -> tuple[SampleRange | None, bool]:
        """Hand out samples below the limit; says also whether all have been used."""
        with self.news:
            if self.is_over:
                return None, True
            share = self.cursor.take(worker, count, limit)
            return share, share is None and self.cursor.is_over(limit)

    def finish(self) -> None:
        """Hand out no more: the target is reached."""
        with self.news:
            self.is_over = True

    # Rules.

    @property
    def _filled(self) -> ShardWeights:
        if self.weights is None:
            raise Fenced("this server has no weights yet")
        return self.weights

    def _check(self, turn: GenerationKey) -> None:
        if turn != self.turn:
            raise Fenced(f"generation {turn[0]}.{turn[1]} is not {self.turn[0]}.{self.turn[1]}")

    def _open(self, turn: GenerationKey, members: tuple[str, ...]) -> None:
        """Begin a generation; nothing of the one before can be completed any more."""
        self.turn, self.members = turn, members
        self.lost, self.iteration = self.gone.intersection(members), None
        self.news.notify_all()

    def _is_deserted(self, newcomer: str) -> bool:
        """Whether nobody is left who could close this generation."""
        return not any(member in self.present for member in self.members if member != newcomer)

    def _current(self, iteration: int) -> GatheredIteration:
        """Return the iteration that is being gathered."""
        weights = self._filled
        if self.lost:
            raise Fenced(f"lost: {', '.join(sorted(self.lost))}")
        if self.iteration is None or self.iteration.outcome is not None:
            mean = torch.empty_like(weights.now) if self.iteration is None else self.iteration.mean
            self.iteration = GatheredIteration(iteration, len(self.members), mean)
        if self.iteration.number != iteration or weights.iteration - iteration not in (0, 1):
            raise MalformedFrame(
                f"iteration {iteration} while {self.iteration.number} is gathered "
                f"and {weights.iteration} are applied"
            )
        return self.iteration

    def _complete(self, iteration: GatheredIteration) -> None:
        """All have contributed: step, once."""
        weights = self._filled
        if iteration.number == weights.iteration:
            weights.step(iteration.mean, iteration.rates.tolist())
            clock = iteration.contributions[0].clock
            self.clocks = {weights.iteration: clock} | {
                number: text
                for number, text in self.clocks.items()
                if number == weights.iteration - 1
            }
        iteration.conclude()
        self.news.notify_all()

    def _wait(self, is_there: Callable[[], bool], is_gone: Callable[[], bool]) -> None:
        while not self.news.wait_for(is_there, LIVENESS_CHECK_EVERY):
            if is_gone():
                raise ConnectionResetError("who waits here is gone")


class SampleAllocator:
    """What has been handed out, to whom, and what has been used.

    Attributes:
        done: Samples whose gradients have been applied.
    """

    def __init__(self, start: int = 0) -> None:
        self.done = start
        self._next = start
        self._returned: deque[SampleRange] = deque()
        self._taken: dict[str, list[SampleRange]] = {}

    def take(self, worker: str, count: int, limit: int) -> SampleRange | None:
        """Hand out at most this many samples below the limit; None when none are left."""
        share = self._again(count) or self._fresh(count, limit)
        if share is not None:
            self._taken.setdefault(worker, []).append(share)
        return share

    def finish(self, worker: str, shares: Iterable[SampleRange]) -> None:
        """Note that a worker's gradients of these samples have been applied."""
        taken = self._taken.get(worker, [])
        for share in shares:
            if share in taken:
                taken.remove(share)
                self.done += share.count

    def give_back(self, worker: str) -> None:
        """Hand out anew what a worker took and did not use: it is gone."""
        self._returned.extend(self._taken.pop(worker, []))

    def is_over(self, limit: int) -> bool:
        """Whether all samples below the limit have been used."""
        return self._next >= limit and not self._returned and not any(self._taken.values())

    def _again(self, count: int) -> SampleRange | None:
        if not self._returned:
            return None
        share = self._returned.popleft()
        if share.count > count:
            self._returned.appendleft(SampleRange(share.start + count, share.count - count))
        return SampleRange(share.start, min(count, share.count))

    def _fresh(self, count: int, limit: int) -> SampleRange | None:
        size = min(count, limit - self._next)
        if size <= 0:
            return None
        self._next += size
        return SampleRange(self._next - size, size)
