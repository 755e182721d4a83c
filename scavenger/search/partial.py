"""PartialSearch: profile only the corners of the grid (Sections III-C and III-D)."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from scavenger.cluster import ClusterConfig, ConfigSpace


@dataclass(frozen=True, slots=True)
class PartialSearch:
    """Profile the corners, ordered so that machines are only added, and predict the rest."""

    def next_probe(
        self, space: ConfigSpace, seen: Collection[ClusterConfig]
    ) -> ClusterConfig | None:
        """Return the first unseen corner."""
        return next((config for config in space.corners() if config not in seen), None)

    def probes(self, space: ConfigSpace) -> int:
        """Return the number of corners, four or fewer."""
        return len(space.corners())
