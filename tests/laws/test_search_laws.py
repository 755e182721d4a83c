from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from scavenger.cluster import ClusterConfig, ConfigSpace, MachineType, MemoryModel, space_columns
from scavenger.measurement.noise import noise_at
from scavenger.measurement.profiling import Observation, ScalingIndicators
from scavenger.models.epochs import EpochsLaw
from scavenger.models.iteration_time import Slowness, StepTimeLaw, Uncertainty
from scavenger.models.performance import PerformanceModel, fit_performance
from scavenger.planning.constrained_objective import ConstrainedObjective
from scavenger.planning.curve import (
    PosteriorDraws,
    TradeoffCurve,
    TradeoffPoint,
    curve_from_forecast,
    forecast_space,
)
from scavenger.planning.decision import decide, decide_with_worker_cap
from scavenger.planning.knee import Knee
from scavenger.planning.objectives import Cheapest, Fastest, Weighted
from scavenger.planning.search.auto import MAX_EXTRA_PROBES
from scavenger.planning.search.design import corner_configs, space_filling_order
from scavenger.planning.search.registry import SEARCHES
from scavenger.planning.search.strategy import Probe, TrainOn, choose_by_probes
from scavenger.planning.search.value_of_information import best_probe
from scavenger.planning.state import PlanningState
from scavenger.planning.transfer import StoredModel
from scavenger.pricing import Interruptions, MachinePrice, PriceModel, on_demand_price_model

unhurried = settings(max_examples=50)

SPACE = ConfigSpace((1, 2, 4, 8), (32, 64, 128, 256))
TYPED = ConfigSpace(
    (2, 4, 8),
    (32, 64, 256),
    (
        MachineType("old", 4, 16.0, 2, "here"),
        MachineType("new", 8, 32.0),
        MachineType("big", 8, 64),
    ),
    MemoryModel(1.0, 0.2),
)
SPACES = st.sampled_from((SPACE, TYPED, ConfigSpace((1, 16, 64), (8, 16, 32))))
OBJECTIVES = st.sampled_from((Fastest(), Cheapest(), Knee(), Weighted(0.7)))

truths = st.builds(
    StepTimeLaw,
    st.floats(0.2, 2),
    st.floats(0.005, 0.05),
    st.floats(0.1, 1),
    st.floats(0.02, 0.2),
    growth=st.sampled_from(("linear", "log")),
    overlap=st.sampled_from((1.0, 2.0)),
    slowness=st.just({"new": Slowness(0.5, 0.8)}),
)


def observe(config: ClusterConfig, truth: StepTimeLaw, scale: float = 120.0) -> Observation:
    compute, total = truth.compute_time(config), truth.step_time(config)
    noise = noise_at(scale, config) if config.workers > 1 else None
    indicators = ScalingIndicators(noise, scale, compute, max(total - compute, 0.0))
    return Observation(config, indicators, 20)


def situation(space: ConfigSpace, objective=Knee(), **change) -> PlanningState:  # noqa: B008
    fresh = PlanningState(
        space=space,
        search="auto",
        objective=objective,
        observations=(),
        stored=None,
        dataset_size=50_000,
        reference_batch=64,
        epochs_at_reference=30.0,
        price=PriceModel(MachinePrice(0.3, {"old@here": 0.1, "new": 0.25})),
    )
    return replace(fresh, **change)


def search(start: PlanningState, truth: StepTimeLaw) -> tuple[list[ClusterConfig], TrainOn]:
    """Follow a search to its end: what it timed, and what it chose once the noise had settled."""
    made: list[ClusterConfig] = []
    while isinstance(decision := decide(start), Probe):
        assert decision.config in start.space
        assert decision.why
        is_time = decision.measures == "time"
        if is_time:
            assert decision.config not in made
            made.append(decision.config)
        else:
            assert not start.has_settled_noise, "noise settles once"
        assert len(made) <= len(list(start.space))
        scale = 120.0 if start.has_settled_noise or not is_time else 300.0  # early noise misleads
        seen = observe(decision.config, truth, scale)
        seen = replace(seen, has_settled_noise=start.has_settled_noise or not is_time)
        start = replace(start, observations=(*start.observations, seen))
    assert start.has_settled_noise == decision.searched
    return made, decision


