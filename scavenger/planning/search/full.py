"""FullSearch: probe every configuration (Section III-B)."""

from __future__ import annotations

from typing import ClassVar

from scavenger.cluster import ConfigSpace
from scavenger.planning.search.strategy import Probe, TrainOn, fit_own_or_stored, probe_in_order
from scavenger.planning.state import FittedModel, PlanningState


class FullSearch:
    """Probe every configuration, by workers, so that machines are only added."""

    name: ClassVar[str] = "full"

    def search(self, state: PlanningState) -> Probe | TrainOn:
        return probe_in_order(state, tuple(state.space), "full search probes every one")

    def fit(self, state: PlanningState) -> FittedModel | None:
        return fit_own_or_stored(state)

    def describe(self, space: ConfigSpace) -> str:
        count = sum(1 for _ in space)
        return f"probes of all {count} configuration{'' if count == 1 else 's'}"
