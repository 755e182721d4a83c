import math
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from scavenger.cluster import ClusterConfig
from scavenger.errors import NotEnoughData
from scavenger.measurement.profiling import Observation, ScalingIndicators
from scavenger.models.epochs import (
    BEND_DEVIATION,
    EPOCHS_SPREAD,
    FALLING_ARM_PRIOR,
    EpochsLaw,
    FinishedRun,
    Kappa,
    RootNoiseLaw,
    epochs_at,
    explain_contradiction,
    fit_epochs_law,
    fit_epochs_to_runs,
    learn_kappa,
)
from scavenger.offline.evaluation.prediction_errors import epochs_accuracy
from scavenger.offline.tables.runs import EpochsTable

unhurried = settings(max_examples=50)

batches = st.integers(1, 10**6)
epochs = st.floats(1e-3, 1e5)
scales = st.none() | st.just(0.0) | st.floats(1e-3, 1e7)
runs = st.lists(st.builds(FinishedRun, batches, epochs), max_size=8)
kappas = st.builds(Kappa, st.floats(1e-2, 1e2), st.floats(0.05, 2))
law_names = st.sampled_from(("measured", "paper"))
GRID = np.array([1.0, 8.0, 64.0, 512.0, 4096.0, 1e6])


def observe(config, noise, scale, iterations=20):
    return Observation(config, ScalingIndicators(noise, scale, 1.0, 0.1), iterations)


configs = st.builds(
    lambda workers, local: ClusterConfig(workers, workers * local),
    st.integers(1, 64),
    st.integers(1, 512),
)
gammas = st.none() | st.just(0.0) | st.floats(1e-6, 64)
observations = st.lists(
    st.builds(observe, configs, gammas, scales, st.integers(0, 1000)), max_size=6
)


def shapes(model, at=GRID):
    """Epochs of each batch relative to the first."""
    shape = model.unscaled_epochs(at)
    return shape / shape[0]


@st.composite
def two_runs(draw, *, rises):
    """Two runs whose line, in B or in 1 / (B + φ), is nowhere below zero."""
    small, factor = draw(st.integers(1, 10**4)), draw(st.integers(2, 64))
    large, scale = small * factor, draw(scales)
    offset = scale or 0.0
    steepest = factor if rises else (large + offset) / (small + offset)
    ratio = 1 + draw(st.floats(0.01, 0.95)) * (steepest - 1)
    level = draw(epochs)
    first, last = (level, level * ratio) if rises else (level * ratio, level)
    return scale, (FinishedRun(small, first), FinishedRun(large, last))


@unhurried
@given(two_runs(rises=True))
def test_two_rising_runs_are_met_by_the_rising_arm(drawn):
    scale, (first, last) = drawn
    model = fit_epochs_to_runs((first, last), scale)
    met = model.relative_epochs(last.global_batch, first.global_batch)
    assert met == pytest.approx(last.epochs / first.epochs, rel=1e-6)
    assert model.noisy_samples == 0
    assert model.critical_batch is not None


@unhurried
@given(two_runs(rises=False))
def test_two_falling_runs_are_met_by_the_falling_arm(drawn):
    scale, (first, last) = drawn
    model = fit_epochs_to_runs((first, last), scale)
    met = model.relative_epochs(last.global_batch, first.global_batch)
    assert met == pytest.approx(last.epochs / first.epochs, rel=1e-6)
    assert model.noisy_samples > 0
    assert model.critical_batch is None


@unhurried
@given(scales, epochs, batches)
def test_runs_that_take_the_same_say_that_batches_cost_nothing(scale, level, small):
    model = fit_epochs_to_runs((FinishedRun(small, level), FinishedRun(2 * small, level)), scale)
    assert shapes(model) == pytest.approx(1, rel=1e-3)


@given(st.floats(1.3, 2.5), st.floats(1.3, 2.5), st.sampled_from((None, 0.0, 10.0, 50.0)))
@settings(max_examples=50)
def test_three_runs_with_a_dip_show_both_arms(left, right, scale):
    dip = (FinishedRun(32, left), FinishedRun(512, 1.0), FinishedRun(8192, right))
    model = fit_epochs_to_runs(dip, scale)
    assert model.noisy_samples > 0
    assert model.critical_batch is not None
    assert model.relative_epochs(32, 512) > 1
    assert model.relative_epochs(8192, 512) > 1


@given(st.floats(0.1, 10), st.floats(0, 10), st.sampled_from((None, 0.0, 100.0)))
@settings(max_examples=50)
def test_runs_on_the_rising_law_give_it_back(constant, slope, scale):
    truth = [FinishedRun(b, constant + slope * b / 1024) for b in (16, 64, 256, 1024)]
    assume(slope > 0.01 * constant)
    model = fit_epochs_to_runs(truth, scale)
    for run in truth:
        met = model.relative_epochs(run.global_batch, 16)
        assert met == pytest.approx(run.epochs / truth[0].epochs, rel=1e-3)


