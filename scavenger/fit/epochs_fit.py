"""EpochsFit: what a batch costs in epochs, as far as request and table tell."""

from __future__ import annotations

import math
from dataclasses import dataclass

from scavenger.fit.request import FitRequest
from scavenger.indicators import Observation, ScalingIndicators
from scavenger.models.epochs import EpochsSeen, average_runs, fit_statistical
from scavenger.models.epochs_level import epochs_at
from scavenger.models.statistical import StatisticalModel
from scavenger.tables.step_table import StepTable


@dataclass(frozen=True, slots=True)
class EpochsFit:
    """A law of epochs by batch, and its level.

    Attributes:
        model: The law.
        reference_batch: Batch at which epochs are counted, samples.
        epochs: Epochs to target there; None while unknown.
        deviation: Relative standard deviation of ``epochs``.
    """

    model: StatisticalModel
    reference_batch: int
    epochs: float | None
    deviation: float


def learn_epochs(table: StepTable, request: FitRequest) -> EpochsFit:
    """Fit the law of epochs to what runs, a given noise scale or the table's noise tell."""
    runs = average_runs(request.runs)
    model = fit_statistical(observations_of(table, request), runs=runs, laws=request.laws)
    reference = reference_batch(table, request, runs)
    if request.epochs is not None or not runs:
        return EpochsFit(model, reference, request.epochs, 0.0)
    # The level is a mean over the runs; their law alone is what it deviates by.
    deviation = model.spread / math.sqrt(len(runs))
    return EpochsFit(model, reference, epochs_at(model, runs, reference), deviation)


def observations_of(table: StepTable, request: FitRequest) -> tuple[Observation, ...]:
    """Return what tells about noise: the noise scale that was given, or else the table."""
    if request.noise_scale is None:
        return table.observations
    indicators = ScalingIndicators(None, request.noise_scale, 0.0, 0.0)
    return (Observation(table.measurements[0].config, indicators, 1),)


def reference_batch(table: StepTable, request: FitRequest, runs: tuple[EpochsSeen, ...]) -> int:
    """Return the batch at which epochs are counted; ``runs`` are one for each batch."""
    if request.at_batch is not None:
        return request.at_batch
    if runs:
        return runs[len(runs) // 2].global_batch
    return min(m.config.global_batch for m in table.measurements)