@settings(max_examples=5)
@given(SPACES, truths, OBJECTIVES, st.sampled_from((None, 30.0)), st.sampled_from((500, 10**7)))
def test_an_automatic_search_ends_and_each_probe_is_new(space, truth, objective, epochs, size):
    start = situation(space, objective, epochs_at_reference=epochs, dataset_size=size)
    made, run = search(start, truth)
    first = space.corners(per_hardware=3)
    assert made[: len(first)] == list(first)
    assert len(made) <= len(space.corners()) + MAX_EXTRA_PROBES
    assert run.config in space
    assert run.searched


@settings(max_examples=5)
@given(truths, st.sampled_from(("partial", "none", "universal", "auto")), OBJECTIVES)
def test_every_strategy_ends_in_a_run(truth, name, objective):
    _, run = search(situation(SPACE, objective, search=name), truth)
    assert run.config in SPACE
    assert run.choice == objective.choose(run.curve)


@settings(max_examples=5)
@given(truths, OBJECTIVES, st.sampled_from(("partial", "none", "universal", "auto")))
def test_every_strategy_ends_with_the_models_of_other_jobs_too(truth, objective, name):
    kin = stored(truth, SPACE, "kin")
    start = situation(SPACE, objective, search=name, other_models=(kin,))
    made, run = search(start, truth)
    assert run.config in SPACE
    assert len(made) <= len(SPACE.corners()) + MAX_EXTRA_PROBES


def stored(truth: StepTimeLaw, space: ConfigSpace, name: str) -> StoredModel:
    seen = tuple(observe(config, truth) for config in space.corners())
    return StoredModel(name, fit_performance(seen, 50_000, 64, None), seen, {}, 1)


@settings(max_examples=5)
@given(truths, OBJECTIVES)
def test_a_full_search_reproduces_the_truth(truth, objective):
    small = ConfigSpace((1, 2, 8), (32, 64, 256))
    made, run = search(situation(small, objective, search="full"), truth)
    assert made == list(small)
    known = PerformanceModel(truth, EpochsLaw(120.0, 120.0), 50_000, 64, 30.0)
    price = situation(small).price
    true = curve_from_forecast(forecast_space(small, known, price, ()))
    for ours, theirs in zip(run.curve.points, true.points, strict=True):
        assert (ours.time, ours.cost) == (pytest.approx(theirs.time), pytest.approx(theirs.cost))
    assert_as_good(run.choice.point, objective.choose(true).point)


@settings(max_examples=5)
@given(truths, OBJECTIVES)
def test_where_the_laws_are_exact_a_partial_search_is_as_good_as_a_full_one(truth, objective):
    lines = replace(truth, growth="servers", overlap=1.0, slowness={})
    space = ConfigSpace((2, 4, 8), (32, 64, 256))
    # Corners do not tell how synchronisation grows, except by servers, which all wait for.
    start = situation(space, objective, topology="parameter_server")
    partial, full = (search(replace(start, search=n), lines)[1] for n in ("partial", "full"))
    for ours, theirs in zip(partial.curve.points, full.curve.points, strict=True):
        assert (ours.time, ours.cost) == (pytest.approx(theirs.time), pytest.approx(theirs.cost))
    assert_as_good(partial.choice.point, full.choice.point)


def assert_as_good(ours: TradeoffPoint, theirs: TradeoffPoint) -> None:
    """The same point, or one that only rounding tells from it."""
    assert ours.config == theirs.config or (ours.time, ours.cost) == (
        pytest.approx(theirs.time, rel=1e-6),
        pytest.approx(theirs.cost, rel=1e-6),
    )


jitters = st.lists(st.floats(0.9, 1.1), min_size=7, max_size=7)


