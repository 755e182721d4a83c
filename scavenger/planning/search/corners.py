"""CornerSearch: profile only the corners of the grid (Sections III-C and III-D)."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from scavenger.cluster import ClusterConfig, ConfigSpace


@dataclass(frozen=True, slots=True)
class CornerSearch:
    """Profile the corners, ordered so that machines are only added, and predict the rest.

    Attributes:
        per_hardware: Corners to profile of the first kind of machines, the fourth last.
    """

    per_hardware: int = 4

    def next_probe(
        self, space: ConfigSpace, seen: Collection[ClusterConfig]
    ) -> ClusterConfig | None:
        """Return the first unseen corner."""
        return next((c for c in space.corners(self.per_hardware) if c not in seen), None)

    def probes(self, space: ConfigSpace) -> int:
        """Return the number of corners, four or fewer."""
        return len(space.corners(self.per_hardware))