@given(observations, runs, kappas, law_names)
@settings(max_examples=200)
def test_nothing_that_was_seen_makes_epochs_infinite_or_negative(seen, finished, kappa, laws):
    model = fit_epochs_law(seen, kappa, finished, laws)
    relative = model.unscaled_epochs(GRID) / model.unscaled_epochs(GRID[:1])
    assert np.isfinite(relative).all()
    assert (relative > 0).all()
    assert np.isfinite(model.deviations(GRID, 64)).all()
    assert (model.deviations(GRID, 64) >= 0).all()
    noise = model.noise(ClusterConfig(4, 64))
    assert noise is None or math.isfinite(noise)
    if finished:
        assert 0 < epochs_at(model, finished, 64) < math.inf


@given(observations, runs, kappas, law_names, st.randoms(use_true_random=False))
@settings(max_examples=50)
def test_the_order_of_probes_and_runs_does_not_matter(seen, finished, kappa, laws, shuffle):
    model = fit_epochs_law(seen, kappa, finished, laws)
    shuffle.shuffle(seen)
    shuffle.shuffle(finished)
    again = fit_epochs_law(seen, kappa, finished, laws)
    assert again.noise_scale == model.noise_scale
    assert shapes(again) == pytest.approx(shapes(model), rel=1e-6)


@st.composite
def clear_runs(draw):
    """Runs at several batches within a few orders of magnitude, as clusters have them."""
    sizes = draw(st.sets(st.sampled_from((8, 32, 128, 512, 2048)), min_size=2))
    return tuple(FinishedRun(size, draw(st.floats(1, 20))) for size in sorted(sizes))


@unhurried
@given(clear_runs(), scales, st.sampled_from((1e-3, 7.0, 1e4)), law_names)
def test_the_unit_of_epochs_does_not_matter(finished, scale, unit, laws):
    seen = [observe(ClusterConfig(4, 64), 2.0, scale)]
    other = tuple(replace(run, epochs=run.epochs * unit) for run in finished)
    one, scaled = (fit_epochs_law(seen, runs=each, laws=laws) for each in (finished, other))
    assert shapes(scaled) == pytest.approx(shapes(one), rel=1e-6)
    assert scaled.spread == pytest.approx(one.spread, rel=1e-6)


@unhurried
@given(clear_runs(), st.floats(1, 1e4), st.sampled_from((2, 16, 1000)), st.booleans())
def test_the_unit_of_batches_does_not_matter(finished, scale, unit, has_runs):
    used = finished if has_runs else ()
    other = tuple(replace(run, global_batch=run.global_batch * unit) for run in used)
    one = fit_epochs_law([observe(ClusterConfig(4, 64), 2.0, scale)], runs=used)
    bigger = observe(ClusterConfig(4, 64 * unit), 2.0, scale * unit)
    scaled = fit_epochs_law([bigger], runs=other)
    assert shapes(scaled, GRID * unit) == pytest.approx(shapes(one), rel=1e-6)


@unhurried
@given(kappas, st.floats(1e-2, 1e6), batches, st.lists(epochs, max_size=4))
def test_runs_at_one_batch_leave_the_prior(kappa, scale, batch, repeats):
    finished = tuple(FinishedRun(batch, each) for each in repeats)
    model = fit_epochs_law([observe(ClusterConfig(4, 64), 2.0, scale)], kappa, finished)
    assert model.critical_batch == kappa.value * scale
    assert model.critical_deviation == kappa.deviation
    assert model.noisy_samples == 0


@given(st.floats(0.01, 1), st.floats(0.01, 30))
@settings(max_examples=50)
def test_the_papers_law_of_noise_is_found_from_noise(floor, per_root):
    truth = RootNoiseLaw(floor, per_root)
    seen = [
        observe(ClusterConfig(k, b), k * float(truth.normalized(np.array([b]))[0]), None)
        for k in (2, 8)
        for b in (64, 256, 1024)
    ]
    model = fit_epochs_law(seen, laws="paper")
    assert model.root_noise.floor == pytest.approx(floor, rel=1e-6, abs=1e-9)
    assert model.root_noise.per_root == pytest.approx(per_root, rel=1e-6)
    assert model.noise(ClusterConfig(4, 400)) == pytest.approx(4 * (floor + per_root / 20))


@given(st.floats(0.01, 1), st.floats(0.01, 30))
@settings(max_examples=50)
def test_the_papers_law_of_epochs_is_found_from_runs(floor, per_root):
    finished = tuple(FinishedRun(b, floor + per_root / math.sqrt(b)) for b in (16, 100, 900))
    model = fit_epochs_law([], runs=finished, laws="paper")
    for run in finished:
        met = model.relative_epochs(run.global_batch, 16)
        assert met == pytest.approx(run.epochs / finished[0].epochs, rel=1e-6)


@unhurried
@given(two_runs(rises=True), kappas)
def test_a_learned_kappa_lies_between_prior_and_evidence_and_is_surer(drawn, prior):
    scale, finished = drawn
    assume(scale)
    told = fit_epochs_to_runs(finished, scale).critical_batch / scale
    learned = learn_kappa(finished, scale, prior)
    low, high = sorted((prior.value, told))
    assert low * (1 - 1e-9) <= learned.value <= high * (1 + 1e-9)
    assert learned.deviation < prior.deviation


