"""FullSearch: profile every configuration (Section III-B)."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from scavenger.cluster import ClusterConfig, ConfigSpace


@dataclass(frozen=True, slots=True)
class FullSearch:
    """Profile every configuration, by workers, so that machines are only added."""

    def next_probe(
        self, space: ConfigSpace, seen: Collection[ClusterConfig]
    ) -> ClusterConfig | None:
        """Return the first unseen configuration."""
        return next((config for config in space if config not in seen), None)

    def probes(self, space: ConfigSpace) -> int:
        """Return the size of the grid."""
        return len(tuple(space))
