"""A loss scaler skips the same steps with the agent as without, and none of them leaves a trace."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn, optim

from tests.alone import attach_alone
from tests.crew import SAMPLES, Classifier, assert_as_alone, crew
from worker_agent.frameworks import BatchSlice, ControlFlags
from worker_agent.session import Session

pytestmark = pytest.mark.usefixtures("one_thread")

FLAGS = ControlFlags(
    announced_generation=1, is_over=False, is_leaving=False, learning_rate_factor=1.0
)
WHOLE = BatchSlice(1.0, 1.0, is_last=True)
ROWS = 16


@pytest.fixture(autouse=True)
def no_memory_is_zero_by_chance() -> Iterator[None]:
    """What PyTorch leaves uninitialised is NaN here."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


class Training(Classifier):
    """One process's worth of objects; some batches make the loss infinite."""

    def __init__(self, options: dict[str, Any], *, is_fused: bool) -> None:
        super().__init__()
        # Without a fused kernel the scaler reads on the host whether to step.
        how = {"fused": True} if is_fused else {"foreach": False}
        groups = [
            {"params": [self.model[0].weight, self.model[2].bias]},
            {"params": [self.model[0].bias, self.model[2].weight], "lr": 0.03},
        ]
        self.optimizer = optim.SGD(groups, lr=0.1, **options, **how)
        # With one batch in ten that is skipped the scale stays where it is, however long it takes.
        self.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=9)

    def train(self, indices: Tensor, *, is_bad: bool, is_unscaled: bool) -> None:
        self.optimizer.zero_grad()
        loss = self.loss(indices)
        self.scaler.scale(loss * torch.inf if is_bad else loss).backward()
        if is_unscaled:
            self.scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.model.parameters(), 0.5)
        self.scaler.step(self.optimizer)
        self.scaler.update()


options = st.fixed_dictionaries(
    {
        "momentum": st.sampled_from([0.0, 0.1, 0.9]),
        "weight_decay": st.sampled_from([0.0, 0.1]),
        "maximize": st.booleans(),
    }
).flatmap(
    lambda drawn: st.builds(
        lambda dampening, nesterov: {
            **drawn,
            "dampening": 0.0 if nesterov and drawn["momentum"] else dampening,
            "nesterov": nesterov and drawn["momentum"] > 0,
        },
        st.sampled_from([0.0, 0.3, 1.0]),
        st.booleans(),
    )
)


@given(
    chosen=options,
    bad=st.lists(st.booleans(), min_size=6, max_size=6),
    is_unscaled=st.booleans(),
    is_carried=st.booleans(),
)
@settings(max_examples=30, deadline=None)
def test_fused_momentum_is_that_of_a_loop_that_branches_whichever_steps_are_skipped(
    chosen: dict[str, Any], bad: list[bool], *, is_unscaled: bool, is_carried: bool
) -> None:
    alone, watched = Training(chosen, is_fused=False), Training(chosen, is_fused=True)
    extra_state = {"scaler": watched.scaler} if is_carried else {}
    strategy = attach_alone(watched.model, watched.optimizer, extra_state=extra_state)
    try:
        for number, is_bad in enumerate(bad):
            indices = torch.arange(ROWS) + ROWS * number
            alone.train(indices, is_bad=is_bad, is_unscaled=is_unscaled)
            strategy.begin(WHOLE, FLAGS)
            watched.train(indices, is_bad=is_bad, is_unscaled=is_unscaled)
            assert strategy.end()
            assert (alone.weights() - watched.weights()).abs().max() < 1e-12
            assert alone.scaler.state_dict() == watched.scaler.state_dict()
    finally:
        strategy.close()


POISON = {17}


@pytest.mark.parametrize(
    ("strategy", "is_fused"),
    [("all_reduce", True), ("parameter_server", True), ("parameter_server", False)],
    ids=["all_reduce-fused", "parameter_server-fused", "parameter_server-unfused"],
)
def test_scaled_steps_are_those_of_one_process_over_resizes(
    tmp_path: Path, strategy: str, *, is_fused: bool
) -> None:
    chosen = {"momentum": 0.9, "dampening": 0.2}

    def script(job: Session, note: Callable[..., None]) -> None:
        training = Training(chosen, is_fused=is_fused)
        job.prepare(training.model, training.optimizer, scaler=training.scaler)
        for indices in job.batches(SAMPLES, 24, epochs=1, seed=9):
            note(indices=indices, weights=training.weights())
            is_bad = bool(POISON & set(indices.tolist()))
            training.train(indices, is_bad=is_bad, is_unscaled=False)

    with crew(tmp_path, script, strategy=strategy, split_every=3) as workers:
        for count in (1, 3, 2):
            workers.order(count, 24, iterations=6)
        workers.end()
    alone = Training(chosen, is_fused=False)
    skipped: set[bool] = set()

    def train(indices: Tensor, _: int) -> None:
        is_bad = bool(POISON & set(indices.tolist()))
        skipped.add(is_bad)
        alone.train(indices, is_bad=is_bad, is_unscaled=False)

    assert assert_as_alone(workers, alone.weights, train) > 15
    assert skipped == {True, False}


@pytest.mark.parametrize("is_fused", [True, False], ids=["fused", "unfused"])
def test_scaled_steps_of_one_worker_at_its_own_pace_are_plain_ones(
    tmp_path: Path, *, is_fused: bool
) -> None:
    differences: list[float] = []

    def script(job: Session, note: Callable[..., None]) -> None:
        watched, alone = Training({}, is_fused=is_fused), Training({}, is_fused=False)
        job.prepare(watched.model, watched.optimizer, scaler=watched.scaler)
        for indices in job.batches(SAMPLES, 24, epochs=1, seed=9):
            differences.append(float((watched.weights() - alone.weights()).abs().max()))
            is_bad = bool(POISON & set(indices.tolist()))
            for training in (watched, alone):
                training.train(indices, is_bad=is_bad, is_unscaled=False)

    with crew(tmp_path, script, strategy="downpour") as workers:
        workers.play(1, 24, iterations=30)
    assert len(differences) == 30
    assert max(differences) < 1e-12
