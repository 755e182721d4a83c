import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scavenger.cluster import ClusterConfig, ConfigSpace
from scavenger.errors import NothingFeasible
from scavenger.measurement.noise import estimate_noise, shard_norms
from scavenger.measurement.profiling import Measurement, ProbeComplete, evaluate_probe
from scavenger.models.epochs import EpochsLaw
from scavenger.models.iteration_time import StepTimeLaw
from scavenger.models.performance import PerformanceModel
from scavenger.offline.simulator.jobs import (
    ModelTruth,
    SyntheticJob,
    TimingJitter,
    TrainingDynamics,
)
from scavenger.offline.simulator.paper import (
    PAPER_JOBS,
    RESNET18,
    UNPERTURBED,
    Perturbations,
    simulate_strategy,
    start_job,
)
from scavenger.offline.simulator.simulation import (
    DriftCheck,
    ResizeOverheads,
    SimulatedInterval,
    simulate,
    true_curve,
)
from scavenger.offline.simulator.summary import quartiles, summarise_outcomes
from scavenger.planning.constrained_objective import ConstrainedObjective
from scavenger.planning.decision import CurvePreview, decide, fit_model
from scavenger.planning.knee import Knee
from scavenger.planning.objective import Choice
from scavenger.planning.objectives import Cheapest, Fastest, Weighted
from scavenger.planning.replanning import BetterConfig, Replanning, replan
from scavenger.planning.search.strategy import TrainOn
from scavenger.planning.state import PlanningState
from scavenger.pricing import MachinePrice, PriceModel, on_demand_price_model
from tests.paper.measured_truth import MeasuredTruth, split_table

SPACE = ConfigSpace((2, 4, 8), (64, 128, 256, 512))
# So many directions that the norms of every iteration are their means.
STEADY = TrainingDynamics(directions=10**9, loss_jitter=0.0)
PRICE = on_demand_price_model(0.5)
FASTEST = Fastest()
# A run fits many laws, and how long that takes is no matter of these laws.
few = settings(max_examples=6)

coefficients = st.tuples(
    st.floats(0.01, 1), st.floats(0.0005, 0.02), st.floats(0.01, 1), st.floats(0.001, 0.1)
)
scales = st.floats(20, 5000)
strategies = st.sampled_from(["full", "partial", "auto"])
seeds = st.integers(0, 2**32 - 1)


def law(coefficients, noise_scale, epochs=40.0):
    statistical = EpochsLaw(critical_batch=noise_scale, noise_scale=noise_scale)
    return PerformanceModel(StepTimeLaw(*coefficients), statistical, 20_000, 64, epochs)


def job(model, seed=0, dynamics=STEADY, **disturbance):
    rng = np.random.default_rng(seed)
    return SyntheticJob(
        ModelTruth(model), rng, dynamics=dynamics, disturbance=TimingJitter(**disturbance)
    )


def situation(model, strategy="partial", objective=FASTEST, **changes):
    facts = PlanningState(
        space=SPACE,
        search=strategy,
        objective=objective,
        observations=(),
        stored=None,
        dataset_size=model.dataset_size,
        reference_batch=model.reference_batch,
        epochs_at_reference=model.epochs_at_reference,
        price=PRICE,
        topology="parameter_server",
    )
    return replace(facts, **changes)


@few
@given(coefficients, scales, st.sampled_from(["full", "partial"]))
def test_on_exact_laws_every_search_predicts_the_truth_and_chooses_as_the_oracle(
    coefficients, noise_scale, strategy
):
    model = law(coefficients, noise_scale)
    for objective in (Fastest(), Cheapest(), Weighted(0.5)):
        outcome = simulate(job(model), situation(model, strategy, objective))
        assert max(map(abs, outcome.errors.values())) < 1e-3
        assert 0 <= outcome.regret < 1e-3
        # Each is timed, and where it will probably stay the noise settles.
        assert len(outcome.observations) == (12 if strategy == "full" else 4) + 1


