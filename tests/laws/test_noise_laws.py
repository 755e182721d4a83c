import math
import random
from collections.abc import Iterable
from fractions import Fraction
from itertools import permutations, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scavenger.cluster import ClusterConfig
from scavenger.measurement.noise import (
    ShardNorms,
    SmoothedNoise,
    estimate_noise,
    noise_at,
    pool_noise,
)
from scavenger.measurement.steps import StepColumns
from worker_agent.sampler import SampleRange

unhurried = settings(max_examples=50)

configs = st.builds(
    lambda workers, local: ClusterConfig(workers, workers * local),
    st.integers(2, 64),
    st.integers(1, 512),
)
scales = st.floats(0, 1e5)
norms = st.floats(0, allow_nan=False, allow_infinity=False)


def columns(rows: list[tuple[int, float | None, float | None]]) -> StepColumns:
    zeros = (0.0,) * len(rows)
    return StepColumns(
        iteration=tuple(range(len(rows))),
        shards=tuple(row[0] for row in rows),
        local_norm_sq=tuple(row[1] for row in rows),
        mean_norm_sq=tuple(row[2] for row in rows),
        compute_time=zeros,
        sync_time=zeros,
        step_time=zeros,
        loss=(None,) * len(rows),
    )


def noise_scale_of(local: float, mean: float, shards: int, batch: int) -> float | None:
    found = pool_noise([ShardNorms(shards, local, mean)], batch)
    return None if found is None else found.noise_scale


@given(configs, scales, st.floats(1e-6, 1e6))
def test_a_noise_scale_survives_the_way_to_noise_and_back(config, scale, mean):
    gamma = noise_at(scale, config)
    back = noise_scale_of(gamma * mean, mean, config.workers, config.global_batch)
    assert back == pytest.approx(scale, rel=1e-6, abs=1e-6 * config.global_batch)


@given(configs, scales)
def test_noise_lies_between_agreement_and_orthogonality(config, scale):
    assert noise_at(scale, config) >= 1 - 1e-12
    assert noise_at(scale, config) <= config.workers * (1 + 1e-12)


@given(configs, scales)
def test_noise_without_the_workers_depends_on_the_batch_alone(config, scale):
    rho = (noise_at(scale, config) - 1) / (config.workers - 1)
    assert scale / (config.global_batch + scale) == pytest.approx(rho, abs=1e-9)


@given(
    st.lists(st.tuples(st.integers(1, 8), st.floats(0, 1e6), st.floats(0, 1e6)), max_size=20),
    st.randoms(use_true_random=False),
)
def test_the_order_of_rows_does_not_matter(rows, shuffle):
    shuffled = list(rows)
    shuffle.shuffle(shuffled)
    first, second = (estimate_noise(columns(order), 256) for order in (rows, shuffled))
    assert (first is None) == (second is None)
    if first and second:
        assert first.noise == pytest.approx(second.noise)
        # Near-cancelling pieces leave rounding of the size of what was added.
        assert first.gradient_norm_sq == pytest.approx(second.gradient_norm_sq, abs=1e-6)


@given(
    st.lists(st.tuples(st.integers(1, 64), st.none() | norms, st.none() | norms), max_size=8),
    st.integers(1, 10**6),
)
def test_no_finite_norms_give_a_figure_that_is_not_finite(rows, global_batch):
    estimate = estimate_noise(columns(rows), global_batch)
    if estimate is None:
        return
    figures = (estimate.noise, estimate.gradient_norm_sq, estimate.gradient_variance)
    assert all(map(math.isfinite, figures))
    scale = estimate.noise_scale
    assert scale is None or (math.isfinite(scale) and scale >= 0)


@given(norms, norms, st.integers(2, 64), st.integers(1, 10**6))
def test_one_row_gives_a_finite_noise_scale_or_none(local, mean, shards, global_batch):
    scale = noise_scale_of(local, mean, shards, global_batch)
    assert scale is None or (math.isfinite(scale) and scale >= 0)