@unhurried
@given(two_runs(rises=False), kappas)
def test_runs_that_fall_teach_no_kappa(drawn, prior):
    scale, finished = drawn
    assert learn_kappa(finished, scale, prior) == prior
    assert learn_kappa(finished[:1], scale, prior) == prior
    assert learn_kappa(finished, None, prior) == prior


@unhurried
@given(runs, st.floats(0, 1e6) | st.none(), st.floats(0, 1e6))
def test_a_contradiction_is_told_exactly_when_the_signs_differ(finished, critical, noisy):
    model = EpochsLaw(critical, 50.0, noisy)
    sizes = sorted({run.global_batch for run in finished})
    told = explain_contradiction(model, finished)
    if len(sizes) < 2:
        assert told is None
        return
    first, last = (mean_epochs(finished, size) for size in (sizes[0], sizes[-1]))
    predicted = math.log(model.relative_epochs(sizes[-1], sizes[0]))
    seen = math.log(last / first)
    assume(abs(abs(seen) - EPOCHS_SPREAD) > 1e-6)
    differ = predicted * seen < 0 and abs(seen) > EPOCHS_SPREAD
    assert (told is not None) is differ
    if told is not None:
        assert ("more" if predicted > 0 else "fewer") in told
        assert f"batch {sizes[0]} " in told


def mean_epochs(finished, size):
    logs = [math.log(run.epochs) for run in finished if run.global_batch == size]
    return math.exp(sum(logs) / len(logs))


@unhurried
@given(clear_runs().filter(lambda drawn: len(drawn) == 2), scales)
def test_a_law_fitted_to_two_runs_is_contradicted_by_neither(finished, scale):
    assert explain_contradiction(fit_epochs_to_runs(finished, scale), finished) is None


@unhurried
@given(clear_runs(), scales)
def test_the_level_of_epochs_lies_within_what_was_seen(finished, scale):
    model = fit_epochs_to_runs(finished, scale)
    found = [epochs_at(model, finished, run.global_batch) / run.epochs for run in finished]
    assert min(found) <= 1 + 1e-6
    assert max(found) >= 1 - 1e-6


def test_no_run_says_nothing_about_the_level():
    with pytest.raises(NotEnoughData, match="no finished run"):
        epochs_at(EpochsLaw(None, None), (), 64)


def made_up_epochs(arms, noise, number):
    """Epochs at ever doubled batches, by a law with one arm or both, each run a little off."""
    rng = np.random.default_rng([sum(map(ord, arms)), number])
    sizes = 32 * 2 ** np.arange(rng.integers(4, 10))
    rising = 10 ** rng.uniform(-1, 1) / sizes[-1] * (arms != "falling")
    scale = 32 * 10 ** rng.uniform(0, 1)
    falling = 10 ** rng.uniform(-0.5, 1) * (32 + scale) * (arms != "rising")
    level = 10 * (1 + falling / (sizes + scale) + rising * sizes)
    off = np.exp(noise * rng.standard_normal(len(sizes)))
    return tuple(
        FinishedRun(int(size), float(epochs))
        for size, epochs in zip(sizes, level * off, strict=True)
    )


def test_two_batches_know_that_they_do_not_tell_of_a_bend():
    # A spread of 10 % everywhere: 39 % of falling epochs in the 80 % band, 43 % of both arms.
    covered = {arms: [] for arms in ("falling", "both", "rising")}
    for arms, number in product(covered, range(120)):
        found = epochs_accuracy(
            EpochsTable("made up", made_up_epochs(arms, 0.1, number)), 2, "measured"
        )
        covered[arms].append(found.covered)
    assert 0.72 < np.mean(covered["falling"]) < 0.88
    assert 0.75 < np.mean(covered["both"]) < 0.92
    # Nothing tells the rising arm from both, so that of a rise alone the band holds more.
    assert np.mean(covered["rising"]) > 0.8


def test_a_batch_that_was_run_is_surer_than_one_that_was_not():
    two = fit_epochs_to_runs((FinishedRun(64, 10.0), FinishedRun(512, 14.0)), 100.0)
    at_run, elsewhere = two.deviations(np.array([512.0, 128.0]), 64)
    assert at_run == pytest.approx(two.spread)
    assert elsewhere == pytest.approx(math.hypot(two.spread, BEND_DEVIATION))
    # Of a recipe at a batch that was not run, every other batch is as unsure as the recipe's.
    assert (two.deviations(np.array([64.0, 512.0]), 128) > BEND_DEVIATION).all()
    three = (FinishedRun(64, 10.0), FinishedRun(128, 11.0), FinishedRun(512, 14.0))
    assert fit_epochs_to_runs(three, 100.0).deviations(np.array([256.0]), 64)[0] < BEND_DEVIATION


def test_the_falling_arm_has_to_be_argued_for_from_three_runs_on():
    assert FALLING_ARM_PRIOR > 0
    flat = tuple(FinishedRun(b, e) for b, e in ((32, 10.1), (256, 10.0), (2048, 10.0)))
    assert fit_epochs_to_runs(flat, 100.0).relative_epochs(32, 2048) < 1.01
