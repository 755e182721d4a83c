"""Measured series: when each iteration took place, and buckets that keep every extreme.

All pure. Times are seconds since 1970; NaN stands for a value that is missing or was not finite.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from service.db.step_arrays import FloatArray, IntArray

# A pause is a gap where it is this many times longer than most iterations, and this many seconds.
GAP_FACTOR, MIN_GAP = 10.0, 5.0
NOISE_WINDOW = 50  # iterations whose noise is averaged before a ratio is taken


@dataclass(frozen=True, slots=True)
class MeasuredSeries:
    """A series of values, in order of time.

    Attributes:
        at: When.
        values: NaN where there is none.
        nonfinite: Values that were NaN or infinite.
        gap: Seconds without a value from which on a line is interrupted.
    """

    at: FloatArray
    values: FloatArray
    nonfinite: int = 0
    gap: float = np.inf

    def within(self, since: float, until: float) -> MeasuredSeries:
        """Return what lies in a span."""
        kept = (self.at >= since) & (self.at <= until)
        return MeasuredSeries(self.at[kept], self.values[kept], self.nonfinite, self.gap)


@dataclass(frozen=True, slots=True)
class Buckets:
    """A series as the least and the largest value of each bucket.

    Attributes:
        at: When each begins.
        low: NaN where a bucket has no value, and between two parts with a gap between them.
        high: The same.
    """

    at: FloatArray
    low: FloatArray
    high: FloatArray


def bucket_series(series: MeasuredSeries, most: int) -> Buckets:
    """Return a series in buckets of equally many values, none of which spans a gap.

    Args:
        series: The series.
        most: Entries of the result at most, at least 4.
    """
    at, values, count = series.at, series.values, len(series.at)
    if not count:
        return Buckets(at, values, values)
    begins = np.concatenate([[0], gap_places(at, series.gap, most // 4)])
    ends = np.concatenate([begins[1:], [count]])
    size = max(-(-count // max(most - 2 * len(begins) + 1, 1)), 1)
    starts = np.concatenate([np.arange(a, b, size) for a, b in zip(begins, ends, strict=True)])
    low, high = np.fmin.reduceat(values, starts), np.fmax.reduceat(values, starts)
    # Between two parts stands an entry without a value, half-way through the gap.
    places = np.searchsorted(starts, begins[1:])
    middles = (at[begins[1:] - 1] + at[begins[1:]]) / 2
    return Buckets(
        np.insert(at[starts], places, middles),
        np.insert(low, places, np.nan),
        np.insert(high, places, np.nan),
    )


def gap_places(at: FloatArray, gap: float, most: int) -> IntArray:
    """Return the places of the first values after the longest gaps, in order."""
    pauses = np.diff(at)
    found = np.flatnonzero(pauses > gap) + 1
    if len(found) >= most:
        longest = np.argsort(pauses[found - 1], kind="stable")[::-1][: max(most - 1, 0)]
        found = np.sort(found[longest])
    return found


def usual_gap(at: FloatArray) -> float:
    """Return the seconds from which on a pause is a gap."""
    return MIN_GAP if len(at) < 2 else max(GAP_FACTOR * float(np.median(np.diff(at))), MIN_GAP)


def row_times(received: FloatArray, rows: IntArray, step_time: FloatArray) -> FloatArray:
    """Return when each iteration of a worker ended, from when its reports arrived.

    Iterations follow each other, and each ends before its report arrives. A report that was held up
    arrives with those after it, so each report ends before the next one begins.

    Args:
        received: When each report arrived, in the order in which they were sent.
        rows: Iterations of each.
        step_time: Seconds of each iteration, over all reports.
    """
    trained = np.cumsum(step_time)
    ends = np.cumsum(rows)
    begun = received - trained[ends - 1]  # when training would have begun, without any pause
    begun = np.minimum.accumulate(begun[::-1])[::-1]
    return trained + np.repeat(begun, rows)


def rolling_noise(
    local_norm_sq: FloatArray,
    mean_norm_sq: FloatArray,
    shards: FloatArray,
    global_batch: FloatArray,
) -> tuple[FloatArray, FloatArray]:
    """Return γ and φ of a few iterations up to each (Eq. 2); NaN where they tell none.

    Every piece is averaged before a ratio is taken, and never over two configurations.

    Args:
        local_norm_sq: Mean over shards of ||g_k||² of each iteration, finite.
        mean_norm_sq: ||ḡ||² of each.
        shards: At least 2.
        global_batch: Samples.
    """
    noise, scale = np.full(len(shards), np.nan), np.full(len(shards), np.nan)
    spread = (local_norm_sq - mean_norm_sq) / (shards - 1)
    changes = np.flatnonzero((np.diff(shards) != 0) | (np.diff(global_batch) != 0)) + 1
    for part in np.split(np.arange(len(shards)), changes):
        if not len(part):
            continue
        local, mean, wide = (
            rolling_mean(one[part], NOISE_WINDOW) for one in (local_norm_sq, mean_norm_sq, spread)
        )
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            noise[part] = np.where(mean > 0, local / mean, np.nan)
            found = np.maximum(wide * global_batch[part], 0.0) / (mean - wide)
            scale[part] = np.where(mean > wide, found, np.nan)
    return noise, scale


def rolling_mean(values: FloatArray, window: int) -> FloatArray:
    """Return the mean of up to so many values, each with those before it.

    >>> rolling_mean(np.array([1.0, 3.0, 5.0]), 2).tolist()
    [1.0, 2.0, 4.0]
    """
    # No difference of running totals: after one large norm it would hold nothing of small ones.
    total = np.convolve(values, np.ones(window))[: len(values)]
    mean: FloatArray = total / np.minimum(np.arange(1, len(values) + 1), window)
    return mean


def concatenate(parts: Sequence[NDArray[np.float64]]) -> FloatArray:
    """Return parts in one; empty without any."""
    return np.concatenate(parts) if parts else np.empty(0)
