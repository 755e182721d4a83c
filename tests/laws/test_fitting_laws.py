import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scavenger.cluster import ClusterConfig, ConfigSpace, config_columns, space_columns
from scavenger.errors import NotEnoughData
from scavenger.measurement.profiling import Measurement, Observation, ScalingIndicators
from scavenger.models.epochs import Kappa, fit_epochs_law
from scavenger.models.forms import (
    ALL_FORMS,
    PAPER_FORM,
    StepTimeForm,
    fit_form,
    measurement_columns,
    pose_least_squares,
)
from scavenger.models.iteration_time import Slowness, StepTimeLaw
from scavenger.models.iteration_time_fitting import fit_step_time
from scavenger.models.performance import (
    fit_performance,
    fit_step_time_to_probes,
    mean_relative_error,
)

SPACE = ConfigSpace((2, 4, 8, 16), (64, 128, 256, 512))
GRID = space_columns(SPACE)

seconds = st.floats(1e-6, 1e3)
truths = st.builds(StepTimeLaw, seconds, seconds, seconds, seconds)
configs = st.builds(
    lambda workers, local, shared: ClusterConfig(workers, workers * local, shared),
    st.integers(1, 64),
    st.integers(1, 512),
    st.sampled_from((1, 4, 8)),
)
times = st.floats(0, 1e6)
indicators = st.builds(ScalingIndicators, st.none(), st.none() | st.floats(0, 1e6), times, times)
observations = st.builds(Observation, configs, indicators, st.integers(0, 100))
measurements = st.builds(Measurement, configs, times, st.none() | times)
topologies = st.sampled_from(("all_reduce", "parameter_server"))


def observe(config, model, noise_scale=None, iterations=20):
    times = model.compute_time(config), model.sync_time(config)
    return Observation(config, ScalingIndicators(None, noise_scale, *times), iterations)


def measure(model, configs):
    return [
        Measurement(config, model.step_time(config), model.compute_time(config))
        for config in configs
    ]


def balanced(fixed, per_sample, sync, growth, form):
    """A law in which every part counts, so that every part can be told from the others."""
    return StepTimeLaw(
        fixed,
        per_sample,
        sync,
        growth,
        growth=form.growth,
        overlap=form.overlap,
        flatness=form.flatness,
    )


WIDE = [ClusterConfig(k, b) for k in (1, 2, 4, 8, 16) for b in (32, 64, 128, 256, 512)]
parts, slopes = st.floats(0.01, 0.5), st.floats(1e-4, 0.1)
forms = st.sampled_from(ALL_FORMS)
laws = st.builds(
    balanced,
    st.floats(0.2, 2),
    st.floats(0.005, 0.05),
    st.floats(0.1, 1),
    st.floats(0.02, 0.2),
    forms,
)


@given(truths, topologies)
def test_the_corners_of_lines_give_the_lines_back(truth, topology):
    fitted = fit_step_time(measure(truth, SPACE.corners()), topology, forms=(PAPER_FORM,))
    for config in SPACE:
        assert fitted.step_time(config) == pytest.approx(truth.step_time(config), rel=1e-6)


@settings(max_examples=15)
@given(laws)
def test_a_full_search_reproduces_any_law_of_the_family(truth):
    fitted = fit_step_time(measure(truth, SPACE))
    worst = max(abs(fitted.step_times(GRID) / truth.step_times(GRID) - 1))
    assert worst < 0.02


@given(st.lists(measurements, min_size=1, max_size=8), topologies)
@settings(max_examples=30)
def test_nothing_that_was_measured_makes_a_law_infinite_or_negative(measured, topology):
    fitted = fit_step_time(measured, topology)
    coefficients = [value for law in fitted.laws for value in law.coefficients]
    assert all(math.isfinite(value) and value >= 0 for value in coefficients)
    assert all(math.isfinite(value) and value >= 0 for value in fitted.step_times(GRID))
    assert all(math.isfinite(value) and value >= 0 for value in fitted.deviations(GRID))
    assert math.isfinite(mean_relative_error(fitted, measured))


@given(st.lists(observations, min_size=1, max_size=6), st.integers(1, 10**6))
@settings(max_examples=30)
def test_nothing_a_model_predicts_is_not_finite(measured, reference_batch):
    model = fit_performance(measured, 50_000, reference_batch, None)
    for config in SPACE:
        assert math.isfinite(model.epochs_needed(config.global_batch))
        assert math.isfinite(model.parallel.step_time(config))
        assert 0 < model.progress_per_iteration(config.global_batch) < math.inf


