from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scavenger.cluster import ClusterConfig, ConfigSpace, space_columns
from scavenger.measurement.profiling import Observation, ScalingIndicators
from scavenger.models.epochs import EpochsLaw, FinishedRun, Kappa, RootNoiseLaw
from scavenger.models.forms import ALL_FORMS
from scavenger.models.iteration_time import StepTimeLaw, Uncertainty
from scavenger.models.performance import PerformanceModel
from scavenger.planning.transfer import (
    SIMILARITY_FACTOR,
    TRANSFERRED_SPREAD,
    StoredModel,
    average_models,
    learn_kappa_from_models,
    make_signature,
    model_distance,
    most_similar_model,
    transfer_model,
)

unhurried = settings(max_examples=50)

MODEL = PerformanceModel(StepTimeLaw(0, 1, 0, 1), EpochsLaw(100, 100), 1000, 50, None)
FOUR_CORNERS = ConfigSpace((2, 8), (64, 256)).corners()


def stored(*configs: ClusterConfig) -> StoredModel:
    indicators = ScalingIndicators(None, None, 1.0, 1.0)
    observations = tuple(Observation(config, indicators, 20) for config in configs)
    return StoredModel("x", MODEL, observations, {"accuracy >= 0.9": 6.0}, 1)


@pytest.mark.parametrize(
    ("seen", "workers", "batches", "covered"),
    [
        (FOUR_CORNERS, (2, 4, 8), (64, 128, 256), True),
        (FOUR_CORNERS, (4,), (100,), True),
        (FOUR_CORNERS, (2, 16), (64, 256), False),
        (FOUR_CORNERS, (1, 8), (64, 256), False),
        (FOUR_CORNERS, (2, 8), (64, 512), False),
        (FOUR_CORNERS, (2, 8), (32, 256), False),
        (FOUR_CORNERS[:1], (2, 8), (64, 256), False),
        ((), (2, 8), (64, 256), False),
    ],
)
def test_a_stored_model_covers_what_it_spans(seen, workers, batches, covered):
    assert stored(*seen).covers(ConfigSpace(workers, batches)) is covered


@pytest.mark.parametrize(
    ("target", "reference_batch", "epochs"),
    [
        ("accuracy >= 0.9", 50, 6.0),
        ("accuracy >= 0.9", 200, 12.0),
        ("accuracy >= 0.8", 50, None),
        (None, 50, None),
    ],
)
def test_epochs_are_told_at_the_other_jobs_reference_batch(target, reference_batch, epochs):
    assert stored().epochs_to(target, reference_batch) == epochs


SPACE = ConfigSpace((1, 2, 4, 8), (32, 128, 512))
GRID = space_columns(SPACE)
BATCHES = np.array([8.0, 64.0, 512.0, 4096.0])

of_all_reduce = [form for form in ALL_FORMS if form.growth != "servers"]
parallel_laws = st.builds(
    lambda form, *coefficients: StepTimeLaw(
        *coefficients, growth=form.growth, overlap=form.overlap, flatness=form.flatness
    ),
    st.sampled_from(of_all_reduce),
    st.floats(0.2, 2),
    st.floats(0.005, 0.05),
    st.floats(0.1, 1),
    st.floats(0.02, 0.2),
)
statistical_laws = st.builds(
    EpochsLaw,
    st.none() | st.just(0.0) | st.floats(1, 1e5),
    st.none() | st.just(0.0) | st.floats(1, 1e5),
    st.just(0.0) | st.floats(1, 1e4),
    st.none() | st.builds(RootNoiseLaw, st.floats(0.01, 1), st.floats(0, 30)),
)


def of_job(parallel: StepTimeLaw, statistical: EpochsLaw, name: str = "x") -> StoredModel:
    return StoredModel(name, PerformanceModel(parallel, statistical, 1000, 64, None), (), {}, 1)


def relative(law: EpochsLaw) -> np.ndarray:
    return law.unscaled_epochs(BATCHES) / law.unscaled_epochs(BATCHES[:1])


@unhurried
@given(statistical_laws, st.integers(1, 3))
def test_the_average_of_equal_jobs_has_their_epochs(law, count):
    models = [of_job(MODEL.parallel, law, f"job {number}") for number in range(count)]
    averaged = average_models(models, SPACE).statistical
    assert relative(averaged) == pytest.approx(relative(law))
    assert averaged.noise_scale == (
        None if law.noise_scale is None else pytest.approx(law.noise_scale)
    )


@settings(max_examples=8)
@given(parallel_laws, st.integers(1, 2))
def test_the_average_of_equal_jobs_has_their_speed(law, count):
    models = [of_job(law, EpochsLaw(100, 100), f"job {n}") for n in range(count)]
    averaged = average_models(models, SPACE).parallel
    assert averaged.step_times(GRID) == pytest.approx(law.step_times(GRID), rel=0.02)


@settings(max_examples=5)
@given(st.floats(1.1, 5))
def test_the_average_lies_between_two_jobs_and_knows_how_far_they_differ(factor):
    slow = StepTimeLaw(*(np.array(MODEL.parallel.coefficients) * factor).tolist())
    law = EpochsLaw(100 * factor, 100 / factor)
    averaged = average_models([of_job(MODEL.parallel, MODEL.statistical), of_job(slow, law)], SPACE)
    middle = MODEL.parallel.step_times(GRID) * factor**0.5
    assert averaged.parallel.step_times(GRID) == pytest.approx(middle, rel=0.01)
    assert averaged.parallel.spread >= np.log(factor) / 2
    assert averaged.statistical.critical_batch == pytest.approx(100 * factor**0.5)
    assert averaged.statistical.noise_scale == pytest.approx(100 / factor**0.5)
    assert averaged.statistical.critical_deviation > Kappa().deviation