def jittered(truth: StepTimeLaw, jitter: list[float]) -> tuple[Observation, ...]:
    """Probes of a few configurations that no law meets exactly."""
    configs = [*SPACE.corners(), *space_filling_order(list(SPACE), 7)[4:]]
    seen = [observe(config, truth) for config in configs]
    return tuple(
        replace(o, indicators=replace(o.indicators, compute_time=o.indicators.compute_time * by))
        for o, by in zip(seen, jitter, strict=True)
    )


def chosen(start: PlanningState) -> TradeoffPoint:
    """What is chosen after the probes a situation holds, none added."""
    decision = decide(replace(start, search="partial"))
    assert isinstance(decision, TrainOn)
    return decision.choice.point


@settings(max_examples=5)
@given(truths, jitters, OBJECTIVES, st.randoms(use_true_random=False))
def test_the_order_of_probes_changes_no_choice(truth, jitter, objective, shuffle):
    seen = list(jittered(truth, jitter))
    start = situation(SPACE, objective)
    one = chosen(replace(start, observations=tuple(seen)))
    shuffle.shuffle(seen)
    assert chosen(replace(start, observations=tuple(seen))) == one


@pytest.mark.parametrize("is_alike", [True, False])
@pytest.mark.parametrize("name", ["auto", "full"])
@pytest.mark.parametrize("count", [0, 1])
@settings(max_examples=3)
@given(truth=truths)
def test_what_a_probe_says_will_follow_does_for_every_result(truth, name, count, is_alike):
    other = replace(truth, compute_fixed=truth.compute_fixed * 9 + 1)
    seen = tuple(observe(config, truth) for config in SPACE.corners())
    start = situation(SPACE, search=name)
    model = fit_performance(seen, start.dataset_size, start.reference_batch, None)
    early = [replace(o, has_settled_noise=False) for o in seen[:count]]
    start = replace(start, other_models=(StoredModel("a|9|b|c", model, seen, {}, 1),))
    probe = decide(replace(start, observations=tuple(early)))
    if not isinstance(probe, Probe) or probe.next_config is None:
        return
    shown = observe(probe.config, truth if is_alike else other)
    shown = replace(shown, has_settled_noise=False)
    after = decide(replace(start, observations=(*early, shown)))
    assert (after.config, isinstance(after, Probe)) == (probe.next_config, True)


@settings(max_examples=10)
@given(
    truths,
    OBJECTIVES,
    st.integers(1, 4),
    st.integers(1, SPACE.workers[-1]),
    st.booleans(),
    st.sampled_from((None, 1e-6)),
)
def test_a_search_that_ends_early_takes_no_more_workers_than_it_may(
    truth, objective, count, most, settled, limit
):
    seen = tuple(
        replace(observe(config, truth), has_settled_noise=settled)
        for config in SPACE.corners()[:count]
    )
    wish = ConstrainedObjective(objective, max_time=limit)
    start = situation(SPACE, wish, observations=seen, epochs_at_reference=30.0)
    decision = decide_with_worker_cap(start, most)
    assert decision.config in SPACE
    assert decision.config.workers <= max(most, SPACE.workers[0])
    assert isinstance(decision, TrainOn) == settled
    if isinstance(decision, TrainOn):
        assert [point.config for point in decision.curve.points] == list(SPACE)  # it shows them all
    else:
        assert decision.measures == "noise"


def silent(observation: Observation) -> Observation:
    """The same probe of a script whose one worker measures no noise."""
    if observation.config.workers > 1:
        return observation
    shown = replace(observation.indicators, noise=None, noise_scale=None)
    return replace(observation, indicators=shown)


@settings(max_examples=10)
@given(truths, OBJECTIVES, st.sampled_from(((1, 2, 4, 8), (1, 8), (1,))), st.booleans())
def test_noise_settles_on_the_best_configuration_that_measures_it(
    truth, objective, workers, is_silent
):
    space = ConfigSpace(workers, SPACE.global_batches)
    alone = truth if len(workers) == 1 else replace(truth, sync_fixed=90.0)  # one is best
    kept = silent if is_silent else lambda seen: seen
    timed = tuple(
        replace(kept(observe(config, alone)), has_settled_noise=False) for config in space
    )
    start = situation(space, objective, search="full", observations=timed)
    decision = decide(start)
    best = choose_by_probes(start)
    if best.config.workers > 1 or not is_silent:
        assert (decision.config, decision.measures) == (best.config, "noise")
    elif len(workers) == 1:
        assert decision == replace(best, why=decision.why)
        assert "every batch is taken to need as many epochs" in decision.why
    else:
        several = replace(start, space=replace(space, workers=workers[1:]))
        assert (decision.config, decision.measures) == (choose_by_probes(several).config, "noise")


