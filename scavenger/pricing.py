"""PriceModel: what workers cost (Eq. 5)."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PriceModel:
    """A constant price per worker and hour.

    Attributes:
        price_per_hour: Dollars per worker-hour.
    """

    price_per_hour: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.price_per_hour) and self.price_per_hour >= 0):
            raise ValueError(
                f"price_per_hour must be finite and not negative, got {self.price_per_hour}"
            )

    def cost(self, workers: int, seconds: float) -> float:
        """Dollars for workers that run this long, C = T K p (Eq. 5)."""
        return workers * seconds * self.price_per_hour / 3600
