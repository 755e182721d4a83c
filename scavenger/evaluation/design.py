"""Which rows of a table laws are fitted to: those a search would probe, or random ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal
from zlib import crc32

import numpy as np

from scavenger.indicators import Measurement
from scavenger.search.design import spread_out

DesignName = Literal["search", "random"]
Profile = tuple[Measurement, ...]


@dataclass(frozen=True, slots=True)
class SearchDesign:
    """The configurations that a search would probe, corners first: one choice for each size."""

    name: ClassVar[DesignName] = "search"

    def profiles(self, window: Sequence[Measurement], points: int) -> tuple[Profile, ...]:
        """Return the measurements that a search would make with this many probes."""
        by_config = {m.config: m for m in window}
        return (tuple(by_config[config] for config in spread_out(tuple(by_config), points)),)


@dataclass(frozen=True, slots=True)
class RandomDesign:
    """Random configurations, as a table has them that was measured for another reason.

    Attributes:
        draws: Choices for each size.
        seed: The same seed draws the same rows of the same table, alone or among others.
    """

    draws: int
    seed: int = 0

    name: ClassVar[DesignName] = "random"

    def __post_init__(self) -> None:
        if self.draws < 1 or self.seed < 0:
            raise ValueError(f"draws {self.draws} must be at least 1, seed {self.seed} at least 0")

    def profiles(self, window: Sequence[Measurement], points: int) -> tuple[Profile, ...]:
        """Return as many random choices as asked for, each without repeats."""
        listed = sorted(window, key=lambda m: m.config)
        which = crc32("; ".join(str(m.config) for m in listed).encode())
        return tuple(
            self._draw(listed, np.random.default_rng([self.seed, which, points, number]), points)
            for number in range(self.draws)
        )

    def _draw(
        self, listed: Sequence[Measurement], rng: np.random.Generator, points: int
    ) -> Profile:
        rows = rng.choice(len(listed), min(points, len(listed)), replace=False)
        return tuple(listed[row] for row in rows)


Design = SearchDesign | RandomDesign
