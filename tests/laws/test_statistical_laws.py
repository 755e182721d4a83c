import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scavenger.cluster import ClusterConfig, config_columns
from scavenger.learning_rate import LearningRateScaling
from scavenger.models.epochs import EpochsLaw
from scavenger.models.iteration_time import StepTimeLaw
from scavenger.models.performance import PerformanceModel
from scavenger.planning.curve import forecast_grid
from scavenger.pricing import on_demand_price_model

batches = st.integers(1, 10**6)
critical = st.floats(0, 1e12) | st.none()
models = st.builds(EpochsLaw, critical, st.none() | st.floats(0, 1e9))


def iterations(model, batch):
    return float(model.iterations(config_columns([ClusterConfig(1, batch)]))[0])


@given(models, batches, batches, batches)
def test_larger_batches_never_need_fewer_epochs(model, one, other, reference):
    small, large = sorted((one, other))
    relative = [model.relative_epochs(batch, reference) for batch in (small, large)]
    assert relative[0] <= relative[1]


@given(models, batches, batches)
def test_larger_batches_never_need_more_iterations(model, one, other):
    small, large = sorted((one, other))
    performance = PerformanceModel(StepTimeLaw(1, 0, 0, 0), model, 50_000, 64, 10)
    needed = [iterations(performance, batch) for batch in (small, large)]
    assert needed[1] <= needed[0] * (1 + 1e-12)


@given(models, batches)
def test_the_reference_batch_needs_the_reference_epochs(model, reference):
    assert model.relative_epochs(reference, reference) == 1


@given(models, batches, batches, batches)
def test_relative_epochs_chain(model, first, second, third):
    direct = model.relative_epochs(first, third)
    chained = model.relative_epochs(first, second) * model.relative_epochs(second, third)
    assert direct == pytest.approx(chained)


@given(models, batches, batches)
def test_the_progress_of_all_iterations_is_the_epochs_at_reference(model, batch, reference):
    performance = PerformanceModel(StepTimeLaw(1, 0, 0, 0), model, 50_000, reference, 12.5)
    progress = performance.progress_per_iteration(batch) * iterations(performance, batch)
    assert progress == pytest.approx(12.5)


@given(models, st.integers(1, 64), st.integers(1, 512))
def test_predicted_noise_is_finite_or_unknown(model, workers, local):
    noise = model.noise(ClusterConfig(workers, workers * local))
    assert noise is None or math.isfinite(noise)


known = st.builds(EpochsLaw, st.none() | st.floats(1, 1e9), st.floats(1, 1e9))


@given(known, st.floats(1, 1e9))
def test_at_another_noise_scale_kappa_stays(model, scale):
    moved = model.at_noise_scale(scale)
    back = moved.at_noise_scale(model.noise_scale)
    assert (moved.noise_scale, back.noise_scale) == (scale, model.noise_scale)
    if model.critical_batch is None:
        assert moved.critical_batch is None
    else:
        kappa = model.critical_batch / model.noise_scale
        assert moved.critical_batch / scale == pytest.approx(kappa)
        assert back.critical_batch == pytest.approx(model.critical_batch)


@given(critical, st.sampled_from([None, 0]), st.floats(1, 1e9))
def test_a_law_without_a_noise_scale_follows_none(critical, unknown, scale):
    model = EpochsLaw(critical, unknown)
    assert model.at_noise_scale(scale) is model


def test_epochs_double_at_the_critical_batch():
    model = EpochsLaw(critical_batch=1000, noise_scale=None)
    assert model.relative_epochs(1000, 1) == pytest.approx(2, rel=1e-2)


def test_gradients_without_noise_waste_every_further_sample():
    assert EpochsLaw(0, 0).relative_epochs(256, 64) == 4


def test_time_is_epochs_times_dataset_over_batch_times_step_time():
    parallel = StepTimeLaw(0.1, 0.01, 0.2, 0.05)
    model = PerformanceModel(parallel, EpochsLaw(None, None), 6400, 64, 3)
    config = ClusterConfig(4, 64)
    assert parallel.step_time(config) == pytest.approx(0.1 + 0.16 + 0.2 + 0.2)
    forecast = forecast_grid(config_columns([config]), model, on_demand_price_model(1.0), {})
    assert iterations(model, 64) == 300
    assert forecast.time.tolist() == pytest.approx([300 * 0.66])


@pytest.mark.parametrize(("rule", "factor"), [("none", 1), ("linear", 4), ("sqrt", 2)])
def test_the_learning_rate_follows_its_rule(rule, factor):
    assert LearningRateScaling(rule, reference_batch=64).factor(256) == factor
