"""Restriction: which part of a table is predicted, as a job would be limited to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scavenger.indicators import Measurement
from scavenger.search.design import corners

# A window with fewer counts or rows than this is no space to choose in.
FEWEST_COUNTS = 3
FEWEST_ROWS = 6


@dataclass(frozen=True, slots=True)
class Restriction:
    """Limits on workers, and on how far batches lie apart.

    Attributes:
        fewest: Fewest workers.
        most: Most workers; None without limit.
        batch_ratio: Largest batch of a window over its smallest; None for the whole table at once.
        needs_corners: Whether what has fewer than four distinct corners is left out: with one
            batch for each worker count nothing tells compute from synchronisation.
    """

    fewest: int = 1
    most: int | None = None
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
            if m.config.workers >= self.fewest
            and (self.most is None or m.config.workers <= self.most)
        )
        windows = self._split(kept)
        if self.needs_corners:
            windows = tuple(w for w in windows if len(corners([m.config for m in w])) == 4)
        return windows

    def _split(self, kept: tuple[Measurement, ...]) -> tuple[tuple[Measurement, ...], ...]:
        if self.batch_ratio is None:
            return (kept,) if kept else ()
        starts = sorted({m.config.global_batch for m in kept})
        opened = (
            tuple(m for m in kept if low <= m.config.global_batch <= self.batch_ratio * low)
            for low in starts
        )
        return tuple(dict.fromkeys(window for window in opened if is_space(window)))


def is_space(window: Sequence[Measurement]) -> bool:
    """Tell whether there is something to choose in a window."""
    counts = {m.config.workers for m in window}
    return len(counts) >= FEWEST_COUNTS and len(window) >= FEWEST_ROWS
