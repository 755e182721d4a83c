"""`HostReducer`: averages and norms are those of a direct computation; what fails applies nothing.

Workers are threads, each with its chunks, and the truth is computed from the same gradients.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.laws.test_mesh_laws import meshes, together
from worker_agent.errors import UnsupportedOptimizer
from worker_agent.frameworks import BatchSlice, ControlFlags, StepSummary
from worker_agent.tensorflow.reducer import HostMeasurement, HostReducer, summarise

WHOLE = BatchSlice(1.0, 1.0, is_last=True)


def flags(generation: int = 1) -> ControlFlags:
    return ControlFlags(generation, is_over=False, is_leaving=False, learning_rate_factor=1.0)


def step(reducer: HostReducer, gradient: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Let an optimizer step by a gradient; returns what it would apply."""
    edges = np.cumsum([size for size, _ in reducer.layout])[:-1]
    parts = [reducer.reduce(place, each) for place, each in enumerate(np.split(gradient, edges))]
    return np.concatenate(parts)


@given(
    shares=st.lists(st.integers(1, 30), min_size=2, max_size=4),
    sizes=st.lists(st.integers(1, 60), min_size=1, max_size=3),
    seed=st.integers(0, 99),
    skipping=st.integers(-6, 3),
)
@settings(max_examples=25, deadline=None)
def test_an_iteration_of_several_workers(
    shares: list[int], sizes: list[int], seed: int, skipping: int
) -> None:
    workers, random = len(shares), np.random.default_rng(seed)
    gradients = random.normal(size=(workers, sum(sizes)))
    fractions = np.array(shares) / sum(shares)
    layout = [(size, np.dtype("f8")) for size in sizes]

    def work(mesh: Any) -> tuple[Any, bool, StepSummary]:
        reducer = HostReducer(layout)
        reducer.regroup(mesh, mesh.rank)
        reducer.begin(BatchSlice(1.0, fractions[mesh.rank], is_last=True), flags(mesh.rank))
        applied = None if mesh.rank == skipping else step(reducer, gradients[mesh.rank])
        may_apply = reducer.may_apply
        measured = reducer.end()
        assert not measured.failure
        return applied, may_apply, summarise(measured)

    with meshes(workers) as made:
        results = together([lambda mesh=mesh: work(mesh) for mesh in made])
    mean = fractions @ gradients
    for rank, (applied, may_apply, summary) in enumerate(results):
        if 0 <= skipping < workers:
            assert applied is None or not may_apply
            assert summary.shards == 1
            continue
        np.testing.assert_allclose(applied, mean, rtol=1e-12, atol=1e-14)
        assert may_apply
        assert summary.shards == workers
        assert summary.local_norm_sq == pytest.approx(fractions @ (gradients**2).sum(1))
        if rank == 0:
            assert summary.mean_norm_sq == pytest.approx(mean @ mean)
        assert summary.announced_generation == 0


@given(first=st.integers(1, 20), second=st.integers(1, 20), seed=st.integers(0, 99))
@settings(max_examples=25, deadline=None)
def test_one_worker_that_splits_its_batch(first: int, second: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    halves = random.normal(size=(2, 30))
    shares = np.array([first, second]) / (first + second)
    reducer = HostReducer([(20, np.dtype("f8")), (10, np.dtype("f8"))])
    for number in range(2):
        reducer.begin(BatchSlice(shares[number], 1.0, is_last=number == 1), flags())
        applied = step(reducer, halves[number])
        assert reducer.may_apply == (number == 1)
    measured = reducer.end()
    np.testing.assert_allclose(applied, shares @ halves, rtol=1e-12, atol=1e-14)
    summary = summarise(measured)
    assert summary.shards == 2
    assert summary.local_norm_sq == pytest.approx(shares @ (halves**2).sum(1))
    assert summary.mean_norm_sq == pytest.approx(float(applied @ applied))


@pytest.mark.parametrize("is_split", [(True, False), (False, True)])
def test_what_an_iteration_measured_is_told_when_the_next_has_begun(
    is_split: tuple[bool, bool],
) -> None:
    """At one time a whole batch that followed a split one hid the noise of that one."""
    reducer, measured = HostReducer([(3, np.dtype("f8"))]), []
    for each in is_split:
        for part in [BatchSlice(0.5, 1.0, is_last=False)] * each + [WHOLE]:
            reducer.begin(part, flags())
            step(reducer, np.ones(3))
        measured.append(reducer.end())
    assert [summarise(each).shards for each in measured] == [2 if each else 1 for each in is_split]


@pytest.mark.parametrize("stepped", [(True, False), (False, True), (False, False)])
def test_half_a_batch_applies_nothing(stepped: tuple[bool, bool]) -> None:
    reducer = HostReducer([(3, np.dtype("f8"))])
    for number, does_step in enumerate(stepped):
        reducer.begin(BatchSlice(0.5, 1.0, is_last=number == 1), flags())
        if does_step:
            step(reducer, np.ones(3))
            assert not reducer.may_apply
    assert summarise(reducer.end()).shards == 1


@pytest.mark.parametrize("is_guarded", [True, False])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_with_the_guard_no_worker_applies_a_mean_that_is_not_finite(
    bad: float, *, is_guarded: bool
) -> None:
    layout = [(3, np.dtype("f8")), (2, np.dtype("f8"))]

    def work(mesh: Any) -> tuple[list[bool], int]:
        reducer, applied = HostReducer(layout), []
        reducer.regroup(mesh, mesh.rank)
        reducer.nan_guard = is_guarded
        for number in range(3):
            gradient = np.ones(5)
            if number == 1 and mesh.rank == 1:
                gradient[4] = bad
            reducer.begin(BatchSlice(1.0, 0.5, is_last=True), flags(mesh.rank))
            step(reducer, gradient)
            applied.append(reducer.may_apply)
            reducer.end()
        return applied, reducer.skipped_steps

    with meshes(2) as made:
        results = together([lambda mesh=mesh: work(mesh) for mesh in made])
    assert results == [([True, not is_guarded, True], int(is_guarded))] * 2


def test_a_failed_iteration_applies_nothing_and_must_be_redone() -> None:
    with meshes(2) as (mine, theirs):
        theirs.close()
        reducer = HostReducer([(3, np.dtype("f8")), (4, np.dtype("f8"))])
        reducer.regroup(mine, mine.rank)
        reducer.begin(BatchSlice(1.0, 0.5, is_last=True), flags())
        step(reducer, np.ones(7))
        assert not reducer.may_apply
        assert reducer.end().failure


def test_two_steps_on_one_batch_are_refused() -> None:
    reducer = HostReducer([(3, np.dtype("f8"))])
    reducer.begin(WHOLE, flags())
    step(reducer, np.ones(3))
    assert reducer.may_apply
    step(reducer, np.ones(3))
    assert not reducer.may_apply
    with pytest.raises(UnsupportedOptimizer, match="stepped twice on one batch"):
        reducer.end()


def test_outside_an_iteration_a_step_is_the_scripts_own() -> None:
    reducer = HostReducer([(3, np.dtype("f8"))])
    gradient = np.ones(3)
    assert reducer.reduce(0, gradient) is gradient
    assert reducer.may_apply
    assert reducer.measured == HostMeasurement()
