"""A fused step that a stack turns on makes the weights of the loop that branches on the host."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn, optim

from tests.alone import attach_alone
from tests.integration.reads import Reads
from worker_agent.frameworks import BatchSlice, ControlFlags
from worker_agent.pytorch.stacks.fused import FusedStep
from worker_agent.pytorch.stacks.switch import PreparedScript

pytestmark = pytest.mark.usefixtures("one_thread")

FLAGS = ControlFlags(
    announced_generation=1, is_over=False, is_leaving=False, learning_rate_factor=1.0
)
WHOLE = BatchSlice(1.0, 1.0, is_last=True)
STEPS = 8

OPTIMIZERS: dict[str, Callable[..., optim.Optimizer]] = {
    "SGD": optim.SGD,
    "momentum": lambda given, **options: optim.SGD(given, momentum=0.9, **options),
    "nesterov": lambda given, **options: optim.SGD(given, momentum=0.9, nesterov=True, **options),
    "Adam": optim.Adam,
    "amsgrad": lambda given, **options: optim.Adam(given, amsgrad=True, **options),
    "AdamW": optim.AdamW,
    "Adagrad": lambda given, **options: optim.Adagrad(given, lr_decay=0.1, **options),
}


class ScaledTraining:
    """A small convolutional network in float64, its optimizer, and a scaler that may skip."""

    def __init__(self, kind: str, *, is_channels_last: bool) -> None:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(144, 2))
        memory = torch.channels_last if is_channels_last else torch.contiguous_format
        self.model = model.double().to(memory_format=memory)
        self.optimizer = OPTIMIZERS[kind](self.model.parameters(), lr=0.01, weight_decay=0.01)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3)
        self.script = PreparedScript(self.model, self.optimizer, self.scaler)

    def train(self, number: int, *, is_bad: bool) -> None:
        pictures = torch.randn(4, 3, 8, 8, dtype=torch.float64, generator=seeded(number))
        self.optimizer.zero_grad()
        loss = self.model(pictures).square().mean()
        self.scaler.scale(loss * torch.inf if is_bad else loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()

    def weights(self) -> Tensor:
        return torch.cat([each.detach().flatten() for each in self.model.parameters()])


def seeded(number: int) -> torch.Generator:
    return torch.Generator().manual_seed(number)


@given(
    kind=st.sampled_from(list(OPTIMIZERS)),
    is_channels_last=st.booleans(),
    bad=st.lists(st.booleans(), min_size=STEPS, max_size=STEPS),
    turns=st.lists(st.integers(0, STEPS - 1), max_size=4),
)
def test_weights_are_those_of_the_loop_that_branches_whenever_it_is_turned_on_and_off(
    kind: str, bad: list[bool], turns: list[int], *, is_channels_last: bool
) -> None:
    alone = ScaledTraining(kind, is_channels_last=is_channels_last)
    fused = ScaledTraining(kind, is_channels_last=is_channels_last)
    part, is_on = FusedStep(), False
    assert part.refusal(fused.script) is None
    strategy = attach_alone(fused.model, fused.optimizer, extra_state={"scaler": fused.scaler})
    try:
        for number, is_bad in enumerate(bad):
            for _ in range(turns.count(number)):
                (part.turn_off if is_on else part.turn_on)(fused.script)
                is_on = not is_on
            alone.train(number, is_bad=is_bad)
            strategy.begin(WHOLE, FLAGS)
            fused.train(number, is_bad=is_bad)
            assert strategy.end()
            assert (alone.weights() - fused.weights()).abs().max() < 1e-12
            assert alone.scaler.state_dict() == fused.scaler.state_dict()
    finally:
        strategy.close()


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_a_fused_step_reads_nothing_on_the_host(kind: str) -> None:
    training = ScaledTraining(kind, is_channels_last=False)
    training.train(0, is_bad=False)
    with Reads() as reads:
        training.train(1, is_bad=False)
    assert reads.seen, "the trap sees the reads of the other implementation"
    FusedStep().turn_on(training.script)
    training.train(2, is_bad=False)
    with Reads() as reads:
        training.train(3, is_bad=True)
    assert reads.seen == []


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_all_is_as_before_once_it_is_turned_off(kind: str) -> None:
    training = ScaledTraining(kind, is_channels_last=False)
    before = [dict(group) for group in training.optimizer.param_groups]
    part = FusedStep()
    part.turn_on(training.script)
    training.train(0, is_bad=False)
    part.turn_off(training.script)
    assert [dict(group) for group in training.optimizer.param_groups] == before
    assert not hasattr(training.optimizer, "_step_supports_amp_scaling")
    training.train(1, is_bad=False)


class OwnStep(optim.SGD):
    """An optimizer of the script's own."""

    def step(self, closure: Any = None) -> Any:
        return super().step(closure)


def test_what_is_refused_is_said() -> None:
    model = nn.Linear(2, 1)

    def refusal(optimizer: optim.Optimizer) -> str:
        said = FusedStep().refusal(PreparedScript(model, optimizer))
        assert said is not None
        return said

    given = model.parameters
    assert "RMSprop has no fused step" in refusal(optim.RMSprop(given()))
    assert "OwnStep has no fused step" in refusal(OwnStep(given(), lr=0.1))
    assert "dampening" in refusal(optim.SGD(given(), lr=0.1, momentum=0.9, dampening=0.5))
    assert "differentiable" in refusal(optim.Adam(given(), differentiable=True))
    embedding = nn.Embedding(3, 2, sparse=True)
    embedding(torch.tensor([0])).sum().backward()
    assert "sparse" in refusal(optim.SGD(embedding.parameters(), lr=0.1))
    complex_weight = nn.Parameter(torch.ones(1, dtype=torch.complex64))
    assert "complex64" in refusal(optim.SGD([complex_weight], lr=0.1))
