"""Extrapolates a learning curve: when will the metric reach its goal, and how sure is that?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Literal

import numpy as np

from scavenger.cluster import Floats
from scavenger.models.iteration_time import Z_90

MIN_CURVE_VALUES = 8
MAX_BINS = 40
EXPONENTS = tuple(np.geomspace(0.2, 3.0, 20).tolist())
# Where the power law begins, as shares of the progress seen: after a while, or before the start.
DELAYS = (*(-np.geomspace(0.003, 1, 10)).tolist(), 0.0, 0.1, 0.3)
# Standard deviations at the middle of five slices of equal chance.
QUANTILE_SCORES = (-1.28, -0.52, 0.0, 0.52, 1.28)
# Neighbouring values err alike, and no power law is exact: each tells less than a new one would.
EVIDENCE_WEIGHT = 0.1
# Earlier than this share of what was seen nothing tells about the end.
EARLIEST_SHARE = 1e-6
# No curve is trusted beyond this many times what was seen of it.
MAX_EXTRAPOLATION_FACTOR = 50.0


@dataclass(frozen=True, slots=True)
class Extrapolation:
    """When a metric is expected to reach its goal.

    Attributes:
        epochs: Median of the reference epochs at which it is reached.
        low: Reference epochs that 10 % of the likely curves need at most.
        high: Reference epochs that 90 % of the likely curves need at most; infinite when more than
            a tenth of them never get there.
        chance: Share of the likely curves that reach the goal at all.
    """

    epochs: float
    low: float
    high: float
    chance: float

    @property
    def deviation(self) -> float:
        """Relative standard deviation of ``epochs``; of the lower side where ``high`` is open."""
        if math.isfinite(self.high):
            return math.log(self.high / self.low) / (2 * Z_90)
        return 2 * math.log(self.epochs / self.low) / Z_90


@dataclass(frozen=True, slots=True)
class PowerLaw:
    """Shape of one learning curve.

    Attributes:
        exponent: c of (x - x_0)^(-c).
        delay: x_0 as a share of the progress seen.
    """

    exponent: float
    delay: float


def extrapolate_learning_curve(
    progress: Sequence[float],
    values: Sequence[float],
    goal: float,
    direction: Literal["at_least", "at_most"],
) -> Extrapolation | None:
    """Extrapolate a learning curve as many power laws, each weighed by how well it fits.

    v(x) = v_end + a (x - x_0)^(-c) with unknown end, delay and exponent. What is uncertain about
    them is what the interval says: an early curve allows many ends (SCIENCE §2).

    Args:
        progress: Reference epochs of each value, ascending and positive.
        values: The metric as logged.
        goal: Value to reach.
        direction: Whether the metric grows or falls towards its goal.

    Returns:
        When the goal is reached; None while values are too few, or when it is more likely than
        not never reached: keep the curve relative then.
    """
    kept = [(x, v) for x, v in zip(progress, values, strict=True) if math.isfinite(v)]
    last = max((x for x, _ in kept), default=0.0)
    # In units of what was seen, so that no logarithm or power overflows.
    shares = np.array([x / last if last > 0 else 0.0 for x, _ in kept])
    above = np.array([v - goal for _, v in kept]) * (1.0 if direction == "at_most" else -1.0)
    known = shares > EARLIEST_SHARE
    height = float(np.ptp(above[known])) if known.sum() >= MIN_CURVE_VALUES else 0.0
    if not (math.isfinite(height) and height > 0):
        return None
    at, seen, worth = bin_medians(shares[known], above[known] / height)
    laws = [PowerLaw(exponent, delay) for exponent, delay in product(EXPONENTS, DELAYS)]
    curves = [fit_power_law(at, seen, worth, law) for law in laws]
    found = weighted_quantiles([curve for curve in curves if curve is not None], len(at))
    if found is None:
        return None
    return replace(found, epochs=found.epochs * last, low=found.low * last, high=found.high * last)


def bin_medians(at: Floats, values: Floats) -> tuple[Floats, Floats, Floats]:
    """Return medians over bins of equal length in the logarithm, and how much each is worth."""
    edges = np.geomspace(at[0], at[-1] * (1 + 1e-9), min(MAX_BINS, len(at)) + 1)
    place = np.digitize(at, edges[1:-1])
    bins = np.unique(place)
    return (
        np.array([at[place == number].mean() for number in bins]),
        np.array([np.median(values[place == number]) for number in bins]),
        np.sqrt(np.array([np.count_nonzero(place == number) for number in bins])),
    )


def fit_power_law(
    at: Floats, seen: Floats, worth: Floats, law: PowerLaw
) -> tuple[float, tuple[float, ...]] | None:
    """Fit one power law; return its squared error, and where it meets 0 in slices of chance."""
    late = at > law.delay * 1.2
    if late.sum() < MIN_CURVE_VALUES // 2:
        return None
    falling = (at[late] - law.delay) ** -law.exponent
    weights = worth[late] / np.sqrt(np.mean(worth[late] ** 2))
    columns = np.column_stack([np.ones(late.sum()), falling / falling.max()]) * weights[:, None]
    (end, height), *_ = np.linalg.lstsq(columns, seen[late] * weights, rcond=None)
    error = float(np.mean((columns @ np.array([end, height]) - seen[late] * weights) ** 2))
    if height <= 0:
        return error, (math.inf,) * len(QUANTILE_SCORES)
    covariance = np.linalg.inv(columns.T @ columns) * error
    crossings = []
    for slice_ in QUANTILE_SCORES:
        level = end + slice_ * math.sqrt(covariance[0, 0])
        # The end and the height err together: a lower end goes with a higher curve.
        tall = height + slice_ * covariance[0, 1] / math.sqrt(covariance[0, 0] or 1.0)
        ratio = -level / tall * falling.max() if tall > 0 else 0.0
        crossings.append(law.delay + ratio ** (-1 / law.exponent) if ratio > 0 else math.inf)
    return error, tuple(crossings)


def weighted_quantiles(
    curves: Sequence[tuple[float, tuple[float, ...]]], count: int
) -> Extrapolation | None:
    """Weigh every curve by its likelihood and return quantiles of where they cross."""
    if not curves:
        return None
    errors = np.array([max(error, 1e-300) for error, _ in curves])
    likelihood = np.exp(-0.5 * count * EVIDENCE_WEIGHT * np.log(errors / errors.min()))
    crossings = np.array([crossing for _, crossing in curves]).ravel()
    weights = np.repeat(likelihood, len(QUANTILE_SCORES))
    crossings[(crossings > MAX_EXTRAPOLATION_FACTOR) | (crossings <= 0)] = math.inf
    order = np.argsort(crossings)
    share = np.cumsum(weights[order]) / weights.sum()
    low, middle, high = (
        float(crossings[order][min(int(np.searchsorted(share, q)), len(order) - 1)])
        for q in (0.1, 0.5, 0.9)
    )
    if not math.isfinite(middle):
        return None
    return Extrapolation(
        middle, low, high, float(weights[np.isfinite(crossings)].sum() / weights.sum())
    )
