"""L-BFGS from scalars is L-BFGS from vectors, and every portion counts exactly once."""

from __future__ import annotations

import heapq
import math
import random
from collections import Counter
from collections.abc import Sequence

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.optim.lbfgs import _strong_wolfe

from scavenger.protocol import LbfgsSettings
from worker_agent.parameter_server.lbfgs import (
    LbfgsOptions,
    LbfgsState,
    LineSearch,
    Trial,
    accept,
    begin_trial,
    choose_step,
    end_trial,
    two_loop_coefficients,
)
from worker_agent.parameter_server.portions import PortionAllocator, PortionRun
from worker_agent.pytorch.line_search import strong_wolfe
from worker_agent.transport.connection import Numbers


def two_loops(pairs: Sequence[tuple[Numbers, Numbers]], gradient: Numbers) -> Numbers:
    """Return -H g as Nocedal and Wright write it down (algorithm 7.4)."""
    q = gradient.copy()
    alphas = []
    for s, y in reversed(pairs):
        alphas.append(s @ q / (s @ y))
        q -= alphas[-1] * y
    if pairs:
        s, y = pairs[-1]
        q *= (s @ y) / (y @ y)
    for (s, y), alpha in zip(pairs, reversed(alphas), strict=True):
        q += s * (alpha - (y @ q) / (s @ y))
    return -q


@given(st.integers(0, 12), st.integers(2, 30), st.integers(0, 2**20))
def test_a_direction_from_scalars_is_that_from_vectors(pairs: int, size: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(size, size))
    curvature = root @ root.T / size + np.eye(size)
    steps = [rng.normal(size=size) for _ in range(pairs)]
    known = [(s, curvature @ s) for s in steps]
    gradient = rng.normal(size=size)
    vectors = np.stack([*(each for pair in known for each in pair), gradient])
    found = two_loop_coefficients(vectors @ vectors.T) @ vectors
    expected = two_loops(known, gradient)
    assert np.allclose(found, expected, rtol=1e-8, atol=1e-8 * np.abs(expected).max())


@given(st.floats(-12.0, 3.0), st.floats(0.1, 1e4), st.floats(0.0, 2.0), st.floats(1e-4, 1.0))
def test_a_search_into_a_barrier_ends(
    barrier: float, steepness: float, curvature: float, first_step: float
) -> None:
    """The loss falls until a step of 10^barrier, and is infinite from there on."""
    options = LbfgsOptions(1.0, 1e-7, 1e-9, 5, 10, 2, is_full=True)
    edge = 10**barrier
    loss = [lambda t: steepness * (curvature * t * t / edge - t), lambda t: steepness * t * t][
        curvature > 1
    ]
    slope = -steepness
    search = LineSearch(loss(0.0), slope, 1.0, first_step)
    state = LbfgsState(iteration=0, next_evaluation=1, point=0, loss=0.0, search=search)
    for evaluations in range(200):
        assert state.search is not None
        chosen = choose_step(state.search, strong_wolfe)
        if not isinstance(chosen, float):
            break
        state = begin_trial(state, chosen)
        found = loss(chosen) if chosen < edge else math.inf
        tangent = steepness * (2 * curvature * chosen / edge - 1)
        trial = Trial(evaluations + 1, chosen, found, tangent, abs(tangent))
        state = end_trial(state, trial)
    assert evaluations < 150
    if chosen is not None:
        assert chosen.loss < 0
        assert chosen.step < edge
    assert accept(options, state, chosen).search is None


@given(
    st.floats(0.01, 100.0),
    st.floats(-3.0, 3.0),
    st.floats(0.05, 8.0),
    st.integers(-40, 20).map(lambda power: 2.0**power),  # so that no digit is lost below
)
def test_a_line_search_that_is_asked_step_by_step_is_that_of_pytorch(
    scale: float, wave: float, first_step: float, largest: float
) -> None:
    def loss(step: float) -> float:
        return scale * (step - 1) ** 2 + np.sin(wave * step)

    def slope(step: float) -> float:
        return 2 * scale * (step - 1) + wave * np.cos(wave * step)

    if not slope(0.0) < -1e-9:
        return
    asked: list[float] = []

    def evaluate(_x: object, t: float, _d: object) -> tuple[float, torch.Tensor]:
        asked.append(float(t))
        return loss(float(t)), torch.tensor([slope(float(t)) / largest], dtype=torch.float64)

    direction = torch.tensor([largest], dtype=torch.float64)
    origin = torch.tensor([slope(0.0) / largest], dtype=torch.float64)
    _, _, chosen, _ = _strong_wolfe(
        evaluate, direction, first_step, direction, loss(0.0), origin, origin.dot(direction)
    )
    search = LineSearch(loss(0.0), slope(0.0), largest, first_step)
    while isinstance(step := strong_wolfe(search), float):
        trial = Trial(len(search.trials), step, loss(step), slope(step), 1.0)
        search = LineSearch(loss(0.0), slope(0.0), largest, first_step, (*search.trials, trial))
    found = 0.0 if step is None else step.step
    assert found == float(chosen)
    assert len(search.trials) == len(asked)


