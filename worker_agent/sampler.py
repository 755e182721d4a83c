"""`SampleOrder`: which samples an iteration uses, as a pure function of the position in the job.

The position counts samples, not iterations, so changing workers or batch in the middle of an
epoch loses no sample and repeats none.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

SampleIndices = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class SampleRange:
    """A contiguous part of one iteration's samples.

    Attributes:
        start: First position, in samples since the start of the job.
        count: Number of samples.
    """

    start: int
    count: int

    def split(self, parts: int) -> tuple[SampleRange, ...]:
        """Cut into parts whose sizes differ by at most one, in order.

        >>> SampleRange(10, 5).split(2)
        (SampleRange(start=10, count=2), SampleRange(start=12, count=3))
        """
        return tuple(self.part(index, parts) for index in range(parts))

    def part(self, index: int, parts: int) -> SampleRange:
        """Return one of the parts that ``split`` returns."""
        low, high = (self.start + self.count * edge // parts for edge in (index, index + 1))
        return SampleRange(low, high - low)


@dataclass(frozen=True, slots=True)
class SampleAssignment:
    """Samples that a parameter server has assigned to one worker.

    Attributes:
        share: The samples; None if none are left for now.
        is_over: Whether none will ever be left again.
        samples_used: Samples that all workers have used so far.
        has_converged: Whether none are left because nothing is left to improve.
    """

    share: SampleRange | None
    is_over: bool
    samples_used: int
    has_converged: bool = False


@dataclass(frozen=True, slots=True)
class SampleOrder:
    """An endless stream of shuffled epochs; every epoch contains every sample exactly once.

    Attributes:
        dataset_size: Samples per epoch.
        seed: Seed of the shuffles; the same on every worker.
    """

    dataset_size: int
    seed: int

    def __post_init__(self) -> None:
        if self.dataset_size < 1:
            raise ValueError(f"dataset_size must be at least 1, got {self.dataset_size}")

    def indices(self, share: SampleRange) -> SampleIndices:
        """Return the dataset indices at these positions, shape (share.count,)."""
        pieces = []
        position, left = share.start, share.count
        while left > 0:
            epoch, offset = divmod(position, self.dataset_size)
            piece = shuffled_epoch(self.dataset_size, self.seed, epoch)[offset : offset + left]
            pieces.append(piece)
            position, left = position + len(piece), left - len(piece)
        return np.concatenate(pieces) if pieces else np.empty(0, dtype=np.int64)


@lru_cache(maxsize=4)
def shuffled_epoch(dataset_size: int, seed: int, epoch: int) -> SampleIndices:
    """Return the permutation of one epoch, the same on every machine."""
    # PCG64 by name: default_rng may choose another generator in a later NumPy.
    return np.random.Generator(np.random.PCG64([seed, epoch])).permutation(dataset_size)
