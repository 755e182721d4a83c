"""StepTimeFit: the laws of seconds per iteration beside what they were fitted to."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from scavenger.fit.request import FitRequest
from scavenger.grid import Floats
from scavenger.indicators import Measurement
from scavenger.models.averaged import StepTimeModel
from scavenger.models.epochs import Laws
from scavenger.models.fitting import forms_of
from scavenger.models.form import Topology
from scavenger.models.least_squares import tabulate
from scavenger.models.step_time import (
    ENOUGH_TO_COMPARE,
    Candidate,
    explain,
    fit_step_time,
    in_order,
    left_out_one_by_one,
    mean_errors,
    rms,
)
from scavenger.tables.step_table import StepTable


@dataclass(frozen=True, slots=True)
class StepTimeFit:
    """Laws of seconds per iteration, and the measurements that told them.

    Attributes:
        model: The laws.
        measurements: What they were fitted to, in order.
        topology: How gradients travel.
        laws: Whether the data weighed the forms.
        candidates: The forms that explain the measurements, as they were weighed.
    """

    model: StepTimeModel
    measurements: tuple[Measurement, ...]
    topology: Topology
    laws: Laws
    candidates: tuple[Candidate, ...]

    @property
    def errors(self) -> tuple[float, ...]:
        """Predicted over measured seconds, less 1, of each measurement."""
        return tuple(self.model.step_time(m.config) / m.step_time - 1 for m in self.measurements)

    @property
    def left_out_error(self) -> float | None:
        """Root mean square relative error at points left out of the fit, in turn.

        None below five points, and where no fit can do without one.
        """
        if not self.candidates:
            return None
        errors = mean_errors(self.candidates, [each.errors for each in self.candidates])
        told = errors[np.isfinite(errors)]
        return rms(told) if len(told) else None

    @property
    def left_out_errors(self) -> Floats:
        """Relative error at each measurement of laws fitted to all others, nan if none tells."""
        table = tabulate(self.measurements, self.topology)
        if table is None or not len(table) == len(self.measurements) >= ENOUGH_TO_COMPARE:
            return np.full(len(self.measurements), np.nan)
        return np.expm1(left_out_one_by_one(table, self.candidates))


def fit_steps(table: StepTable, request: FitRequest) -> StepTimeFit:
    """Fit the laws of seconds per iteration to a table (Eqs. 8-10)."""
    topology = request.topology or table.topology or "all_reduce"
    forms, measured = forms_of(request.laws), in_order(table.measurements)
    model = fit_step_time(measured, topology, forms=forms)
    candidates = explain(measured, topology, forms)
    return StepTimeFit(model, measured, topology, request.laws, candidates)
