"""The gradient guard catches wrong gradients, passes rounding, and looks at a model unseen."""

from __future__ import annotations

import copy
import random
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn, optim

from scavenger.stack import Stack
from tests.alone import attach_alone
from worker_agent.pytorch.all_reduce import AllReduceStrategy
from worker_agent.pytorch.stacks.compiled import Compiled, repeated_blocks
from worker_agent.pytorch.stacks.gradient_guard import find_wrong_gradient, relative_error

pytestmark = pytest.mark.usefixtures("one_thread")

NAMES = ("first", "second", "third")
seeds = st.integers(0, 2**31)


def gradients(seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.randn(4, 5, generator=generator, dtype=torch.float64) * 10**power
        for power in (-3, 0, 3)
    ]


def rounded(exact: list[Tensor]) -> list[Tensor]:
    return [each.float() for each in exact]


@given(seeds, st.integers(0, 2), st.floats(1.001, 3.0))
def test_one_gradient_that_is_a_little_too_long_is_named(
    seed: int, place: int, factor: float
) -> None:
    exact = gradients(seed)
    computed = rounded(exact)
    computed[place] = computed[place] * factor
    wrong = find_wrong_gradient(NAMES, computed, rounded(exact), exact)
    assert wrong is not None
    assert wrong.parameter == NAMES[place]
    assert wrong.error == pytest.approx(factor - 1, rel=1e-2)


@given(seeds, st.floats(0, 9.0))
def test_rounding_in_another_order_passes_however_inexact_eager_is(seed: int, ratio: float) -> None:
    exact, off = gradients(seed), gradients(seed + 1)
    eager = [true + 1e-2 * each for true, each in zip(exact, off, strict=True)]
    computed = [true - ratio * 1e-2 * each for true, each in zip(exact, off, strict=True)]
    assert find_wrong_gradient(NAMES, computed, eager, exact) is None


@given(seeds, st.integers(0, 2), st.sampled_from([torch.nan, torch.inf]))
def test_what_is_no_number_is_wrong(seed: int, place: int, value: float) -> None:
    exact = gradients(seed)
    computed = rounded(exact)
    computed[place][0, 0] = value
    assert find_wrong_gradient(NAMES, computed, rounded(exact), exact) is not None


@pytest.mark.parametrize("missing", [None, torch.zeros(4, 5)])
def test_a_gradient_that_is_zero_where_eagers_is_not_is_wrong_however_small(
    missing: Tensor | None,
) -> None:
    exact = gradients(0)
    tiny = [*rounded(exact)[:2], torch.full((4, 5), 1e-30)]
    true = [*exact[:2], torch.zeros(4, 5, dtype=torch.float64)]
    wrong = find_wrong_gradient(NAMES, [*rounded(exact)[:2], missing], tiny, true)
    assert wrong is not None
    assert wrong.is_zero
    assert find_wrong_gradient(NAMES, [None] * 3, [None] * 3, [None] * 3) is None


def test_errors_of_all_gradients_are_relative_to_all() -> None:
    exact = [torch.tensor([3.0]), torch.tensor([4.0])]
    assert relative_error([torch.tensor([3.0]), torch.tensor([4.5])], exact) == pytest.approx(0.1)
    assert relative_error([None], [None]) == 0.0


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.3), nn.Tanh())

    def forward(self, values: Tensor) -> Tensor:
        return values + self.inner(values)