@few
@given(coefficients, scales, strategies, seeds)
def test_no_run_beats_the_oracle(coefficients, noise_scale, strategy, seed):
    model = law(coefficients, noise_scale)
    young = TrainingDynamics(settles_after=100)
    fast = simulate(job(model, seed, young), situation(model, strategy, Fastest()))
    cheap = simulate(job(model, seed, young), situation(model, strategy, Cheapest()))
    assert fast.time >= fast.oracle.time * (1 - 1e-9)
    assert cheap.cost >= cheap.oracle.cost * (1 - 1e-9)
    assert fast.regret >= 0
    assert cheap.regret >= 0


class Recorder:
    """A job that notes down what it was made to do."""

    def __init__(self, job):
        self.job, self.trained = job, []

    def __getattr__(self, name):
        return getattr(self.job, name)

    def advance(self, config, iterations):
        rows = self.job.advance(config, iterations)
        self.trained.append((config, sum(rows.step_time), len(rows)))
        return rows


@few
@given(coefficients, strategies, seeds, st.floats(0, 100), st.floats(0, 100))
def test_every_second_and_every_dollar_is_booked_once(coefficients, strategy, seed, pause, boot):
    model = law(coefficients, 300)
    recorder = Recorder(job(model, seed, TrainingDynamics(), jitter=0.1, straggler_chance=0.05))
    outcome = simulate(recorder, situation(model, strategy, Knee()), ResizeOverheads(pause, boot))
    resizes = [i for i in outcome.intervals if i.purpose == "pause"]
    trained = sum(seconds for _, seconds, _ in recorder.trained)
    assert outcome.time == pytest.approx(trained + pause * len(resizes))
    assert outcome.cost == pytest.approx(
        sum(i.price_per_hour * i.seconds / 3600 for i in outcome.intervals)
    )
    assert sum(i.iterations for i in outcome.intervals) == recorder.iterations
    for interval in outcome.intervals:
        own = 0.5 * interval.config.machines
        assert interval.price_per_hour >= own
        assert interval.price_per_hour == own or interval.purpose != "train"


@few
@given(coefficients, seeds, st.floats(0, 10), st.floats(0.5, 100))
def test_machines_that_stand_by_cost_no_more_than_to_boot_them_again(
    coefficients, seed, pause, boot
):
    model = law(coefficients, 300)
    drawn = job(model, seed, TrainingDynamics(settles_after=50), jitter=0.1)
    outcome = simulate(drawn, situation(model, "auto", Knee()), ResizeOverheads(pause, boot))
    longest = max(point.step_time for point in outcome.truth.points)
    idle = 0.0
    for interval in outcome.intervals:
        is_idle = interval.price_per_hour > 0.5 * interval.config.machines
        idle = idle + interval.seconds if is_idle and interval.purpose != "pause" else 0.0
        assert idle <= 2 * (boot + 3 * longest)  # they boot, and then they wait


@pytest.mark.parametrize("name", PAPER_JOBS)
@pytest.mark.parametrize("objective", [Knee(), Fastest(), Cheapest()], ids=repr)
def test_a_search_takes_at_most_5_percent_of_time_and_4_percent_of_cost(name, objective):
    """Beside an oracle that knows the truth, at the median of worlds as the paper's."""
    outcomes = [
        simulate_strategy(PAPER_JOBS[name], Perturbations(), "auto", objective, seed)
        for seed in range(5)
    ]
    found = summarise_outcomes(outcomes)
    assert found.time_overhead.median <= 0.05
    assert found.cost_overhead.median <= 0.04


@few
@given(coefficients, strategies)
def test_the_search_costs_what_the_choice_would_not_have_needed(coefficients, strategy):
    model = law(coefficients, 300)
    outcome = simulate(job(model), situation(model, strategy, Cheapest()))
    chosen = outcome.chosen_truth
    one = chosen.step_time
    assert outcome.time == pytest.approx(chosen.time + outcome.search_time, abs=1.01 * one)
    assert outcome.cost == pytest.approx(
        chosen.cost + outcome.search_cost,
        abs=1.01 * one * 0.5 * chosen.config.machines / 3600 + 1e-9,
    )