@pytest.mark.parametrize("norms", [(0.0, 0.0), (1.0, -1.0), (math.nan, 1.0), (1e308, 1e-308)])
def test_norms_without_a_finite_ratio_tell_nothing(norms):
    assert pool_noise([ShardNorms(2, *norms)], 64) is None


def test_rows_without_noise_change_nothing():
    rows = [(4, 6.0, 3.0), (4, 5.0, 3.0)]
    blind = [(1, 9.0, 9.0), (4, None, 3.0), (4, 6.0, None), (4, math.inf, 3.0)]
    assert estimate_noise(columns(rows + blind), 64) == estimate_noise(columns(rows), 64)
    assert estimate_noise(columns(blind), 64) is None


def test_a_gradient_hidden_by_noise_has_noise_but_no_scale():
    estimate = estimate_noise(columns([(2, 9.0, 4.0)]), 64)
    assert estimate.noise == 2.25
    assert estimate.gradient_norm_sq < 0
    assert estimate.noise_scale is None


def sampled_norms(
    draw: random.Random, gradient: list[float], spread: float, shards: int, local_batch: int
) -> tuple[float, float]:
    """Norms of one iteration whose shard gradients are the mean of normal samples."""
    deviation = spread / math.sqrt(local_batch)
    parts = [[draw.gauss(g, deviation) for g in gradient] for _ in range(shards)]
    mean = [sum(values) / shards for values in zip(*parts, strict=True)]
    local = sum(value * value for part in parts for value in part) / shards
    return local, sum(value * value for value in mean)


@pytest.mark.parametrize(("shards", "local_batch"), [(2, 8), (2, 32), (4, 8), (8, 4)])
def test_the_pieces_are_unbiased(shards, local_batch):
    draw = random.Random(7)
    gradient, spread = [0.5, -0.3, 0.2, 0.1, 0.0], 1.0
    rows = [
        (shards, *sampled_norms(draw, gradient, spread, shards, local_batch)) for _ in range(6000)
    ]
    estimate = estimate_noise(columns(rows), shards * local_batch)
    assert estimate.gradient_norm_sq == pytest.approx(0.39, rel=0.05)
    assert estimate.gradient_variance == pytest.approx(5.0, rel=0.05)
    assert estimate.noise_scale == pytest.approx(5 / 0.39, rel=0.08)


def norms_of(samples: tuple[tuple[int, ...], ...], workers: int) -> tuple[Fraction, Fraction]:
    """Norms as workers take them, each counted by its share of the batch."""
    parts = [
        samples[part.start : part.start + part.count]
        for part in SampleRange(0, len(samples)).split(workers)
    ]
    local = sum(Fraction(len(part), len(samples)) * norm_sq_of_mean(part) for part in parts)
    return local, norm_sq_of_mean(samples)


def norm_sq_of_mean(samples: tuple[tuple[int, ...], ...]) -> Fraction:
    return sum(
        (Fraction(sum(values), len(samples)) ** 2 for values in zip(*samples, strict=True)),
        Fraction(0),
    )


def expected_pieces(
    batches: Iterable[tuple[tuple[int, ...], ...]], workers: int
) -> tuple[Fraction, Fraction]:
    """Means of |G|² and tr Σ over batches that are equally likely."""
    rows = [(norms_of(batch, workers), len(batch)) for batch in batches]
    pairs = [(ShardNorms(workers, *norms), size) for norms, size in rows]
    return (
        sum(pair.gradient_norm_sq for pair, _ in pairs) / len(pairs),
        sum(pair.gradient_variance(size) for pair, size in pairs) / len(pairs),
    )


gradients = st.lists(st.tuples(st.integers(-9, 9), st.integers(-9, 9)), min_size=2, max_size=3)
divisions = st.tuples(st.integers(2, 4), st.integers(2, 5)).filter(lambda pair: pair[0] <= pair[1])


