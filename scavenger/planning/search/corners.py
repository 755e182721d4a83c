"""CornerSearch: probe only the corners of the grid (Sections III-C and III-D)."""

from __future__ import annotations

from typing import ClassVar

from scavenger.cluster import ConfigSpace
from scavenger.planning.search.strategy import Probe, TrainOn, fit_own_or_stored, probe_in_order
from scavenger.planning.state import FittedModel, PlanningState


class CornerSearch:
    """Probe the corners, ordered so that machines are only added, and predict the rest."""

    name: ClassVar[str] = "partial"

    def search(self, state: PlanningState) -> Probe | TrainOn:
        return probe_corners(state, "partial search probes corners only")

    def fit(self, state: PlanningState) -> FittedModel | None:
        return fit_own_or_stored(state)

    def describe(self, space: ConfigSpace) -> str:
        return f"probes of {format_corner_count(space)}"


def probe_corners(state: PlanningState, reason: str) -> Probe | TrainOn:
    """Follow the corners of the space to their end, then two probes of each further stack."""
    space = state.space
    of_stacks = [config for stack in space.stacks[1:] for config in space.stack_probes(stack)]
    return probe_in_order(state, (*space.corners(), *of_stacks), reason)


def format_corner_count(space: ConfigSpace, per_hardware: int = 4) -> str:
    """Count the corners of a space, in words."""
    count = len(space.corners(per_hardware))
    return f"{count} corner{'' if count == 1 else 's'}"
