"""CornerSearch: profile only the corners of the grid (Sections III-C and III-D)."""

from __future__ import annotations

from typing import ClassVar

from scavenger.cluster import ConfigSpace
from scavenger.planning.search.strategy import Probe, Run, fit_own_or_stored, follow_list
from scavenger.planning.state import FittedModel, PlanningState


class CornerSearch:
    """Profile the corners, ordered so that machines are only added, and predict the rest."""

    name: ClassVar[str] = "partial"

    def search(self, state: PlanningState) -> Probe | Run:
        return probe_corners(state, "partial search profiles corners only")

    def fit(self, state: PlanningState) -> FittedModel | None:
        return fit_own_or_stored(state)

    def describe(self, space: ConfigSpace) -> str:
        return f"probes of {count_corners(space)}"


def probe_corners(state: PlanningState, reason: str) -> Probe | Run:
    """Follow the corners of the space to their end."""
    return follow_list(state, state.space.corners(), reason)


def count_corners(space: ConfigSpace, per_hardware: int = 4) -> str:
    """Count the corners of a space, in words."""
    count = len(space.corners(per_hardware))
    return f"{count} corner{'' if count == 1 else 's'}"
