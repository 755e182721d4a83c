"""StoredSearch: reuse the model of earlier jobs with the same signature, and profile nothing."""

from __future__ import annotations

from typing import ClassVar

from scavenger.cluster import ConfigSpace
from scavenger.planning.search.corners import count_corners, probe_corners
from scavenger.planning.search.strategy import (
    Probe,
    Run,
    choose_by_stored_model,
    fit_own_or_stored,
)
from scavenger.planning.state import FittedModel, PlanningState, recall_model


class StoredSearch:
    """No search at all (III-E): the stored model chooses, also where it does not span the space."""

    name: ClassVar[str] = "none"

    def search(self, state: PlanningState) -> Probe | Run:
        if state.stored is not None:
            return choose_by_stored_model(state, state.stored)
        why = "no model is stored to do without a search, so the corners are profiled"
        return probe_corners(state, why)

    def fit(self, state: PlanningState) -> FittedModel | None:
        if state.stored is not None:
            return recall_model(state, state.stored)
        return fit_own_or_stored(state)

    def describe(self, space: ConfigSpace) -> str:
        return f"the stored model; without one, probes of {count_corners(space)}"