class Blocks(nn.Module):
    """Two blocks, a batch normalisation, and dropout: state and random numbers in each pass."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.norm, self.head = nn.BatchNorm1d(6), nn.Linear(6, 3)
        self.picture = nn.Parameter(torch.zeros(2, 3, 2, 2))  # is used nowhere

    def forward(self, values: Tensor) -> Tensor:
        for block in self.blocks:
            values = block(values)
        return self.head(self.norm(values))


class Training:
    """A script with all that a pass of its loop body changes."""

    def __init__(self) -> None:
        self.model = Blocks()
        self.optimizer = optim.AdamW(self.model.parameters(), lr=0.01)
        self.scheduler = optim.lr_scheduler.StepLR(self.optimizer, 1, 0.9)
        self.average = optim.swa_utils.AveragedModel(self.model)
        self.extra = {"scheduler": self.scheduler, "average": self.average}

    def attach(self) -> AllReduceStrategy:
        return attach_alone(self.model, self.optimizer, extra_state=self.extra)

    def train(self, batch: int) -> None:
        self.optimizer.zero_grad()
        inputs = torch.randn(batch, 6) + np.random.normal() + random.random()
        loss = self.model(inputs).square().mean()
        loss.backward()
        self.optimizer.step()
        self.scheduler.step()
        self.average.update_parameters(self.model)

    def everything(self) -> list[Any]:
        tensors = [
            *copy.deepcopy(list(self.model.state_dict().values())),
            *copy.deepcopy(list(self.average.state_dict().values())),
            torch.get_rng_state(),
            torch.tensor(random.getstate()[1]),
            torch.tensor(np.random.get_state()[1].astype(np.int64)),
            torch.tensor(self.scheduler.get_last_lr()),
        ]
        slots = [
            value
            for state in self.optimizer.state.values()
            for value in state.values()
            if torch.is_tensor(value)
        ]
        return [*tensors, *copy.deepcopy(slots)]


@pytest.mark.parametrize("stack", ["compiled", "bf16", "channels_last+bf16+compiled+fused"])
@pytest.mark.parametrize("before", [0, 2])
def test_a_rehearsal_leaves_all_as_it_was(
    stack: str, before: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Compiled, "backend", "aot_eager")
    training = Training()
    strategy = training.attach()
    try:
        for _ in range(before):
            training.train(8)
        was = training.everything()
        strategy.rehearsals.use(Stack.parse(stack))
        rehearsal = strategy.rehearsals.due([8, 4])
        assert rehearsal is not None
        with rehearsal:
            training.train(8)
        now = training.everything()
        assert len(was) == len(now)
        assert all(torch.equal(one, other) for one, other in zip(was, now, strict=True))
        (check,) = strategy.rehearsals.checks
        assert check.refusal == ""
        assert check.gradient_error < (0.1 if "bf16" in stack else 1e-5)
        assert str(strategy.stacks.stack) == stack
        assert strategy.rehearsals.due([8, 4]) is None
        assert strategy.rehearsals.due([16]) is not None
    finally:
        strategy.close()


def scaled(graph: Any, inputs: Any, **_: Any) -> Any:
    """Compile like aot_eager, but one gradient is 1.05 times as long."""
    from torch._dynamo.backends.common import aot_autograd

    def backward(graph: Any, _: Any) -> Any:
        def run(*given: Any) -> Any:
            first, *rest = graph(*given)
            return (first * 1.05, *rest)

        return run

    from functorch.compile import make_boxed_func

    return aot_autograd(
        fw_compiler=lambda graph, _: make_boxed_func(graph.forward),
        bw_compiler=lambda graph, given: make_boxed_func(backward(graph, given)),
    )(graph, inputs)


def mended(graph: Any, inputs: Any, options: Any = None, **_: Any) -> Any:
    """Compile wrongly for batches of 8, unless told otherwise."""
    is_wrong = any(torch.is_tensor(each) and len(each) == 8 for each in inputs)
    if is_wrong and "reorder_for_peak_memory" not in options:
        return scaled(graph, inputs)
    return torch._dynamo.lookup_backend("aot_eager")(graph, inputs)


def test_code_that_is_compiled_otherwise_is_rehearsed_again_at_each_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Compiled, "backend", staticmethod(mended))
    monkeypatch.setattr("worker_agent.pytorch.stacks.compiled.mark_dynamic", lambda *_: None)
    torch._dynamo.reset()
    training = Training()
    training.model.blocks[0].inner[1].p = training.model.blocks[1].inner[1].p = 0.0
    strategy = training.attach()
    try:
        strategy.rehearsals.use(Stack.parse("compiled"))
        for batch in (4, 8):
            rehearsal = strategy.rehearsals.due([batch])
            assert rehearsal is not None
            with rehearsal:
                training.train(batch)
        assert [check.refusal for check in strategy.rehearsals.checks] == ["", ""]
        assert strategy.rehearsals.due([8]) is None
        assert strategy.rehearsals.due([4]) is not None, "its code had the options that were wrong"
    finally:
        strategy.close()


def broken(graph: Any, _: Any, **__: Any) -> Any:
    raise RuntimeError("no such compiler\nand much more")


@pytest.mark.parametrize(
    ("backend", "said"),
    [(scaled, "is 5.0e-02 off the one in float64"), (broken, "no such compiler")],
)
def test_a_stack_with_wrong_gradients_is_left_out_and_so_is_one_that_does_not_compile(
    backend: Any, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Compiled, "backend", staticmethod(backend))
    training = Training()
    training.model.blocks[0].inner[1].p = training.model.blocks[1].inner[1].p = 0.0
    strategy = training.attach()
    try:
        strategy.rehearsals.use(Stack.parse("compiled+fused"))
        rehearsal = strategy.rehearsals.due([8])
        assert rehearsal is not None
        with rehearsal:
            training.train(8)
        (check,) = strategy.rehearsals.checks
        assert said in check.refusal
        assert str(strategy.stacks.stack) == "fused"
        assert strategy.rehearsals.due([8]) is None
        # It stays left out, also when it is ordered again.
        strategy.rehearsals.use(Stack.parse("compiled+fused"))
        assert str(strategy.stacks.stack) == "fused"
    finally:
        strategy.close()


@pytest.mark.parametrize("scale", [1.0, 2.0**16, 2.0**30, 2.0**100])
def test_a_loss_scale_that_overflows_in_float16_is_no_reason_to_leave_it_out(scale: float) -> None:
    training = Training()
    scaler = torch.amp.GradScaler("cpu", init_scale=scale)
    training.extra["scaler"] = scaler
    strategy = training.attach()
    try:
        strategy.rehearsals.use(Stack.parse("fp16"))
        rehearsal = strategy.rehearsals.due([8])
        assert rehearsal is not None
        with rehearsal:
            training.optimizer.zero_grad()
            scaler.scale(training.model(torch.randn(8, 6)).square().mean()).backward()
            scaler.step(training.optimizer)
            scaler.update()
        (check,) = strategy.rehearsals.checks
        assert check.refusal == ("" if scale < 2.0**100 else "its gradients are not finite")
        assert 0 <= check.gradient_error < 0.1
        assert scaler.get_scale() == scale
    finally:
        strategy.close()


class Words(nn.Module):
    """Returns several rows per sample, and a loss of its own beside them."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, values: Tensor) -> tuple[Tensor, Tensor]:
        scores = self.layer(values.view(-1, 6))
        return scores, scores.square().mean()