def test_machines_that_boot_are_paid_while_the_old_ones_train():
    model = law((0.1, 0.002, 0.2, 0.01), 300)
    outcome = simulate(job(model), situation(model), ResizeOverheads(pause=10, boot=30))
    assert all(earlier != later for earlier, later in pairwise(outcome.intervals))
    for before, after in pairwise(outcome.intervals):
        if before.purpose == "boot":
            assert after.purpose == "pause"
            assert before.price_per_hour == after.price_per_hour == 0.5 * after.config.machines
            assert before.config.machines < after.config.machines
            assert before.iterations > 0


def test_the_same_seed_gives_the_same_world():
    first, second = (
        simulate_strategy(RESNET18, Perturbations(), "partial", Knee(), 7) for _ in range(2)
    )
    assert first.intervals == second.intervals
    assert first.truth == second.truth


def test_another_run_of_a_world_differs_in_its_rows_only():
    jobs = [start_job(RESNET18, Perturbations(), 7, rerun) for rerun in range(2)]
    curves = [true_curve(each, RESNET18.space, PRICE) for each in jobs]
    rows = [each.advance(RESNET18.space.start, 5) for each in jobs]
    assert curves[0] == curves[1]
    assert rows[0] != rows[1]


@settings(max_examples=20)
@given(st.integers(1, 8), st.integers(2, 64), scales, st.integers(2, 200), seeds)
def test_the_rows_give_an_unbiased_noise_scale(workers, local_batch, scale, directions, seed):
    model = law((0.1, 0.001, 0.1, 0.01), scale)
    config = ClusterConfig(workers, workers * local_batch)
    dynamics = TrainingDynamics(directions=directions)
    rows = shard_norms(job(model, seed, dynamics).advance(config, 3000))
    assert len(rows) >= 400
    norms = [row.gradient_norm_sq for row in rows]
    variances = [row.gradient_variance(config.global_batch) for row in rows]
    for values, truth in ((norms, 1.0), (variances, scale)):
        error = np.std(values) / math.sqrt(len(values))
        assert abs(np.mean(values) - truth) < 6 * error + 1e-9 * scale


def test_many_rows_give_the_noise_of_the_law():
    model = law((0.1, 0.001, 0.1, 0.01), 300)
    config = ClusterConfig(4, 256)
    estimate = estimate_noise(job(model, dynamics=TrainingDynamics()).advance(config, 10_000), 256)
    assert estimate.noise_scale == pytest.approx(300, rel=0.05)
    assert estimate.noise == pytest.approx(model.statistical.noise(config), rel=0.02)


def test_gradients_without_noise_agree():
    model = law((0.1, 0.001, 0.1, 0.01), 0.0)
    estimate = estimate_noise(job(model).advance(ClusterConfig(4, 256), 30), 256)
    assert estimate.noise_scale == 0


def test_one_worker_splits_some_iterations_so_that_noise_is_seen():
    model = law((0.1, 0.001, 0.1, 0.01), 300)
    rows = job(model).advance(ClusterConfig(1, 64), 10)
    assert rows.shards == (1, 1, 1, 1, 2, 1, 1, 1, 1, 2)
    assert [norm is None for norm in rows.mean_norm_sq] == [count == 1 for count in rows.shards]
    assert all(seconds > 0 for seconds in rows.compute_time)
    assert set(rows.sync_time) == {0.0}


