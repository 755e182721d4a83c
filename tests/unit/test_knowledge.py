"""What pages show is what decisions were made from."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scavenger.cluster import ClusterConfig
from scavenger.errors import NothingFeasible
from scavenger.job.planning import objective_of, planning_state, signature_of
from scavenger.job.spec import JobSpec
from scavenger.measurement.profiling import ScalingIndicators
from scavenger.models.epochs import FinishedRun
from scavenger.planning.decision import (
    CurvePreview,
    choose_without_further_probes,
    decide,
    fit_model,
    preview_curve,
    progress_per_iteration,
)
from scavenger.planning.knee import Knee
from scavenger.planning.objective import Objective
from scavenger.planning.objectives import Cheapest, Fastest, Weighted
from scavenger.planning.search.strategy import Probe, TrainOn
from scavenger.planning.state import PlanningState, ProbeOverhead, extrapolate_metric
from scavenger.planning.transfer import StoredModel, find_lender
from scavenger.protocol import StopAtMetric
from tests.builders import observation, spec

CORNERS = tuple(observation(*corner) for corner in ((1, 32), (1, 128), (2, 128), (2, 32)))
TARGET = "accuracy >= 0.97"
# No further probe pays in so short a job.
SLOW = ProbeOverhead(pause=1e6)


def knowledge(search: str = "auto", job: JobSpec | None = None, **changes: object) -> PlanningState:
    facts = {
        "observations": CORNERS,
        "stored": None,
        "machine_type": "local",
        "probe_overhead": SLOW,
    }
    return planning_state(job or spec(search=search), **{**facts, **changes})  # type: ignore[arg-type]


def stored(signature: str = "digits|1437|none|local") -> StoredModel:
    preview = preview_curve(knowledge())
    assert preview is not None
    return StoredModel(signature, preview.fitted.model, CORNERS, {TARGET: 12.0}, 1)


OTHER = stored("other|9|none|local")


def curve(seen: float, scale: float = 1.0) -> tuple[tuple[float, float], ...]:
    """An accuracy that would reach 0.97 after 9.5 epochs, as far as it was seen."""
    epochs = [seen * number / 20 for number in range(1, 21)]
    return tuple((x, 1 - scale * 0.3 / (x + 0.5)) for x in epochs)


RUNS = {TARGET: (FinishedRun(32, 10.0), FinishedRun(128, 14.0))}

KNOWN = {
    "own probes": knowledge(),
    "own probes under the paper's laws": knowledge(job=spec(laws="paper")),
    "a stored model": knowledge(observations=(), stored=stored()),
    "a stored model with runs at two batches": knowledge(
        observations=(), stored=replace(stored(), runs=RUNS)
    ),
    "a stored model that spans too little, without a search": knowledge(
        "none", observations=(), stored=replace(stored(), observations=CORNERS[:1])
    ),
    "the average over all": knowledge("universal", observations=(), other_models=(OTHER,)),
    "a job that measures alike": knowledge(observations=CORNERS[:1], other_models=(OTHER,)),
    "two probes, and a job that measures alike": knowledge(
        observations=CORNERS[:2], other_models=(OTHER,)
    ),
    "own probes and a learning curve": knowledge(metric_history=curve(8.0)),
    "a job that measures alike on other machines": knowledge(
        other_models=(replace(OTHER, signature="other|9|none|elsewhere"),)
    ),
}


@pytest.mark.parametrize("known", KNOWN.values(), ids=KNOWN)
def test_a_page_draws_the_curve_that_the_choice_was_made_from(known: PlanningState) -> None:
    run, preview = decide(known), preview_curve(known)
    assert isinstance(run, TrainOn), run
    assert preview is not None
    assert preview.fitted.model == run.model
    assert preview.curve.points == run.curve.points
    assert CurvePreview(run.curve, run.fitted) == preview


def test_the_source_of_a_choice_names_no_more_than_it_was_made_from() -> None:
    lent = knowledge(observations=CORNERS[:2], other_models=(OTHER,))
    assert "measured alike" in source(lent)
    assert choose_without_further_probes(lent).fitted.source == "2 probes of this job"
    # By the estimate nothing meets the limits, and an estimate ends no job.
    strict = spec(limits={"max_cost": "0.0001 USD", "workers": "1..2", "batch": [32, 128]})
    hopeful = knowledge(job=strict, metric_history=curve(8.0))
    assert "extrapolated" in source(hopeful)
    run = choose_without_further_probes(hopeful)
    assert run.curve.basis == "relative"
    assert run.fitted.source == "4 probes of this job"


def source(known: PlanningState) -> str:
    fitted_model = fit_model(known)
    assert fitted_model is not None
    return fitted_model.source


def test_nothing_is_believed_before_anything_is_known() -> None:
    fresh = knowledge(observations=())
    assert preview_curve(fresh) is None
    assert progress_per_iteration(fresh, ClusterConfig(2, 128)) == 128 / 1437


def test_jobs_on_other_machines_do_not_compare() -> None:
    elsewhere = replace(OTHER, signature="other|9|none|elsewhere")
    assert knowledge(other_models=(OTHER, elsewhere)).comparable_models == (OTHER,)


def test_a_job_that_measures_alike_lends_its_model_until_three_corners_are_probed() -> None:
    sources = [
        fitted_model.source
        for count in range(1, 4)
        if (
            fitted_model := fit_model(
                knowledge(observations=CORNERS[:count], other_models=(OTHER,))
            )
        )
    ]
    assert sources == [
        "1 probe of this job, and 1 earlier job that measured alike",
        "2 probes of this job, and 1 earlier job that measured alike",
        "3 probes of this job",
    ]


def test_a_learning_curve_tells_the_epochs_until_something_better_does() -> None:
    before, now = preview_curve(knowledge()), preview_curve(knowledge(metric_history=curve(8.0)))
    assert before is not None
    assert now is not None
    assert (before.curve.basis, now.curve.basis) == ("relative", "total")
    assert now.fitted.source == (
        "4 probes of this job, epochs extrapolated from the accuracy so far: 9.83 (7.42 to 51.1)"
    )
    assert now.fitted.model.epochs_deviation > 0.12
    assert knowledge(metric_history=curve(8.0)).expected_epochs == pytest.approx(9.5, rel=0.1)
    better = {"an earlier job": {"stored": stored()}, "its own run": {"epochs_to_target": 12.0}}
    for known in better.values():
        assert knowledge(metric_history=curve(8.0), **known).expected_epochs == 12.0
    in_epochs = spec(target={"epochs": 12, "at_batch": 32})
    assert knowledge(job=in_epochs, metric_history=curve(8.0)).expected_epochs == 12.0


@pytest.mark.parametrize(
    ("seen", "most"),
    [
        (curve(8.0), 9.0),  # training gives up before
        (curve(2.0), 60.0),  # too far ahead of what was seen
        (curve(14.0), 60.0),  # by every likely curve it is reached already, and it is not
        (curve(8.0)[:5], 60.0),
        (tuple((x, 0.5) for x, _ in curve(8.0)), 60.0),
        (tuple((x, 1.5 - v) for x, v in curve(8.0)), 60.0),  # moves away from its goal
        ((), 60.0),
    ],
)
def test_a_curve_is_trusted_no_further_than_it_reaches(
    seen: tuple[tuple[float, float], ...], most: float
) -> None:
    assert extrapolate_metric(seen, StopAtMetric("accuracy", 0.97, "at_least", most)) is None


def test_what_was_not_reached_takes_longer_than_was_seen() -> None:
    found = extrapolate_metric(curve(10.0), StopAtMetric("accuracy", 0.97, "at_least", 60.0))
    assert found is not None
    assert found.low < found.epochs == 10.0 < found.high


def test_an_extrapolation_ends_no_job_as_known_epochs_do() -> None:
    limits = {"max_time": "1s", "workers": "1..2", "batch": [32, 128]}
    hurried = knowledge(job=spec(limits=limits), metric_history=curve(8.0))
    assert isinstance(decide(hurried), TrainOn)
    assert choose_without_further_probes(hurried) == decide(hurried)
    with pytest.raises(NothingFeasible):
        decide(replace(hurried, stored=stored()))


def test_what_others_ran_teaches_kappa() -> None:
    taught = replace(OTHER, signature="other|9|none|elsewhere", runs=RUNS)
    before, after = (knowledge(other_models=models).kappa for models in ((), (taught,)))
    assert before.value == 1.0
    assert after.value > before.value
    assert after.deviation < before.deviation


def test_a_noise_that_drifted_moves_the_critical_batch_and_keeps_kappa() -> None:
    fitted_model = fit_model(knowledge())
    drifted = fit_model(knowledge(drifted_noise_scale=600.0))
    assert fitted_model is not None
    assert drifted is not None
    before, after = fitted_model.model.statistical, drifted.model.statistical
    assert after.noise_scale == 600
    assert after.critical_batch == pytest.approx(3 * (before.critical_batch or 0))


@pytest.mark.parametrize(
    ("written", "wish"),
    [
        ("knee", Knee()),
        ("fastest", Fastest()),
        ("cheapest", Cheapest()),
        ({"time_weight": 0.7}, Weighted(0.7)),
    ],
)
def test_a_written_objective_is_the_one_that_chooses(written: object, wish: Objective) -> None:
    assert objective_of(spec(objective=written)) == wish


def test_models_compare_between_jobs_of_one_rule_with_any_warm_up() -> None:
    names = {
        signature_of(spec(lr_scaling=recipe), "local")
        for recipe in ("linear", {"rule": "linear"}, {"rule": "linear", "warm_up": 3})
    }
    assert names == {"digits|1437|linear|local"}
    assert signature_of(spec(lr_scaling="adascale"), "local") == "digits|1437|adascale|local"


@pytest.mark.parametrize("framework", [None, "pytorch", "tensorflow"])
def test_models_of_another_framework_do_not_compare(framework: str | None) -> None:
    asked = {} if framework is None else {"framework": framework}
    document = spec(search="universal", **asked)
    known = replace(OTHER, signature="other|9|none|local||tensorflow")
    state = planning_state(document, (), None, other_models=(OTHER, known), machine_type="local")
    is_tensorflow = framework == "tensorflow"
    assert state.comparable_models == ((known,) if is_tensorflow else (OTHER,))
    end = "||tensorflow" if is_tensorflow else ""
    assert signature_of(document, "local") == f"digits|1437|none|local{end}"


def three_times_slower(seen: ScalingIndicators) -> ScalingIndicators:
    return replace(seen, compute_time=3 * seen.compute_time, sync_time=3 * seen.sync_time)


ASKED = spec(framework="tensorflow", search="full")


def lent(**changes: object) -> PlanningState:
    early = [replace(seen, has_settled_noise=False) for seen in CORNERS]
    lender = find_lender(signature_of(ASKED, "local"), [OTHER, stored()])
    facts = {"observations": tuple(early), "lender": lender, **changes}
    return knowledge(job=ASKED, **facts)


def test_another_framework_lends_noise_and_epochs_and_never_times() -> None:
    decision = decide(lent())
    assert isinstance(decision, TrainOn)
    assert "with the noise and epochs of 1 earlier job with pytorch" in decision.why
    assert decision.model.statistical == stored().model.statistical
    assert decision.model.epochs_at_reference == 12.0
    assert decision.fitted.observations == lent().observations
    far = [replace(seen, indicators=three_times_slower(seen.indicators)) for seen in CORNERS]
    assert decide(replace(lent(), lender=replace(stored(), observations=tuple(far)))) == decision


def test_another_layout_lends_noise_and_epochs_and_never_times() -> None:
    limits = {"workers": "1..4", "batch": "32..256", "layout": {"pipeline": 2, "micro_batches": 4}}
    asked = spec(search="full", limits=limits)
    signature = signature_of(asked, "local")
    assert signature.endswith("|||P2 T1 M4")
    lender = find_lender(signature, [OTHER, stored()])
    assert lender == stored()
    state = planning_state(asked, (), None, other_models=(OTHER, stored()), lender=lender)
    assert state.lent == "noise and epochs of 1 earlier job with pytorch"
    assert state.comparable_models == ()
    back = find_lender(signature_of(spec(), "local"), [replace(stored(), signature=signature)])
    assert back is not None
    assert replace(state, lender=back).lent.endswith("with pytorch P2 T1 M4")


def test_a_model_that_lends_spares_the_probe_of_noise_and_no_other() -> None:
    state = lent(observations=())
    first = decide(state)
    assert isinstance(first, Probe)
    assert first.measures == "time"
    alone = decide(replace(lent(), lender=None))
    assert isinstance(alone, Probe)
    assert alone.measures == "noise"


def test_noise_that_this_job_measured_itself_counts_more_than_lent_noise() -> None:
    state = knowledge(job=ASKED, lender=lent().lender)
    decision = decide(state)
    assert isinstance(decision, TrainOn)
    assert "with the epochs of 1 earlier job with pytorch" in decision.why


def test_laws_of_the_paper_are_lent_no_noise() -> None:
    paper = spec(framework="tensorflow", search="full", laws="paper")
    assert not knowledge(job=paper, observations=(), lender=lent().lender).is_noise_known


@pytest.mark.parametrize(
    "theirs",
    [
        "digits|1437|none|e2||tensorflow",
        "digits|1437|linear|local||tensorflow",
        "digits|1438|none|local||tensorflow",
        "digits|1437|none|local|parameter_server 2|tensorflow",
        "digits|1437|none|local",
    ],
)
def test_only_a_model_that_differs_by_its_framework_lends(theirs: str) -> None:
    assert find_lender("digits|1437|none|local", [stored(theirs)]) is None
    assert find_lender(theirs, [stored(theirs)]) is None
    lender = stored("digits|1437|none|local||tensorflow")
    assert find_lender("digits|1437|none|local", [stored(theirs), lender]) is lender


def test_before_its_first_probe_a_job_counts_progress_by_lent_noise() -> None:
    state, config = lent(observations=()), ClusterConfig(1, 128)
    assert progress_per_iteration(state, config) == progress_per_iteration(lent(), config)
    assert progress_per_iteration(replace(state, lender=None), config) != progress_per_iteration(
        state, config
    )


def test_models_do_not_compare_where_gradients_travel_otherwise() -> None:
    served = spec(strategy={"parameter_server": {"servers": 2}}, search="universal")
    name = signature_of(served, "local")
    assert name == "digits|1437|none|local|parameter_server 2"
    alike = replace(OTHER, signature=f"other|9|none|local|{name.split('|')[-1]}")
    known = planning_state(served, (), None, other_models=(OTHER, alike), machine_type="local")
    assert known.comparable_models == (alike,)
    assert known.topology == "parameter_server"


def test_nothing_is_believed_of_workers_that_wait_for_none() -> None:
    one = {"workers": 2, "batch": 128}
    alone = planning_state(
        spec(strategy="downpour", limits=one), (), stored(), machine_type="local"
    )
    assert fit_model(alone) is None
    assert progress_per_iteration(alone, ClusterConfig(2, 128)) == pytest.approx(128 / 1437)
