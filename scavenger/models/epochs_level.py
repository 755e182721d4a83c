"""From the shape of an epochs law to epochs: how long the runs took that it was fitted to."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from scavenger.errors import NotEnoughData
from scavenger.models.epochs import EpochsSeen
from scavenger.models.statistical import StatisticalModel


def epochs_at(model: StatisticalModel, runs: Sequence[EpochsSeen], global_batch: int) -> float:
    """Return epochs to target at a batch, by relative least squares on runs.

    Raises:
        NotEnoughData: No run, so only ratios of epochs are known: finish one.
    """
    if not runs:
        raise NotEnoughData("no finished run tells how many epochs the target takes")
    batches = np.array([run.global_batch for run in runs], dtype=float)
    ratios = model.shape(batches) / np.array([run.epochs for run in runs])
    factor = ratios.sum() / np.square(ratios).sum()
    return float(factor * model.shape(np.array([float(global_batch)]))[0])
