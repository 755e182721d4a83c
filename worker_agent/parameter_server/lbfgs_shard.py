"""`LbfgsShard`: one server's part of the vectors of a Sandblaster job, and the board of the first.

A vector never changes once it has a name, so a coordinator that repeats a request after it was
restarted changes nothing. Results of workers are *staged* until the coordinator commits them: the
first server decides which of them count, once all other servers have them.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from worker_agent.errors import Fenced, MalformedFrame
from worker_agent.parameter_server.lbfgs import LbfgsState, gradient_name, point_name
from worker_agent.parameter_server.lbfgs_messages import (
    AcceptedRuns,
    BoardReply,
    CombineRequest,
    CommitRequest,
    PortionOffer,
    SaveRequest,
    StartRequest,
)
from worker_agent.parameter_server.messages import ShardValues
from worker_agent.parameter_server.portions import PortionAllocator, PortionRun
from worker_agent.sampler import SampleRange
from worker_agent.transport.connection import Numbers

BLOCK = 1 << 16  # values that are converted at once: vectors of float32 get no copy of float64
TAKE_PATIENCE = 0.5  # seconds a worker waits for portions before it looks for news elsewhere
LISTENING_CHECK_EVERY = 0.5  # seconds between two looks whether a coordinator still listens


class LbfgsShard:
    """The vectors of one server; every method may be called from any thread.

    Args:
        request: What the leader has said.
        weights: This server's part of them, shape (request.size,); not changed.

    Attributes:
        board: What the first server has besides; None on the others.
    """

    def __init__(self, request: StartRequest, weights: ShardValues) -> None:
        self.request, self.evaluation = request, request.evaluation
        self.dtype = weights.dtype
        self.vectors: dict[str, ShardValues] = {point_name(request.evaluation): weights}
        self.staged: dict[PortionRun, ShardValues] = {}
        self.committed: set[PortionRun] = set()
        self.total = np.zeros(request.size)
        self.lock = threading.Lock()
        self.board = EvaluationBoard(request) if request.server == 0 else None

    # For the coordinator.

    def gram(self, names: Sequence[str]) -> Numbers:
        """Return inner products, sums of magnitudes and largest magnitudes of this part.

        Returns:
            Numbers end to end, shape (len(names)² + 2 · len(names),).

        Raises:
            Fenced: A vector is not here.
        """
        parts = self._find(names)
        products = np.zeros((len(parts), len(parts)))
        sums, largest = np.zeros(len(parts)), np.zeros(len(parts))
        for block in self._blocks():
            values = np.stack([part[block] for part in parts]).astype(np.float64)
            products += values @ values.T
            magnitudes = np.abs(values)
            sums += magnitudes.sum(axis=1)
            largest = np.maximum(largest, magnitudes.max(axis=1))
        return np.concatenate([products.ravel(), sums, largest])

    def combine(self, request: CombineRequest) -> Numbers:
        """Make a vector; returns the sum of its magnitudes and the largest, shape (2,)."""
        if request.out not in self.vectors:
            parts, made = self._find(request.names), np.empty(self.request.size, self.dtype)
            for block in self._blocks():
                terms = zip(request.coefficients, parts, strict=True)
                made[block] = sum(
                    coefficient * part[block].astype(np.float64) for coefficient, part in terms
                )
            with self.lock:
                self.vectors[request.out] = made
        if request.evaluation is not None:
            self._open(request.evaluation)
        measured = self.gram([request.out])[1:]
        # A late request of a coordinator that is dead must not drop what its successor uses.
        if request.keep is not None and request.evaluation == self.evaluation:
            self._keep({request.out, gradient_name(self.evaluation), *request.keep})
        return measured

    def commit(self, request: CommitRequest) -> None:
        """Add staged results to the gradient, which has a name as soon as it is complete.

        Raises:
            Fenced: The evaluation is over, or a result is not here.
            MalformedFrame: Portions are missing, or there twice.
        """
        with self.lock:
            if gradient_name(request.evaluation) in self.vectors:
                return
            self._check_evaluation(request.evaluation)
            fresh = [run for run in request.runs if run not in self.committed]
            missing = [run for run in fresh if run not in self.staged]
            if missing:
                raise Fenced(f"portions {missing[0].portions} are not here")
            runs = [*self.committed, *fresh]
            portions = {portion for run in runs for portion in run.portions}
            if len(portions) != sum(run.count for run in runs):
                raise MalformedFrame("results that are to be added overlap")
            if request.is_last and len(portions) != self.request.options.portions:
                raise MalformedFrame(f"a gradient of {len(portions)} portions only")
            for run in fresh:
                self.total += self.staged.pop(run)
                self.committed.add(run)
            if request.is_last:
                self.total /= self.request.options.batch
                self.vectors[gradient_name(request.evaluation)] = self.total.astype(self.dtype)
                self.staged, self.total = {}, np.zeros(self.request.size)

    # For workers.

    def point(self, evaluation: int) -> ShardValues:
        """Return the weights of an evaluation; raises Fenced once they are not here any more."""
        return self._find([point_name(evaluation)])[0]

    def stage(self, evaluation: int, run: PortionRun, gradient: ShardValues) -> None:
        """Keep a sum of gradients until the coordinator commits it; a second one is left out.

        Raises:
            Fenced: The evaluation is over.
            MalformedFrame: There are no such portions.
        """
        if run.portions[-1] >= self.request.options.portions:
            raise MalformedFrame(f"portions {run.portions} of {self.request.options.portions}")
        with self.lock:
            self._check_evaluation(evaluation)
            if run not in self.committed:
                self.staged.setdefault(run, gradient)

    def retire(self) -> None:
        """Wake all that wait here: the leader has filled this server again."""
        if self.board is not None:
            self.board.retire()

    def _find(self, names: Sequence[str]) -> list[ShardValues]:
        with self.lock:
            missing = [name for name in names if name not in self.vectors]
            if missing:
                raise Fenced(f"the vector {missing[0]} is not here")
            return [self.vectors[name] for name in names]

    def _keep(self, names: set[str]) -> None:
        with self.lock:
            self.vectors = {name: each for name, each in self.vectors.items() if name in names}

    def _open(self, evaluation: int) -> None:
        with self.lock:
            if evaluation > self.evaluation:
                self.evaluation = evaluation
                self.staged, self.committed = {}, set()
                self.total = np.zeros(self.request.size)

    def _check_evaluation(self, evaluation: int) -> None:
        if evaluation != self.evaluation or gradient_name(evaluation) in self.vectors:
            raise Fenced(f"evaluation {evaluation} is over or not begun")

    def _blocks(self) -> Iterator[slice]:
        for low in range(0, self.request.size, BLOCK):
            yield slice(low, low + BLOCK)


class EvaluationBoard:
    """What is to be computed, and what the coordinator knows; on the first server only.

    Attributes:
        state: The coordinator's state.
        samples_used: Samples of all results that count.
        is_finished: Whether no more portions are given.
    """

    def __init__(self, request: StartRequest) -> None:
        self.request, self.start = request, request.evaluation
        self.state = LbfgsState(request.iteration, request.evaluation + 1, request.evaluation)
        self.evaluation: int | None = None
        self.term = 0
        self.allocator = PortionAllocator(request.options.portions)
        self.losses: dict[PortionRun, float] = {}
        self.samples_used = request.samples
        self.is_finished = self.is_retired = False
        self.changed = threading.Condition()

    # For the coordinator.

    def load(self) -> BoardReply:
        """Return what a coordinator begins with; the one before has no say from now on.

        What that one sent before it died may arrive later than this.
        """
        with self.changed:
            self.term += 1
            options, servers = self.request.options, self.request.servers
            return BoardReply(self.start, self.term, options, servers, self.state)

    def save(self, request: SaveRequest) -> None:
        """Keep the state, and open an evaluation unless it is open already.

        Raises:
            Fenced: L-BFGS has begun anew since, or another coordinator has.
        """
        with self.changed:
            if (request.start, request.term) != (self.start, self.term):
                raise Fenced(f"another coordinator has begun: term {self.term} of {self.start}")
            self.state = request.state
            if request.evaluation is not None and request.evaluation != self.evaluation:
                self.evaluation = request.evaluation
                owners = self.allocator.owners
                self.allocator = PortionAllocator(self.request.options.portions, owners)
                self.losses = {}
            self.changed.notify_all()

    def wait(self, evaluation: int, known: int, is_gone: Callable[[], bool]) -> AcceptedRuns:
        """Wait until more results count than are known, and return them all."""
        with self.changed:
            while evaluation == self.evaluation and not self.is_retired:
                accepted = self.allocator.accepted
                if len(accepted) > known or self.allocator.is_over:
                    loss = math.fsum(self.losses.values())
                    return AcceptedRuns(tuple(accepted), loss, self.allocator.is_over)
                if not self.changed.wait(LISTENING_CHECK_EVERY) and is_gone():
                    raise ConnectionResetError("the coordinator that waits here is gone")
            raise Fenced(f"evaluation {evaluation} is not computed here")

    # For workers.

    def take(self, worker: str, limit: int) -> PortionOffer:
        """Give a worker portions, or wait a moment for some; none of a batch above the limit."""
        with self.changed:
            run = self._take(worker, limit)
            if run is None and not self._is_over:
                self.changed.wait_for(lambda: self._has_news(worker), TAKE_PATIENCE)
                run = self._take(worker, limit)
            options, state = self.request.options, self.state
            return PortionOffer(
                run=run,
                evaluation=self.start if self.evaluation is None else self.evaluation,
                samples=SampleRange(
                    0 if options.is_full else state.batch * options.batch, options.batch
                ),
                portions=options.portions,
                point=state.point if state.repeats is None else state.repeats,
                iteration=state.iteration,
                samples_used=self.samples_used,
                is_over=self._is_over,
                has_converged=state.has_converged,
            )

    def finish(self, worker: str, evaluation: int, run: PortionRun, loss: float) -> bool:
        """Note a result that all servers have; returns whether it counts.

        Raises:
            Fenced: The evaluation is over.
        """
        with self.changed:
            if evaluation != self.evaluation:
                raise Fenced(f"evaluation {evaluation} is over or not begun")
            if not self.allocator.finish(worker, run):
                return False
            self.losses[run] = loss
            whole, parts = SampleRange(0, self.request.options.batch), self.allocator.portions
            self.samples_used += sum(whole.part(each, parts).count for each in run.portions)
            self.changed.notify_all()
            return True

    def give_back(self, worker: str) -> None:
        """Give a worker's portions to others: it is gone."""
        with self.changed:
            self.allocator.give_back(worker)
            self.changed.notify_all()

    def end(self) -> None:
        """Give no more portions: the target is reached."""
        with self.changed:
            self.is_finished = True
            self.changed.notify_all()

    def retire(self) -> None:
        """Wake all that wait here: another board has taken this one's place."""
        with self.changed:
            self.is_retired = True
            self.changed.notify_all()

    @property
    def _is_over(self) -> bool:
        return self.is_finished or self.state.has_converged

    def _has_news(self, worker: str) -> bool:
        return self._is_over or self.is_retired or self.allocator.has_work(worker)

    def _take(self, worker: str, limit: int) -> PortionRun | None:
        if self.is_retired or self.evaluation is None:
            return None
        if self.allocator.is_untouched and self.samples_used >= limit:
            self.is_finished = True
            self.changed.notify_all()
        return None if self._is_over else self.allocator.take(worker)