@settings(max_examples=10)
@given(truths, OBJECTIVES, st.integers(1, 4), st.integers(1, SPACE.workers[-1]))
def test_a_search_that_ends_early_moves_to_no_more_workers_for_noise_either(
    truth, objective, count, most
):
    alone = replace(truth, sync_fixed=90.0)
    seen = tuple(
        replace(silent(observe(config, alone)), has_settled_noise=False)
        for config in SPACE.corners()[:count]
    )
    decision = decide_with_worker_cap(situation(SPACE, objective, observations=seen), most)
    assert decision.config.workers <= most
    assert isinstance(decision, TrainOn) or decision.config.workers > 1
    assert isinstance(decision, Probe) == (most > 1)


@pytest.mark.parametrize("is_alone", [True, False])
@settings(max_examples=5)
@given(truth=truths, name=st.sampled_from(tuple(SEARCHES)), objective=OBJECTIVES)
def test_every_strategy_ends_where_one_worker_measures_no_noise(truth, name, objective, is_alone):
    workers = SPACE.workers[:1] if is_alone else SPACE.workers
    start = situation(ConfigSpace(workers, SPACE.global_batches), objective, search=name)
    settled_at = []
    while isinstance(decision := decide(start), Probe):
        is_noise = decision.measures == "noise"
        settled_at += [decision.config.workers] * is_noise
        seen = silent(observe(decision.config, truth))
        seen = replace(seen, has_settled_noise=start.has_settled_noise or is_noise)
        start = replace(start, observations=(*start.observations, seen))
    assert len(settled_at) == (0 if is_alone else 1)
    assert 1 not in settled_at
    assert start.has_settled_noise != is_alone


@settings(max_examples=5)
@given(truths, jitters, OBJECTIVES, st.sampled_from((1e-3, 60.0)), st.booleans())
def test_the_unit_of_time_changes_no_choice(truth, jitter, objective, unit, has_limit):
    seen = jittered(truth, jitter)
    other = tuple(
        replace(
            o,
            indicators=replace(
                o.indicators,
                compute_time=o.indicators.compute_time * unit,
                sync_time=o.indicators.sync_time * unit,
            ),
        )
        for o in seen
    )
    price = PriceModel(MachinePrice(0.3), 60.0, interruptions=Interruptions(0.1, 300.0))
    scaled = PriceModel(
        MachinePrice(0.3 / unit), 60.0 * unit, interruptions=Interruptions(0.1 / unit, 300.0 * unit)
    )
    plain = situation(SPACE, objective, observations=seen, price=price)
    limit = 2 * chosen(replace(plain, objective=Fastest())).time if has_limit else None
    one = chosen(replace(plain, objective=ConstrainedObjective(objective, max_time=limit)))
    within = ConstrainedObjective(objective, max_time=None if limit is None else limit * unit)
    again = chosen(replace(plain, objective=within, observations=other, price=scaled))
    assert_as_good(replace(again, time=again.time / unit), one)


@settings(max_examples=5)
@given(truths, jitters, OBJECTIVES, st.sampled_from((0.01, 90.0)))
def test_the_unit_of_money_changes_no_choice(truth, jitter, objective, unit):
    seen = jittered(truth, jitter)
    dear = situation(SPACE, objective, observations=seen, price=on_demand_price_model(0.3 * unit))
    one = chosen(replace(dear, price=on_demand_price_model(0.3)))
    again = chosen(dear)
    assert_as_good(replace(again, cost=again.cost / unit), one)


