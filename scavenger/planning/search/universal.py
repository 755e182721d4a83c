"""UniversalSearch: choose with the average over all stored models (III-B, V-C)."""

from __future__ import annotations

from typing import ClassVar

from scavenger.cluster import ConfigSpace
from scavenger.planning.search.corners import format_corner_count, probe_corners
from scavenger.planning.search.strategy import Probe, TrainOn, choose_config, fit_own_or_stored
from scavenger.planning.state import (
    FittedModel,
    PlanningState,
    average_other_models,
    format_job_count,
)


class UniversalSearch:
    """The average over the models of all other jobs chooses; nothing is probed."""

    name: ClassVar[str] = "universal"

    def search(self, state: PlanningState) -> Probe | TrainOn:
        average = average_other_models(state)
        if average is not None:
            jobs = format_job_count(state.comparable_models)
            source = f"no search: the average over the models of {jobs}"
            return choose_config(state, average, source, searched=False)
        why = "no model is stored to average over, so the corners are probed"
        return probe_corners(state, why)

    def fit(self, state: PlanningState) -> FittedModel | None:
        return average_other_models(state) or fit_own_or_stored(state)

    def describe(self, space: ConfigSpace) -> str:
        return (
            f"the average of all stored models; without any, probes of {format_corner_count(space)}"
        )