deeds = st.lists(
    st.tuples(st.integers(0, 4), st.sampled_from(["take", "finish", "repeat", "die", "stray"])),
    max_size=120,
)


@given(deeds, st.integers(1, 40), st.integers(0, 2**20))
def test_every_portion_counts_once_though_workers_die_and_repeat(
    plan: list[tuple[int, str]], portions: int, seed: int
) -> None:
    rng = random.Random(seed)
    owners = {each: f"w{rng.randrange(6)}" for each in range(portions) if rng.random() < 0.7}
    allocator = PortionAllocator(portions, owners)
    held: dict[str, list[PortionRun]] = {}
    counted: Counter[int] = Counter()

    def finish(worker: str, run: PortionRun) -> None:
        if allocator.finish(worker, run):
            counted.update(run.portions)

    for number, deed in plan:
        worker = f"w{number}"
        if deed == "take" and (run := allocator.take(worker)):
            held.setdefault(worker, []).append(run)
        elif deed == "finish" and held.get(worker):
            finish(worker, held[worker].pop(rng.randrange(len(held[worker]))))
        elif deed == "repeat" and held.get(worker):
            finish(worker, held[worker][0])
        elif deed == "die":
            allocator.give_back(worker)  # its results may still come, by another connection
        elif deed == "stray":
            finish(worker, PortionRun(rng.randrange(portions), rng.randrange(1, 4)))
    assert not allocator.is_over or counted == Counter(range(portions))
    while not allocator.is_over:
        run = allocator.take("last")
        if run is None:  # three others hold each portion that is left
            for number in range(5):
                allocator.give_back(f"w{number}")
            continue
        finish("last", run)
    assert counted == Counter(range(portions))
    assert sorted(each for run in allocator.accepted for each in run.portions) == list(
        range(portions)
    )
    assert allocator.owners.keys() == set(range(portions))


def test_workers_keep_their_portions_from_one_evaluation_to_the_next() -> None:
    owners: dict[int, str] = {}
    kept = []
    for _ in range(6):
        before, allocator = owners, PortionAllocator(40, owners)
        busy = {name: allocator.take(name) for name in ("a", "b", "c", "d")}
        while not allocator.is_over:
            for name, run in busy.items():
                if run is not None:
                    allocator.finish(name, run)
                busy[name] = allocator.take(name)
        owners = allocator.owners
        kept.append(sum(before.get(each) == owners[each] for each in owners))
    assert min(kept[1:]) >= 36


def batch_time(workers: int, portions: int, *, slow: float, has_backups: bool) -> float:
    """Return the time of the second of two evaluations over that of an ideal division of work.

    Args:
        workers: Workers, all of speed 1 but the first.
        portions: Portions of the batch.
        slow: Speed of the first worker.
        has_backups: Whether portions in progress are given again.
    """
    speeds = [slow] + [1.0] * (workers - 1)
    rng = random.Random(0)
    owners: dict[int, str] = {}
    took = 0.0
    for _ in range(2):
        allocator = PortionAllocator(portions, owners, has_backups=has_backups)
        events: list[tuple[float, int, PortionRun]] = []
        idle = list(range(workers))
        now = 0.0
        while not allocator.is_over:
            waiting = []
            for worker in idle:
                run = allocator.take(f"w{worker}")
                if run is None:
                    waiting.append(worker)
                    continue
                work = workers * run.count / portions / speeds[worker]
                heapq.heappush(events, (now + work * rng.lognormvariate(0, 0.1), worker, run))
            now, worker, run = heapq.heappop(events)
            allocator.finish(f"w{worker}", run)
            idle = [*waiting, worker]
        owners, took = allocator.owners, now
    return took * sum(speeds) / workers


def test_a_worker_that_is_four_times_slower_delays_an_evaluation_by_less_than_a_quarter() -> None:
    assert batch_time(8, 80, slow=0.25, has_backups=True) <= 1.25
    assert batch_time(8, 8, slow=0.25, has_backups=False) > 2.5


@given(st.integers(-2, 3), st.integers(-2, 3), st.integers(-2, 3))
@settings(max_examples=40)
def test_hyperparameters_that_make_no_sense_are_refused(
    history: int, batch: int, portions: int
) -> None:
    makes_sense = min(history, batch, portions) >= 1 and portions <= batch
    try:
        LbfgsOptions(1.0, 0.0, 0.0, history, batch, portions, is_full=True)
    except ValueError:
        assert not makes_sense
    else:
        assert makes_sense
    try:
        LbfgsSettings(history, portions)
    except ValueError:
        assert min(history, portions) < 1
    else:
        assert min(history, portions) >= 1
