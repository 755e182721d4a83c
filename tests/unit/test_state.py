"""What a newcomer receives and what a checkpoint holds is all that the next iteration needs."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn, optim
from torch.distributed import HashStore, ProcessGroupGloo
from torch.optim import lr_scheduler
from torch.optim.swa_utils import SWALR, AveragedModel

from worker_agent.errors import StateRefused
from worker_agent.pytorch.state import TrainingState, reseed_worker, seed_iteration
from worker_agent.state.progress import Stateful, TrainingProgress, TrainingSnapshot, collect_states

CLOCK = TrainingProgress(iteration=7, samples=84, epochs=0.5, learning_rate_factor=2.0)
Carried = Mapping[str, Stateful]


class Network(nn.Module):
    """Weights, buffers of several types, and a layer that is never used."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.first = nn.Linear(4, width)
        self.norm = nn.BatchNorm1d(width)
        self.last = nn.Linear(width, 2)
        self.idle = nn.Linear(2, 2)
        self.register_buffer("mask", torch.ones(width, dtype=torch.bool))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.last(torch.tanh(self.norm(self.first(inputs))) * self.mask)


Make = Callable[[Any], optim.Optimizer]
OPTIMIZERS: dict[str, Make] = {
    "SGD": lambda p: optim.SGD(p, lr=0.1),
    "SGD with momentum": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "Adam": lambda p: optim.Adam(p, lr=0.01, amsgrad=True),
    "AdamW, fused": lambda p: optim.AdamW(p, lr=0.01, fused=True),
    "Adam, rate in a tensor": lambda p: optim.Adam(p, lr=torch.tensor(0.01), foreach=False),
    "NAdam": lambda p: optim.NAdam(p, lr=0.01),
    "RAdam": lambda p: optim.RAdam(p, lr=0.01),
    "Adamax": lambda p: optim.Adamax(p, lr=0.01),
    "Adagrad": lambda p: optim.Adagrad(p, lr=0.01),
    "Adadelta": lambda p: optim.Adadelta(p, lr=0.1),
    "Adafactor": lambda p: optim.Adafactor(p, lr=0.01),
    "ASGD": lambda p: optim.ASGD(p, lr=0.01, t0=2),
    "RMSprop": lambda p: optim.RMSprop(p, lr=0.01, momentum=0.5, centered=True),
    "Rprop": lambda p: optim.Rprop(p, lr=0.01),
    "LBFGS": lambda p: optim.LBFGS(p, lr=0.1, max_iter=3),
    "Muon": lambda p: optim.Muon([w for w in p if w.dim() == 2], lr=0.01),
}
SCHEDULERS: dict[str, Callable[[optim.Optimizer], Any]] = {
    "LambdaLR": lambda o: lr_scheduler.LambdaLR(o, lambda step: 0.9**step),
    "MultiplicativeLR": lambda o: lr_scheduler.MultiplicativeLR(o, lambda _: 0.9),
    "StepLR": lambda o: lr_scheduler.StepLR(o, 2),
    "MultiStepLR": lambda o: lr_scheduler.MultiStepLR(o, [2, 5, 5]),
    "ConstantLR": lambda o: lr_scheduler.ConstantLR(o, total_iters=4),
    "LinearLR": lambda o: lr_scheduler.LinearLR(o),
    "ExponentialLR": lambda o: lr_scheduler.ExponentialLR(o, 0.9),
    "PolynomialLR": lambda o: lr_scheduler.PolynomialLR(o, 20),
    "CosineAnnealingLR": lambda o: lr_scheduler.CosineAnnealingLR(o, 20),
    "CosineAnnealingWarmRestarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 3),
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, 0.1, 40),
    "CyclicLR": lambda o: lr_scheduler.CyclicLR(o, 0.01, 0.1, step_size_up=3),
    "SequentialLR": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.ConstantLR(o), lr_scheduler.ExponentialLR(o, 0.9)], [3]
    ),
    "ChainedScheduler": lambda o: lr_scheduler.ChainedScheduler(
        [lr_scheduler.ConstantLR(o), lr_scheduler.ExponentialLR(o, 0.9)]
    ),
    "SWALR": lambda o: SWALR(o, 0.05),
}


