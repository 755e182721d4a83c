"""The knee of a front given as columns, found fast enough for every posterior draw.

``kneed`` says where the knee of a curve is. How sure that is follows from 64 draws of the curve;
asking ``kneed`` for each of them took longer than predicting a hundred thousand configurations. A
law (tests/laws/test_tradeoff_laws.py) holds the two together.
"""

from __future__ import annotations

import numpy as np

from scavenger.cluster import Floats

# Rounding puts points of a straight front this far from its chord.
LEAST_DEPTH = 1e-9


def knee_row(times: Floats, costs: Floats) -> int:
    """Return the row of the knee of a front.

    The first bend that kneedle finds; where it finds none, the row farthest below the chord; where
    none is below it, the end with the smaller time times cost.

    Args:
        times: Ascending, at least one.
        costs: Descending.
    """
    last = len(times) - 1
    if last == 0:
        return 0
    below = chord_depths(times, costs)
    bend = first_bend_row(times, costs) if last > 1 else None
    if bend is not None and below[bend] > LEAST_DEPTH:
        return bend
    deepest = int(np.argmax(below))
    if below[deepest] > LEAST_DEPTH:
        return deepest
    return 0 if times[0] * costs[0] <= times[last] * costs[last] else last


def chord_depths(times: Floats, costs: Floats) -> Floats:
    """Depth of each row of a front below its chord, both axes scaled to 1; 0 at the ends."""
    along = (times - times[0]) / (times[-1] - times[0])
    return np.asarray(1 - along - (costs - costs[-1]) / (costs[0] - costs[-1]))


def first_bend_row(times: Floats, costs: Floats) -> int | None:
    """Return the row of the first bend of a convex, falling curve by kneedle; None without one.

    The difference of the curve to its diagonal has a bend at a local maximum after which it falls,
    before any local minimum, by more than the mean distance of two rows.
    """
    along = scale_to_unit(times)
    fallen = scale_to_unit(costs)
    difference = (fallen.max() - fallen) - along
    before = np.append(difference[0], difference[:-1])
    after = np.append(difference[1:], difference[-1])
    is_top = (difference >= before) & (difference >= after)
    is_bottom = (difference <= before) & (difference <= after)
    rows = np.arange(len(difference))
    top = np.maximum.accumulate(np.where(is_top, rows, -1))[:-1]
    bottom = np.maximum.accumulate(np.where(is_bottom, rows, -1))[:-1]
    threshold = difference[top] - abs(np.diff(along).mean())
    falls = (top > bottom) & (difference[1:] < threshold)
    return int(top[np.argmax(falls)]) if falls.any() else None


def scale_to_unit(values: Floats) -> Floats:
    """Return values between 0 and 1."""
    return np.asarray((values - values.min()) / (values.max() - values.min()))
