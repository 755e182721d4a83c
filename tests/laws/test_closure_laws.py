"""A step that is given a closure trains what it trains without the agent, and sends it once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn, optim

from tests.alone import attach_alone
from tests.crew import SAMPLES, Classifier, assert_as_alone, crew
from worker_agent.errors import UnsupportedOptimizer, UnsupportedServerOptimizer
from worker_agent.frameworks import BatchSlice, ControlFlags
from worker_agent.pytorch.all_reduce import AllReduceStrategy
from worker_agent.pytorch.gradient_buckets import GradientBucket
from worker_agent.pytorch.reducer import Reducer
from worker_agent.pytorch.server_shard import describe_optimizer
from worker_agent.session import Session

pytestmark = pytest.mark.usefixtures("one_thread")

OPTIMIZERS: dict[str, Callable[[Any], optim.Optimizer]] = {
    "SGD": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.1),
    "AdamW, fused": lambda p: optim.AdamW(p, lr=0.01, fused=True),
}


FLAGS = ControlFlags(
    announced_generation=1, is_over=False, is_leaving=False, learning_rate_factor=1.0
)
WHOLE = BatchSlice(1.0, 1.0, is_last=True)


def sgd(parameters: Any) -> optim.Optimizer:
    return optim.SGD(parameters, lr=0.1)


class Training(Classifier):
    """One process's worth of objects."""

    def __init__(self, make: Callable[[Any], optim.Optimizer], passes: int = 1) -> None:
        super().__init__(passes)
        self.optimizer = make(self.model.parameters())
        self.returned: list[bool] = []

    def closure(self, indices: Tensor) -> Callable[[], Tensor]:
        """Return what the step calls: it makes the last of the passes."""
        first, *rest = indices.chunk(self.passes)
        self.optimizer.zero_grad()
        for part in rest:
            self.loss(part).backward()

        def closure() -> Tensor:
            loss = self.loss(first)
            loss.backward()
            return loss

        return closure

    def train(self, indices: Tensor, iteration: int) -> None:
        """Step with a closure, by place or by name; its value comes back."""
        closure = self.closure(indices)
        values: list[Tensor] = []

        def told() -> Tensor:
            values.append(closure())
            return values[-1]

        step: Any = self.optimizer.step
        returned = step(told) if iteration % 2 else step(closure=told)
        self.returned.append(len(values) == 1 and returned is values[0])

    def train_plainly(self, indices: Tensor, _: int) -> None:
        self.closure(indices)()
        self.optimizer.step()


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[GradientBucket]:
    """All buckets that any worker sends."""
    buckets: list[GradientBucket] = []
    send = Reducer._send

    def note(reducer: Reducer, bucket: GradientBucket) -> None:
        buckets.append(bucket)
        send(reducer, bucket)

    monkeypatch.setattr(Reducer, "_send", note)
    return buckets


@pytest.mark.parametrize(
    ("strategy", "name", "passes"),
    [
        ("all_reduce", "SGD", 1),
        ("all_reduce", "AdamW, fused", 2),
        ("parameter_server", "SGD", 2),
        ("parameter_server", "AdamW, fused", 1),
    ],
)
def test_steps_with_a_closure_are_plain_steps_over_resizes(
    tmp_path: Path, sent: list[GradientBucket], strategy: str, name: str, passes: int
) -> None:
    make = OPTIMIZERS[name]
    trained: list[Training] = []

    def script(job: Session, note: Callable[..., None]) -> None:
        training = Training(make, passes)
        trained.append(training)
        job.prepare(training.model, training.optimizer, micro_batches=passes)
        for indices in job.batches(SAMPLES, 24, epochs=1, seed=9):
            note(indices=indices, weights=training.weights())
            training.train(indices, job.iteration)

    with crew(tmp_path, script, strategy=strategy, split_every=3) as workers:
        for count in (1, 3, 2):
            workers.order(count, 24, iterations=6)
        workers.end()
    alone = Training(make)
    assert assert_as_alone(workers, alone.weights, alone.train_plainly) > 15
    assert all(all(each.returned) for each in trained)
    bodies = sum(len(rows) for rows in workers.rows.values())
    assert len(sent) <= bodies  # halves are sent once


