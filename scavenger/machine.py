"""MachineType, what one rents, and MemoryModel, which local batch fits into it (III-E)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class MachineType:
    """One size of VM in one region.

    Attributes:
        name: The cloud's word for it, e.g. ``e2-standard-4``.
        vcpus: Virtual CPUs.
        memory_gib: Memory in GiB.
        workers: Workers one machine hosts, e.g. one per accelerator.
        region: Where it is rented; prices differ by region, speed does not.
    """

    name: str
    vcpus: float
    memory_gib: float
    workers: int = 1
    region: str = ""

    def __post_init__(self) -> None:
        if not self.name or "@" in self.name:
            raise ValueError(f"name must not be empty nor hold an @, got {self.name!r}")
        for name in ("vcpus", "memory_gib"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise ValueError(f"{name} must be finite and positive, got {value}")
        if self.workers < 1:
            raise ValueError(f"workers must be at least 1, got {self.workers}")

    @property
    def key(self) -> str:
        """Name and region, by which configurations and prices refer to this type."""
        return f"{self.name}@{self.region}" if self.region else self.name


def hardware(key: str) -> str:
    """Return the part of a machine's key that decides its speed: all but the region.

    >>> hardware("e2-standard-4@us-east1")
    'e2-standard-4'
    """
    return key.partition("@")[0]


@dataclass(frozen=True, slots=True)
class MemoryModel:
    """Memory one worker needs, a line in its local batch.

    Attributes:
        fixed_gib: GiB for weights, optimizer and program.
        gib_per_sample: GiB per sample of the local batch.
    """

    fixed_gib: float
    gib_per_sample: float

    def __post_init__(self) -> None:
        for name in ("fixed_gib", "gib_per_sample"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"{name} must be finite and not negative, got {value}")

    def needed(self, local_batch: float) -> float:
        """GiB one worker needs at a local batch."""
        return self.fixed_gib + self.gib_per_sample * local_batch

    def fits(self, local_batch: float, machine: MachineType) -> bool:
        """Tell whether every worker of a machine can hold this local batch."""
        return self.needed(local_batch) * machine.workers <= machine.memory_gib

    def largest_batch(self, machine: MachineType) -> float:
        """Largest local batch in samples that fits a machine (III-E).

        Returns:
            Samples; 0 when not even the model fits, infinite when samples need no memory.

        >>> MemoryModel(2.0, 0.125).largest_batch(MachineType("e2-standard-4", 4, 16))
        112.0
        """
        if not self.fits(0, machine):
            return 0.0
        left = machine.memory_gib / machine.workers - self.fixed_gib
        most = left / self.gib_per_sample if self.gib_per_sample else math.inf
        if math.isinf(most):
            return math.inf
        near = float(round(most))
        # Rounding puts the quotient on either side of a batch that fits exactly.
        return next(b for b in (near + 1, near, near - 1, 0.0) if self.fits(b, machine))


def fit_memory(peaks: Sequence[tuple[float, float]]) -> MemoryModel:
    """Fit peak memory to (local batch in samples, GiB) pairs, both coefficients >= 0.

    Of one batch all its memory is held to grow with it, which never promises too much room to
    larger ones; through two or more a line is drawn.

    Raises:
        ValueError: No pair, or a peak that is not finite and positive.

    >>> fit_memory([(32, 6.0), (96, 14.0)])
    MemoryModel(fixed_gib=2.0, gib_per_sample=0.125)
    """
    if not peaks:
        raise ValueError("no peak to fit: measure the memory of one batch")
    if not all(batch > 0 and math.isfinite(gib) and gib > 0 for batch, gib in peaks):
        raise ValueError(f"batches and peaks must be finite and positive, got {list(peaks)}")
    (small, low), (large, high) = min(peaks), max(peaks)
    if large == small:
        return MemoryModel(0.0, high / large)
    slope = max((high - low) / (large - small), 0.0)
    # The dearest peak decides the height: a line through the mean would promise room that is not.
    fixed = max(max(gib - slope * batch for batch, gib in peaks), 0.0)
    return MemoryModel(fixed, slope)
