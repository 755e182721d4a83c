"""Seconds per iteration of any configuration (Eqs. 8-10): one law, or several averaged.

``StepTimeLaw`` is one law with five coefficients, ``AveragedModel`` the geometric mean of
several. ``Uncertainty`` says how far predictions may lie from what a clock would show.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from scavenger.cluster import (
    ClusterConfig,
    ConfigColumns,
    Floats,
    RowIndices,
    config_columns,
    hardware_of,
)
from scavenger.models.stack_factors import FactorColumns, factor_columns
from scavenger.number_checks import require_not_negative
from scavenger.stack import EAGER_NAME, StackFactors

# Repeats of one configuration differ by 2-5 % on public data (SCIENCE §3).
REPEAT_DEVIATION = 0.03
# 80 % of a normal distribution lie within this many standard deviations.
Z_90 = 1.2815515655446004


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
        require_not_negative(self, "spread")

    @property
    def repeat_deviation(self) -> float:
        """Relative standard deviation of a configuration that was measured itself."""
        return min(self.spread, REPEAT_DEVIATION)

    def deviations(self, elasticities: Floats) -> Floats:
        """Relative standard deviations of predictions, from their elasticities, one per row."""
        matrix = np.array(self.covariance)
        leverage = ((elasticities @ matrix) * elasticities).sum(axis=1)
        return np.asarray(self.spread * np.sqrt(1 + np.maximum(leverage, 0.0)))


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
        require_not_negative(self, "compute", "sync")


SAME_SPEED = Slowness()


@dataclass(frozen=True, slots=True)
class StepTimeLaw:
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
        stacks: Factors on compute of stacks that were measured, by name.
        reference_stack: The stack that the coefficients were fitted on.
        expected_stacks: What is expected of stacks that were not measured, relative to eager.
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
    stacks: Mapping[str, StackFactors] = field(default_factory=dict)
    reference_stack: str = EAGER_NAME
    expected_stacks: Mapping[str, StackFactors] = field(default_factory=dict)
    uncertainty: Uncertainty | None = None

    def __post_init__(self) -> None:
        require_not_negative(self, *COEFFICIENT_NAMES)
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

    def with_coefficients(self, coefficients: Floats) -> StepTimeLaw:
        """Return this law with other coefficients."""
        return replace(self, **dict(zip(COEFFICIENT_NAMES, map(float, coefficients), strict=True)))  # type: ignore[arg-type]

    def compute_time(self, config: ClusterConfig) -> float:
        """Seconds of an iteration that are not synchronisation (Eq. 9)."""
        return float(self.compute_times(config_columns([config]))[0])

    def sync_time(self, config: ClusterConfig) -> float:
        """Exposed seconds of synchronisation, 0 for one worker (Eq. 10)."""
        return self.step_time(config) - self.compute_time(config)

    def step_time(self, config: ClusterConfig) -> float:
        """Seconds per iteration (Eq. 8)."""
        return float(self.step_times(config_columns([config]))[0])

    def compute_times(self, grid: ConfigColumns) -> Floats:
        """Seconds of compute of each configuration (Eq. 9)."""
        fixed, variable = self.compute_parts(grid)
        return smooth_maximum(fixed, variable, self.flatness)

    def compute_parts(self, grid: ConfigColumns) -> tuple[Floats, Floats]:
        """Seconds of compute that no batch changes, and those in proportion to it."""
        fixed = np.full(len(grid), self.compute_fixed)
        variable = self.compute_per_sample * grid.local_batch
        stacks = self._stack_columns(grid)
        if stacks is not None:
            fixed, variable = fixed * stacks.compute_fixed, variable * stacks.compute_per_sample
        factors = self._factors(grid, "compute")
        return fixed * factors, variable * factors

    def step_times(self, grid: ConfigColumns) -> Floats:
        """Seconds per iteration of each configuration (Eq. 8)."""
        return self._join(grid, self.compute_times(grid), self.total_sync_times(grid))[0]

    def total_sync_times(self, grid: ConfigColumns) -> Floats:
        """Seconds of synchronisation of each configuration, with what hides behind compute."""
        sync = sync_features(grid, self.growth) @ np.array(self.coefficients[2:])
        return np.asarray(sync * self._factors(grid, "sync"))

    @property
    def laws(self) -> tuple[StepTimeLaw, ...]:
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
    def repeat_deviation(self) -> float:
        """Relative standard deviation of a configuration that was measured itself."""
        return 0.0 if self.uncertainty is None else self.uncertainty.repeat_deviation

    def map_laws(self, law_of: Callable[[StepTimeLaw], StepTimeLaw]) -> StepTimeLaw:
        """Apply a function to this law, as ``AveragedModel`` does to each of its laws."""
        return law_of(self)

    def with_added_deviation(self, further: float) -> StepTimeLaw:
        """Return this law with a further relative deviation; one that is known stays known."""
        if self.uncertainty is None:
            return self
        wide = replace(self.uncertainty, spread=math.hypot(self.uncertainty.spread, further))
        return replace(self, uncertainty=wide)

    def deviations(self, grid: ConfigColumns) -> Floats:
        """Relative standard deviation of each configuration's predicted seconds; 0 if known."""
        if self.uncertainty is None:
            return np.zeros(len(grid))
        elasticities = self.elasticities(grid)
        own = self.uncertainty.deviations(elasticities)
        factors = self._stack_columns(grid)
        if factors is None:
            return own
        return np.asarray(np.sqrt(own**2 + factors.variances(elasticities[:, :2])))

    def draw_log_factors(
        self,
        grid: ConfigColumns,
        coefficient_normals: Floats,
        config_normals: Floats,
        stack_normals: Floats,
    ) -> Floats:
        """Draw posterior samples: logarithms of factors on each configuration's predicted seconds.

        Args:
            grid: The configurations.
            coefficient_normals: Standard normal numbers, one row for each sample, one column per
                coefficient.
            config_normals: Standard normal numbers, one row per configuration, one column for each
                sample: no law is exact, each configuration lies off it in its own way.
            stack_normals: Standard normal numbers by stack of the grid, sample, and factor.
        """
        if self.uncertainty is None:
            return np.zeros_like(config_normals)
        root = np.linalg.cholesky(np.array(self.uncertainty.covariance))
        elasticities = self.elasticities(grid)
        of_law = elasticities @ (coefficient_normals @ root.T).T
        drawn = np.asarray(self.uncertainty.spread * (of_law + config_normals))
        factors = self._stack_columns(grid)
        if factors is None:
            return drawn
        return drawn + factors.draw_log_factors(elasticities[:, :2], stack_normals)

    def elasticities(self, grid: ConfigColumns) -> Floats:
        """Share of each coefficient in a configuration's seconds; every row adds up to 1.

        Slopes times coefficients over seconds, without the slopes: of each smooth maximum a part
        has the share (x / whole)^p.
        """
        fixed, variable = self.compute_parts(grid)
        compute = smooth_maximum(fixed, variable, self.flatness)
        parts = sync_features(grid, self.growth) * np.array(self.coefficients[2:])
        whole = parts.sum(axis=1)
        sync = whole * self._factors(grid, "sync")
        total, overlap = self._join(grid, compute, sync)
        of_compute = quotient_or_zero(compute, total) ** overlap
        of_fixed = of_compute * quotient_or_zero(fixed, compute) ** self.flatness
        of_sync = quotient_or_zero(quotient_or_zero(sync, total) ** overlap, whole)
        shares = np.empty((len(grid), len(COEFFICIENT_NAMES)))
        shares[:, 0] = of_fixed
        shares[:, 1] = of_compute - of_fixed
        shares[:, 2:] = parts * of_sync[:, None]
        return shares

    def _join(
        self, grid: ConfigColumns, compute: Floats, sync: Floats
    ) -> tuple[Floats, Floats | float]:
        """Return compute and synchronisation together, and how much they overlap."""
        joined, stacks = smooth_maximum(compute, sync, self.overlap), self._stack_columns(grid)
        if stacks is None:
            return joined, self.overlap
        overlap = np.where(stacks.is_whole, 1.0, self.overlap)
        return np.where(stacks.is_whole, compute + sync, joined), overlap

    def _stack_columns(self, grid: ConfigColumns) -> FactorColumns | None:
        return factor_columns(grid, self.stacks, self.reference_stack, self.expected_stacks)

    def _factors(self, grid: ConfigColumns, part: Literal["compute", "sync"]) -> Floats:
        kinds = [self.slowness.get(hardware_of(key), SAME_SPEED) for key in grid.machine_types]
        factors = np.array([getattr(kind, part) for kind in kinds])
        return np.asarray(factors[grid.type_index])


