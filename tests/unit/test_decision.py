from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scavenger.cluster import ClusterConfig, ConfigSpace
from scavenger.errors import NothingFeasible
from scavenger.measurement.noise import noise_at
from scavenger.measurement.profiling import Observation, ScalingIndicators
from scavenger.models.epochs import FinishedRun
from scavenger.models.iteration_time import StepTimeLaw
from scavenger.models.performance import fit_performance
from scavenger.planning.constrained_objective import ConstrainedObjective
from scavenger.planning.decision import decide
from scavenger.planning.knee import Knee
from scavenger.planning.objectives import Cheapest, Fastest
from scavenger.planning.search.strategy import Probe, TrainOn
from scavenger.planning.state import PlanningState
from scavenger.planning.transfer import StoredModel, make_signature, part_of_signature
from scavenger.pricing import on_demand_price_model

SPACE = ConfigSpace((2, 4, 8), (64, 128, 256))
WIDER = ConfigSpace((2, 4, 8, 16), (64, 128, 256))
TRUTH = StepTimeLaw(0.02, 0.004, 0.01, 0.006)
CORNERS = [ClusterConfig(2, 64), ClusterConfig(2, 256), ClusterConfig(8, 256), ClusterConfig(8, 64)]


def observe(config: ClusterConfig) -> Observation:
    times = TRUTH.compute_time(config), TRUTH.sync_time(config)
    return Observation(config, ScalingIndicators(None, 120.0, *times), 20)


OBSERVED = tuple(observe(config) for config in CORNERS)
STORED = StoredModel(
    signature=make_signature("digits", 1797, "linear", "e2"),
    model=fit_performance(OBSERVED, 1797, 64, None),
    observations=OBSERVED,
    epochs_by_target={"accuracy >= 0.97": 12.0},
    jobs=2,
)
SLOW = replace(
    STORED,
    model=fit_performance(
        [
            replace(o, indicators=replace(o.indicators, compute_time=9 * o.indicators.compute_time))
            for o in OBSERVED
        ],
        1797,
        64,
        None,
    ),
)
FRESH = PlanningState(
    space=SPACE,
    search="auto",
    objective=Knee(),
    observations=(),
    stored=None,
    dataset_size=1797,
    reference_batch=64,
    epochs_at_reference=None,
    price=on_demand_price_model(0.13),
    machine_type="e2",
)


def probes(situation: PlanningState) -> list[ClusterConfig]:
    """Follow a search to its end and return what it probed."""
    made: list[ClusterConfig] = []
    while isinstance(decision := decide(situation), Probe):
        made.append(decision.config)
        observations = (*situation.observations, observe(decision.config))
        situation = replace(situation, observations=observations)
    return made


@pytest.mark.parametrize(
    ("name", "stored", "space", "expected"),
    [
        ("partial", None, SPACE, CORNERS),
        ("partial", STORED, SPACE, CORNERS),
        ("full", None, SPACE, list(SPACE)),
        ("full", STORED, SPACE, list(SPACE)),
        ("auto", None, SPACE, CORNERS[:3]),
        ("auto", STORED, SPACE, []),
        ("auto", STORED, WIDER, list(WIDER.corners()[:3])),
        ("none", STORED, SPACE, []),
        ("none", STORED, WIDER, []),
        ("none", None, SPACE, CORNERS),
    ],
)
def test_each_strategy_profiles_in_its_order(name, stored, space, expected):
    assert probes(replace(FRESH, search=name, stored=stored, space=space)) == expected


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({}, "probe 1 of 3, K=2 B=64: corners come first, then what is worth its price"),
        ({"observations": OBSERVED[:1]}, "probe 2 of 3, K=2 B=256: corners come first"),
        ({"search": "partial"}, "probe 1 of 4, K=2 B=64: partial search probes corners"),
        ({"search": "full"}, "probe 1 of 9, K=2 B=64: full search probes every one"),
        ({"search": "none"}, "no model is stored to do without a search"),
        ({"stored": STORED, "space": WIDER}, "the stored model does not span this space"),
    ],
)
def test_a_probe_says_why(change, why):
    assert why in decide(replace(FRESH, **change)).why


