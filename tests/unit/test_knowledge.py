"""What pages show is what decisions were made from."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scavenger.cluster import ClusterConfig
from scavenger.decision import ProbeEffort, Run
from scavenger.models.epochs import EpochsSeen
from scavenger.objective import Cheapest, Fastest, Knee, Objective, Weighted
from scavenger.prior import StoredModel
from service.knowledge import Knowledge, at_noise_scale, wish_of
from tests.builders import observation, spec

CORNERS = tuple(observation(*corner) for corner in ((1, 32), (1, 128), (2, 128), (2, 32)))
TARGET = "accuracy >= 0.97"
# No further probe pays in so short a job.
SLOW = ProbeEffort(pause=1e6)


def knowledge(search: str = "auto", **changes: object) -> Knowledge:
    facts = {"observations": CORNERS, "stored": None, "machine": "local", "effort": SLOW}
    return Knowledge(spec(search=search), **{**facts, **changes})  # type: ignore[arg-type]


def stored(signature: str = "digits|1437|none|local") -> StoredModel:
    sketch = knowledge().sketch()
    assert sketch is not None
    return StoredModel(signature, sketch.model, CORNERS, {TARGET: 12.0}, 1)


OTHER = stored("other|9|none|local")
RUNS = {TARGET: (EpochsSeen(32, 10.0), EpochsSeen(128, 14.0))}

KNOWN = {
    "own probes": knowledge(),
    "own probes under the paper's laws": replace(knowledge(), spec=spec(laws="paper")),
    "a stored model": knowledge(observations=(), stored=stored()),
    "a stored model with runs at two batches": knowledge(
        observations=(), stored=replace(stored(), runs=RUNS)
    ),
    "a stored model that spans too little, without a search": knowledge(
        "none", observations=(), stored=replace(stored(), observations=CORNERS[:1])
    ),
    "the average over all": knowledge("universal", observations=(), models=(OTHER,)),
    "a job that measures alike": knowledge(observations=CORNERS[:1], models=(OTHER,)),
    "a job that measures alike on other machines": knowledge(
        models=(replace(OTHER, signature="other|9|none|elsewhere"),)
    ),
}


@pytest.mark.parametrize("known", KNOWN.values(), ids=KNOWN)
def test_a_page_draws_the_curve_that_the_choice_was_made_from(known: Knowledge) -> None:
    run, sketch = known.decide(), known.sketch()
    assert isinstance(run, Run), run
    assert sketch is not None
    assert sketch.model == run.model
    assert sketch.curve.points == run.curve.points


def test_nothing_is_believed_before_anything_is_known() -> None:
    fresh = knowledge(observations=())
    assert fresh.sketch() is None
    assert fresh.progress_per_iteration(ClusterConfig(2, 128)) == 128 / 1437


def test_jobs_on_other_machines_do_not_compare() -> None:
    elsewhere = replace(OTHER, signature="other|9|none|elsewhere")
    assert knowledge(models=(OTHER, elsewhere)).situation().others == (OTHER,)


def test_what_others_ran_teaches_kappa() -> None:
    taught = replace(OTHER, signature="other|9|none|elsewhere", runs=RUNS)
    before, after = (knowledge(models=models).situation().kappa for models in ((), (taught,)))
    assert before.value == 1.0
    assert after.value > before.value
    assert after.deviation < before.deviation


def test_a_noise_that_drifted_moves_the_critical_batch_and_keeps_kappa() -> None:
    belief = knowledge().belief()
    drifted = knowledge(noise_scale=600.0).belief()
    assert belief is not None
    assert drifted is not None
    before, after = belief.model.statistical, drifted.model.statistical
    assert after.noise_scale == 600
    assert after.critical_batch == pytest.approx(3 * (before.critical_batch or 0))
    assert at_noise_scale(after, before.noise_scale or 0).critical_batch == pytest.approx(
        before.critical_batch
    )


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
    assert wish_of(spec(objective=written)) == wish