def test_steps_with_a_closure_are_plain_steps_at_a_workers_own_pace(tmp_path: Path) -> None:
    differences: list[float] = []

    def script(job: Session, note: Callable[..., None]) -> None:
        watched, alone = Training(sgd), Training(sgd)
        job.prepare(watched.model, watched.optimizer)
        for indices in job.batches(SAMPLES, 24, epochs=1, seed=9):
            differences.append(float((watched.weights() - alone.weights()).abs().max()))
            watched.train(indices, job.iteration)
            alone.train_plainly(indices, job.iteration)

    with crew(tmp_path, script, strategy="downpour") as workers:
        workers.play(1, 24, iterations=12)
    assert len(differences) == 12
    assert max(differences) < 1e-12


# One process.


@contextmanager
def attached(model: nn.Module, optimizer: optim.Optimizer) -> Iterator[AllReduceStrategy]:
    strategy = attach_alone(model, optimizer)
    try:
        strategy.begin(WHOLE, FLAGS)
        yield strategy
    finally:
        strategy.close()


def test_a_closure_reads_and_writes_the_rates_of_the_script() -> None:
    training, by_hand = Training(sgd), Training(sgd)
    group = training.optimizer.param_groups[0]
    seen = []
    with attached(training.model, training.optimizer) as strategy:
        strategy.scale_learning_rate(3.0)
        inner = training.closure(torch.arange(24))

        def closure() -> Tensor:
            seen.append(group["lr"])
            group["lr"] = 0.05
            return inner()

        training.optimizer.step(closure)
    assert (seen, group["lr"]) == ([0.1], 0.05)
    by_hand.optimizer.param_groups[0]["lr"] = 3.0 * 0.05
    by_hand.train_plainly(torch.arange(24), 0)
    assert torch.equal(training.weights(), by_hand.weights())


def test_a_loss_scaler_refuses_a_closure_or_passes_it_on_as_without_the_agent() -> None:
    training, alone = Training(sgd), Training(sgd)
    scalers = [torch.amp.GradScaler("cpu", enabled=enabled) for enabled in (True, False)]
    with attached(training.model, training.optimizer):
        closure = training.closure(torch.arange(24))
        with pytest.raises(RuntimeError, match="Closure use is not currently supported"):
            scalers[0].step(training.optimizer, closure=closure)
        assert torch.equal(training.weights(), alone.weights())
        scalers[1].step(training.optimizer, closure=closure)
    alone.train_plainly(torch.arange(24), 0)
    assert torch.equal(training.weights(), alone.weights())


class Searching(optim.SGD):
    """Looks twice before it moves."""

    def step(self, closure: Any = None) -> Any:
        closure()
        return super().step(closure)


class Deaf(optim.Optimizer):
    """Takes a closure and does not call it."""

    def __init__(self, parameters: Any, lr: float) -> None:
        super().__init__(parameters, {"lr": lr})

    def step(self, closure: Any = None) -> None:
        pass


@pytest.mark.parametrize(
    ("kind", "why"),
    [(Searching, "calls its closure several times.*agent run"), (Deaf, "has not called it")],
)
def test_a_closure_that_is_called_twice_or_never_is_refused(
    kind: Callable[..., optim.Optimizer], why: str
) -> None:
    training = Training(lambda parameters: kind(parameters, lr=0.1))
    with (
        attached(training.model, training.optimizer),
        pytest.raises(UnsupportedOptimizer, match=why),
    ):
        training.optimizer.step(training.closure(torch.arange(24)))


def test_an_optimizer_that_searches_is_refused_before_it_trains() -> None:
    training = Training(lambda parameters: optim.LBFGS(parameters))
    with (
        pytest.raises(UnsupportedOptimizer, match=r"LBFGS calls its closure many times.*AdamW"),
        attached(training.model, training.optimizer),
    ):
        pass
    with pytest.raises(UnsupportedServerOptimizer, match="LBFGS cannot run on parameter servers"):
        describe_optimizer(training.optimizer)
