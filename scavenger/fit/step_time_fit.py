"""StepTimeFit: the law of seconds per iteration beside what it was fitted to."""

from __future__ import annotations

from dataclasses import dataclass

from scavenger.fit.request import FitRequest
from scavenger.indicators import Measurement
from scavenger.models.epochs import Laws
from scavenger.models.fitting import forms_of
from scavenger.models.form import Form, Topology
from scavenger.models.least_squares import Table, tabulate
from scavenger.models.parallel import ParallelModel
from scavenger.models.step_time import (
    ENOUGH_TO_COMPARE,
    fit_step_time,
    form_of,
    left_out_errors,
    rms,
)
from scavenger.tables.step_table import StepTable


@dataclass(frozen=True, slots=True)
class StepTimeFit:
    """A law of seconds per iteration, and the measurements that told it.

    Attributes:
        model: The law.
        measurements: What it was fitted to.
        topology: How gradients travel.
        laws: Whether the data chose the form.
    """

    model: ParallelModel
    measurements: tuple[Measurement, ...]
    topology: Topology
    laws: Laws

    @property
    def form(self) -> Form:
        """The form the law was fitted in."""
        return form_of(self.model)

    @property
    def table(self) -> Table | None:
        """The measurements as columns; None where none of them took any time."""
        return tabulate(self.measurements, self.topology)

    @property
    def errors(self) -> tuple[float, ...]:
        """Predicted over measured seconds, less 1, of each measurement."""
        return tuple(self.model.step_time(m.config) / m.step_time - 1 for m in self.measurements)

    def left_out_error(self, form: Form) -> float | None:
        """Return a form's root mean square relative error at points left out of the fit, in turn.

        None below five points, and where no fit can do without one.
        """
        table = self.table
        if table is None or len(table) < ENOUGH_TO_COMPARE:
            return None
        errors = left_out_errors(table, form)
        return rms(errors) if len(errors) else None


def fit_steps(table: StepTable, request: FitRequest) -> StepTimeFit:
    """Fit the law of seconds per iteration to a table (Eqs. 8-10)."""
    topology = request.topology or table.topology or "all_reduce"
    model = fit_step_time(table.measurements, topology, forms=forms_of(request.laws))
    return StepTimeFit(model, table.measurements, topology, request.laws)
