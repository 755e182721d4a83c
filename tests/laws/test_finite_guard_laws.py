"""With the guard a step that is not finite leaves no trace in any optimizer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn, optim

from tests.alone import attach_alone
from tests.crew import SAMPLES, Classifier, assert_as_alone, crew
from tests.integration.reads import Reads
from tests.laws.test_fused_step_laws import FLAGS, OPTIMIZERS, WHOLE, seeded
from worker_agent.pytorch.all_reduce import AllReduceStrategy
from worker_agent.session import Session

pytestmark = pytest.mark.usefixtures("one_thread")

STEPS = 8
OTHERS: dict[str, Callable[..., optim.Optimizer]] = {
    name: getattr(optim, name)
    for name in ("RMSprop", "Adadelta", "RAdam", "NAdam", "Adamax", "ASGD", "Rprop")
}
OTHERS["dampening"] = lambda given, **options: optim.SGD(
    given, momentum=0.9, dampening=0.3, **options
)
ALL = {**OPTIMIZERS, **OTHERS}


class GuardedTraining:
    """A small network and its optimizer."""

    def __init__(self, kind: str, **options: object) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 2)).double()
        self.optimizer = ALL[kind](self.model.parameters(), lr=0.01, **options)

    def compute(self, number: int, *, is_bad: bool) -> None:
        inputs = torch.randn(4, 5, dtype=torch.float64, generator=seeded(number))
        self.optimizer.zero_grad()
        loss = self.model(inputs).square().mean()
        # One parameter only: the others are finite, and must not step either.
        factor = torch.nan if is_bad else 1.0
        (loss + factor * self.model[2].bias.sum()).backward()

    def branch(self, number: int, *, is_bad: bool) -> None:
        self.compute(number, is_bad=is_bad)
        if all(bool(each.grad.isfinite().all()) for each in self.model.parameters()):
            self.optimizer.step()

    def weights(self) -> Tensor:
        return torch.cat([each.detach().flatten() for each in self.model.parameters()])


def guard(training: GuardedTraining) -> AllReduceStrategy:
    strategy = attach_alone(training.model, training.optimizer)
    strategy.guard.is_on = True
    return strategy


@given(kind=st.sampled_from(list(ALL)), data=st.data())
@settings(max_examples=80, deadline=None)
def test_weights_are_those_of_the_loop_that_branches(kind: str, data: st.DataObject) -> None:
    bad = data.draw(st.lists(st.booleans(), min_size=STEPS, max_size=STEPS), "bad steps")
    is_fused = kind in OPTIMIZERS and data.draw(st.booleans(), "fused")
    alone = GuardedTraining(kind)
    guarded = GuardedTraining(kind, **({"fused": True} if is_fused else {}))
    strategy = guard(guarded)
    try:
        for number, is_bad in enumerate(bad):
            alone.branch(number, is_bad=is_bad)
            strategy.begin(WHOLE, FLAGS)
            guarded.compute(number, is_bad=is_bad)
            guarded.optimizer.step()
            assert strategy.end()
            difference = (alone.weights() - guarded.weights()).abs().max()
            assert difference < 1e-12 if is_fused else difference == 0
            assert not hasattr(guarded.optimizer, "found_inf")
        assert strategy.guard.skipped is not None
        assert int(strategy.guard.skipped) == sum(bad)
    finally:
        strategy.close()


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_the_guard_of_a_fused_step_reads_nothing_on_the_host(kind: str) -> None:
    training = GuardedTraining(kind, fused=True)
    strategy = guard(training)
    try:
        for is_bad in (True, False):
            with Reads() as reads:
                strategy.begin(WHOLE, FLAGS)
                training.compute(0, is_bad=is_bad)
                training.optimizer.step()
            assert strategy.end()
            assert reads.seen == []
    finally:
        strategy.close()


POISON = {17}


@pytest.mark.parametrize("is_fused", [True, False], ids=["fused", "unfused"])
def test_all_workers_skip_the_same_steps_over_resizes(tmp_path: Path, *, is_fused: bool) -> None:
    class Poisoned(Classifier):
        def __init__(self) -> None:
            super().__init__()
            options = {"fused": True} if is_fused else {}
            self.optimizer = optim.AdamW(self.model.parameters(), lr=0.01, **options)

        def train(self, indices: Tensor) -> bool:
            self.optimizer.zero_grad()
            is_bad = bool(POISON & set(indices.tolist()))
            (self.loss(indices) * (torch.nan if is_bad else 1.0)).backward()
            return is_bad

    def script(job: Session, note: Callable[..., None]) -> None:
        training = Poisoned()
        job.prepare(training.model, training.optimizer)
        for indices in job.batches(SAMPLES, 24, epochs=1, seed=9):
            note(indices=indices, weights=training.weights())
            training.train(indices)
            training.optimizer.step()

    with crew(tmp_path, script, split_every=3) as workers:
        for count in (1, 3, 2):
            workers.order(count, 24, iterations=6, nan_guard=True)
        workers.end()
    alone, skipped = Poisoned(), set()

    def train(indices: Tensor, _: int) -> None:
        is_bad = alone.train(indices)
        skipped.add(is_bad)
        if not is_bad:
            alone.optimizer.step()

    assert assert_as_alone(workers, alone.weights, train) > 15
    assert skipped == {True, False}


def test_without_the_guard_a_bad_step_is_the_scripts_own() -> None:
    training = GuardedTraining("Adam")
    strategy = attach_alone(training.model, training.optimizer)
    try:
        strategy.begin(WHOLE, FLAGS)
        training.compute(0, is_bad=True)
        training.optimizer.step()
        assert strategy.end()
        assert training.weights().isnan().any()
    finally:
        strategy.close()
