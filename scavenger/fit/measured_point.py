"""MeasuredPoint: one measured configuration beside its prediction."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from scavenger.fit.place import Place, place_of
from scavenger.fit.step_time_fit import StepTimeFit
from scavenger.models.form import Form
from scavenger.models.least_squares import Table
from scavenger.models.step_time import ENOUGH_TO_COMPARE, errors_of, laws_without


@dataclass(frozen=True, slots=True)
class MeasuredPoint:
    """One measured configuration beside its prediction.

    Attributes:
        place: The configuration.
        step_time: Measured seconds per iteration.
        predicted: Seconds of the law fitted to all points.
        error: predicted / measured - 1.
        left_out_error: The same of a law fitted to all other points; None below five points, and
            where the others cannot tell all coefficients.
    """

    place: Place
    step_time: float
    predicted: float
    error: float
    left_out_error: float | None


def compare(fit: StepTimeFit) -> tuple[MeasuredPoint, ...]:
    """Put each measured configuration beside its prediction."""
    return tuple(
        MeasuredPoint(
            place=place_of(m.config),
            step_time=m.step_time,
            predicted=fit.model.step_time(m.config),
            error=error,
            left_out_error=left_out,
        )
        for m, error, left_out in zip(
            fit.measurements, fit.errors, left_out_errors_of(fit), strict=True
        )
    )


def left_out_errors_of(fit: StepTimeFit) -> Sequence[float | None]:
    """Return the error at each measurement of a law fitted to all others; None if none tells."""
    table = fit.table
    if table is None or not len(table) == len(fit.measurements) >= ENOUGH_TO_COMPARE:
        return [None] * len(fit.measurements)
    return list(left_out_one_by_one(table, fit.form))


def left_out_one_by_one(table: Table, form: Form) -> Iterator[float | None]:
    """Yield the relative error at each point of a law fitted to all others.

    None for a point without which a coefficient could not be told apart.
    """
    rows = np.arange(len(table))
    for row, law in enumerate(laws_without(table, form, rows)):
        error = None if law is None else errors_of(law, table.rows(rows == row))[0]
        yield None if error is None else float(np.expm1(error))