class Training:
    """One process's worth of objects, and iterations that depend on nothing else."""

    def __init__(self, make: Make, scheduler: Callable[[optim.Optimizer], Any] | None = None):
        torch.manual_seed(0)
        self.model = Network()
        self.optimizer = make(list(self.model.parameters()))
        self.scheduler = None if scheduler is None else scheduler(self.optimizer)
        self.average = AveragedModel(self.model)
        extra_state: dict[str, Stateful] = {"average": self.average}
        if self.scheduler is not None:
            extra_state["scheduler"] = self.scheduler
        self.state = TrainingState(self.model, self.optimizer, extra_state)

    def train(self, start: int, stop: int) -> None:
        for number in range(start, stop):
            generator = torch.Generator().manual_seed(number)
            inputs = torch.randn(8, 4, generator=generator)

            def closure(inputs: Tensor = inputs) -> Tensor:
                self.optimizer.zero_grad()
                loss = self.model(inputs).square().mean()
                loss.backward()
                return loss

            if isinstance(self.optimizer, optim.LBFGS):
                self.optimizer.step(closure)
            else:
                closure()
                self.optimizer.step()
            if self.scheduler is not None:
                self.scheduler.step()
            self.average.update_parameters(self.model)

    def everything(self) -> list[Tensor]:
        rates = [torch.as_tensor(group["lr"]) for group in self.optimizer.param_groups]
        return [*self.model.state_dict().values(), *self.average.state_dict().values(), *rates]


def stored(snapshot: TrainingSnapshot) -> TrainingSnapshot:
    """Copy a snapshot's memory, as a disk would."""
    arrays = {
        name: type(array)(array.dtype, array.shape, bytearray(array.content))
        for name, array in snapshot.arrays.items()
    }
    return TrainingSnapshot(snapshot.progress, snapshot.tree, arrays)


