"""SearchStrategy: the interface of all search strategies."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from scavenger.cluster import ClusterConfig, ConfigSpace


class SearchStrategy(Protocol):
    """An order in which to profile a space."""

    def next_probe(
        self, space: ConfigSpace, seen: Collection[ClusterConfig]
    ) -> ClusterConfig | None:
        """Return the next configuration to profile, or None when enough were seen."""

    def probes(self, space: ConfigSpace) -> int:
        """Number of configurations this strategy profiles in a space."""