def test_a_search_ends_with_a_run_on_a_relative_curve():
    run = decide(replace(FRESH, observations=OBSERVED))
    assert isinstance(run, TrainOn)
    assert run.searched
    assert run.why.startswith(f"after 4 probes: {run.config}, ")
    assert run.curve.basis == "relative"
    assert (run.curve.points[0].time, run.curve.points[0].cost) == (1, 1)


def test_a_stored_model_runs_without_search_and_says_so():
    run = decide(replace(FRESH, stored=STORED))
    assert isinstance(run, TrainOn)
    assert not run.searched
    assert run.why.startswith(f"no search: model of 2 earlier jobs: {run.config}, ")
    assert run.curve.basis == "relative"


def test_without_search_an_uncovered_space_is_named():
    run = decide(replace(FRESH, search="none", stored=STORED, space=WIDER))
    assert "model of 2 earlier jobs, which it does not span" in run.why


@pytest.mark.parametrize(
    ("epochs", "target", "reference_batch", "expected"),
    [
        (None, None, 64, None),
        (None, "accuracy >= 0.99", 64, None),
        (None, "accuracy >= 0.97", 64, 12.0),
        # e(B) = e_min (1 + B / 120): the same job, told at another batch.
        (None, "accuracy >= 0.97", 128, 12.0 * (120 + 128) / (120 + 64)),
        (5.0, "accuracy >= 0.97", 64, 5.0),
    ],
)
@pytest.mark.parametrize("observations", [(), OBSERVED])
@pytest.mark.parametrize("search", ["auto", "partial"])
def test_epochs_come_from_the_user_or_else_from_earlier_jobs(
    epochs, target, reference_batch, expected, observations, search
):
    situation = replace(
        FRESH,
        stored=STORED,
        search=search,
        epochs_at_reference=epochs,
        target=target,
        reference_batch=reference_batch,
        observations=observations,
    )
    decision = decide(situation)
    if isinstance(decision, TrainOn):
        assert decision.model.epochs_at_reference == pytest.approx(expected)
        assert decision.model.reference_batch == reference_batch


def test_a_search_that_has_begun_goes_on_when_another_job_stores_a_model():
    decision = decide(replace(FRESH, stored=STORED, observations=OBSERVED[:1]))
    assert isinstance(decision, Probe)


def test_own_measurements_replace_stored_ones():
    slow = Observation(CORNERS[0], ScalingIndicators(None, None, 7.0, 1.0), 20)
    run = decide(replace(FRESH, search="none", stored=STORED, observations=(slow,)))
    assert run.curve.points[0].measured_step_time == 8.0


@pytest.mark.parametrize(
    "objective", [Fastest(), Cheapest(), Knee(), ConstrainedObjective(Knee(), max_cost=9)]
)
def test_the_run_follows_the_objective(objective):
    situation = replace(FRESH, observations=OBSERVED, objective=objective, epochs_at_reference=30.0)
    run = decide(situation)
    assert run.config == objective.choose(run.curve).point.config
    assert run.config in [point.config for point in run.curve.frontier()]


def test_limits_that_cannot_be_met_are_raised():
    situation = replace(
        FRESH,
        observations=OBSERVED,
        objective=ConstrainedObjective(Knee(), max_time=1.0),
        epochs_at_reference=30.0,
    )
    with pytest.raises(NothingFeasible, match="the nearest, K=8 B=128, takes"):
        decide(situation)


def test_a_signature_is_shared_by_no_two_combinations():
    assert make_signature("a|b", 1, "linear", "c") != make_signature("a", 1, "b|linear", "c")
    assert make_signature("a%7Cb", 1, "linear", "c") != make_signature("a|b", 1, "linear", "c")


@given(
    st.lists(
        st.tuples(
            *[st.sampled_from(["a", "a|b", "", "%7C"])] * 2,
            st.sampled_from(["", "parameter_server 2"]),
            st.sampled_from(["", "tensorflow"]),
            st.sampled_from(["", "P=2 T=1 M=4"]),
        ),
        min_size=2,
        max_size=2,
        unique=True,
    )
)
def test_a_signature_names_its_parts(combinations):
    """Two that differ in one part have two signatures, and each part can be read again."""
    names = ("model", "machine", "exchange", "framework", "layout")
    made = [make_signature(key, 1, "none", *rest) for key, *rest in combinations]
    assert made[0] != made[1]
    for signature, parts in zip(made, combinations, strict=True):
        assert tuple(part_of_signature(signature, name) for name in names) == parts


