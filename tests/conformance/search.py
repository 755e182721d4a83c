"""What every search strategy promises: inherit ``SearchConformance`` and name the strategy."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scavenger.cluster import ClusterConfig, ConfigSpace
from scavenger.job.spec import JobSpec
from scavenger.measurement.profiling import Observation, ScalingIndicators
from scavenger.models.iteration_time import StepTimeLaw
from scavenger.models.performance import fit_performance
from scavenger.planning.knee import Knee
from scavenger.planning.search.registry import SEARCHES
from scavenger.planning.search.strategy import Probe, SearchStrategy, TrainOn
from scavenger.planning.state import PlanningState
from scavenger.planning.transfer import StoredModel
from scavenger.pricing import on_demand_price_model
from tests.builders import spec

SPACE = ConfigSpace((2, 4, 8), (64, 128, 256))
TRUTH = StepTimeLaw(0.02, 0.004, 0.01, 0.006)


def measured(config: ClusterConfig) -> Observation:
    times = TRUTH.compute_time(config), TRUTH.sync_time(config)
    return Observation(config, ScalingIndicators(None, 120.0, *times), 20)


CORNERS = tuple(measured(config) for config in SPACE.corners())
EARLIER = StoredModel("other|1|none|any", fit_performance(CORNERS, 1797, 64, 9.0), CORNERS, {}, 2)
FRESH = PlanningState(
    space=SPACE,
    objective=Knee(),
    observations=(),
    stored=None,
    dataset_size=1797,
    reference_batch=64,
    epochs_at_reference=30.0,
    price=on_demand_price_model(0.13),
)
STATES = {
    "nothing known": FRESH,
    "a stored model": replace(FRESH, stored=EARLIER),
    "models of other jobs": replace(FRESH, other_models=(EARLIER,)),
    "the paper's laws": replace(FRESH, laws="paper"),
    "epochs unknown": replace(FRESH, epochs_at_reference=None),
}


@pytest.fixture(params=STATES.values(), ids=STATES)
def state(request: pytest.FixtureRequest) -> PlanningState:
    found: PlanningState = request.param
    return found


class SearchConformance:
    """Set ``name`` to the name under which the strategy is registered."""

    name: str

    @property
    def strategy(self) -> SearchStrategy:
        return SEARCHES[self.name]

    def follow(self, state: PlanningState) -> tuple[list[tuple[PlanningState, Probe]], TrainOn]:
        """Return what was known before each probe with the probe, and the run in the end."""
        probes: list[tuple[PlanningState, Probe]] = []
        while isinstance(decision := self.strategy.search(state), Probe):
            assert len(probes) < 2 * len(tuple(state.space)), "the search does not end"
            probes.append((state, decision))
            seen = (*state.observations, measured(decision.config))
            state = replace(state, observations=seen)
        return probes, decision

    def test_it_is_registered_under_its_name(self) -> None:
        assert self.strategy.name == self.name

    def test_a_job_document_can_name_it(self) -> None:
        wanted: JobSpec = spec(search=self.name)
        assert wanted.search == self.name

    def test_every_search_ends_with_a_configuration_of_the_space(
        self, state: PlanningState
    ) -> None:
        _, run = self.follow(state)
        assert run.config in state.space
        assert run.config == run.choice.point.config
        assert run.why

    def test_a_probe_is_of_time_new_and_says_why(self, state: PlanningState) -> None:
        probes, _ = self.follow(state)
        configs = [probe.config for _, probe in probes]
        assert len(set(configs)) == len(configs)
        assert all(config in state.space for config in configs)
        assert all(probe.measures == "time" and probe.why for _, probe in probes)

    def test_a_probe_that_is_announced_follows(self, state: PlanningState) -> None:
        probes, _ = self.follow(state)
        following = [probe.config for _, probe in probes[1:]]
        for (_, probe), config in zip(probes, [*following, None], strict=False):
            assert probe.next_config in (None, config)

    def test_pages_draw_the_curve_that_the_choice_is_made_from(self, state: PlanningState) -> None:
        probes, run = self.follow(state)
        seen = tuple(measured(probe.config) for _, probe in probes)
        fitted = self.strategy.fit(replace(state, observations=seen))
        assert fitted is not None
        assert fitted.model == run.model
        assert fitted.observations == run.fitted.observations

    def test_nothing_is_kept_between_two_questions(self, state: PlanningState) -> None:
        before = self.strategy.search(state)
        self.follow(replace(state, space=ConfigSpace((1, 2), (32, 64))))
        assert self.strategy.search(state) == before

    def test_it_says_beforehand_what_it_will_do(self) -> None:
        assert self.strategy.describe(SPACE)
        assert "\n" not in self.strategy.describe(SPACE)
