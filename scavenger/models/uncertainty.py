"""Uncertainty: how far a fitted law may be from what a clock would show."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from scavenger.grid import Floats

# Repeats of one configuration differ by 2-5 % on public data (SCIENCE §3).
REPEATS = 0.03
# 80 % of a normal distribution lie within this many standard deviations.
TENTH = 1.2815515655446004


@dataclass(frozen=True, slots=True)
class Uncertainty:
    """What a fit by relative least squares leaves open.

    Attributes:
        spread: Relative standard deviation of one configuration around the law: repeats differ,
            and no law of a few terms is exact.
        covariance: Covariance of the coefficients' relative errors, in units of spread².
    """

    spread: float
    covariance: tuple[tuple[float, ...], ...]

    def __post_init__(self) -> None:
        if not (math.isfinite(self.spread) and self.spread >= 0):
            raise ValueError(f"spread must be finite and not negative, got {self.spread}")

    @property
    def repeats(self) -> float:
        """Relative standard deviation of a configuration that was measured itself."""
        return min(self.spread, REPEATS)

    def deviations(self, elasticities: Floats) -> Floats:
        """Relative standard deviations of predictions, from their elasticities, one per row."""
        matrix = np.array(self.covariance)
        leverage = ((elasticities @ matrix) * elasticities).sum(axis=1)
        return np.asarray(self.spread * np.sqrt(1 + np.maximum(leverage, 0.0)))
