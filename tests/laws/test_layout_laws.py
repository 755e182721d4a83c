"""In every order of a parameter's values, training with the agent is training without it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn, optim
from torch.distributed import HashStore, ProcessGroup, ProcessGroupGloo

from tests.alone import attach_alone
from tests.crew import SAMPLES, STREAM, assert_as_alone, crew, flat
from worker_agent.errors import StateRefused
from worker_agent.frameworks import BatchSlice, ControlFlags
from worker_agent.pytorch.all_reduce import AllReduceStrategy
from worker_agent.pytorch.state import TrainingState
from worker_agent.pytorch.tensors import (
    assign_values,
    flatten_in_memory_order,
    gradient_strides,
    is_dense,
)
from worker_agent.session import Session
from worker_agent.state.progress import TrainingProgress

pytestmark = pytest.mark.usefixtures("one_thread")

Make = Callable[[Any], optim.Optimizer]
FLAGS = ControlFlags(
    announced_generation=1, is_over=False, is_leaving=False, learning_rate_factor=1.0
)
WHOLE = (BatchSlice(1.0, 1.0, is_last=True),)
HALVES = (BatchSlice(0.5, 1.0, is_last=False), BatchSlice(0.5, 1.0, is_last=True))


# Tensors of every kind.


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    """Return a tensor whose values lie turned, with gaps, or in each other's place."""
    shape = draw(st.lists(st.integers(0, 3) | st.integers(1, 3), max_size=4))
    tensor = torch.arange(float(torch.Size(shape).numel())).reshape(shape)
    for deed in draw(st.lists(st.sampled_from(["turn", "cut", "expand", "wrap"]), max_size=3)):
        places = range(tensor.dim())
        if deed == "turn":
            tensor = tensor.permute(draw(st.permutations(places)))
        elif deed == "wrap":
            tensor = tensor.unsqueeze(draw(st.integers(0, tensor.dim())))
        elif deed == "expand":
            tensor = tensor.expand([size if size != 1 else 2 for size in tensor.shape])
        elif places:
            cut = draw(st.sampled_from(places))
            tensor = tensor[(slice(None),) * cut + (slice(0, None, 2),)]
    return tensor


@given(tensors())
def test_what_travels_in_memory_order_arrives_value_by_value(tensor: Tensor) -> None:
    row = flatten_in_memory_order(tensor)
    assert row.is_contiguous()
    assert torch.equal(row.as_strided(tensor.shape, gradient_strides(tensor)), tensor)
    if tensor.numel():
        assert is_dense(tensor) == (row.untyped_storage()._cdata == tensor.untyped_storage()._cdata)
    room = tensor.clone() if is_dense(tensor) else tensor
    target = torch.zeros_like(room) if is_dense(tensor) else room
    assign_values(target, tensor)
    assert torch.equal(target, tensor)


@given(tensors().filter(lambda tensor: tensor.numel() > 0))
def test_a_gradient_lies_as_pytorch_would_have_it(tensor: Tensor) -> None:
    parameter = nn.Parameter(tensor)
    (parameter * torch.randn(parameter.shape)).sum().backward()
    assert parameter.grad is not None
    pairs = zip(parameter.grad.stride(), gradient_strides(tensor), tensor.shape, strict=True)
    assert all(theirs == ours for theirs, ours, size in pairs if size > 1)


# One process.


def problem() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(5)
    images = torch.randn(SAMPLES, 3, 4, 4, generator=generator, dtype=torch.float64)
    return images, torch.randint(0, 3, (SAMPLES,), generator=generator)