KIN = replace(STORED, signature=make_signature("mnist", 60000, "linear", "e2"))


def test_a_job_that_measures_alike_borrows_the_model_after_one_probe():
    run = decide(replace(FRESH, other_models=(KIN,), observations=OBSERVED[:1]))
    assert isinstance(run, TrainOn)
    assert run.why.startswith(
        "after 1 probe, as the measurements agree with those of mnist within a factor of 1.5"
    )
    assert run.curve.points[0].measured_step_time == OBSERVED[0].indicators.step_time


def test_a_job_that_measures_otherwise_searches_on():
    slow = replace(OBSERVED[0], indicators=replace(OBSERVED[0].indicators, compute_time=9.0))
    assert isinstance(decide(replace(FRESH, other_models=(KIN,), observations=(slow,))), Probe)


def test_the_universal_model_needs_no_search_and_takes_the_speed_that_was_measured():
    start = replace(FRESH, search="universal", other_models=(KIN,), epochs_at_reference=30.0)
    run = decide(start)
    assert not run.searched
    assert run.why.startswith("no search: the average over the models of 2 earlier jobs")
    slow = tuple(
        replace(
            o,
            indicators=replace(
                o.indicators,
                compute_time=2 * o.indicators.compute_time,
                sync_time=2 * o.indicators.sync_time,
            ),
        )
        for o in OBSERVED[:2]
    )
    twice = decide(replace(start, observations=slow))
    far = CORNERS[2]
    # Each of the averaged laws is brought to what was measured, and misses it a little before.
    assert twice.model.parallel.step_time(far) == pytest.approx(
        2 * run.model.parallel.step_time(far), rel=0.02
    )


def test_the_universal_model_of_the_paper_keeps_the_law_of_noise():
    seen = tuple(
        replace(o, indicators=replace(o.indicators, noise=noise_at(120.0, o.config)))
        for o in OBSERVED
    )
    model = fit_performance(seen, 1797, 64, None, laws="paper")
    paper = replace(KIN, model=model, observations=seen)
    run = decide(replace(FRESH, search="universal", other_models=(paper, paper), laws="paper"))
    ratio = model.statistical.relative_epochs(256, 64)
    assert ratio < 1
    assert run.model.statistical.relative_epochs(256, 64) == pytest.approx(ratio)


def test_runs_that_contradict_the_law_in_use_are_told():
    runs = {"loss <= 1": (FinishedRun(64, 20.0), FinishedRun(256, 10.0))}
    start = replace(
        FRESH, stored=replace(STORED, runs=runs), target="loss <= 1", observations=OBSERVED
    )
    assert "check lr_scaling" not in decide(start).why
    rising = fit_performance(OBSERVED, 1797, 64, None)
    paper = replace(start, stored=replace(start.stored, model=rising), laws="paper")
    universal = replace(paper, search="universal", other_models=(KIN,))
    assert "check lr_scaling" in decide(universal).why


def test_workers_that_no_batch_can_feed_do_not_keep_the_search_from_synchronisation():
    start = replace(FRESH, space=ConfigSpace((1, 4, 64), (8, 32)))
    assert {config.workers for config in probes(start)} == {1, 4}


@pytest.mark.parametrize(
    ("change", "then"),
    [
        ({}, CORNERS[1]),
        ({"other_models": (STORED,)}, None),
        ({"other_models": (STORED,), "space": WIDER}, WIDER.corners()[1]),
        ({"other_models": (STORED,), "search": "partial"}, CORNERS[1]),
        ({"other_models": (SLOW,), "observations": OBSERVED[:1]}, CORNERS[2]),
    ],
    ids=[
        "the next corner",
        "unless another job may turn out to measure alike",
        "which its model has to cover",
        "in a search that looks at others",
        "and that has not turned out to be none",
    ],
)
def test_a_probe_promises_the_next_only_where_that_follows_from_every_result(change, then):
    decision = decide(replace(FRESH, **change))
    assert isinstance(decision, Probe)
    assert decision.next_config == then
