"""Every part of a stack: what it may change, and that turned off it leaves nothing behind."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn, optim

from scavenger.stack import PART_NAMES, Stack, StackPartName
from tests.alone import attach_alone
from worker_agent.frameworks import NO_FLAGS, WHOLE_BATCH
from worker_agent.pytorch.all_reduce import AllReduceStrategy
from worker_agent.pytorch.stacks.compiled import Compiled
from worker_agent.pytorch.stacks.switch import PARTS, PreparedScript, StackSwitch

pytestmark = pytest.mark.usefixtures("one_thread")


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layers = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Dropout(0.2)
        self.inner = nn.Sequential(*layers)

    def forward(self, pictures: Tensor) -> Tensor:
        return pictures + torch.relu(self.inner(pictures))


class Script:
    """A script that every part can be used with."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        layers = nn.Conv2d(2, 4, 3), Block(), Block(), nn.Flatten(), nn.Linear(64, 3)
        self.model = nn.Sequential(*layers)
        self.optimizer = optim.AdamW(self.model.parameters(), lr=0.01)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
        self.prepared = PreparedScript(self.model, self.optimizer, self.scaler)

    def attach(self) -> AllReduceStrategy:
        return attach_alone(self.model, self.optimizer, extra_state={"scaler": self.scaler})

    def step(self, number: int) -> None:
        torch.manual_seed(number)
        self.optimizer.zero_grad()
        loss = self.model(torch.randn(4, 2, 6, 6)).square().mean()
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()

    def outside(self) -> dict[str, Any]:
        """Return what others can see of the script besides its numbers."""
        options = [
            {key: value for key, value in group.items() if key != "params"}
            for group in self.optimizer.param_groups
        ]
        return {
            "names": list(self.model.state_dict()),
            "layouts": [each.stride() for each in self.model.parameters()],
            "types": [each.dtype for each in self.model.parameters()],
            "options": copy.deepcopy(options),
            "compiled": [each._compiled_call_impl for each in self.model.modules()],
            "attributes": [sorted(vars(each)) for each in self.model.modules()],
            "hooks": [
                [len(each._forward_hooks), len(each._forward_pre_hooks)]
                for each in self.model.modules()
            ],
        }


@pytest.fixture(autouse=True)
def compiler_that_takes_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Compiled, "backend", "aot_eager")


@pytest.mark.parametrize("name", PART_NAMES)
class TestStackPart:
    """What each part has to do; docs/adding-a-stack.md says how to write one."""

    def test_it_is_registered_under_its_name(self, name: StackPartName) -> None:
        switch = StackSwitch(Script().prepared)
        switch.change(Stack((name,)))
        assert set(PARTS) == set(PART_NAMES)
        assert [part.name for part in switch.on] == [name]

    def test_turned_off_it_leaves_nothing_behind(self, name: StackPartName) -> None:
        script = Script()
        switch = StackSwitch(script.prepared)
        before = script.outside()
        assert not switch.refusals(Stack((name,)))
        assert script.outside() == before, "asking whether it can be used changes nothing"
        for _ in range(2):
            switch.change(Stack((name,)))
            script.step(0)
            switch.change(Stack())
        assert script.outside() == before

    def test_a_copy_and_a_pickle_of_the_model_are_plain(self, name: StackPartName) -> None:
        script = Script()
        switch = StackSwitch(script.prepared)
        switch.change(Stack((name,)))
        script.model.eval()
        plain = Script().model.eval()
        inputs = torch.randn(4, 2, 6, 6)
        for copied in (copy.deepcopy(script.model), pickle.loads(pickle.dumps(script.model))):
            assert all(each._compiled_call_impl is None for each in copied.modules())
            assert torch.allclose(copied(inputs), plain(inputs), atol=1e-6)

    def test_what_the_model_returns_is_float32_and_so_are_weights_and_gradients(
        self, name: StackPartName
    ) -> None:
        script = Script()
        StackSwitch(script.prepared).change(Stack((name,)))
        script.step(0)
        assert script.model(torch.randn(4, 2, 6, 6)).dtype == torch.float32
        for parameter in script.model.parameters():
            assert parameter.dtype == torch.float32
            assert parameter.grad is not None
            assert parameter.grad.dtype == torch.float32
            assert parameter.grad.stride() == parameter.stride()

    def test_a_session_trains_with_it(self, name: StackPartName) -> None:
        script = Script()
        strategy = script.attach()
        try:
            strategy.rehearsals.use(Stack((name,)))
            rehearsal = strategy.rehearsals.due([4])
            if rehearsal is not None:
                with rehearsal:
                    script.step(1)
                (check,) = strategy.rehearsals.checks
                expected = 0.5 if name in ("bf16", "fp16") else 1.0
                assert check.memory_share == pytest.approx(expected, abs=0.35)
                assert check.refusal == ""
            weights = copy.deepcopy(script.model.state_dict())
            strategy.begin(WHOLE_BATCH, NO_FLAGS)
            script.step(1)
            assert strategy.end()
            assert strategy.stacks.stack == Stack((name,))
            moved = script.model.state_dict()
            assert any(not torch.equal(moved[key], weights[key]) for key in weights)
            assert all(torch.isfinite(each).all() for each in moved.values())
        finally:
            strategy.close()