class Network(nn.Module):
    """Convolutions, parameters that lie oddly, and a buffer that shares memory with itself."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.convolution = nn.Conv2d(3, 4, 3)
        self.square = nn.Conv2d(4, 4, 1)
        self.volume = nn.Conv3d(4, 2, (1, 2, 2))
        self.last = nn.Linear(4, 3)
        self.turned = nn.Parameter(torch.randn(5, 4).t() / 4)
        self.cut = nn.Parameter(torch.randn(4, 10)[:, ::2] / 4)
        self.register_buffer("shared", torch.ones(1).expand(4))
        self.double()

    def forward(self, images: Tensor) -> Tensor:
        hidden = torch.tanh(self.square(torch.tanh(self.convolution(images))))
        hidden = hidden.mean(dim=(2, 3)) + self.volume(hidden.unsqueeze(2)).mean(dim=(1, 3, 4))
        hidden = hidden @ (self.turned + self.cut) @ self.turned.t() * self.shared
        return self.last(hidden)

    def turn(self, memory_format: torch.memory_format) -> None:
        """Turn the layers that such a format is for."""
        if memory_format is not torch.channels_last_3d:
            self.convolution.to(memory_format=memory_format)
            self.square.to(memory_format=memory_format)
        if memory_format is not torch.channels_last:
            self.volume.to(memory_format=memory_format)


FORMATS = {
    "contiguous": torch.contiguous_format,
    "channels_last": torch.channels_last,
    "channels_last_3d": torch.channels_last_3d,
}
KERNELS: dict[str, dict[str, bool]] = {
    "for": {"foreach": False},
    "foreach": {"foreach": True},
    "fused": {"fused": True},
}
# Training must not be chaotic: with a rate of 0.1 and no decay rounding grows tenfold every forty
# iterations, and a busy computer trains hundreds of them between two resizes.
STEADY = {"lr": 0.02, "momentum": 0.9, "weight_decay": 0.02}
OPTIMIZERS: dict[str, Make] = {
    "SGD": lambda **how: lambda p: optim.SGD(p, dampening=0.1, **STEADY, **how),
    "Nesterov": lambda **how: lambda p: optim.SGD(p, nesterov=True, **STEADY, **how),
    "Adam": lambda **how: lambda p: optim.Adam(p, lr=0.01, amsgrad=True, **how),
    "AdamW": lambda **how: lambda p: optim.AdamW(p, lr=0.01, **how),
    "Adagrad": lambda **how: lambda p: optim.Adagrad(p, lr=0.1, **how),
}


class Training:
    """One process's worth of objects."""

    def __init__(self, kind: str, kernel: str, memory_format: torch.memory_format) -> None:
        with STREAM:
            self.model = Network()
        self.model.turn(memory_format)
        # A fused step takes a parameter with gaps for one without, with or without the agent.
        self.model.cut.requires_grad_(kernel != "fused")
        trained = [p for p in self.model.parameters() if p.requires_grad]
        self.optimizer = OPTIMIZERS[kind](**KERNELS[kernel])(trained)
        self.inputs, self.labels = problem()

    def weights(self) -> Tensor:
        return flat(self.model.parameters())

    def train(self, indices: Tensor, iteration: int, scale: float = 1.0) -> None:
        self.optimizer.zero_grad(set_to_none=iteration % 3 > 0)
        self.add_gradient(indices, scale)
        self.optimizer.step()

    def add_gradient(self, indices: Tensor, scale: float = 1.0) -> None:
        scores = self.model(self.inputs[indices])
        (nn.functional.cross_entropy(scores, self.labels[indices]) * scale).backward()


@contextmanager
def attached(training: Training, micro_batches: int = 1) -> Iterator[AllReduceStrategy]:
    strategy = attach_alone(training.model, training.optimizer, micro_batches=micro_batches)
    try:
        yield strategy
    finally:
        strategy.close()


formats = st.sampled_from(list(FORMATS))


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("kind", OPTIMIZERS)
@given(
    made=formats,
    turned=formats,
    turned_at=st.tuples(st.integers(0, 4), st.sampled_from(["before", "between", "after"])),
    passes=st.integers(1, 2),
    slices=st.sampled_from([WHOLE, HALVES]),
)
@settings(max_examples=5)
def test_no_format_and_no_kernel_changes_a_weight_of_one_worker(
    kind: str,
    kernel: str,
    made: str,
    turned: str,
    turned_at: tuple[int, str],
    passes: int,
    slices: Sequence[BatchSlice],
) -> None:
    if kernel == "fused" and turned_at != (0, "before"):
        turned = made  # slots stay as they lie, with or without the agent
    alone = Training(kind, kernel, FORMATS["contiguous"])
    watched = Training(kind, kernel, FORMATS[made])
    with attached(watched, passes) as strategy:
        for iteration in range(6):
            indices = torch.arange(16) + 16 * iteration
            alone.train(indices, iteration)
            for part, samples in zip(slices, indices.chunk(len(slices)), strict=True):
                strategy.begin(part, FLAGS)
                watched.optimizer.zero_grad(set_to_none=iteration % 3 > 0)
                for number, few in enumerate(samples.chunk(passes)):
                    if (iteration, "before" if number == 0 else "between") == turned_at:
                        watched.model.turn(FORMATS[turned])
                    watched.add_gradient(few, 1 / passes)
                watched.optimizer.step()
                if (iteration, "after") == turned_at:
                    watched.model.turn(FORMATS[turned])
            assert strategy.end()
            assert (alone.weights() - watched.weights()).abs().max() < 1e-12