def hand_over(
    states: list[TrainingState], clocks: list[TrainingProgress]
) -> list[TrainingProgress | StateRefused]:
    """Broadcast from the first to the others, each on a thread and a group of its own."""
    store = HashStore()
    results: dict[int, TrainingProgress | StateRefused] = {}

    def take_part(rank: int) -> None:
        group = ProcessGroupGloo(store, rank, len(states))
        try:
            results[rank] = states[rank].broadcast(group, rank, 0, clocks[rank])
        except StateRefused as refused:
            results[rank] = refused

    threads = [threading.Thread(target=take_part, args=(rank,)) for rank in range(len(states))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [results[rank] for rank in range(len(states))]


def assert_same_future(one: Training, other: Training) -> None:
    one.train(6, 12)
    other.train(6, 12)
    for mine, theirs in zip(one.everything(), other.everything(), strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_training_goes_on_from_a_snapshot_as_if_never_interrupted(make: Make) -> None:
    old, new = Training(make), Training(make)
    old.train(0, 6)
    kept = stored(old.state.snapshot(CLOCK))
    new.train(20, 23)  # what it did before is undone
    assert new.state.restore(kept) == CLOCK
    assert_same_future(old, new)


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_newcomers_and_laggards_train_on_like_the_one_they_took_the_state_of(make: Make) -> None:
    old, new, laggard = Training(make), Training(make), Training(make)
    old.train(0, 6)
    laggard.train(0, 4)
    states = [old.state, new.state, laggard.state]
    assert hand_over(states, [CLOCK, TrainingProgress(), TrainingProgress(5)]) == [CLOCK] * 3
    assert_same_future(old, new)
    laggard.train(6, 12)
    for mine, theirs in zip(old.everything(), laggard.everything(), strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize("scheduler", SCHEDULERS.values(), ids=SCHEDULERS)
def test_schedulers_go_on_where_they_were(scheduler: Callable[[optim.Optimizer], Any]) -> None:
    make = OPTIMIZERS["SGD with momentum"]
    old, new, third = (Training(make, scheduler) for _ in range(3))
    old.train(0, 6)
    new.state.restore(stored(old.state.snapshot(CLOCK)))
    hand_over([old.state, third.state], [CLOCK, TrainingProgress()])
    assert_same_future(old, new)
    third.train(6, 12)
    assert [group["lr"] for group in third.optimizer.param_groups] == [
        group["lr"] for group in old.optimizer.param_groups
    ]


def test_plateaus_and_loss_scales_are_carried() -> None:
    def make() -> tuple[TrainingState, lr_scheduler.ReduceLROnPlateau, torch.amp.GradScaler]:
        model = nn.Linear(2, 2)
        optimizer = optim.SGD(model.parameters(), lr=0.1)
        plateau = lr_scheduler.ReduceLROnPlateau(optimizer, patience=1)
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=5)
        state = TrainingState(model, optimizer, {"plateau": plateau, "scaler": scaler})
        return state, plateau, scaler

    state, plateau, scaler = make()
    for loss in (3.0, 4.0, float("nan"), 4.0):
        plateau.step(loss)
    scaler.scale(torch.ones(1))
    scaler.update(new_scale=32.0)
    other, its_plateau, its_scaler = make()
    other.restore(stored(state.snapshot(CLOCK)))
    assert its_plateau.state_dict() == plateau.state_dict()
    assert its_scaler.state_dict() == scaler.state_dict()
    assert its_scaler.scale(torch.ones(1)).item() == 32.0


def test_a_tensor_rate_stays_the_tensor_it_is() -> None:
    make = OPTIMIZERS["Adam, rate in a tensor"]
    old, new = Training(make), Training(make)
    old.optimizer.param_groups[0]["lr"].fill_(0.25)
    rate = new.optimizer.param_groups[0]["lr"]
    new.state.restore(stored(old.state.snapshot(CLOCK)))
    assert new.optimizer.param_groups[0]["lr"] is rate
    assert rate.item() == 0.25


def test_snapshots_use_memory_again_once_it_is_given_back() -> None:
    training = Training(OPTIMIZERS["Adam"])
    training.train(0, 2)
    first = training.state.snapshot(CLOCK)
    name = "parameters/first.weight"
    second = training.state.snapshot(CLOCK)
    first.release()
    third = training.state.snapshot(CLOCK)
    assert third.arrays[name].content.obj is first.arrays[name].content.obj  # type: ignore[union-attr]
    assert second.arrays[name].content.obj is not first.arrays[name].content.obj  # type: ignore[union-attr]


def test_a_snapshot_does_not_change_while_training_goes_on() -> None:
    training = Training(OPTIMIZERS["Adam"])
    training.train(0, 2)
    snapshot = training.state.snapshot(CLOCK)
    before = {name: bytes(array.content) for name, array in snapshot.arrays.items()}
    training.train(2, 4)
    assert before == {name: bytes(array.content) for name, array in snapshot.arrays.items()}


def smaller() -> TrainingState:
    model = Network(width=5)
    return TrainingState(model, OPTIMIZERS["Adam"](list(model.parameters())))


def double() -> TrainingState:
    model = Network().double()
    return TrainingState(model, OPTIMIZERS["Adam"](list(model.parameters())))


def without_average(make: Make = OPTIMIZERS["Adam"]) -> TrainingState:
    model = Network()
    return TrainingState(model, make(list(model.parameters())))


MISFITS: dict[str, tuple[Callable[[], TrainingState], str]] = {
    "shape": (smaller, r"parameters/first.weight is float32 \(6, 4\) .* and float32 \(5, 4\) here"),
    "type": (double, r"parameters/first.weight is float32 .* and float64 \(6, 4\) here"),
    "optimizer": (
        lambda: without_average(OPTIMIZERS["SGD"]),
        "of Adam with 8 parameters in 1 groups; the optimizer here is SGD",
    ),
    "carried": (without_average, r"objects named \['average'\]; this script has \[\]"),
}


@pytest.mark.parametrize(("make", "why"), MISFITS.values(), ids=MISFITS)
def test_what_does_not_fit_is_named_and_changes_nothing(
    make: Callable[[], TrainingState], why: str
) -> None:
    old = Training(OPTIMIZERS["Adam"])
    old.train(0, 3)
    state = make()
    before = [tensor.clone() for tensor in state.model.state_dict().values()]
    with pytest.raises(StateRefused, match=why):
        state.restore(stored(old.state.snapshot(CLOCK)))
    fits = Training(OPTIMIZERS["Adam"])
    told = hand_over(
        [old.state, state, fits.state], [CLOCK, TrainingProgress(), TrainingProgress()]
    )
    assert told[0] == told[2] == CLOCK  # the others are not held up
    assert isinstance(told[1], StateRefused)
    assert all(map(torch.equal, before, state.model.state_dict().values()))
    assert_same_future(old, fits)


class Unfit:
    """A stateful object that holds a function, at first or later."""

    def __init__(self) -> None:
        self.held: object = None

    def state_dict(self) -> dict[str, object]:
        return {"rule": [self.held]}

    def load_state_dict(self, _: object) -> None:
        pass


def test_objects_that_cannot_be_carried_are_refused_at_once_or_by_all() -> None:
    def make(unfit: Unfit) -> TrainingState:
        model = nn.Linear(2, 2)
        return TrainingState(model, optim.SGD(model.parameters(), lr=0.1), {"mine": unfit})

    unfit = Unfit()
    old, new = make(unfit), make(Unfit())
    unfit.held = print
    why = "mine/rule/0 is a builtins.builtin_function_or_method"
    with pytest.raises(StateRefused, match=why):
        make(unfit)
    told = hand_over([old, new], [CLOCK, TrainingProgress()])
    assert all(isinstance(answer, StateRefused) and why in str(answer) for answer in told)


def draws() -> list[float]:
    return [random.random(), float(np.random.rand()), float(torch.rand(()))]


def test_random_streams_go_on_from_a_snapshot() -> None:
    training = Training(OPTIMIZERS["SGD"])
    reseed_worker(1, 0, 1)
    draws()
    snapshot = stored(training.state.snapshot(CLOCK))
    expected = [draws() for _ in range(3)]
    reseed_worker(1, 0, 2)
    training.state.restore(snapshot)
    assert [draws() for _ in range(3)] == expected


def test_streams_are_functions_of_their_place_and_all_differ() -> None:
    seen = []
    for seed, rank, generation in [(0, 0, 0), (0, 0, 1), (0, 1, 0), (1, 0, 0), (-1, 0, 0)]:
        for seed_it in (
            lambda s=seed, r=rank, g=generation: reseed_worker(s, r, g),
            lambda s=seed, r=rank, g=generation: seed_iteration(s, 100 * r + 10 * g),
        ):
            seed_it()
            first = draws()
            seed_it()
            assert draws() == first
            seen += first
    assert len(set(seen)) == len(seen)


def test_a_method_replaced_on_a_scheduler_is_no_state_and_a_value_named_like_one_is() -> None:
    optimizer = optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1)
    scheduler: Any = lr_scheduler.StepLR(optimizer, 2)
    scheduler.step = lambda: None
    scaler = torch.amp.GradScaler("cpu")
    states = collect_states({"scheduler": scheduler, "scaler": scaler})
    assert "step" not in states["scheduler"]
    assert states["scaler"]["scale"] == scaler.get_scale()
