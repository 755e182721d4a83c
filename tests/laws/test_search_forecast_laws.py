"""A search that is foretold measures what it is then seen to measure, where the laws are right."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scavenger.job.planning import planning_state
from scavenger.models.performance import fit_performance
from scavenger.planning.decision import decide
from scavenger.planning.search.registry import SEARCHES
from scavenger.planning.search.strategy import Probe, TrainOn
from scavenger.planning.search_forecast import forecast_search, imagine
from scavenger.planning.transfer import StoredModel
from tests.builders import observation, spec

SEEN = tuple(observation(*corner) for corner in ((1, 32), (1, 128), (2, 128), (2, 32)))
LAWS = fit_performance(SEEN, 1437, 32, None)
OTHER = StoredModel("other|1437|none|local", LAWS, SEEN, {}, 3)


@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("target", [{"epochs": 30, "at_batch": 32}, None])
def test_what_is_foretold_of_a_search_is_what_it_does(search: str, target: object) -> None:
    wish = {"limits": {"workers": "1..4", "batch": "32..256"}, "search": search}
    job = spec(**wish, **({} if target is None else {"target": target}))
    state = planning_state(job, (), None, other_models=(OTHER,), machine_type="local")
    told, done = forecast_search(state), []
    while isinstance(decision := decide(state), Probe):
        done.append(decision)
        model = None if told.seconds is None else LAWS
        state = replace(state, observations=(*state.observations, imagine(decision, model)))
    assert isinstance(decision, TrainOn)
    if told.seconds is None:
        assert (told.probes, told.cost) == (tuple(done), None)
    else:  # by the average of the other jobs, at this job's own speed
        assert len(told.probes) == len(done)
        assert (told.seconds > 0) == (told.cost is not None and told.cost > 0) == bool(done)
