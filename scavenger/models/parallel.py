"""ParallelModel: seconds per iteration of any configuration (Eqs. 8-10)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from scavenger.cluster import ClusterConfig
from scavenger.grid import Floats, Grid, grid_of
from scavenger.machine import hardware
from scavenger.models.uncertainty import Uncertainty

Growth = Literal["linear", "log", "servers"]


@dataclass(frozen=True, slots=True)
class Slowness:
    """How much longer a machine takes than the one the coefficients were fitted on.

    Attributes:
        compute: Factor on compute.
        sync: Factor on synchronisation.
    """

    compute: float = 1.0
    sync: float = 1.0

    def __post_init__(self) -> None:
        for name in ("compute", "sync"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"{name} must be finite and not negative, got {value}")


SAME = Slowness()


@dataclass(frozen=True, slots=True)
class ParallelModel:
    """Iteration time from compute, a line in b = B / K, and synchronisation, a law in K.

    Compute is c = c0 + c1 b (Eq. 9), or with ``flatness`` r > 1 the smooth maximum
    (c0^r + (c1 b)^r)^(1/r) of accelerators that small batches do not fill. Synchronisation of two
    or more workers is s = s0 + s1 K (Eq. 10), or s0 + s1 log2 K, plus s2 where they sit on several
    machines; with parameter servers a single worker synchronises too, s1 K. Where both overlap,
    an iteration takes (c^q + s^q)^(1/q), else c + s (Eq. 8).

    Attributes:
        compute_fixed: Seconds of compute that no batch size changes, c0.
        compute_per_sample: Seconds of compute per sample of the local batch, c1.
        sync_fixed: Seconds of synchronisation as soon as there are two workers, s0.
        sync_per_worker: Seconds of synchronisation per worker or, with ``growth`` log, per
            doubling of the workers, s1.
        sync_across_machines: Further seconds as soon as there are two machines, s2.
        growth: How synchronisation grows with the workers: ``linear`` from two of them on,
            ``log`` with their doublings, ``servers`` linear from the first.
        overlap: q, 1 where nothing overlaps, larger the more of it hides behind compute.
        flatness: r, 1 for a line.
        slowness: By hardware, where the space has several machine types; others count as equal to
            the one the coefficients were fitted on.
        uncertainty: What the fit leaves open; None for a law that is known, as in a simulation.
    """

    compute_fixed: float
    compute_per_sample: float
    sync_fixed: float
    sync_per_worker: float
    sync_across_machines: float = 0.0
    growth: Growth = "linear"
    overlap: float = 1.0
    flatness: float = 1.0
    slowness: Mapping[str, Slowness] = field(default_factory=dict)
    uncertainty: Uncertainty | None = None

    def __post_init__(self) -> None:
        for name, value in zip(COEFFICIENTS, self.coefficients, strict=True):
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"{name} must be finite and not negative, got {value}")
        for name in ("overlap", "flatness"):
            if not 1 <= getattr(self, name) <= 10:
                raise ValueError(f"{name} must be from 1 to 10, got {getattr(self, name)}")

    @property
    def coefficients(self) -> tuple[float, float, float, float, float]:
        """The five coefficients in seconds, compute before synchronisation."""
        return (
            self.compute_fixed,
            self.compute_per_sample,
            self.sync_fixed,
            self.sync_per_worker,
            self.sync_across_machines,
        )

    def with_coefficients(self, coefficients: Floats) -> ParallelModel:
        """Return this law with other coefficients."""
        return replace(self, **dict(zip(COEFFICIENTS, map(float, coefficients), strict=True)))  # type: ignore[arg-type]

    def compute_time(self, config: ClusterConfig) -> float:
        """Seconds of an iteration that are not synchronisation (Eq. 9)."""
        return float(self.compute_times(grid_of([config]))[0])

    def sync_time(self, config: ClusterConfig) -> float:
        """Exposed seconds of synchronisation, 0 for one worker (Eq. 10)."""
        return self.step_time(config) - self.compute_time(config)

    def step_time(self, config: ClusterConfig) -> float:
        """Seconds per iteration (Eq. 8)."""
        return float(self.step_times(grid_of([config]))[0])

    def compute_times(self, grid: Grid) -> Floats:
        """Seconds of compute of each configuration (Eq. 9)."""
        line = smooth_maximum(
            self.compute_fixed, self.compute_per_sample * grid.local_batch, self.flatness
        )
        return np.asarray(line * self._factors(grid, "compute"))

    def step_times(self, grid: Grid) -> Floats:
        """Seconds per iteration of each configuration (Eq. 8)."""
        return smooth_maximum(self.compute_times(grid), self.whole_sync_times(grid), self.overlap)

    def whole_sync_times(self, grid: Grid) -> Floats:
        """Seconds of synchronisation of each configuration, with what hides behind compute."""
        sync = sync_features(grid, self.growth) @ np.array(self.coefficients[2:])
        return np.asarray(sync * self._factors(grid, "sync"))

    @property
    def laws(self) -> tuple[ParallelModel, ...]:
        """This law alone; an ``AveragedModel`` has several."""
        return (self,)

    @property
    def weights(self) -> tuple[float, ...]:
        """All weight on this law."""
        return (1.0,)

    @property
    def spread(self) -> float | None:
        """Relative standard deviation of one configuration around the law; None if known."""
        return None if self.uncertainty is None else self.uncertainty.spread

    @property
    def repeats(self) -> float:
        """Relative standard deviation of a configuration that was measured itself."""
        return 0.0 if self.uncertainty is None else self.uncertainty.repeats

    def change(self, law_of: Callable[[ParallelModel], ParallelModel]) -> ParallelModel:
        """Return this law changed, as ``AveragedModel`` does with each of its own."""
        return law_of(self)

    def widened(self, further: float) -> ParallelModel:
        """Return this law with a further relative deviation; one that is known stays known."""
        if self.uncertainty is None:
            return self
        wide = replace(self.uncertainty, spread=math.hypot(self.uncertainty.spread, further))
        return replace(self, uncertainty=wide)

    def deviations(self, grid: Grid) -> Floats:
        """Relative standard deviation of each configuration's predicted seconds; 0 if known."""
        if self.uncertainty is None:
            return np.zeros(len(grid))
        return self.uncertainty.deviations(self.elasticities(grid))

    def worlds(self, grid: Grid, normal: Floats, strays: Floats) -> Floats:
        """Draw logarithms of factors on each configuration's seconds: what might be true instead.

        Args:
            grid: The configurations.
            normal: Standard normal numbers, one row for each world, one column per coefficient.
            strays: Standard normal numbers, one row per configuration, one column for each world:
                no law is exact, each configuration lies off it in its own way.
        """
        if self.uncertainty is None:
            return np.zeros_like(strays)
        root = np.linalg.cholesky(np.array(self.uncertainty.covariance))
        of_law = self.elasticities(grid) @ (normal @ root.T).T
        return np.asarray(self.uncertainty.spread * (of_law + strays))

    def elasticities(self, grid: Grid) -> Floats:
        """Share of each coefficient in a configuration's seconds; every row adds up to 1.

        Slopes times coefficients over seconds, without the slopes: of each smooth maximum a part
        has the share (x / whole)^p.
        """
        fixed = np.full(len(grid), self.compute_fixed)
        line = smooth_maximum(fixed, self.compute_per_sample * grid.local_batch, self.flatness)
        compute = line * self._factors(grid, "compute")
        parts = sync_features(grid, self.growth) * np.array(self.coefficients[2:])
        whole = parts.sum(axis=1)
        sync = whole * self._factors(grid, "sync")
        total = smooth_maximum(compute, sync, self.overlap)
        of_compute = quotient(compute, total) ** self.overlap
        of_fixed = of_compute * quotient(fixed, line) ** self.flatness
        of_sync = quotient(quotient(sync, total) ** self.overlap, whole)
        shares = np.empty((len(grid), len(COEFFICIENTS)))
        shares[:, 0] = of_fixed
        shares[:, 1] = of_compute - of_fixed
        shares[:, 2:] = parts * of_sync[:, None]
        return shares

    def slopes(self, grid: Grid) -> Floats:
        """Derivative of each configuration's seconds by each coefficient.

        The seconds are homogeneous of degree 1 in the coefficients, so slopes times coefficients
        add up to them (Euler).
        """
        of_compute = self.compute_slopes(grid)
        features = sync_features(grid, self.growth) * self._factors(grid, "sync")[:, None]
        compute = of_compute @ np.array(self.coefficients)
        sync = features @ np.array(self.coefficients[2:])
        total = smooth_maximum(compute, sync, self.overlap)
        slopes = np.asarray(of_compute * share(compute, total, self.overlap)[:, None])
        slopes[:, 2:] = features * share(sync, total, self.overlap)[:, None]
        return slopes

    def compute_slopes(self, grid: Grid) -> Floats:
        """Derivative of each configuration's compute by each coefficient; 0 for those of sync."""
        batch = grid.local_batch
        variable = self.compute_per_sample * batch
        line = smooth_maximum(self.compute_fixed, variable, self.flatness)
        slopes = np.zeros((len(grid), len(COEFFICIENTS)))
        slopes[:, 0] = share(np.full_like(line, self.compute_fixed), line, self.flatness)
        slopes[:, 1] = share(variable, line, self.flatness) * batch
        return np.asarray(slopes * self._factors(grid, "compute")[:, None])

    def _factors(self, grid: Grid, part: Literal["compute", "sync"]) -> Floats:
        kinds = [self.slowness.get(hardware(key), SAME) for key in grid.machine_types]
        factors = np.array([getattr(kind, part) for kind in kinds])
        return np.asarray(factors[grid.type_of])


