"""StoredSearch: reuse the model of earlier jobs with the same signature, and probe nothing."""

from __future__ import annotations

from typing import ClassVar

from scavenger.cluster import ConfigSpace
from scavenger.planning.search.corners import format_corner_count, probe_corners
from scavenger.planning.search.strategy import (
    Probe,
    TrainOn,
    choose_by_stored_model,
    fit_own_or_stored,
)
from scavenger.planning.state import FittedModel, PlanningState, adapt_stored_model


class StoredSearch:
    """No search at all (III-E): the stored model chooses, also where it does not span the space."""

    name: ClassVar[str] = "none"

    def search(self, state: PlanningState) -> Probe | TrainOn:
        if state.stored is not None:
            return choose_by_stored_model(state, state.stored)
        why = "no model is stored to do without a search, so the corners are probed"
        return probe_corners(state, why)

    def fit(self, state: PlanningState) -> FittedModel | None:
        if state.stored is not None:
            return adapt_stored_model(state, state.stored)
        return fit_own_or_stored(state)

    def describe(self, space: ConfigSpace) -> str:
        return f"the stored model; without one, probes of {format_corner_count(space)}"
