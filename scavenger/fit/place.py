"""Place: a configuration as a report names it."""

from __future__ import annotations

from dataclasses import dataclass

from scavenger.cluster import ClusterConfig


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """A configuration.

    Attributes:
        workers: K.
        global_batch: B in samples.
        machines: Machines the workers sit on.
    """

    workers: int
    global_batch: int
    machines: int


def place_of(config: ClusterConfig) -> Place:
    """Return where a configuration stands."""
    return Place(config.workers, config.global_batch, config.machines)