COEFFICIENTS = (
    "compute_fixed",
    "compute_per_sample",
    "sync_fixed",
    "sync_per_worker",
    "sync_across_machines",
)


def sync_features(grid: Grid, growth: Growth) -> Floats:
    """What the coefficients of synchronisation are multiplied with, one row per configuration."""
    several = (grid.workers > 1).astype(float)
    size = {
        "linear": several * grid.workers,
        "log": np.log2(grid.workers),
        "servers": grid.workers,
    }[growth]
    return np.column_stack([several, size, (grid.machines > 1).astype(float)])


def smooth_maximum(one: Floats | float, other: Floats, power: float) -> Floats:
    """(x^p + y^p)^(1/p): the sum at p = 1, towards the maximum for large p."""
    if power == 1:
        return np.asarray(one + other)
    largest = np.maximum(one, other)
    scale = np.where(largest > 0, largest, 1.0)
    return np.asarray(scale * ((one / scale) ** power + (other / scale) ** power) ** (1 / power))


def share(part: Floats, whole: Floats, power: float) -> Floats:
    """Derivative of the smooth maximum by one of its parts, (x / whole)^(p - 1)."""
    if power == 1:
        return np.ones_like(whole)
    return np.asarray(quotient(part, whole) ** (power - 1))


def quotient(part: Floats, whole: Floats) -> Floats:
    """Return a part over its whole, 0 of nothing."""
    return np.divide(part, whole, out=np.zeros_like(whole), where=whole > 0)
