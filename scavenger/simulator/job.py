"""SimulatedJob: a training job that trains only when told to; of a KnownJob the truth is known."""

from __future__ import annotations

from typing import Protocol

from scavenger.cluster import ClusterConfig
from scavenger.protocol import StepColumns


class SimulatedJob(Protocol):
    """One training run, from its first iteration to its target."""

    @property
    def dataset_size(self) -> int:
        """Samples of one epoch."""

    @property
    def is_finished(self) -> bool:
        """Tell whether the target is reached."""

    def advance(self, config: ClusterConfig, iterations: int) -> StepColumns:
        """Train this many iterations, fewer if the target is reached on the way.

        Returns:
            What workers would report of them: one row per iteration, seconds as a clock would
            have shown them.
        """


class KnownJob(SimulatedJob, Protocol):
    """A simulated job that tells an oracle what every configuration would take."""

    @property
    def progress(self) -> float:
        """Share of the training that is done, from 0 to 1."""

    def epochs_needed(self, global_batch: int) -> float:
        """Epochs to target at one batch from the first iteration on."""

    def compute_time(self, config: ClusterConfig) -> float:
        """Mean seconds of an iteration that are not synchronisation, over a whole run."""

    def sync_time(self, config: ClusterConfig) -> float:
        """Mean exposed seconds of synchronisation, over a whole run."""

    def seconds_to(self, config: ClusterConfig, share: float) -> float:
        """Seconds from the first iteration to this share of the training, in one configuration."""
