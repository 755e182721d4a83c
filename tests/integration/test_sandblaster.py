"""L-BFGS on servers that workers and coordinators come to and leave is PyTorch's in one process."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from multiprocessing.context import ForkServerProcess

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from tests.integration.forked import CONTEXT
from worker_agent.errors import GenerationBroken
from worker_agent.parameter_server.client import ParameterServerClient
from worker_agent.parameter_server.coordinator import CoordinatorKeeper, coordinate
from worker_agent.parameter_server.lbfgs import LbfgsOptions
from worker_agent.parameter_server.lbfgs_client import CoordinatorClient, EvaluationClient
from worker_agent.parameter_server.messages import JoinRequest
from worker_agent.parameter_server.portions import PortionRun
from worker_agent.parameter_server.server import ShardServer
from worker_agent.pytorch.line_search import strong_wolfe
from worker_agent.pytorch.server_shard import TorchShard

SECRET = "between us"
SAMPLES, INPUTS, HIDDEN, CLASSES, ITERATIONS, HISTORY, PORTIONS = 96, 8, 7, 3, 20, 5, 40
SHAPES = ((HIDDEN, INPUTS), (HIDDEN,), (CLASSES, HIDDEN), (CLASSES,))
SIZE = sum(int(np.prod(shape)) for shape in SHAPES)
OPTIONS = LbfgsOptions(1.0, 0.0, 0.0, HISTORY, SAMPLES, PORTIONS, is_full=True)


def problem() -> tuple[Tensor, Tensor, Tensor]:
    """Return inputs, labels and first weights of a small classifier."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(SAMPLES, INPUTS, generator=generator, dtype=torch.float64)
    labels = torch.randint(0, CLASSES, (SAMPLES,), generator=generator)
    return inputs, labels, torch.randn(SIZE, generator=generator, dtype=torch.float64) / 2


INPUT, LABELS, BEGINNING = problem()


def loss_sum(weights: Tensor, samples: slice) -> Tensor:
    sizes = [int(np.prod(shape)) for shape in SHAPES]
    first, bias, second, end = (
        piece.view(shape) for piece, shape in zip(weights.split(sizes), SHAPES, strict=True)
    )
    outputs = torch.tanh(INPUT[samples] @ first.T + bias) @ second.T + end
    return cross_entropy(outputs, LABELS[samples], reduction="sum")


def alone() -> tuple[list[Tensor], Tensor]:
    """Return the points that PyTorch evaluates, in order, and the one it ends at."""
    weights = torch.nn.Parameter(BEGINNING.clone())
    points: list[Tensor] = []

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = loss_sum(weights, slice(None)) / SAMPLES
        loss.backward()
        points.append(weights.detach().clone())
        return loss

    optimizer = torch.optim.LBFGS(
        [weights],
        max_iter=ITERATIONS,
        max_eval=1000,
        history_size=HISTORY,
        tolerance_grad=0.0,
        tolerance_change=0.0,
        line_search_fn="strong_wolfe",
    )
    optimizer.step(closure)
    return points, weights.detach()


@dataclass
class Crowd:
    """Workers on threads, which take portions in any order, push some twice, and die.

    Attributes:
        addresses: Of the servers.
        limit: Samples after which they are done.
        points: Weights of each evaluation.
    """

    addresses: Sequence[str]
    limit: int
    points: dict[int, Tensor] = field(default_factory=dict)
    threads: list[threading.Thread] = field(default_factory=list)
    failures: list[BaseException] = field(default_factory=list)
    is_over: threading.Event = field(default_factory=threading.Event)

    def hire(self, name: str, lifetime: int | None = None) -> None:
        """Start a worker that dies after so many results, with portions in its hands."""
        thread = threading.Thread(target=self.guard, args=(name, lifetime), daemon=True)
        self.threads.append(thread)
        thread.start()

    def guard(self, name: str, lifetime: int | None) -> None:
        try:
            with closing(ParameterServerClient(self.addresses, SECRET, self.is_over.is_set)) as own:
                own.join((0, 0), 0, JoinRequest(name, ("leader",), True, ""))
                self.work(EvaluationClient(own), random.Random(name), lifetime)
        except BaseException as error:  # noqa: BLE001 - raised by the test that waits
            self.failures.append(error)
        finally:
            if lifetime is None:
                self.is_over.set()

    def work(self, servers: EvaluationClient, rng: random.Random, lifetime: int | None) -> None:
        weights, known, pushed = torch.empty(SIZE, dtype=torch.float64), -1, 0
        while True:
            offers = [servers.take(self.limit)]
            # Runs of one portion come last; to wait then for more would only take time.
            while (run := offers[-1].run) and run.count > 1 and rng.random() < 0.5:
                offers.append(servers.take(self.limit))
            rng.shuffle(offers)
            for offer in offers:
                if offer.is_over or pushed == lifetime:
                    return
                if offer.run is None:
                    continue
                if offer.evaluation != known:
                    if not servers.fetch(offer.evaluation, weights.numpy()):
                        continue
                    known = offer.evaluation
                    self.points.setdefault(known, weights.clone())
                parts = offer.samples.split(offer.portions)
                first, last = parts[offer.run.first], parts[offer.run.portions[-1]]
                leaf = weights.clone().requires_grad_()
                loss = loss_sum(leaf, slice(first.start, last.start + last.count))
                loss.backward()
                assert leaf.grad is not None
                for _ in range(rng.choice((1, 1, 2))):
                    servers.accumulate(known, offer.run, loss.item(), leaf.grad.numpy())
                pushed += 1

    def join(self) -> None:
        """Wait until all have ended."""
        for thread in self.threads:
            thread.join()