def test_no_job_has_no_average():
    assert average_models([], SPACE) is None


known = Uncertainty(0.05, tuple(tuple(map(float, row)) for row in np.eye(5)))


def measure(config: ClusterConfig, compute: float, sync: float, scale: float | None = None):
    return Observation(config, ScalingIndicators(None, scale, compute, sync), 20)


@unhurried
@given(
    parallel_laws,
    st.sampled_from([config for config in SPACE if config.workers > 1]),
    st.floats(0.1, 10),
    st.floats(0.01, 10),
)
def test_a_borrowed_model_meets_the_own_measurement_and_is_less_sure(law, config, compute, sync):
    model = of_job(replace(law, uncertainty=known), MODEL.statistical).model
    own = transfer_model(model, [measure(config, compute, sync)])
    assert own.parallel.step_time(config) == pytest.approx(compute + sync, rel=1e-6)
    assert own.parallel.compute_time(config) == pytest.approx(compute, rel=1e-6)
    assert own.parallel.spread > max(known.spread, TRANSFERRED_SPREAD)
    assert own.statistical == model.statistical


@unhurried
@given(parallel_laws, st.floats(0.1, 10))
def test_a_model_borrowed_by_a_lone_worker_follows_its_speed(law, compute):
    alone = ClusterConfig(1, 128)
    own = transfer_model(of_job(law, MODEL.statistical).model, [measure(alone, compute, 0.0)])
    factor = compute / law.step_time(alone)
    assert own.parallel.step_times(GRID) == pytest.approx(law.step_times(GRID) * factor)


def test_a_borrowed_model_without_synchronisation_still_takes_as_long_as_was_measured():
    free = StepTimeLaw(0.5, 0.01, 0.0, 0.0)
    own = transfer_model(
        of_job(free, MODEL.statistical).model, [measure(ClusterConfig(4, 128), 1.0, 0.5)]
    )
    assert own.parallel.step_time(ClusterConfig(4, 128)) == pytest.approx(1.5)


def of_speed(law: StepTimeLaw, factor: float, scale: float) -> StoredModel:
    scaled = StepTimeLaw(*(np.array(law.coefficients) * factor).tolist())
    return of_job(scaled, EpochsLaw(100, scale))


def seen_by(stored: StoredModel, config: ClusterConfig) -> Observation:
    law = stored.model.parallel
    times = law.compute_time(config), max(law.sync_time(config), 0.0)
    return measure(config, *times, stored.model.statistical.noise_scale)


@unhurried
@given(st.floats(0.2, 5), st.floats(0.2, 5), st.sampled_from(list(SPACE)))
def test_how_far_two_jobs_are_apart_is_the_same_from_both_sides(speed, noise, config):
    one, other = of_speed(MODEL.parallel, 1, 100.0), of_speed(MODEL.parallel, speed, 100 * noise)
    there = model_distance(one.model, seen_by(other, config))
    back = model_distance(other.model, seen_by(one, config))
    assert there == pytest.approx(back)
    assert there == pytest.approx(max(speed, 1 / speed, noise, 1 / noise))
    assert model_distance(one.model, seen_by(one, config)) == pytest.approx(1)


@unhurried
@given(st.floats(0.2, 5), st.sampled_from(list(SPACE)))
def test_a_job_is_like_another_within_a_factor_and_else_like_none(speed, config):
    stored = of_speed(MODEL.parallel, speed, 100.0)
    own = seen_by(of_speed(MODEL.parallel, 1, 100.0), config)
    apart = max(speed, 1 / speed)
    if abs(apart - SIMILARITY_FACTOR) > 1e-6:
        assert most_similar_model([stored], [own]) == (
            stored if apart < SIMILARITY_FACTOR else None
        )


def test_of_several_jobs_the_one_most_alike_is_nearest():
    speeds = (1.3, 0.95, 0.7, 4.0)
    models = [of_speed(MODEL.parallel, speed, 100.0) for speed in speeds]
    own = seen_by(of_speed(MODEL.parallel, 1, 100.0), ClusterConfig(4, 128))
    assert most_similar_model(models, [own]) == models[1]
    assert most_similar_model([], [own]) is None


@pytest.mark.parametrize("seen", [(0.0, 0.0, None), (0.0, 0.0, 0.0)])
def test_what_was_not_measured_is_like_nothing(seen):
    assert (
        most_similar_model(
            [of_speed(MODEL.parallel, 1, 100.0)], [measure(ClusterConfig(2, 64), *seen)]
        )
        is None
    )


@pytest.mark.parametrize("extreme", [1e-320, 1e300])
def test_no_figure_is_too_far_off_to_compare(extreme):
    apart = model_distance(MODEL, measure(ClusterConfig(2, 64), extreme, 0.0))
    assert apart > 1e200


def test_kappa_is_taught_by_jobs_that_scaled_their_learning_rate_alike():
    runs = {"accuracy >= 0.9": (FinishedRun(64, 10.0), FinishedRun(512, 30.0))}
    alike, other = (
        replace(of_job(MODEL.parallel, MODEL.statistical), signature=name, runs=runs)
        for name in (make_signature("a", 1, "linear", "m"), make_signature("a", 1, "none", "m"))
    )
    prior = Kappa(10.0)
    assert learn_kappa_from_models(prior, [other], "linear") == prior
    taught = learn_kappa_from_models(prior, [alike, other], "linear")
    # e = 1 + B / 160.
    assert 1.0 < taught.value < prior.value
    assert taught.deviation < prior.deviation
