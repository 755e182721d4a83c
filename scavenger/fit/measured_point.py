"""MeasuredPoint: one measured configuration beside its prediction."""

from __future__ import annotations

import math
from dataclasses import dataclass

from scavenger.fit.place import Place, place_of
from scavenger.fit.step_time_fit import StepTimeFit


@dataclass(frozen=True, slots=True)
class MeasuredPoint:
    """One measured configuration beside its prediction.

    Attributes:
        place: The configuration.
        step_time: Measured seconds per iteration.
        predicted: Seconds of the laws fitted to all points.
        error: predicted / measured - 1.
        left_out_error: The same of laws fitted to all other points; None below five points, and
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
            left_out_error=None if math.isnan(left_out) else left_out,
        )
        for m, error, left_out in zip(
            fit.measurements, fit.errors, fit.left_out_errors.tolist(), strict=True
        )
    )