@settings(max_examples=20)
@given(coefficients, st.floats(0.2, 5), st.sampled_from(sorted(SPACE)))
def test_a_run_takes_what_the_truth_says_whether_it_slows_down_or_not(
    coefficients, slowdown, config
):
    model = law(coefficients, 300, epochs=10)
    trained = job(model, dynamics=replace(STEADY, slowdown=slowdown))
    rows = trained.advance(config, 10**6)
    assert trained.is_finished
    batch = config.global_batch
    iterations = model.epochs_needed(batch) * model.dataset_size / batch
    assert len(rows) == math.ceil(iterations - 1e-6)
    total = trained.seconds_to(config, 1.0)
    assert sum(rows.step_time) == pytest.approx(
        total, abs=2 * max(slowdown, 1) * max(rows.step_time)
    )
    assert trained.seconds_to(config, 1.0) == pytest.approx(
        iterations * model.parallel.step_time(config)
    )
    assert trained.seconds_to(config, 0.0) == 0
    assert len(trained.advance(config, 10)) == 0


def test_jitter_and_stragglers_keep_the_mean_the_oracle_counts_with():
    model = law((0.2, 0.002, 0.2, 0.01), 300, epochs=10**6)
    config = ClusterConfig(4, 256)
    trained = job(model, jitter=0.3, straggler_chance=0.1, straggler_factor=4.0)
    rows = trained.advance(config, 100_000)
    expected = trained.compute_time(config) + trained.sync_time(config)
    assert np.mean(rows.step_time) == pytest.approx(expected, rel=0.01)
    assert trained.compute_time(config) == pytest.approx(1.3 * model.parallel.compute_time(config))


@given(st.floats(0.1, 10))
def test_noise_grows_around_the_scale_of_the_truth(growth):
    progress = np.linspace(0, 1, 101)
    factors = TrainingDynamics(noise_growth=growth).noise_factor(np.arange(101.0), progress)
    assert factors[-1] / factors[0] == pytest.approx(growth)
    assert np.exp(np.mean(np.log(factors))) == pytest.approx(1)


@given(st.integers(10, 10**5), st.floats(1.1, 10))
def test_early_noise_is_gone_but_for_a_twentieth_when_it_has_settled(settles_after, early):
    dynamics = TrainingDynamics(settles_after=settles_after, early_noise=early)
    iterations = np.array([0.0, settles_after / 5, settles_after])
    first, still, settled = dynamics.noise_factor(iterations, np.full(3, 0.5))
    assert first == still == pytest.approx(early)
    assert settled <= max(1.051, 1 + (early - 1) * math.exp(-1) * 1.001)


def test_the_loss_rests_on_a_plateau_and_takes_off_so_that_noise_settles():
    setting = PAPER_JOBS["resnet18"]
    config = setting.space.start
    rows = start_job(setting, Perturbations(), 3).advance(config, 300)
    assert not isinstance(evaluate_probe(rows, config, measures="noise"), ProbeComplete)
    rows = start_job(setting, Perturbations(), 3).advance(config, 3000)
    assert isinstance(evaluate_probe(rows, config, measures="noise"), ProbeComplete)


def test_roughness_belongs_to_the_configuration():
    truth = ModelTruth(RESNET18.model, roughness=0.05, seed=3)
    config, other = ClusterConfig(8, 384), ClusterConfig(8, 512)
    parallel = RESNET18.model.parallel
    ratios = [truth.compute_time(c) / parallel.compute_time(c) for c in (config, other)]
    assert truth.compute_time(config) == truth.compute_time(config)
    assert ratios[0] != ratios[1]
    assert truth.sync_time(config) == pytest.approx(ratios[0] * parallel.sync_time(config))


seconds = st.floats(0.01, 10)


@few
@given(st.lists(st.tuples(seconds, seconds), min_size=12, max_size=12), seeds)
def test_a_table_job_reproduces_its_table(drawn, seed):
    table = {
        config: Measurement(config, compute + sync, compute)
        for config, (compute, sync) in zip(SPACE, drawn, strict=True)
    }
    truth = MeasuredTruth(table, {64: 10.0, 512: 20.0}, dataset_size=20_000, noise_scale=300)
    trained = SyntheticJob(truth, np.random.default_rng(seed))
    facts = situation(law((0.1, 0.001, 0.1, 0.01), 300, epochs=10.0), "full", Fastest())
    outcome = simulate(trained, facts)
    for observation in outcome.observations:
        expected = table[observation.config]
        assert observation.indicators.step_time == pytest.approx(expected.step_time)
        assert observation.indicators.compute_time == pytest.approx(expected.compute_time)
    for point in outcome.truth.points:
        assert point.time == pytest.approx(
            point.epochs * 20_000 / point.config.global_batch * table[point.config].step_time
        )


