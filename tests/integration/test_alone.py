"""With one worker the agent's iteration changes nothing that plain training would not."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from tests.alone import attach_alone
from tests.integration.reads import Reads
from worker_agent.frameworks import BatchSlice, ControlFlags
from worker_agent.pytorch.all_reduce import AllReduceStrategy

WHOLE = BatchSlice(slice_fraction_of_worker=1.0, worker_fraction_of_batch=1.0, is_last=True)
FLAGS = ControlFlags(
    announced_generation=1, is_over=False, is_leaving=False, learning_rate_factor=1.0
)
HALVES = [BatchSlice(0.5, 1.0, is_last=False), BatchSlice(0.5, 1.0, is_last=True)]

Batch = tuple[Tensor, Tensor]


class Network(nn.Module):
    """Two layers that are used, one that never is, and one layer used twice."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.first = nn.Linear(5, 8)
        self.twice = nn.Linear(8, 8)
        self.idle = nn.Linear(8, 8)
        self.last = nn.Linear(8, 3)
        self.double()

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = torch.tanh(self.first(inputs))
        return self.last(torch.tanh(self.twice(torch.tanh(self.twice(hidden)))))


def data(iterations: int) -> list[Batch]:
    generator = torch.Generator().manual_seed(8)
    return [
        (
            torch.randn(12, 5, generator=generator, dtype=torch.float64),
            torch.randint(0, 3, (12,), generator=generator),
        )
        for _ in range(iterations)
    ]


def make() -> tuple[Network, torch.optim.Optimizer]:
    model = Network()
    return model, torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.3)


def attach(
    model: nn.Module, optimizer: torch.optim.Optimizer, micro_batches: int = 1
) -> AllReduceStrategy:
    return attach_alone(model, optimizer, micro_batches=micro_batches)


def step(
    model: nn.Module, optimizer: torch.optim.Optimizer, batch: Batch, parts: int = 1, scale: int = 1
) -> None:
    optimizer.zero_grad()
    for inputs, labels in zip(batch[0].chunk(parts), batch[1].chunk(parts), strict=True):
        (nn.functional.cross_entropy(model(inputs), labels) / scale).backward()
    optimizer.step()


def weights(model: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def agree(
    plain: Callable[[nn.Module, torch.optim.Optimizer, Batch], None],
    watched: Callable[[AllReduceStrategy, nn.Module, torch.optim.Optimizer, Batch], None],
    micro_batches: int = 1,
) -> None:
    (model, optimizer), (other, its_optimizer) = make(), make()
    strategy = attach(other, its_optimizer, micro_batches)
    for number, batch in enumerate(data(12)):
        if number == 6:
            for network in (model, other):
                network.first.requires_grad_(False)
        plain(model, optimizer, batch)
        watched(strategy, other, its_optimizer, batch)
        assert strategy.end()
        assert torch.allclose(weights(model), weights(other), rtol=0, atol=1e-12)
    strategy.close()


def test_unused_shared_and_frozen_parameters_move_as_in_plain_training() -> None:
    def watched(strategy: AllReduceStrategy, *rest: object) -> None:
        strategy.begin(WHOLE, FLAGS)
        step(*rest)  # type: ignore[arg-type]

    agree(step, watched)


def test_a_split_iteration_is_one_iteration() -> None:
    def watched(
        strategy: AllReduceStrategy,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        batch: Batch,
    ) -> None:
        for number, part in enumerate(HALVES):
            strategy.begin(part, FLAGS)
            half = slice(6 * number, 6 * number + 6)
            step(model, optimizer, (batch[0][half], batch[1][half]))

    agree(step, watched)


@pytest.mark.parametrize("made", [4, 3, 2], ids=lambda made: f"{made} of 4 passes")
def test_accumulated_passes_add_up_even_when_there_are_fewer_than_said(made: int) -> None:
    def plain(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Batch) -> None:
        step(model, optimizer, batch, parts=made, scale=4)

    def watched(strategy: AllReduceStrategy, *rest: object) -> None:
        strategy.begin(WHOLE, FLAGS)
        plain(*rest)  # type: ignore[arg-type]

    agree(plain, watched, micro_batches=4)


def test_evaluating_in_between_changes_nothing() -> None:
    def watched(
        strategy: AllReduceStrategy,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        batch: Batch,
    ) -> None:
        strategy.begin(WHOLE, FLAGS)
        with torch.no_grad():
            model(batch[0])
        step(model, optimizer, batch)
        with torch.no_grad():
            model(batch[0])

    agree(step, watched)


def test_measuring_never_reads_a_value_of_the_device() -> None:
    model = Network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    strategy = attach(model, optimizer)
    for inputs, labels in data(3):
        for number, part in enumerate(HALVES):
            strategy.begin(part, FLAGS)
            half = slice(6 * number, 6 * number + 6)
            loss = nn.functional.cross_entropy(model(inputs[half]), labels[half])
            with Reads() as reads:
                loss.backward()
                optimizer.step()
            assert reads.seen == []
            optimizer.zero_grad()
        assert strategy.end()
    summary = strategy.previous_summary
    assert summary is not None
    assert summary.shards == 2
    assert summary.local_norm_sq is not None
    with Reads() as reads:
        assert loss.item() > 0
    assert reads.seen == ["aten._local_scalar_dense.default"]
    strategy.close()


def test_a_prepared_model_is_copied_and_saved_as_any_other() -> None:
    model = Network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    strategy = attach(model, optimizer)
    saved = io.BytesIO()
    torch.save(model, saved)
    assert b"worker_agent" not in saved.getvalue()
    saved.seek(0)
    loaded = torch.load(saved, weights_only=False)
    inputs, _ = data(1)[0]
    for copy_ in (copy.deepcopy(model), loaded, torch.optim.swa_utils.AveragedModel(model)):
        strategy.begin(WHOLE, FLAGS)
        assert torch.equal(copy_(inputs), model(inputs))
        assert strategy.reducer.measured.forward_at is not None  # the model's own
        strategy.begin(WHOLE, FLAGS)
        copy_(inputs).sum().backward()
        assert strategy.reducer.measured.forward_at is None
        assert all(parameter.grad is None for parameter in model.parameters())
    strategy.close()
