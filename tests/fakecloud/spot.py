"""Prices of the spot market, which move by themselves and are the same for the same seed."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from random import Random


@dataclass(frozen=True, slots=True)
class SpotPrices:
    """Prices as shares of the on-demand price, each valid for one period in one place.

    Attributes:
        low: Lowest share.
        high: Highest share.
        period: Seconds between two changes.
    """

    seed: int = 0
    low: float = 0.3
    high: float = 0.7
    period: float = 600.0

    def __post_init__(self) -> None:
        if not (0 < self.low <= self.high <= 1 and self.period > 0):
            raise ValueError(f"0 < low <= high <= 1 and a period above 0, got {self}")

    def share(self, place: str, moment: float) -> Fraction:
        """Return which part of the on-demand price is paid at a moment."""
        turn = math.floor(moment / self.period)
        drawn = Random(f"{self.seed} {place} {turn}").uniform(self.low, self.high)
        return Fraction(round(drawn, 4)).limit_denominator(10**4)

    def changes(self, place: str, start: float, end: float) -> Iterator[tuple[float, Fraction]]:
        """Yield since when which share was valid, from the one at the start on, oldest first."""
        for turn in range(math.floor(start / self.period), math.floor(end / self.period) + 1):
            since = turn * self.period
            yield since, self.share(place, since)

    def seconds(self, place: str, start: float, length: Fraction) -> Fraction:
        """Return as how many on-demand seconds so many seconds from a start are billed."""
        begin = Fraction(start)
        end, period, paid = begin + length, Fraction(self.period), Fraction(0)
        while begin < end:
            turn = begin // period
            until = min((turn + 1) * period, end)
            paid += self.share(place, float(turn * period)) * (until - begin)
            begin = until
        return paid