@settings(max_examples=20)
@given(laws, st.randoms(use_true_random=False))
def test_the_order_of_measurements_does_not_matter(truth, shuffle):
    measured = measure(truth, SPACE.corners())
    shuffled = list(measured)
    shuffle.shuffle(shuffled)
    assert fit_step_time(measured) == fit_step_time(shuffled)


@settings(max_examples=20)
@given(laws, st.sampled_from((1e-3, 60.0, 3600.0)))
def test_the_unit_of_time_does_not_matter(truth, unit):
    measured = measure(truth, SPACE.corners())
    other = [
        replace(m, step_time=m.step_time * unit, compute_time=m.compute_time * unit)
        for m in measured
    ]
    one, scaled = fit_step_time(measured), fit_step_time(other)
    assert scaled.step_times(GRID) == pytest.approx(one.step_times(GRID) * unit, rel=1e-5)
    assert scaled.deviations(GRID) == pytest.approx(one.deviations(GRID), rel=1e-4)


@settings(max_examples=20)
@given(laws, st.sampled_from((2, 16)))
def test_the_unit_of_batches_does_not_matter(truth, unit):
    measured = measure(truth, SPACE.corners())
    other = [
        replace(m, config=ClusterConfig(m.config.workers, m.config.global_batch * unit))
        for m in measured
    ]
    scaled = config_columns(ClusterConfig(c.workers, c.global_batch * unit) for c in SPACE)
    assert fit_step_time(other).step_times(scaled) == pytest.approx(
        fit_step_time(measured).step_times(GRID), rel=1e-5
    )


@settings(max_examples=15)
@given(laws)
def test_more_of_a_noiseless_truth_never_widens_the_interval(truth):
    forms = (StepTimeForm(truth.growth, truth.overlap, truth.flatness),)
    few = fit_step_time(measure(truth, SPACE.corners()), forms=forms)
    many = fit_step_time(measure(truth, SPACE), forms=forms)
    assert all(many.deviations(GRID) <= few.deviations(GRID) * (1 + 1e-6))


@st.composite
def rough_tables(draw):
    """A few configurations of lines, each off them in its own way."""
    truth = StepTimeLaw(*(draw(seconds_of) for seconds_of in (parts, slopes, parts, slopes)))
    seen = draw(st.lists(st.sampled_from(WIDE), min_size=3, max_size=8, unique=True))
    off = st.floats(-0.2, 0.2).map(math.exp)
    measured = [Measurement(config, truth.step_time(config) * draw(off)) for config in seen]
    table = measurement_columns(measured, "all_reduce")
    assert table is not None
    return table


@settings(max_examples=60)
@given(rough_tables())
def test_no_part_of_any_law_takes_many_times_as_long_as_the_whole_did(table):
    for form in ALL_FORMS:
        fitted = fit_form(table, form)
        assert max(fitted.step_times(table.grid) / table.seconds) < 10


@given(truths, configs)
def test_one_measurement_is_met_and_compute_is_proportional(truth, config):
    fitted = fit_step_time(measure(truth, [config]))
    assert fitted.step_time(config) == pytest.approx(truth.step_time(config), rel=1e-4)
    assert all(law.compute_fixed == 0 for law in fitted.laws)


def test_of_one_worker_count_part_of_the_synchronisation_grows_and_that_is_uncertain():
    truth = StepTimeLaw(0.1, 0.001, 1.0, 0.1)
    fitted = fit_step_time(measure(truth, [ClusterConfig(1, 64), ClusterConfig(16, 1024)]))
    seen, unseen = ClusterConfig(16, 1024), ClusterConfig(4, 256)
    assert 0 < fitted.sync_time(unseen) < fitted.sync_time(seen)
    known, guessed = fitted.deviations(config_columns([seen, unseen]))
    assert guessed > 2 * known


@given(truths)
def test_without_two_workers_synchronisation_counts_as_free(truth):
    measured = measure(truth, [ClusterConfig(1, batch) for batch in (32, 64)])
    fitted = fit_step_time(measured)
    assert fitted.sync_time(ClusterConfig(8, 64)) == 0
    assert fitted.compute_time(ClusterConfig(1, 48)) == pytest.approx(
        truth.compute_time(ClusterConfig(1, 48))
    )


@given(truths)
def test_a_perfect_model_has_no_error(truth):
    assert mean_relative_error(truth, measure(truth, SPACE)) == pytest.approx(0, abs=1e-12)


