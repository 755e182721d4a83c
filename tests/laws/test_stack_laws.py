"""Stacks: their names, and that a change between two iterations leaves training as it is."""

from __future__ import annotations

import copy
from collections.abc import Callable
from itertools import permutations
from pathlib import Path
from typing import get_args

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn, optim

from scavenger.stack import EAGER, Stack, StackPartName
from tests.alone import attach_alone
from tests.crew import SAMPLES, STREAM, assert_as_alone, crew
from tests.laws.test_fused_step_laws import FLAGS, OPTIMIZERS, WHOLE, ScaledTraining
from worker_agent.pytorch.stacks.switch import PARTS, PreparedScript, StackSwitch
from worker_agent.session import Session

pytestmark = pytest.mark.usefixtures("one_thread")

STEPS = 8
NAMES = get_args(StackPartName)
EXACT = [EAGER, *map(Stack.parse, ("fused", "channels_last", "channels_last+fused"))]


def is_possible(names: set[StackPartName]) -> bool:
    return not ({"bf16", "fp16"} <= names or {"compiled", "compiled_whole"} <= names)


@given(st.sets(st.sampled_from(NAMES)).filter(is_possible))
def test_a_name_is_read_as_it_is_written_in_any_order(names: set[StackPartName]) -> None:
    stack = Stack(tuple(names))
    assert Stack.parse(str(stack)) == stack
    for order in list(permutations(names))[:6]:
        if order:
            assert Stack.parse("+".join(order)) == stack


@pytest.mark.parametrize(
    ("text", "said"),
    [("faster", "no stack has a part 'faster'"), ("", "''"), ("bf16+fp16", "choose bf16 or fp16")],
)
def test_what_is_no_stack_is_refused(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Stack.parse(text)


def test_each_part_has_one_implementation() -> None:
    assert set(PARTS) == set(NAMES)


@given(
    kind=st.sampled_from(list(OPTIMIZERS)),
    bad=st.lists(st.booleans(), min_size=STEPS, max_size=STEPS),
    changes=st.dictionaries(st.integers(0, STEPS - 1), st.sampled_from(EXACT), max_size=5),
    is_channels_last=st.booleans(),
)
def test_stacks_of_full_precision_train_the_same_weights(
    kind: str, bad: list[bool], changes: dict[int, Stack], *, is_channels_last: bool
) -> None:
    alone = ScaledTraining(kind, is_channels_last=is_channels_last)
    changed = ScaledTraining(kind, is_channels_last=is_channels_last)
    switch = StackSwitch(changed.script)
    strategy = attach_alone(
        changed.model, changed.optimizer, extra_state={"scaler": changed.scaler}
    )
    try:
        for number, is_bad in enumerate(bad):
            if number in changes:
                assert not switch.refusals(changes[number])
                switch.change(changes[number])
            alone.train(number, is_bad=is_bad)
            strategy.begin(WHOLE, FLAGS)
            changed.train(number, is_bad=is_bad)
            assert strategy.end()
            assert (alone.weights() - changed.weights()).abs().max() < 1e-12
            for parameter in changed.model.parameters():
                state = changed.optimizer.state.get(parameter, {})
                slots = [each for each in state.values() if torch.is_tensor(each) and each.dim()]
                assert all(slot.stride() == parameter.stride() for slot in slots)
        switch.change(EAGER)
        formats = [(each.stride(), alike.stride()) for each, alike in both(changed, alone)]
        assert all(strides == before for strides, before in formats)
    finally:
        strategy.close()


class Pictures:
    """A small convolutional network in float64 and what it is trained on."""

    def __init__(self) -> None:
        with STREAM:
            torch.manual_seed(3)
            layers = nn.Conv2d(2, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(64, 3)
            self.model = nn.Sequential(*layers).double()
            generator = torch.Generator().manual_seed(5)
            self.inputs = torch.randn(SAMPLES, 2, 6, 6, generator=generator, dtype=torch.float64)
        self.optimizer = optim.AdamW(self.model.parameters(), lr=0.01)

    def train(self, indices: Tensor) -> None:
        self.optimizer.zero_grad()
        loss = nn.functional.cross_entropy(self.model(self.inputs[indices]), indices % 3)
        loss.backward()
        self.optimizer.step()

    def weights(self) -> Tensor:
        return torch.cat([each.detach().reshape(-1) for each in self.model.parameters()]).clone()


def test_stacks_change_with_the_workers_and_newcomers_take_them(tmp_path: Path) -> None:
    def script(job: Session, note: Callable[..., None]) -> None:
        training = Pictures()
        job.prepare(training.model, training.optimizer)
        for indices in job.batches(SAMPLES, 24, epochs=1, seed=9):
            note(
                indices=indices,
                weights=training.weights(),
                fused=training.optimizer.param_groups[0]["fused"],
                layout=training.model[0].weight.is_contiguous(),
            )
            training.train(indices)

    orders = [
        (1, "eager"),
        (1, "channels_last+fused"),
        (2, "channels_last+fused"),
        (2, "fused"),
        (3, "channels_last"),
        (3, "fp16"),  # is left out: there is no scaler
        (2, "eager"),
    ]
    with crew(tmp_path, script, split_every=3) as workers:
        for count, stack in orders:
            workers.order(count, 24, iterations=4, stack=stack)
        workers.end()
    alone = Pictures()
    assert assert_as_alone(workers, alone.weights, lambda indices, _: alone.train(indices)) > 20
    rows = [row for iteration in workers.rows.values() for row in iteration]
    seen = {(bool(row["fused"]), row["layout"]) for row in rows}
    assert seen == {(False, True), (True, False), (True, True), (False, False)}


def both(one: ScaledTraining, other: ScaledTraining) -> list[tuple[nn.Parameter, nn.Parameter]]:
    return list(zip(one.model.parameters(), other.model.parameters(), strict=True))


def test_16_bits_are_the_models_alone_and_end_when_they_are_turned_off() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
    inputs = torch.randn(8, 64)
    exact = model(inputs)
    switch = StackSwitch(PreparedScript(model, optim.SGD(model.parameters(), lr=0.1)))
    switch.change(Stack.parse("bf16"))
    rough = model(inputs)
    assert rough.dtype == torch.float32, "losses are computed as before"
    assert 0 < (rough - exact).abs().max() < 0.05
    assert (copy.deepcopy(model)(inputs) == exact).all(), "a copy is in full precision"
    assert torch.mm(inputs, inputs.T).dtype == torch.float32
    with pytest.raises(RuntimeError):
        model(torch.randn(8, 3))
    assert not torch.is_autocast_enabled("cpu"), "also after a forward pass that failed"
    rough.sum().backward()
    assert all(
        each.grad is not None and each.grad.dtype == each.dtype for each in model.parameters()
    )
    switch.change(EAGER)
    assert (model(inputs) == exact).all()


def test_what_a_script_cannot_run_with_is_said() -> None:
    model = nn.Linear(2, 1)
    switch = StackSwitch(PreparedScript(model, optim.RMSprop(model.parameters())))

    def refusal(text: str) -> str:
        return "; ".join(switch.refusals(Stack.parse(text)).values())

    assert "RMSprop has no fused step" in refusal("fused")
    assert "needs a GradScaler" in refusal("fp16")
    assert "no convolution" in refusal("channels_last+bf16")
    assert "no block of the model is repeated" in refusal("compiled")
    assert set(switch.refusals(Stack.parse("bf16+fused"))) == {"fused"}
