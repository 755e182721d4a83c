"""Batch: measured iterations as arrays, as they are judged, summarised and packed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scavenger.protocol import StepColumns

Whole = NDArray[np.int64]
Series = NDArray[np.float64]
Mask = NDArray[np.bool_]

LONGEST_TIME = 1e9  # seconds
LARGEST = 1e80  # whose square a sum still holds; a norm of single-precision gradients is below 1e77
MOST_SHARDS = 1 << 20

NAMES = (
    "local_norm_sq",
    "mean_norm_sq",
    "compute_time",
    "sync_time",
    "step_time",
    "loss",
    "mean_compute_time",
    "fastest_compute_time",
)
TIMES = frozenset(name for name in NAMES if name.endswith("_time"))
MAY_LACK = np.array([name not in TIMES for name in NAMES])
LOWEST = np.array([-LARGEST if name == "loss" else 0.0 for name in NAMES])
HIGHEST = np.array([LONGEST_TIME if name in TIMES else LARGEST for name in NAMES])


@dataclass(frozen=True, slots=True)
class Batch:
    """Measured iterations of one stream and generation, in order.

    Attributes:
        offset: Place of each row behind the first of its report.
        iteration: Number of each iteration.
        shards: Independent gradient shards its norms were taken over.
        series: The measured values by name and row; NaN where a norm or loss was not finite.
    """

    offset: Whole
    iteration: Whole
    shards: Whole
    series: Series

    def __len__(self) -> int:
        return len(self.iteration)

    def where(self, mask: Mask) -> Batch:
        """Return the rows that are marked."""
        return Batch(
            self.offset[mask], self.iteration[mask], self.shards[mask], self.series[:, mask]
        )

    def since(self, offset: int) -> Batch:
        """Return the rows that do not lie before a place."""
        if offset <= 0:
            return self
        return self.where(self.offset >= offset)


def batch_of(columns: StepColumns) -> Batch:
    """Turn columns as they were sent into arrays."""
    rows = len(columns)
    series = np.array([getattr(columns, name) for name in NAMES], np.float64)
    return Batch(
        np.arange(rows),
        np.array(columns.iteration, np.int64),
        np.array(columns.shards, np.int64),
        series.reshape(len(NAMES), rows),
    )


def columns_of(batch: Batch) -> StepColumns:
    """Turn arrays into columns."""
    series = batch.series.astype(object)
    series[np.isnan(batch.series)] = None
    return StepColumns(
        iteration=tuple(batch.iteration.tolist()),
        shards=tuple(batch.shards.tolist()),
        **{name: tuple(column) for name, column in zip(NAMES, series.tolist(), strict=True)},
    )


def useless(batch: Batch) -> dict[int, str]:
    """Return why rows cannot be used, by their place: none but such that no fit could bear."""
    series = batch.series
    lies_within = (series >= LOWEST[:, None]) & (series <= HIGHEST[:, None])
    is_usable = lies_within | (np.isnan(series) & MAY_LACK[:, None])
    has_shards = (batch.shards >= 1) & (batch.shards <= MOST_SHARDS)
    if is_usable.all() and has_shards.all():
        return {}
    said = {int(batch.offset[row]): f"shards: {SHARDS}" for row in np.flatnonzero(~has_shards)}
    for name, row in np.argwhere(~is_usable).tolist():
        said.setdefault(int(batch.offset[row]), f"{NAMES[name]}: {limits(name)}")
    return said


SHARDS = f"must lie between 1 and {MOST_SHARDS}"


def limits(name: int) -> str:
    """Say between which values a series lies."""
    return f"must lie between {LOWEST[name]:g} and {HIGHEST[name]:g}"