@given(laws, st.floats(0.2, 5), st.floats(0.2, 5))
@settings(max_examples=20)
def test_slower_hardware_is_known_from_two_probes(truth, compute, sync):
    lines = replace(truth, overlap=1.0, flatness=1.0, growth="linear")
    mixed = replace(lines, slowness={"old": Slowness(compute, sync)})
    corners = SPACE.corners()
    old = [ClusterConfig(c.workers, c.global_batch, machine_type="old@there") for c in corners]
    fitted = fit_step_time(measure(mixed, [*corners, old[0], old[2]]), forms=(PAPER_FORM,))
    elsewhere = config_columns(
        ClusterConfig(c.workers, c.global_batch, machine_type="old@here") for c in SPACE
    )
    assert fitted.step_times(elsewhere) == pytest.approx(mixed.step_times(elsewhere), rel=1e-6)


@given(laws)
@settings(max_examples=10)
def test_coefficients_times_slopes_are_the_seconds(truth):
    form = StepTimeForm(truth.growth, truth.overlap, truth.flatness)
    table = measurement_columns(measure(truth, SPACE), "all_reduce")
    slopes, of_compute = pose_least_squares(table, form).slopes(np.array(truth.coefficients))
    assert slopes @ list(truth.coefficients) == pytest.approx(truth.step_times(GRID))
    assert of_compute @ list(truth.coefficients) == pytest.approx(truth.compute_times(GRID))
    assert truth.elasticities(GRID).sum(axis=1) == pytest.approx(1)


def test_the_step_to_several_machines_is_told_from_growth():
    truth = StepTimeLaw(0.1, 0.01, 0.02, 0.001, sync_across_machines=0.5)
    space = [ClusterConfig(k, k * b, 4) for k in (1, 2, 4, 8, 16) for b in (8, 32)]
    fitted = fit_step_time(measure(truth, space))
    assert [law.sync_across_machines for law in fitted.laws] == pytest.approx(
        [0.5] * len(fitted.laws), rel=0.02
    )


def test_a_single_worker_waits_for_parameter_servers_too():
    truth = StepTimeLaw(0.5, 0.01, 0.0, 0.1, growth="servers")
    configs = [ClusterConfig(k, 32 * k) for k in (1, 2, 8, 16)]
    totals = [Measurement(config, truth.step_time(config)) for config in configs]
    fitted = fit_step_time(totals, "parameter_server")
    between = config_columns(ClusterConfig(k, 32 * k) for k in (1, 4, 6, 12))
    assert fitted.step_times(between) == pytest.approx(truth.step_times(between), rel=1e-6)


def test_negative_slopes_become_a_constant():
    slower_when_smaller = [
        Measurement(ClusterConfig(1, 32), 2.0, 2.0),
        Measurement(ClusterConfig(1, 64), 1.0, 1.0),
    ]
    fitted = fit_step_time(slower_when_smaller, forms=(PAPER_FORM,))
    assert fitted.compute_per_sample == 0
    assert 1 < fitted.compute_fixed < 2


def test_no_observation_is_not_enough():
    with pytest.raises(NotEnoughData, match="probe at least one"):
        fit_step_time_to_probes([])
    with pytest.raises(NotEnoughData):
        fit_performance([], 1000, 64, None)


def test_a_short_probe_does_not_outvote_the_settled_one():
    truth = StepTimeLaw(0.1, 0.001, 0.1, 0.01)
    scales = [(80.0, 300), (5.0, 20), (9000.0, 20), (7000.0, 20)]
    measured = [
        observe(config, truth, scale, iterations)
        for config, (scale, iterations) in zip(SPACE.corners(), scales, strict=True)
    ]
    statistical = fit_epochs_law(measured, Kappa(2.0))
    assert statistical.noise_scale == 80
    assert statistical.critical_batch == 160


def test_the_newest_measurement_of_a_configuration_counts():
    config = ClusterConfig(2, 64)
    old, new = (Observation(config, ScalingIndicators(None, None, t, 0.0), 20) for t in (9.0, 2.0))
    assert fit_step_time_to_probes([old, new]).step_time(config) == pytest.approx(2.0)


def test_without_a_noise_scale_batches_cost_no_epochs():
    truth = StepTimeLaw(0.1, 0.001, 0.1, 0.01)
    model = fit_performance([observe(ClusterConfig(4, 64), truth)], 1000, 64, 10)
    assert model.epochs_needed(64) == model.epochs_needed(4096) == 10
    assert model.statistical.noise(ClusterConfig(4, 64)) is None
