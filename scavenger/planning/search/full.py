"""FullSearch: profile every configuration (Section III-B)."""

from __future__ import annotations

from typing import ClassVar

from scavenger.cluster import ConfigSpace
from scavenger.planning.search.strategy import Probe, Run, fit_own_or_stored, follow_list
from scavenger.planning.state import FittedModel, PlanningState


class FullSearch:
    """Profile every configuration, by workers, so that machines are only added."""

    name: ClassVar[str] = "full"

    def search(self, state: PlanningState) -> Probe | Run:
        return follow_list(state, tuple(state.space), "full search profiles every one")

    def fit(self, state: PlanningState) -> FittedModel | None:
        return fit_own_or_stored(state)

    def describe(self, space: ConfigSpace) -> str:
        count = sum(1 for _ in space)
        return f"probes of all {count} configuration{'' if count == 1 else 's'}"