@given(st.floats(1, 100), st.floats(1, 100), st.integers(100, 800))
def test_epochs_between_measured_batches_lie_between_their_epochs(one, other, batch):
    config = ClusterConfig(2, 100)
    table = {config: Measurement(config, 1.0, 0.5)}
    truth = MeasuredTruth(table, {100: one, 800: other}, dataset_size=1000)
    assert truth.epochs_needed(100) == pytest.approx(one)
    assert truth.epochs_needed(800) == pytest.approx(other)
    between = truth.epochs_needed(batch)
    assert min(one, other) * (1 - 1e-9) <= between <= max(one, other) * (1 + 1e-9)


def test_a_table_says_what_it_does_not_hold():
    config = ClusterConfig(2, 100)
    truth = MeasuredTruth({config: Measurement(config, 1.0, 0.5)}, {100: 5.0}, dataset_size=1000)
    with pytest.raises(ValueError, match="K=4 B=100 is not in the table of 1 configurations"):
        truth.compute_time(ClusterConfig(4, 100))
    with pytest.raises(ValueError, match="no epochs for batch 200: measured from 100 to 100"):
        truth.epochs_needed(200)
    with pytest.raises(ValueError, match="compute of K=2 B=100 was not measured apart"):
        MeasuredTruth({config: Measurement(config, 1.0)}, {100: 5.0}, dataset_size=1000)


def test_a_table_without_compute_gets_the_share_of_its_law():
    model = StepTimeLaw(0.1, 0.002, 0.2, 0.01)
    table = split_table(
        [Measurement(config, model.step_time(config)) for config in SPACE], "parameter_server"
    )
    for config, measurement in table.items():
        assert measurement.step_time == model.step_time(config)
        assert 0 < measurement.compute_time <= measurement.step_time
    small, large = ClusterConfig(2, 64), ClusterConfig(2, 512)
    grown = table[large].compute_time - table[small].compute_time
    assert grown == pytest.approx(model.compute_time(large) - model.compute_time(small), rel=0.05)


def test_a_job_shorter_than_its_search_ends_without_a_choice():
    model = law((0.1, 0.002, 0.2, 0.01), 300, epochs=0.05)
    outcome = simulate(job(model), situation(model))
    assert outcome.run is None
    assert outcome.mean_error is None
    assert summarise_outcomes([outcome]).error is None
    assert outcome.chosen == SPACE.start


def test_limits_that_no_configuration_meets_are_said():
    model = law((0.1, 0.002, 0.2, 0.01), 300)
    with pytest.raises(NothingFeasible):
        simulate(
            job(model), situation(model, objective=ConstrainedObjective(Fastest(), max_cost=1e-6))
        )
    generous = simulate(
        job(model), situation(model, objective=ConstrainedObjective(Fastest(), max_cost=1e6))
    )
    assert generous.cost <= 1e6


def test_relative_curves_are_compared_with_the_truth_relative_to_the_start():
    model = law((0.1, 0.002, 0.2, 0.01), 300)
    outcome = simulate(job(model), situation(model, epochs_at_reference=None))
    assert outcome.run.curve.basis == "relative"
    assert max(map(abs, outcome.errors.values())) < 1e-3


def test_the_workers_count_the_progress_they_make_once_the_law_is_known():
    model = law((0.1, 0.002, 0.2, 0.01), 300)
    outcome = simulate(job(model), situation(model))
    assert outcome.counted_progress_ratio == pytest.approx(1, abs=0.02)
    blind = simulate(job(model), situation(model, laws="paper"))
    assert blind.counted_progress_ratio > 1.1