@settings(max_examples=15)
@given(gradients, divisions)
def test_the_pieces_are_unbiased_however_uneven_the_parts(population, division):
    """Exactly: over every batch that can be drawn, in rational numbers."""
    workers, batch = division
    norm_sq, variance = expected_pieces(product(population, repeat=batch), workers)
    mean = norm_sq_of_mean(tuple(population))
    assert norm_sq == mean
    assert variance == sum(norm_sq_of_mean((g,)) for g in population) / len(population) - mean


@settings(max_examples=15)
@given(gradients.map(lambda found: [*found, (3, -4), (1, 2)]), divisions)
def test_batches_without_repeats_hide_the_same_part_of_the_gradient_at_every_division(
    population, division
):
    """tr Σ is the sample variance, and |G|² is smaller by tr Σ / D, for any K and B."""
    workers, batch = division
    size = len(population)
    norm_sq, variance = expected_pieces(permutations(population, min(batch, size)), workers)
    mean = norm_sq_of_mean(tuple(population))
    spread = (sum(norm_sq_of_mean((g,)) for g in population) - size * mean) / (size - 1)
    assert variance == spread
    assert norm_sq == mean - spread / size


decays = st.just(0.0) | st.floats(0, 0.999)


@unhurried
@given(decays, st.integers(1, 40), st.integers(2, 64), st.floats(1e-3, 1e6), st.floats(1, 50))
def test_constant_rows_are_their_own_average_from_the_first_one_on(decay, rows, shards, mean, more):
    row = ShardNorms(shards, mean * more, mean)
    smoothed = SmoothedNoise(decay)
    for _ in range(rows):
        smoothed = smoothed.with_row(row, 64)
        assert smoothed.gradient_norm_sq / smoothed.weight == pytest.approx(row.gradient_norm_sq)
        assert smoothed.gradient_variance / smoothed.weight == pytest.approx(
            row.gradient_variance(64)
        )
    assert smoothed.rows == rows
    assert 0 < smoothed.weight <= 1 + 1e-12


@unhurried
@given(st.lists(st.tuples(st.floats(1, 10), st.floats(1, 10)), min_size=1, max_size=30))
def test_what_forgets_nothing_is_the_plain_mean_and_what_forgets_all_the_newest(norms):
    rows = [ShardNorms(4, local + mean, mean) for local, mean in norms]
    slow, fast = SmoothedNoise(1 - 1e-7), SmoothedNoise(0.0)
    for row in rows:
        slow, fast = slow.with_row(row, 64), fast.with_row(row, 64)
    pooled = estimate_noise(columns([(4, row.local_norm_sq, row.mean_norm_sq) for row in rows]), 64)
    near = {"rel": 1e-4, "abs": 1e-4}
    assert slow.gradient_norm_sq / slow.weight == pytest.approx(pooled.gradient_norm_sq, **near)
    assert slow.gradient_variance / slow.weight == pytest.approx(pooled.gradient_variance, **near)
    newest = rows[-1]
    assert fast.noise_scale == noise_scale_of(newest.local_norm_sq, newest.mean_norm_sq, 4, 64)


@unhurried
@given(configs, configs, st.floats(0.1, 1e4), st.floats(1e-3, 1e3))
def test_rows_of_different_configurations_average_to_the_scale_they_share(one, other, scale, mean):
    smoothed = SmoothedNoise(0.9)
    for config in (one, other, other, one):
        gradient = mean * config.global_batch / (config.global_batch + scale)
        row = ShardNorms(config.workers, noise_at(scale, config) * gradient, gradient)
        smoothed = smoothed.with_row(row, config.global_batch)
    largest = max(one.global_batch, other.global_batch)
    assert smoothed.noise_scale == pytest.approx(scale, rel=1e-6, abs=1e-9 * largest)


def test_before_the_first_row_there_is_no_scale():
    assert SmoothedNoise().noise_scale is None
    with pytest.raises(ValueError, match="below 1"):
        SmoothedNoise(1.0)