COEFFICIENT_NAMES = (
    "compute_fixed",
    "compute_per_sample",
    "sync_fixed",
    "sync_per_worker",
    "sync_across_machines",
)


def sync_features(grid: ConfigColumns, growth: Growth) -> Floats:
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


def smooth_maximum_slope(part: Floats, whole: Floats, power: float) -> Floats:
    """Derivative of the smooth maximum by one of its parts, (x / whole)^(p - 1)."""
    if power == 1:
        return np.ones_like(whole)
    return np.asarray(quotient_or_zero(part, whole) ** (power - 1))


def quotient_or_zero(part: Floats, whole: Floats) -> Floats:
    """Return a part over its whole, 0 of nothing."""
    return np.divide(part, whole, out=np.zeros_like(whole), where=whole > 0)


# A law that predicts no time at all still has a logarithm.
MIN_LOGGED_SECONDS = 1e-300


@dataclass(frozen=True, slots=True)
class AveragedModel:
    """Laws of several forms, averaged: the geometric mean of their seconds, by weight.

    A few measurements seldom tell which form is true. The mean of those that explain them lies
    nearer to the truth than the one that explains them best, and where they disagree nothing is
    sure (docs/decisions/0034-forms-are-averaged.md). It is asked the same as a ``StepTimeLaw``.

    Attributes:
        laws: The laws, heaviest first.
        weights: Weight of each, which add up to 1.
    """

    laws: tuple[StepTimeLaw, ...]
    weights: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.laws) != len(self.weights) or len(self.laws) < 2:
            raise ValueError(
                f"{len(self.laws)} laws and {len(self.weights)} weights: an average needs two laws "
                "or more, and a weight for each"
            )
        if not all(weight > 0 for weight in self.weights) or not math.isclose(
            math.fsum(self.weights), 1.0, rel_tol=1e-6
        ):
            raise ValueError(f"weights must be positive and add up to 1, got {self.weights}")

    @property
    def spread(self) -> float | None:
        """Relative standard deviation of one configuration around the laws; None if all known."""
        spreads = [law.spread for law in self.laws]
        if all(spread is None for spread in spreads):
            return None
        return math.sqrt(
            sum(w * (spread or 0.0) ** 2 for w, spread in zip(self.weights, spreads, strict=True))
        )

    @property
    def repeat_deviation(self) -> float:
        return max(law.repeat_deviation for law in self.laws)

    def compute_time(self, config: ClusterConfig) -> float:
        return float(self.compute_times(config_columns([config]))[0])

    def sync_time(self, config: ClusterConfig) -> float:
        return self.step_time(config) - self.compute_time(config)

    def step_time(self, config: ClusterConfig) -> float:
        return float(self.step_times(config_columns([config]))[0])

    def compute_times(self, grid: ConfigColumns) -> Floats:
        return self._mean(law.compute_times(grid) for law in self.laws)

    def step_times(self, grid: ConfigColumns) -> Floats:
        return self._mean(law.step_times(grid) for law in self.laws)

    def deviations(self, grid: ConfigColumns) -> Floats:
        """Relative standard deviation of each configuration's seconds.

        What each law leaves open, and how far the laws lie apart: the variance of a mixture.
        """
        logs = [safe_log(law.step_times(grid)) for law in self.laws]
        mean = self._weigh(logs)
        apart = self._weigh((log - mean) ** 2 for log in logs)
        own = self._weigh(law.deviations(grid) ** 2 for law in self.laws)
        return np.asarray(np.sqrt(own + apart))

    def draw_log_factors(
        self,
        grid: ConfigColumns,
        coefficient_normals: Floats,
        config_normals: Floats,
        stack_normals: Floats,
    ) -> Floats:
        """Draw posterior samples, as ``StepTimeLaw`` does.

        Each sample follows one of the laws, each law as many samples as it has weight.
        """
        mean = self._weigh(safe_log(law.step_times(grid)) for law in self.laws)
        drawn = np.empty((len(grid), len(coefficient_normals)))
        for law, rows in zip(self.laws, self._turns(len(coefficient_normals)), strict=True):
            shift = safe_log(law.step_times(grid)) - mean
            drawn[:, rows] = shift[:, None] + law.draw_log_factors(
                grid, coefficient_normals[rows], config_normals[:, rows], stack_normals[:, rows]
            )
        return drawn

    def map_laws(self, law_of: Callable[[StepTimeLaw], StepTimeLaw]) -> AveragedModel:
        """Apply a function to each law and average the results."""
        return replace(self, laws=tuple(law_of(law) for law in self.laws))

    def _turns(self, count: int) -> list[RowIndices]:
        """Return which samples follow each law."""
        places = (np.arange(count) + 0.5) / count
        law = np.searchsorted(np.cumsum(self.weights)[:-1], places)
        return [np.flatnonzero(law == number) for number in range(len(self.laws))]

    def _mean(self, seconds: Iterator[Floats]) -> Floats:
        return np.exp(self._weigh(map(safe_log, seconds)))

    def _weigh(self, values: Iterator[Floats] | list[Floats]) -> Floats:
        weighed = (w * value for w, value in zip(self.weights, values, strict=True))
        return np.asarray(sum(weighed))


StepTimeModel = StepTimeLaw | AveragedModel


def average_laws(laws: tuple[StepTimeLaw, ...], weights: tuple[float, ...]) -> StepTimeModel:
    """Average laws by weights of any scale, heaviest first; a single law stays what it is."""
    if len(laws) == 1:
        return laws[0]
    order = sorted(range(len(laws)), key=lambda place: -weights[place])
    total = math.fsum(weights)
    return AveragedModel(
        tuple(laws[place] for place in order), tuple(weights[place] / total for place in order)
    )


def safe_log(seconds: Floats) -> Floats:
    """Logarithms of seconds, also of none at all."""
    return np.log(np.maximum(seconds, MIN_LOGGED_SECONDS))