@settings(max_examples=5)
@given(truths, jitters, OBJECTIVES, st.sampled_from((2, 8)))
def test_the_unit_of_samples_changes_no_choice(truth, jitter, objective, unit):
    seen = jittered(truth, jitter)
    other = tuple(
        Observation(
            ClusterConfig(o.config.workers, o.config.global_batch * unit),
            replace(o.indicators, noise_scale=o.indicators.noise_scale * unit),
            o.iterations,
        )
        for o in seen
    )
    start = situation(SPACE, objective, observations=seen)
    scaled = replace(
        start,
        space=ConfigSpace(SPACE.workers, tuple(b * unit for b in SPACE.global_batches)),
        observations=other,
        dataset_size=start.dataset_size * unit,
        reference_batch=start.reference_batch * unit,
    )
    one, again = chosen(start), chosen(scaled)
    back = ClusterConfig(again.config.workers, again.config.global_batch // unit)
    assert_as_good(replace(again, config=back), one)


@unhurried
@given(
    st.lists(
        st.builds(
            lambda workers, local, shared, kind: ClusterConfig(
                workers, workers * local, shared, kind
            ),
            st.integers(1, 40),
            st.integers(1, 300),
            st.sampled_from((1, 4)),
            st.sampled_from(("", "other")),
        ),
        unique=True,
        max_size=30,
    ),
    st.integers(0, 40),
    st.randoms(use_true_random=False),
)
def test_what_is_worth_profiling_is_an_order_that_begins_with_the_corners(configs, count, shuffle):
    chosen = space_filling_order(configs, count)
    assert len(chosen) == min(count, len(configs))
    assert len(set(chosen)) == len(chosen)
    assert set(chosen) <= set(configs)
    assert space_filling_order(configs, count + 1)[: len(chosen)] == chosen
    if configs:
        assert (
            chosen[:4] == corner_configs(configs)[: len(chosen[:4])]
            or len(corner_configs(configs)) < 4
        )
    shuffle.shuffle(configs)
    assert space_filling_order(configs, count) == chosen


@st.composite
def worlds(draw):
    """A curve in a few other worlds, in which seconds and epochs differ as they like."""
    size, count = draw(st.integers(1, 5)), draw(st.integers(1, 12))
    values = st.lists(st.floats(-0.5, 0.5), min_size=count, max_size=count)
    figures = draw(
        st.lists(st.tuples(st.floats(0, 9), st.floats(0, 9)), min_size=size, max_size=size)
    )
    points = points_of(figures)
    draws = {
        point.config: PosteriorDraws(
            tuple(np.exp(draw(values)).tolist()), tuple(np.exp(draw(values)).tolist())
        )
        for point in points
    }
    return TradeoffCurve(points, "total", draws)


def points_of(figures) -> tuple[TradeoffPoint, ...]:
    return tuple(
        TradeoffPoint(ClusterConfig(row, 64), None, 1, 1, 0, 1, None, *pair)
        for row, pair in enumerate(figures, start=1)
    )


def saving(curve: TradeoffCurve, config: ClusterConfig, weight: float = 1.0) -> float:
    return best_probe(curve, weight, [(config, 0.0)]).saving


@unhurried
@given(worlds(), st.sampled_from((0.0, 0.3, 1.0)))
def test_to_know_more_is_never_worth_less_than_nothing(curve, weight):
    for point in curve.points:
        assert saving(curve, point.config, weight) >= -1e-9


@unhurried
@given(worlds(), st.sampled_from((0.0, 0.3, 1.0)))
def test_a_probe_of_seconds_that_are_known_is_worth_nothing(curve, weight):
    known = {
        config: replace(drawn, step_time_factors=(1.0,) * len(drawn.step_time_factors))
        for config, drawn in curve.draws.items()
    }
    certain = replace(curve, draws=known)
    for point in curve.points:
        assert saving(certain, point.config, weight) == pytest.approx(0, abs=1e-9)


@unhurried
@given(worlds(), st.integers(0, 4), st.lists(st.integers(-9, 9), min_size=12, max_size=12))
def test_a_perfect_probe_of_the_only_thing_uncertain_is_worth_the_most(curve, row, steps):
    uncertain = curve.points[row % len(curve.points)].config
    count = len(curve.draws[uncertain].step_time_factors)
    sure = PosteriorDraws((1.0,) * count, (1.0,) * count)
    # Half a factor of e apart: far beyond what repeats of one configuration hide.
    told = PosteriorDraws(tuple(np.exp(np.array(steps[:count]) / 2).tolist()), sure.epochs_factors)
    draws = {point.config: sure for point in curve.points} | {uncertain: told}
    known = replace(curve, draws=draws)
    logs = np.log([[max(p.time, 1e-300)] * count * draws[p.config].factors for p in curve.points])
    perfect = logs.mean(axis=1).min() - logs.min(axis=0).mean()
    assume(np.isfinite(perfect))
    for point in curve.points:
        expected = perfect if point.config == uncertain else 0.0
        assert saving(known, point.config) == pytest.approx(expected, abs=1e-6)


@unhurried
@given(worlds(), st.lists(st.floats(0, 1), min_size=5, max_size=5))
def test_the_best_probe_gains_the_most_and_a_price_changes_no_saving(curve, prices):
    candidates = [(p.config, price) for p, price in zip(curve.points, prices, strict=False)]
    best = best_probe(curve, 0.5, candidates)
    gains = [saving(curve, config, 0.5) - price for config, price in candidates]
    assert best.gain == pytest.approx(max(gains), abs=1e-12)


def test_where_nothing_is_uncertain_there_is_nothing_to_weigh():
    curve = TradeoffCurve(points_of([(1.0, 2.0), (2.0, 1.0)]), "total")
    assert best_probe(curve, 0.5, [(curve.points[0].config, 0.0)]) is None
    drawn = replace(curve, draws={p.config: PosteriorDraws((1.0,), (1.0,)) for p in curve.points})
    assert best_probe(drawn, 0.5, []) is None


def test_unknown_epochs_make_no_probe_of_seconds_worth_anything():
    certain = Uncertainty(0.0, tuple(tuple(map(float, row)) for row in np.eye(5)))
    law = StepTimeLaw(0.5, 0.01, 0.1, 0.05, uncertainty=certain)
    unsure = EpochsLaw(120.0, 120.0, critical_deviation=0.7)
    model = PerformanceModel(law, unsure, 50_000, 64, 30.0)
    curve = curve_from_forecast(forecast_space(SPACE, model, on_demand_price_model(0.3), ()))
    assert any(drawn.epochs_factors != drawn.step_time_factors for drawn in curve.draws.values())
    worth = best_probe(curve, 0.5, [(config, 0.0) for config in SPACE])
    assert worth.saving == pytest.approx(0, abs=1e-9)


def test_a_free_configuration_among_paid_ones_is_weighed_with_finite_figures():
    points = points_of([(1.0, 0.0), (0.5, 3.0)])
    draws = {p.config: PosteriorDraws((0.9, 1.2), (1.0, 1.0)) for p in points}
    worth = best_probe(TradeoffCurve(points, "total", draws), 0.5, [(points[1].config, 0.0)])
    assert worth.saving == pytest.approx(0, abs=1e-9)


@settings(max_examples=5)
@given(truths, OBJECTIVES)
def test_a_space_too_large_to_draw_gives_the_choice_of_the_whole(truth, objective):
    space = ConfigSpace(tuple(range(1, 61)), tuple(range(64, 64 + 40)))
    seen = tuple(observe(config, truth) for config in space.corners())
    start = situation(space, objective, observations=seen)
    whole = space_columns(space)
    run = decide(replace(start, search="partial"))
    assert run.curve.omitted_points == len(whole) - len(run.curve.points) > 0
    every = curve_from_forecast(forecast_space(space, run.model, start.price, seen))
    assert objective.choose(replace(every, draws={})).point == run.choice.point
    few = decide_with_worker_cap(replace(start, search="partial"), 7)
    paid = tuple(point for point in every.points if point.config.workers <= 7)
    assert objective.choose(replace(every, points=paid, draws={})).point == few.choice.point
