"""Sketches of gradients, and the rows of asynchronous steps that follow from them."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worker_agent.tensorflow.gradient_sketch import SKETCH_WIDTH, GradientSketch
from worker_agent.tensorflow.push_rows import Push, PushRows, SketchProducts, products_of

unhurried = settings(max_examples=25, deadline=None)
ERROR = math.sqrt(2 / SKETCH_WIDTH)  # relative standard deviation of a squared norm

sizes = st.sampled_from([1, 100, SKETCH_WIDTH, 20_000, 300_000, 2_000_000])
seeds = st.integers(0, 2**32 - 1)


def sketched(gradient: Any) -> Any:
    sketch = GradientSketch(gradient.size)
    padded = np.pad(gradient, (0, sketch.padded - gradient.size)).astype(np.float32)
    return sketch.of(padded, np).astype(np.float64)


@unhurried
@given(seeds, sizes)
def test_a_sketch_is_linear(seed: int, size: int) -> None:
    rng = np.random.default_rng(seed)
    one, other = rng.normal(size=size), rng.normal(size=size)
    joined = sketched(2 * one - 3 * other)
    assert joined == pytest.approx(2 * sketched(one) - 3 * sketched(other), rel=1e-3, abs=1e-3)


@unhurried
@given(seeds, sizes)
def test_products_of_sketches_are_those_of_the_gradients(seed: int, size: int) -> None:
    rng = np.random.default_rng(seed)
    one = rng.normal(size=size)
    other = one * rng.uniform(-1, 1) + rng.normal(size=size)
    norms = np.linalg.norm(one) * np.linalg.norm(other)
    error = abs(sketched(one) @ sketched(other) - one @ other) / norms
    assert error < 6 * ERROR
    if size <= SKETCH_WIDTH:
        assert error < 1e-5, "each number has a sum of its own"


@pytest.mark.parametrize("size", [20_000, 300_000])
def test_squared_norms_are_unbiased_and_as_exact_as_theory_says(size: int) -> None:
    rng = np.random.default_rng(1)
    gradients = [rng.normal(size=size) for _ in range(60)]
    ratios = [np.sum(sketched(each) ** 2) / (each @ each) for each in gradients]
    assert np.mean(ratios) == pytest.approx(1, abs=4 * ERROR / math.sqrt(len(ratios)))
    assert ERROR / 2 < np.std(ratios) < 1.5 * ERROR


@pytest.mark.parametrize("width", [64, 256, 1024, 4096])
def test_a_layer_of_which_few_units_learn_is_as_exact(width: int) -> None:
    rng = np.random.default_rng(2)
    errors = []
    for _ in range(20):
        layer = np.zeros((512, width))
        layer[:, :4] = rng.normal(size=(512, 4))
        gradient = layer.ravel()
        errors.append(np.sum(sketched(gradient) ** 2) / (gradient @ gradient) - 1)
    assert np.std(errors) < 3 * ERROR


@unhurried
@given(seeds, st.integers(1, 6), st.integers(0, 60))
def test_every_push_counts_in_one_row(seed: int, workers: int, count: int) -> None:
    rng = np.random.default_rng(seed)
    gradients = rng.normal(size=(count, 5))
    pushes = [
        Push(
            number=number,
            worker=int(rng.integers(workers)),
            began_at=float(number),
            compute_time=float(rng.uniform(0, 2)),
            local_norm_sq=float(gradient @ gradient),
            samples=int(rng.integers(1, 9)),
            seen=int(rng.integers(-1, number + 1)),
            ended_at=float(number),
        )
        for number, gradient in enumerate(gradients)
    ]
    products = SketchProducts(0, gradients @ gradients.T)
    collected = PushRows(workers)
    rows = [row for push in pushes if (row := collected.add(push, products)) is not None]
    assert [row.iteration for row in rows] == list(range(1, count // workers + 1))
    for place, row in enumerate(rows):
        of_row = pushes[place * workers : (place + 1) * workers]
        assert row.samples == sum(push.samples for push in of_row)
        assert row.compute_time == max(push.compute_time for push in of_row)
        assert row.sync_time >= 0
        before = pushes[max(place - 1, 0) * workers : (place + 1) * workers]
        newest = {push.worker: push.number for push in before}
        if len(newest) < workers or workers == 1:
            assert (row.shards, row.local_norm_sq, row.mean_norm_sq) == (1, None, None)
            continue
        own = gradients[list(newest.values())]
        assert row.shards == workers
        assert row.local_norm_sq == pytest.approx(np.mean(np.sum(own**2, axis=1)))
        assert row.mean_norm_sq == pytest.approx(np.sum(np.mean(own, axis=0) ** 2))


@unhurried
@given(st.integers(0, 10), st.integers(1, 10), st.integers(-5, 20))
def test_a_sketch_that_was_overwritten_is_not_used(first: int, count: int, kept: int) -> None:
    products = products_of(first, np.ones((count, count), np.float32), kept)
    for one in range(first - 2, first + count + 2):
        for other in range(first - 2, first + count + 2):
            are_there = all(max(first, kept) <= each < first + count for each in (one, other))
            assert math.isfinite(products.of(one, other)) == are_there
