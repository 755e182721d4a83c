import math
from dataclasses import astuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scavenger.cluster import ClusterConfig, ConfigSpace
from scavenger.errors import NotEnoughData
from scavenger.indicators import Observation, ScalingIndicators
from scavenger.models.fitting import (
    fit_parallel,
    fit_performance,
    fit_statistical,
    mean_relative_error,
)
from scavenger.models.parallel import ParallelModel

SPACE = ConfigSpace((2, 4, 8, 16), (64, 128, 256, 512))

seconds = st.floats(1e-6, 1e3)
truths = st.builds(ParallelModel, seconds, seconds, seconds, seconds)
configs = st.builds(
    lambda workers, local: ClusterConfig(workers, workers * local),
    st.integers(1, 64),
    st.integers(1, 512),
)
times = st.floats(0, 1e6)
indicators = st.builds(ScalingIndicators, st.none(), st.none() | st.floats(0, 1e6), times, times)
observations = st.builds(Observation, configs, indicators, st.integers(0, 100))


def observe(config, model, noise_scale=None, iterations=20):
    times = model.compute_time(config), model.sync_time(config)
    return Observation(config, ScalingIndicators(None, noise_scale, *times), iterations)


@given(truths)
def test_the_corners_of_a_law_give_the_law_back(truth):
    fitted = fit_parallel([observe(config, truth) for config in SPACE.corners()])
    for config in SPACE:
        assert fitted.step_time(config) == pytest.approx(truth.step_time(config), rel=1e-6)


@given(st.lists(observations, min_size=1, max_size=8))
def test_coefficients_are_finite_and_never_negative(measured):
    fitted = fit_parallel(measured)
    assert all(math.isfinite(value) and value >= 0 for value in astuple(fitted))
    assert math.isfinite(mean_relative_error(fitted, measured))


@given(st.lists(observations, min_size=1, max_size=6), st.integers(1, 10**6))
def test_nothing_a_model_predicts_is_not_finite(measured, reference_batch):
    model = fit_performance(measured, 50_000, reference_batch, None)
    for config in SPACE:
        assert math.isfinite(model.training_time(config))
        assert 0 < model.progress_per_iteration(config.global_batch) < math.inf


@given(truths, st.randoms(use_true_random=False))
def test_the_order_of_observations_does_not_matter(truth, shuffle):
    measured = [observe(config, truth) for config in SPACE]
    shuffled = list(measured)
    shuffle.shuffle(shuffled)
    first, second = fit_parallel(measured), fit_parallel(shuffled)
    for config in SPACE:
        assert first.step_time(config) == pytest.approx(second.step_time(config), rel=1e-6)


@given(truths, configs)
def test_one_observation_is_met_and_the_rest_is_proportional(truth, config):
    fitted = fit_parallel([observe(config, truth)])
    assert fitted.step_time(config) == pytest.approx(truth.step_time(config))
    assert fitted.compute_fixed == 0
    assert fitted.sync_fixed == 0


@given(truths)
def test_without_two_workers_synchronisation_counts_as_free(truth):
    measured = [observe(ClusterConfig(1, batch), truth) for batch in (32, 64)]
    fitted = fit_parallel(measured)
    assert fitted.sync_time(ClusterConfig(8, 64)) == 0
    assert fitted.compute_time(ClusterConfig(1, 48)) == pytest.approx(
        truth.compute_time(ClusterConfig(1, 48))
    )


@given(truths)
def test_a_perfect_model_has_no_error(truth):
    measured = [observe(config, truth) for config in SPACE]
    assert mean_relative_error(truth, measured) == pytest.approx(0, abs=1e-12)


def test_negative_slopes_become_a_constant():
    slower_when_smaller = [
        Observation(ClusterConfig(1, 32), ScalingIndicators(None, None, 2.0, 0.0), 20),
        Observation(ClusterConfig(1, 64), ScalingIndicators(None, None, 1.0, 0.0), 20),
    ]
    fitted = fit_parallel(slower_when_smaller)
    assert fitted.compute_per_sample == 0
    assert 1 < fitted.compute_fixed < 2


def test_no_observation_is_not_enough():
    with pytest.raises(NotEnoughData, match="probe at least one"):
        fit_parallel([])
    with pytest.raises(NotEnoughData):
        fit_performance([], 1000, 64, None)


def test_a_short_probe_does_not_outvote_the_settled_one():
    truth = ParallelModel(0.1, 0.001, 0.1, 0.01)
    scales = [(80.0, 300), (5.0, 20), (9000.0, 20), (7000.0, 20)]
    measured = [
        observe(config, truth, scale, iterations)
        for config, (scale, iterations) in zip(SPACE.corners(), scales, strict=True)
    ]
    statistical = fit_statistical(measured, kappa=2.0)
    assert statistical.noise_scale == 80
    assert statistical.critical_batch == 160


def test_without_a_noise_scale_batches_cost_no_epochs():
    truth = ParallelModel(0.1, 0.001, 0.1, 0.01)
    model = fit_performance([observe(ClusterConfig(4, 64), truth)], 1000, 64, 10)
    assert model.epochs_needed(64) == model.epochs_needed(4096) == 10
    assert model.statistical.noise(ClusterConfig(4, 64)) is None