def test_a_model_that_returns_several_rows_per_sample_is_checked_at_each_batch() -> None:
    model = Words()
    strategy = attach_alone(model, optim.SGD(model.parameters(), lr=0.1))
    try:
        strategy.rehearsals.use(Stack.parse("bf16"))
        rehearsal = strategy.rehearsals.due([8, 4, 3])
        assert rehearsal is not None
        with rehearsal:
            scores, own = model(torch.randn(8, 5, 6))
            assert scores.shape == (40, 3)
            (scores.exp().mean() + own).backward()
        (check,) = strategy.rehearsals.checks
        assert check.refusal == ""
        assert 0 < check.gradient_error < 0.1
    finally:
        strategy.close()


def test_a_body_without_a_gradient_cannot_be_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Compiled, "backend", "aot_eager")
    training = Training()
    strategy = training.attach()
    try:
        strategy.rehearsals.use(Stack.parse("compiled"))
        for _ in range(4):
            assert not strategy.rehearsals.checks
            rehearsal = strategy.rehearsals.due([8])
            assert rehearsal is not None
            with rehearsal:
                pass  # the script skips its batch
        assert "no gradient" in strategy.rehearsals.checks[0].refusal
        assert str(strategy.stacks.stack) == "eager"
    finally:
        strategy.close()


def test_blocks_are_the_outermost_that_repeat() -> None:
    model = Blocks()
    assert list(repeated_blocks(model)) == list(model.blocks)
    twice = nn.ModuleList([Blocks(), Blocks()])
    assert list(repeated_blocks(twice)) == list(twice)
    assert not list(repeated_blocks(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))))
