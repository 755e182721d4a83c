"""Which rows of a table are predicted, and which of them the laws are fitted to.

``Restriction`` cuts a table into windows as a job would be limited to them; a design picks the
probed rows of a window, as a search would probe them or at random.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal
from zlib import crc32

import numpy as np

from scavenger.measurement.profiling import Measurement
from scavenger.planning.search.design import corner_configs, space_filling_order

DesignName = Literal["search", "random"]
ProbedRows = tuple[Measurement, ...]


@dataclass(frozen=True, slots=True)
class SearchDesign:
    """The configurations that a search would probe, corners first: one choice for each size."""

    name: ClassVar[DesignName] = "search"

    def choose_rows(self, window: Sequence[Measurement], points: int) -> tuple[ProbedRows, ...]:
        """Return the measurements that a search would make with this many probes."""
        by_config = {m.config: m for m in window}
        return (
            tuple(by_config[config] for config in space_filling_order(tuple(by_config), points)),
        )


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

    def choose_rows(self, window: Sequence[Measurement], points: int) -> tuple[ProbedRows, ...]:
        """Return as many random choices as asked for, each without repeats."""
        listed = sorted(window, key=lambda m: m.config)
        which = crc32("; ".join(str(m.config) for m in listed).encode())
        return tuple(
            self._draw(listed, np.random.default_rng([self.seed, which, points, number]), points)
            for number in range(self.draws)
        )

    def _draw(
        self, listed: Sequence[Measurement], rng: np.random.Generator, points: int
    ) -> ProbedRows:
        rows = rng.choice(len(listed), min(points, len(listed)), replace=False)
        return tuple(listed[row] for row in rows)


Design = SearchDesign | RandomDesign

# A window with fewer counts or rows than this is no space to choose in.
MIN_WORKER_COUNTS = 3
MIN_WINDOW_ROWS = 6


@dataclass(frozen=True, slots=True)
class Restriction:
    """Limits on workers, and on how far batches lie apart.

    Attributes:
        min_workers: Fewest workers.
        max_workers: Most workers; None without limit.
        batch_ratio: Largest batch of a window over its smallest; None for the whole table at once.
        needs_corners: Whether what has fewer than four distinct corners is left out: with one
            batch for each worker count nothing tells compute from synchronisation.
    """

    min_workers: int = 1
    max_workers: int | None = None
    batch_ratio: float | None = None
    needs_corners: bool = False

    def windows(self, measurements: Sequence[Measurement]) -> tuple[tuple[Measurement, ...], ...]:
        """Return the parts of a table that are predicted one by one.

        Without a ratio that is all of it. With one, each batch begins a window, and windows of
        fewer than three worker counts or six configurations, or equal to another, are left out.
        """
        kept = tuple(
            m
            for m in measurements
            if m.config.workers >= self.min_workers
            and (self.max_workers is None or m.config.workers <= self.max_workers)
        )
        windows = self._split(kept)
        if self.needs_corners:
            windows = tuple(w for w in windows if len(corner_configs([m.config for m in w])) == 4)
        return windows

    def _split(self, kept: tuple[Measurement, ...]) -> tuple[tuple[Measurement, ...], ...]:
        if self.batch_ratio is None:
            return (kept,) if kept else ()
        starts = sorted({m.config.global_batch for m in kept})
        opened = (
            tuple(m for m in kept if low <= m.config.global_batch <= self.batch_ratio * low)
            for low in starts
        )
        return tuple(dict.fromkeys(window for window in opened if is_large_enough(window)))


def is_large_enough(window: Sequence[Measurement]) -> bool:
    """Tell whether there is something to choose in a window."""
    counts = {m.config.workers for m in window}
    return len(counts) >= MIN_WORKER_COUNTS and len(window) >= MIN_WINDOW_ROWS