@contextmanager
def served(servers: int, coordinate_at: Callable[[str], None]) -> Iterator[list[ShardServer]]:
    """Serve, with weights to begin with."""
    shards = [
        ShardServer("127.0.0.1", SECRET, TorchShard.make, coordinate_at) for _ in range(servers)
    ]
    for shard in shards:
        threading.Thread(target=shard.serve, daemon=True).start()
    leader = ParameterServerClient([each.address for each in shards], SECRET, lambda: False)
    leader.join((0, 0), 0, JoinRequest("leader", ("leader",), True, ""))
    begin = {"evaluation": 1 << 24, "iteration": 0, "samples": 0}
    EvaluationClient(leader).start(OPTIONS, BEGINNING.numpy(), begin)
    try:
        yield shards
    finally:
        leader.close()
        for shard in shards:
            shard.close()
        while COORDINATORS:
            COORDINATORS.pop().join()


COORDINATORS: list[threading.Thread] = []


def on_a_thread(first: str) -> None:
    """Coordinate on a thread of this process, until the first server closes."""
    arguments = (first, SECRET, strong_wolfe)
    COORDINATORS.append(threading.Thread(target=coordinate, args=arguments, daemon=True))
    COORDINATORS[-1].start()


def wait_for(server: ShardServer, crowd: Crowd, condition: Callable[[], bool]) -> None:
    """Wait until a condition on the first server's board holds, or a worker fails."""
    board = server.state.require_board()
    with board.changed:
        while not condition() and not crowd.failures:
            board.changed.wait(0.5)
    if crowd.failures:
        raise crowd.failures[0]


def assert_same(crowd: Crowd, server: ShardServer, shards: Sequence[ShardServer]) -> None:
    expected, end = alone()
    board = server.state.require_board()
    wait_for(server, crowd, lambda: board.state.iteration == ITERATIONS)
    crowd.join()
    points = [crowd.points[each] for each in sorted(crowd.points)]
    assert len(points) == len(expected)
    for found, point in zip(points, expected, strict=True):
        assert torch.allclose(found, point, rtol=0, atol=1e-9)
    parts = [each.state.require_lbfgs().point(board.state.point) for each in shards]
    assert np.allclose(np.concatenate(parts), end.numpy(), rtol=0, atol=1e-9)
    assert board.samples_used == len(expected) * SAMPLES


@pytest.mark.parametrize("servers", [1, 2, 3, 4])
def test_any_order_repeats_and_deaths_lead_through_the_points_of_one_process(servers: int) -> None:
    evaluations = len(alone()[0])
    with served(servers, on_a_thread) as shards:
        crowd = Crowd([each.address for each in shards], evaluations * SAMPLES)
        board = shards[0].state.require_board()
        for number in range(3):
            crowd.hire(f"w{number}")
        crowd.hire("mortal", lifetime=7)
        wait_for(shards[0], crowd, lambda: board.state.iteration >= ITERATIONS // 2)
        crowd.hire("mortal", lifetime=5)
        crowd.hire("late")
        assert_same(crowd, shards[0], shards)


class ForkedCoordinator:
    """A process that coordinates, begun with everything imported."""

    def __init__(self, first: str) -> None:
        arguments = (first, SECRET, strong_wolfe)
        self.process: ForkServerProcess = CONTEXT.Process(
            target=coordinate, args=arguments, daemon=True
        )
        self.process.start()

    def wait(self) -> int:
        self.process.join()
        return self.process.exitcode or 0

    def kill(self) -> None:
        self.process.kill()


def test_a_coordinator_that_is_killed_goes_on_through_the_same_points() -> None:
    keeper = CoordinatorKeeper(ForkedCoordinator)
    evaluations = len(alone()[0])
    with served(2, keeper.keep) as shards:
        crowd = Crowd([each.address for each in shards], evaluations * SAMPLES)
        board = shards[0].state.require_board()
        for number in range(2):
            crowd.hire(f"w{number}")
        killed = []
        for used in (0.5, 2.2, 6.7, 11.4, 15.0):  # evaluations, most of them not whole
            wait_for(shards[0], crowd, lambda: board.samples_used >= used * SAMPLES)  # noqa: B023
            killed.append(keeper.running)
            assert keeper.running is not None
            keeper.running.kill()
        assert_same(crowd, shards[0], shards)
        assert len({id(each) for each in (*killed, keeper.running)}) > 3
        keeper.close()


def test_what_is_refused_harms_nothing() -> None:
    with served(2, on_a_thread) as shards:
        crowd = Crowd([each.address for each in shards], 5 * SAMPLES)
        board = shards[0].state.require_board()
        crowd.hire("w0")
        wait_for(shards[0], crowd, lambda: board.state.iteration >= 1)
        own = ParameterServerClient(crowd.addresses, SECRET, lambda: False)
        late = EvaluationClient(own)
        assert late.accumulate(1 << 24, PortionRun(0, 1), 0.0, np.full(SIZE, np.nan)) is None
        assert not late.fetch(7, np.empty(SIZE))
        with pytest.raises(GenerationBroken):  # there are no such portions: the connection ends
            late.accumulate(board.state.point, PortionRun(PORTIONS, 2), 0.0, np.zeros(SIZE))
        own.close()
        asking = ParameterServerClient(crowd.addresses, SECRET, lambda: False)
        with pytest.raises(GenerationBroken, match="the vector g7 is not here"):
            CoordinatorClient(asking).gram(["g7"])
        asking.close()
        wait_for(shards[0], crowd, crowd.is_over.is_set)
        crowd.join()
        points = [crowd.points[each] for each in sorted(crowd.points)]
        for found, point in zip(points, alone()[0], strict=False):
            assert torch.allclose(found, point, rtol=0, atol=1e-9)
