"""MeasuredTruth: a truth that was measured, configuration by configuration and batch by batch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from scavenger.cluster import ClusterConfig
from scavenger.measurement.profiling import Measurement
from scavenger.models.forms import Topology
from scavenger.models.iteration_time_fitting import fit_step_time


@dataclass(frozen=True, slots=True)
class MeasuredTruth:
    """What was measured is the truth.

    Attributes:
        seconds: How long an iteration takes in each configuration, compute measured apart.
        epochs: Epochs to target by batch; between batches a power law.
        dataset_size: Samples of one epoch.
        noise_scale: φ in samples; None where gradients were not measured.
    """

    seconds: Mapping[ClusterConfig, Measurement]
    epochs: Mapping[int, float]
    dataset_size: int
    noise_scale: float | None = None

    def __post_init__(self) -> None:
        if not self.seconds:
            raise ValueError("seconds is empty: a table needs a configuration")
        if not self.epochs:
            raise ValueError("epochs is empty: a table needs a batch")
        for config, measurement in self.seconds.items():
            if measurement.compute_time is None:
                raise ValueError(f"compute of {config} was not measured apart: use split_table")
        for batch, epochs in self.epochs.items():
            if not (math.isfinite(epochs) and epochs > 0):
                raise ValueError(f"epochs of batch {batch} must be positive, got {epochs}")

    def epochs_needed(self, global_batch: int) -> float:
        """Epochs to target, linear in log B and log e between measured batches.

        Raises:
            ValueError: The batch lies outside of what was measured.
        """
        batches = sorted(self.epochs)
        if not batches[0] <= global_batch <= batches[-1]:
            raise ValueError(
                f"no epochs for batch {global_batch}: measured from {batches[0]} to {batches[-1]}"
            )
        epochs = np.log([self.epochs[batch] for batch in batches])
        return math.exp(np.interp(math.log(global_batch), np.log(batches), epochs))

    def compute_time(self, config: ClusterConfig) -> float:
        """Measured seconds of an iteration that are not synchronisation."""
        return self._measurement(config).compute_time or 0.0

    def sync_time(self, config: ClusterConfig) -> float:
        """Measured seconds of synchronisation."""
        return max(self._measurement(config).step_time - self.compute_time(config), 0.0)

    def _measurement(self, config: ClusterConfig) -> Measurement:
        if config not in self.seconds:
            raise ValueError(f"{config} is not in the table of {len(self.seconds)} configurations")
        return self.seconds[config]


def split_table(
    measurements: Sequence[Measurement], topology: Topology = "all_reduce"
) -> dict[ClusterConfig, Measurement]:
    """Return measured seconds by configuration, compute apart.

    Where compute was not measured apart, it gets the share that the law of the whole table gives.
    """
    law = fit_step_time(measurements, topology)
    table = {}
    for measurement in measurements:
        config, compute = measurement.config, measurement.compute_time
        if compute is None:
            total = law.step_time(config)
            part = law.compute_time(config) / total if total > 0 else 1.0
            compute = measurement.step_time * part
        table[config] = replace(measurement, compute_time=compute)
    return table
