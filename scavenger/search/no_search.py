"""NoSearch: profile nothing, a stored model says everything (Section III-E)."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from scavenger.cluster import ClusterConfig, ConfigSpace


@dataclass(frozen=True, slots=True)
class NoSearch:
    """Profile nothing."""

    def next_probe(
        self, space: ConfigSpace, seen: Collection[ClusterConfig]
    ) -> ClusterConfig | None:
        """Return None: there is always enough."""
        return None

    def probes(self, space: ConfigSpace) -> int:
        """Return zero."""
        return 0
