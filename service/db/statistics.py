"""The statistics table: what each generation measured, kept up with every batch and for ever.

A batch is summarised here and merged where the rest is, in the statement that stores it: count,
mean and squared distance by the formula of Chan, Golub and LeVeque, so that it does not matter how
rows come in batches; the moving average fades by each row.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from sqlalchemy import Connection, select

from service.db.batch import NAMES, Batch, Series
from service.db.schema import statistics

ITERATION = "iteration"
FADE = 0.98  # of the moving average, by each row: it remembers about the last fifty
LONGEST_FADE = 5_000  # rows after which nothing is left, and Postgres still takes the power
FADES = FADE ** np.arange(LONGEST_FADE - 1, -1, -1)


@dataclass(frozen=True, slots=True)
class Statistic:
    """What a generation measured of one series.

    Attributes:
        count: Rows with a value.
        mean: Their mean.
        distance: Sum of their squared distances from the mean.
        fading: Their sum, faded by each later row.
        lowest: The smallest.
        highest: The largest.
    """

    count: int
    mean: float
    distance: float
    fading: float
    lowest: float
    highest: float

    @property
    def variance(self) -> float:
        """Variance of a row, 0 for a single one."""
        return self.distance / (self.count - 1) if self.count > 1 else 0.0

    @property
    def recent(self) -> float:
        """Moving average, which weighs a row the less the more came after it."""
        return self.fading * (1 - FADE) / (1 - FADE**self.count)


def summarise(batch: Batch) -> dict[str, object]:
    """Return the statistics of a batch, as parameters of the statement that merges them."""
    named = [(ITERATION, batch.iteration.astype(np.float64))]
    named += zip(NAMES, batch.series, strict=True)
    told = [(name, statistic_of(values[~np.isnan(values)])) for name, values in named]
    known = [(name, statistic) for name, statistic in told if statistic is not None]
    return {
        "fade": FADE,
        "longest_fade": LONGEST_FADE,
        "series": [name for name, _ in known],
        "counts": [statistic.count for _, statistic in known],
        "means": [statistic.mean for _, statistic in known],
        "distances": [statistic.distance for _, statistic in known],
        "fadings": [statistic.fading for _, statistic in known],
        "lowests": [statistic.lowest for _, statistic in known],
        "highests": [statistic.highest for _, statistic in known],
    }


def statistic_of(values: Series) -> Statistic | None:
    """Return the statistics of some values, in order; None of none."""
    count = len(values)
    if not count:
        return None
    mean = values.mean()
    away = values - mean
    last = values[-LONGEST_FADE:]
    return Statistic(
        count,
        float(mean),
        float(away @ away),
        float(FADES[-len(last) :] @ last),
        float(values.min()),
        float(values.max()),
    )


def of_job(connection: Connection, job: str) -> dict[tuple[int, str], Statistic]:
    """Return what each generation of a job measured, by generation and name of the series."""
    query = select(statistics).where(statistics.c.job == job)
    return {
        (row["generation"], row["series"]): Statistic(
            **{name: row[name] for name in Statistic.__dataclass_fields__}
        )
        for row in connection.execute(query).mappings()
    }


def first_iterations(connection: Connection, job: str) -> dict[int, int]:
    """Return the first measured iteration of each generation that measured any."""
    query = select(statistics.c.generation, statistics.c.lowest)
    rows = connection.execute(
        query.where(statistics.c.job == job, statistics.c.series == ITERATION)
    )
    return {generation: int(lowest) for generation, lowest in rows}
