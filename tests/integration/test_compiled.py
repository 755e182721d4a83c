"""Inductor's own code: what of it is wrong is found and mended, and no step ever compiles."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch._inductor.async_compile import get_compile_threads

from scavenger.stack import Stack
from tests.alone import attach_alone
from worker_agent.pytorch.all_reduce import AllReduceStrategy
from worker_agent.pytorch.stacks import compiled
from worker_agent.pytorch.stacks.compiled import COMPILER_NICENESS, OPTIONS, REPAIRS, Compiled

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    # PyTorch's compiler uses parts of PyTorch that PyTorch advises against.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


class Pictures(nn.Module):
    """The network whose gradients Inductor of PyTorch 2.13 loses: a scatter is read too early."""

    def __init__(self, pool: str = "max", channels: int = 1, size: int = 8) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Conv2d(channels, 16, 3, padding=1)
        self.second = nn.Conv2d(16, 32, 3, padding=1)
        self.pool = {"max": nn.MaxPool2d(2), "mean": nn.AvgPool2d(2), "none": nn.Identity()}[pool]
        left = size if pool == "none" else size // 2
        self.third, self.last = nn.Linear(32 * left * left, 64), nn.Linear(64, 10)

    def forward(self, pictures: Tensor) -> Tensor:
        values = torch.relu(self.second(torch.relu(self.first(pictures))))
        found: Tensor = self.last(torch.relu(self.third(self.pool(values).flatten(1))))
        return found


def step(model: nn.Module, inputs: Tensor) -> None:
    nn.functional.cross_entropy(model(inputs), torch.arange(len(inputs)) % 10).backward()


def gradients(model: nn.Module) -> list[Tensor]:
    """Return the gradients of a model, and leave none."""
    found = [each.grad for each in model.parameters()]
    model.zero_grad()
    assert all(each is not None for each in found)
    return [each for each in found if each is not None]


def rehearsed(model: nn.Module, inputs: Tensor) -> AllReduceStrategy:
    """Return a strategy that has rehearsed the model as one graph; close it."""
    torch._dynamo.reset()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    strategy = attach_alone(model, optimizer)
    strategy.rehearsals.use(Stack.parse("compiled_whole"))
    rehearsal = strategy.rehearsals.due([len(inputs)])
    assert rehearsal is not None
    with rehearsal:
        step(model, inputs)
    return strategy


def options_of(strategy: AllReduceStrategy) -> Any:
    (part,) = [each for each in strategy.stacks.on if isinstance(each, Compiled)]
    return part.options


@pytest.mark.slow  # a minute of the compiler
def test_lost_gradients_are_found_and_the_code_is_compiled_rightly() -> None:
    model, inputs = Pictures(), torch.randn(16, 1, 8, 8)
    strategy = rehearsed(model, inputs)
    try:
        (check,) = strategy.rehearsals.checks
        assert check.refusal == ""
        assert options_of(strategy) == {**OPTIONS, **REPAIRS[0]}
        graphs = counters["stats"]["unique_graphs"]
        step(model, inputs)
        found = gradients(model)
        with strategy.rehearsals._eager():
            step(model, inputs)
        for ours, eager in zip(found, gradients(model), strict=True):
            assert torch.allclose(ours, eager, rtol=1e-4, atol=1e-6)
        # An evaluation, and pictures of another size, run eager instead of stalling.
        with torch.no_grad():
            model(torch.randn(7, 1, 8, 8))
        assert counters["stats"]["unique_graphs"] == graphs
    finally:
        strategy.close()


@pytest.mark.slow
def test_compilers_yield_to_what_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = tmp_path / "niceness"
    shim, compiler = tmp_path / "bin" / "g++", shutil.which("g++")
    shim.parent.mkdir()
    shim.write_text(f'#!/bin/sh\nnice >> {told}\nexec {compiler} "$@"\n')
    shim.chmod(0o755)
    monkeypatch.setenv("PATH", str(shim.parent), prepend=":")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "code"))
    own = os.getpriority(os.PRIO_PROCESS, 0)
    rehearsed(
        nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 10)), torch.randn(4, 5)
    ).close()
    lowered = own + (COMPILER_NICENESS if get_compile_threads() > 1 else 0)
    assert str(lowered) in told.read_text().split()
    assert os.getpriority(os.PRIO_PROCESS, 0) == own


TABLE = {
    "16 pictures": ((16, 1, 8), {}, torch.float32, True),
    "32 pictures": ((32, 1, 8), {}, torch.float32, True),
    "larger pictures": ((32, 1, 16), {"size": 16}, torch.float32, True),
    "three colours": ((32, 3, 8), {"channels": 3}, torch.float32, True),
    "double precision": ((32, 1, 8), {}, torch.float64, True),
    "64 pictures": ((64, 1, 8), {}, torch.float32, False),
    "means": ((32, 1, 8), {"pool": "mean"}, torch.float32, False),
    "no pool": ((32, 1, 8), {"pool": "none"}, torch.float32, False),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", TABLE)
def test_each_graph_is_judged_by_itself(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (batch, channels, size), shape, dtype, is_wrong = TABLE[case]
    # Marked as changing, batches of any size have one graph; here each has its own.
    monkeypatch.setattr(compiled, "mark_dynamic", lambda *_: None)
    model = Pictures(**shape).to(dtype)
    strategy = rehearsed(model, torch.randn(batch, channels, size, size, dtype=dtype))
    try:
        (check,) = strategy.rehearsals.checks
        assert check.refusal == ""
        assert (options_of(strategy) != OPTIONS) == is_wrong
    finally:
        strategy.close()
