"""AveragedModel: seconds per iteration by several laws that explain the same measurements."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from scavenger.cluster import ClusterConfig
from scavenger.grid import Floats, Grid, Indices, grid_of
from scavenger.models.parallel import ParallelModel

# A law that predicts no time at all still has a logarithm.
NEXT_TO_NOTHING = 1e-300


@dataclass(frozen=True, slots=True)
class AveragedModel:
    """Laws of several forms, averaged: the geometric mean of their seconds, by weight.

    A few measurements seldom tell which form is true. The mean of those that explain them lies
    nearer to the truth than the one that explains them best, and where they disagree nothing is
    sure (docs/decisions/0034-forms-are-averaged.md).

    Attributes:
        laws: The laws, heaviest first.
        weights: Weight of each, which add up to 1.
    """

    laws: tuple[ParallelModel, ...]
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
    def repeats(self) -> float:
        """Relative standard deviation of a configuration that was measured itself."""
        return max(law.repeats for law in self.laws)

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
        return self._mean(law.compute_times(grid) for law in self.laws)

    def step_times(self, grid: Grid) -> Floats:
        """Seconds per iteration of each configuration (Eq. 8)."""
        return self._mean(law.step_times(grid) for law in self.laws)

    def deviations(self, grid: Grid) -> Floats:
        """Relative standard deviation of each configuration's seconds.

        What each law leaves open, and how far the laws lie apart: the variance of a mixture.
        """
        logs = [logarithms(law.step_times(grid)) for law in self.laws]
        mean = self._weigh(logs)
        apart = self._weigh((log - mean) ** 2 for log in logs)
        own = self._weigh(law.deviations(grid) ** 2 for law in self.laws)
        return np.asarray(np.sqrt(own + apart))

    def worlds(self, grid: Grid, normal: Floats, strays: Floats) -> Floats:
        """Draw logarithms of factors on each configuration's seconds, as ``ParallelModel`` does.

        Each world follows one of the laws, as many worlds as it has weight.
        """
        mean = self._weigh(logarithms(law.step_times(grid)) for law in self.laws)
        drawn = np.empty((len(grid), len(normal)))
        for law, rows in zip(self.laws, self._turns(len(normal)), strict=True):
            shift = logarithms(law.step_times(grid)) - mean
            drawn[:, rows] = shift[:, None] + law.worlds(grid, normal[rows], strays[:, rows])
        return drawn

    def change(self, law_of: Callable[[ParallelModel], ParallelModel]) -> AveragedModel:
        """Return the average with each law changed alike."""
        return replace(self, laws=tuple(law_of(law) for law in self.laws))

    def _turns(self, worlds: int) -> list[Indices]:
        """Return which worlds follow each law."""
        places = (np.arange(worlds) + 0.5) / worlds
        law = np.searchsorted(np.cumsum(self.weights)[:-1], places)
        return [np.flatnonzero(law == number) for number in range(len(self.laws))]

    def _mean(self, seconds: Iterator[Floats]) -> Floats:
        return np.exp(self._weigh(map(logarithms, seconds)))

    def _weigh(self, values: Iterator[Floats] | list[Floats]) -> Floats:
        weighed = (w * value for w, value in zip(self.weights, values, strict=True))
        return np.asarray(sum(weighed))


StepTimeModel = ParallelModel | AveragedModel


def average_laws(laws: tuple[ParallelModel, ...], weights: tuple[float, ...]) -> StepTimeModel:
    """Average laws by weights of any scale, heaviest first; a single law stays what it is."""
    if len(laws) == 1:
        return laws[0]
    order = sorted(range(len(laws)), key=lambda place: -weights[place])
    total = math.fsum(weights)
    return AveragedModel(
        tuple(laws[place] for place in order), tuple(weights[place] / total for place in order)
    )


def logarithms(seconds: Floats) -> Floats:
    """Logarithms of seconds, also of none at all."""
    return np.log(np.maximum(seconds, NEXT_TO_NOTHING))