@pytest.mark.parametrize(("growth", "drifts"), [(1.0, False), (16.0, True)])
def test_a_plan_follows_a_drift_and_only_a_drift(growth, drifts):
    model = law((0.1, 0.002, 0.2, 0.01), 300, epochs=200)
    looks = []

    def look(state, config, steps, rest):
        looks.append(state)
        return replan(state, config, steps, rest)

    drifting = job(model, dynamics=TrainingDynamics(noise_growth=growth))
    outcome = simulate(drifting, situation(model), watch=DriftCheck(1000, look))
    assert fit_model(looks[0]) == outcome.run.fitted
    assert (looks[-1] is not looks[0]) == drifts
    if drifts:
        first, last = (fit_model(state).model.statistical for state in (looks[0], looks[-1]))
        assert last.noise_scale > 2 * first.noise_scale
        assert last.critical_batch / last.noise_scale == pytest.approx(
            first.critical_batch / first.noise_scale
        )


def test_a_revised_run_is_resized_to_and_paid():
    model = law((0.1, 0.002, 0.2, 0.01), 300)
    slowest = ClusterConfig(2, 64)

    def revise(state, config, steps, rest):
        run = decide(state)
        drawn = CurvePreview(run.curve, run.fitted)
        choice = Choice(drawn.curve.points[0], "the slowest")
        better = BetterConfig(slowest, drawn, ConstrainedObjective(Fastest()), choice)
        return Replanning(better, 300.0, "for once") if config != slowest else None

    outcome = simulate(job(model), situation(model), watch=DriftCheck(100, revise))
    assert outcome.chosen != slowest
    assert outcome.intervals[-1].config == slowest
    assert [i.purpose for i in outcome.intervals[-3:]] == ["train", "pause", "train"]


def test_calm_worlds_of_the_paper_are_searched_without_regret():
    outcome = simulate_strategy(RESNET18, UNPERTURBED, "partial", Fastest(), 0)
    assert isinstance(outcome.run, TrainOn)
    assert outcome.chosen == outcome.oracle.config
    search_overhead = outcome.search_time / outcome.chosen_truth.time
    assert search_overhead == pytest.approx(outcome.time_overhead, abs=1e-3)


@pytest.mark.parametrize("strategy", ["none", "universal"])
def test_what_was_trained_before_needs_no_search(strategy):
    outcome = simulate_strategy(RESNET18, Perturbations(), strategy, Fastest(), 1)
    assert not outcome.observations
    assert outcome.search_time == 0
    assert [interval.purpose for interval in outcome.intervals] == ["train"]


def test_a_job_that_has_begun_or_an_odd_bill_is_refused():
    model = law((0.1, 0.002, 0.2, 0.01), 300)
    begun = job(model)
    begun.advance(SPACE.start, 1)
    with pytest.raises(ValueError, match="begun already"):
        simulate(begun, situation(model))
    hourly = PriceModel(MachinePrice(1.0), quantum=3600)
    with pytest.raises(ValueError, match="bills every second once"):
        simulate(job(model), situation(model, price=hourly))


def test_a_job_without_a_target_or_with_odd_disturbances_is_refused():
    model = replace(law((0.1, 0.002, 0.2, 0.01), 300), epochs_at_reference=None)
    with pytest.raises(ValueError, match="needs a target"):
        ModelTruth(model)
    for wrong in ({"jitter": -1.0}, {"straggler_chance": 1.5}, {"straggler_factor": 0.5}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            TimingJitter(**wrong)
    for wrong in ({"noise_growth": 0.0}, {"settles_after": -1}, {"slowdown": math.nan}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            TrainingDynamics(**wrong)


@given(st.lists(st.floats(-100, 100), min_size=1))
def test_quartiles_are_in_order_and_within_the_values(values):
    found = quartiles(values)
    assert min(values) <= found.low <= found.median <= found.high <= max(values)


def test_an_interval_costs_its_seconds():
    assert SimulatedInterval(SPACE.start, "train", 7200, 0.5, 10).cost == 1.0