# Joining.


def side_by_side(*works: Callable[[ProcessGroup, int], Any]) -> list[Future[Any]]:
    """Run each on a thread and in a group of its own; returns what became of them."""
    store = HashStore()

    def take_part(rank: int) -> Any:
        return works[rank](ProcessGroupGloo(store, rank, len(works)), rank)

    with ThreadPoolExecutor(len(works)) as pool:
        return [pool.submit(take_part, rank) for rank in range(len(works))]


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("kind", OPTIMIZERS)
@given(there=formats, here=formats, has_trained=st.booleans(), is_carried=st.booleans())
@settings(max_examples=4)
def test_a_state_goes_on_as_it_would_have_in_any_received_format(
    kind: str, kernel: str, there: str, here: str, *, has_trained: bool, is_carried: bool
) -> None:
    old, new = (Training(kind, kernel, FORMATS[each]) for each in (there, here))
    for iteration in range(3):
        old.train(torch.arange(16) + iteration, iteration)
    if has_trained:
        new.train(torch.arange(16) + 7, 0)
    old.model.get_buffer("shared")[:1] = 0.5
    states = [TrainingState(each.model, each.optimizer) for each in (old, new)]
    if is_carried:
        told = side_by_side(
            *(
                lambda group, rank, s=s: s.broadcast(group, rank, 0, TrainingProgress())
                for s in states
            )
        )
        assert [each.result() for each in told] == [TrainingProgress(), TrainingProgress()]
    else:
        assert states[1].restore(states[0].snapshot(TrainingProgress())) == TrainingProgress()
    for iteration in range(3):
        for training in (old, new):
            training.train(torch.arange(16) + iteration, iteration)
        assert (old.weights() - new.weights()).abs().max() < 1e-12
    assert torch.equal(new.model.get_buffer("shared"), old.model.get_buffer("shared"))


def test_gradients_that_lie_in_different_orders_are_never_added_up() -> None:
    formats = [FORMATS[name] for name in ("channels_last", "channels_last", "contiguous")]
    members = [Training("SGD", "for", each) for each in formats]
    with ExitStack() as stack:
        strategies = [stack.enter_context(attached(member)) for member in members]
        told = side_by_side(*(each._compare_layouts for each in strategies))
    assert [told[0].result(), told[1].result()] == [None, None]
    where = r"parameters/convolution.weight lies in memory in strides \(27, 9, 3, 1\) here"
    with pytest.raises(StateRefused, match=where):
        told[2].result()


@pytest.mark.parametrize(
    ("strategy", "kind", "kernel"),
    [
        ("all_reduce", "AdamW", "fused"),
        ("all_reduce", "Nesterov", "foreach"),
        ("parameter_server", "SGD", "fused"),
    ],
)
def test_formats_change_no_weight_over_resizes(
    tmp_path: Path, strategy: str, kind: str, kernel: str
) -> None:
    def script(job: Session, note: Callable[..., None]) -> None:
        training = Training(kind, kernel, FORMATS["channels_last"])
        job.prepare(training.model, training.optimizer)
        training.model.turn(FORMATS["channels_last_3d"])
        for indices in job.batches(SAMPLES, 24, epochs=1, seed=9):
            note(indices=indices, weights=training.weights())
            training.train(indices, job.iteration)

    with crew(tmp_path, script, strategy=strategy, split_every=3) as workers:
        for count, batch in ((1, 24), (3, 25), (2, 24)):
            workers.order(count, batch, iterations=6)
        workers.end()
    alone = Training(kind, kernel, FORMATS["contiguous"])
    assert assert_as_alone(workers, alone.weights, alone.train) > 15
