"""L-BFGS on servers that workers and coordinators come to and leave is PyTorch's in one process."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from scavenger.protocol import Member, StopAtMetric, StopRule
from tests.builders import directive
from tests.conductor import FOREVER, Conductor
from tests.integration.forked import CONTEXT, fork
from tests.integration.test_parameter_server import start_servers
from worker_agent.errors import (
    GenerationBroken,
    UnsupportedModel,
    UnsupportedServerOptimizer,
)
from worker_agent.frameworks import StrategyContext
from worker_agent.parameter_server.client import ParameterServerClient
from worker_agent.parameter_server.coordinator import CoordinatorKeeper, coordinate
from worker_agent.parameter_server.lbfgs import LbfgsOptions
from worker_agent.parameter_server.lbfgs_client import CoordinatorClient, EvaluationClient
from worker_agent.parameter_server.messages import JoinRequest
from worker_agent.parameter_server.portions import PortionRun
from worker_agent.parameter_server.server import ShardServer
from worker_agent.pytorch.line_search import strong_wolfe
from worker_agent.pytorch.sandblaster import SandblasterStrategy
from worker_agent.pytorch.server_shard import TorchShard
from worker_agent.state.progress import TrainingProgress

SECRET = "between us"
SAMPLES, INPUTS, HIDDEN, CLASSES, ITERATIONS, HISTORY, PORTIONS = 96, 8, 7, 3, 20, 5, 40
SHAPES = ((HIDDEN, INPUTS), (HIDDEN,), (CLASSES, HIDDEN), (CLASSES,))
SIZE = sum(int(np.prod(shape)) for shape in SHAPES)
OPTIONS = LbfgsOptions(1.0, 0.0, 0.0, HISTORY, SAMPLES, PORTIONS, is_full=True)
PARTIAL = LbfgsOptions(1.0, 0.0, 0.0, HISTORY, SAMPLES // 2, 9, is_full=False)


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


def alone(batches: Sequence[slice] = (slice(None),)) -> tuple[list[Tensor], Tensor]:
    """Return the points that PyTorch evaluates, in order, and the one it ends at.

    Args:
        batches: The samples of each step; of the only one, for all iterations.
    """
    weights = torch.nn.Parameter(BEGINNING.clone())
    points: list[Tensor] = []

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = loss_sum(weights, batch) / len(LABELS[batch])
        loss.backward()
        points.append(weights.detach().clone())
        return loss

    optimizer = torch.optim.LBFGS(
        [weights],
        max_iter=ITERATIONS if len(batches) == 1 else 1,
        max_eval=1000,
        history_size=HISTORY,
        tolerance_grad=0.0,
        tolerance_change=0.0,
        line_search_fn="strong_wolfe",
    )
    for each in batches:
        batch = each
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
                place = first.start % SAMPLES
                loss = loss_sum(leaf, slice(place, place + last.start + last.count - first.start))
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
def served(
    servers: int, coordinate_at: Callable[[str], None], options: LbfgsOptions = OPTIONS
) -> Iterator[list[ShardServer]]:
    """Serve, with weights to begin with."""
    shards = [
        ShardServer("127.0.0.1", SECRET, TorchShard.make, coordinate_at) for _ in range(servers)
    ]
    for shard in shards:
        threading.Thread(target=shard.serve, daemon=True).start()
    leader = ParameterServerClient([each.address for each in shards], SECRET, lambda: False)
    leader.join((0, 0), 0, JoinRequest("leader", ("leader",), True, ""))
    begin = {"evaluation": 1 << 24, "iteration": 0, "samples": 0}
    EvaluationClient(leader).start(options, BEGINNING.numpy(), begin)
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


def test_with_other_samples_in_each_iteration_it_is_one_step_of_pytorch_for_each() -> None:
    halves = [slice(0, SAMPLES // 2), slice(SAMPLES // 2, SAMPLES)]
    expected, _ = alone(halves * 4)
    with served(2, on_a_thread, PARTIAL) as shards:
        crowd = Crowd([each.address for each in shards], len(expected) * SAMPLES // 2)
        crowd.hire("w0")
        crowd.hire("w1")
        wait_for(shards[0], crowd, crowd.is_over.is_set)
        crowd.join()
    points = [crowd.points[each] for each in sorted(crowd.points)]
    assert len(points) == len(expected)
    for found, point in zip(points, expected, strict=True):
        assert torch.allclose(found, point, rtol=0, atol=1e-9)


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
        before = {"evaluation": 1 << 23, "iteration": 0, "samples": 0}
        with pytest.raises(GenerationBroken, match="is before"):  # a leader of long ago
            late.start(OPTIONS, np.zeros(SIZE), before)
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


def test_a_worker_whose_connections_break_comes_back() -> None:
    """An answer that may still be on its way must not be taken for that to a later request."""
    model = nn.Sequential(nn.Linear(INPUTS, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, CLASSES))
    with served(2, on_a_thread) as shards:
        strategy = SandblasterStrategy(context(model.double()))
        strategy.dataset_size = SAMPLES
        told = directive(
            2,
            SAMPLES,
            members=(Member("leader", "127.0.0.1:1"), Member("w0", "127.0.0.1:2")),
            servers=tuple(Member(f"s{n}", each.address) for n, each in enumerate(shards)),
        )
        strategy.connect(told, TrainingProgress(), is_new=True)
        assert strategy.client is not None
        for connection in strategy.client.connections:
            connection.close()
        with pytest.raises(GenerationBroken):
            strategy.take(0, 5 * SAMPLES)
        strategy.connect(told, TrainingProgress(), is_new=False)
        while strategy.take(0, 5 * SAMPLES).share is None:
            pass  # until the coordinator has begun
        strategy.close()


def context(model: nn.Module, **changes: Any) -> StrategyContext:
    optimizer = torch.optim.LBFGS(model.parameters(), line_search_fn="strong_wolfe")
    facts: dict[str, Any] = {"optimizer": optimizer, "loss": cross_entropy, **changes}
    return StrategyContext(
        name="sandblaster",
        model=model,
        worker="w0",
        secret=SECRET,
        should_abort=lambda: False,
        **facts,
    )


PLAIN = nn.Linear(3, 2)
REFUSED = {
    "dropout": (
        nn.Sequential(PLAIN, nn.Dropout(0.1)),
        {},
        r"1 \(Dropout\) is random, .* write p=0",
    ),
    "dropout inside": (nn.GRU(3, 2, 2, dropout=0.5), {}, r"GRU.*write p=0"),
    "slopes at random": (nn.Sequential(PLAIN, nn.RReLU()), {}, "RReLU.*another module"),
    "statistics": (nn.BatchNorm1d(3), {}, "depends on how the batch is cut: write nn.GroupNorm"),
    "no loss": (PLAIN, {"loss": None}, "needs the loss: write job.prepare"),
    "parts of parts": (PLAIN, {"micro_batches": 2}, "leave micro_batches out"),
    "a scale": (PLAIN, {"extra_state": {"scaler": None}}, "leave scaler out"),
    "another optimizer": (
        PLAIN,
        {"optimizer": torch.optim.SGD(PLAIN.parameters(), lr=0.1)},
        "not by SGD as it was passed: write torch.optim.LBFGS",
    ),
    "no line search": (
        PLAIN,
        {"optimizer": torch.optim.LBFGS(PLAIN.parameters())},
        'line_search_fn="strong_wolfe"',
    ),
}


@pytest.mark.parametrize(("model", "changes", "why"), REFUSED.values(), ids=REFUSED)
def test_a_script_whose_loss_would_not_repeat_is_refused_with_a_remedy(
    model: nn.Module, changes: dict[str, Any], why: str
) -> None:
    with pytest.raises((UnsupportedModel, UnsupportedServerOptimizer), match=why):
        SandblasterStrategy(context(model, **changes))


def test_dropout_that_drops_nothing_is_trained() -> None:
    SandblasterStrategy(context(nn.Sequential(PLAIN, nn.Dropout(0.0))))


# The whole way: the example's script, sessions, servers and their coordinator as processes.

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "digits-sandblaster" / "train.py"
NAMES = ["s0", "s1"]


def conduct(directory: Path, stop: StopRule, script: Path = EXAMPLE) -> Conductor:
    return Conductor(
        directory,
        [str(script)],
        stop=stop,
        dataset_size=1437,
        environment={"SCAVENGER_JOB_SECRET": "ours", "SCAVENGER_STRATEGY": "sandblaster"},
        launch=fork,
    )


def order(conductor: Conductor, *workers: str, servers: Sequence[str] = NAMES) -> None:
    conductor.wait(lambda: all(name in conductor.hellos for name in servers))
    members = tuple(Member(name, conductor.hellos[name].address) for name in servers)
    conductor.order(list(workers), 1437, strategy="sandblaster", servers=members)


def test_the_example_reaches_its_goal_though_a_worker_is_killed(tmp_path: Path) -> None:
    stop = StopAtMetric("accuracy", 0.95, "at_least", max_progress=120)
    with conduct(tmp_path, stop) as conductor:
        start_servers(conductor, *NAMES)
        for name in ("w0", "w1", "w2"):
            conductor.start(name)
        order(conductor, "w0", "w1", "w2")
        conductor.wait(lambda: any(each.progress.iteration >= 2 for each in conductor.reports))
        conductor.processes["w1"].kill()
        ended = conductor.wait(
            lambda: [r for r in conductor.reports if r.worker == "w0" and r.finished]
        )
        conductor.wait(lambda: [r for r in conductor.reports if r.worker == "w2" and r.finished])
    assert ended[-1].finished == "target"
    assert ended[-1].progress.metrics["accuracy"] >= 0.95
    assert ended[-1].progress.iteration < 60
    assert {number for each in conductor.reports for number in each.steps.iteration} >= {1, 2, 3}


@pytest.mark.slow  # the coordinator's second start takes seconds
def test_a_server_that_is_replaced_begins_anew_with_the_leaders_weights(tmp_path: Path) -> None:
    with conduct(tmp_path, FOREVER) as conductor:
        start_servers(conductor, *NAMES, "s2")
        for name in ("w0", "w1"):
            conductor.start(name)
        order(conductor, "w0", "w1")
        conductor.wait(lambda: any(each.progress.iteration >= 2 for each in conductor.reports))
        conductor.processes["s1"].kill()
        before = conductor.reports[-1].progress
        order(conductor, "w0", "w1", servers=["s0", "s2"])
        after = conductor.wait(
            lambda: [
                report.progress
                for report in conductor.reports
                if report.progress.generation == 2
                and report.progress.iteration > before.iteration + 2
            ]
        )
    assert after[0].samples > before.samples
    assert after[0].metrics["accuracy"] > 0.5  # 0.1 with weights of chance
