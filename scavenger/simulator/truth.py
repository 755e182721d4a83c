"""Truth: what a synthetic job's configurations really take, whatever anybody measures of it."""

from __future__ import annotations

from typing import Protocol

from scavenger.cluster import ClusterConfig


class Truth(Protocol):
    """Means over a whole run, without what disturbs single iterations."""

    @property
    def dataset_size(self) -> int:
        """Samples of one epoch."""

    @property
    def noise_scale(self) -> float | None:
        """Noise scale φ in samples; None where gradients are not measured."""

    def epochs_needed(self, global_batch: int) -> float:
        """Epochs to target."""

    def compute_time(self, config: ClusterConfig) -> float:
        """Seconds of an iteration that are not synchronisation."""

    def sync_time(self, config: ClusterConfig) -> float:
        """Exposed seconds of synchronisation."""
