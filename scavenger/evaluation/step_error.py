"""StepError: seconds per iteration predicted from a few points of a table, beside its rest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scavenger.evaluation.restriction import Restriction
from scavenger.grid import Floats, grid_of
from scavenger.indicators import Measurement
from scavenger.models.epochs import Laws
from scavenger.models.fitting import forms_of
from scavenger.models.step_time import Topology, fit_step_time
from scavenger.models.uncertainty import TENTH
from scavenger.search.design import spread_out
from scavenger.tables.step_table import StepTable


@dataclass(frozen=True, slots=True)
class StepError:
    """How far predictions of a table lie from what was measured.

    Attributes:
        table: Name of the table.
        laws: Whether the data choose the form, or the paper's lines are taken.
        points: Configurations the law was fitted to.
        windows: Parts of the table that were predicted one by one.
        rest: Configurations predicted, over all windows.
        error: Mean of |predicted / measured - 1| over the rest, then over windows.
        covered: Share of the rest within the predicted 80 % band.
    """

    table: str
    laws: Laws
    points: int
    windows: int
    rest: int
    error: float
    covered: float


def step_error(
    table: StepTable,
    points: int,
    laws: Laws,
    restriction: Restriction,
    topology: Topology,
) -> StepError | None:
    """Predict a table from a few of its points; None where no window has more than these."""
    windows = [
        predict_rest(window, points, laws, topology)
        for window in restriction.windows(table.measurements)
        if len(window) > points
    ]
    if not windows:
        return None
    return StepError(
        table=table.name,
        laws=laws,
        points=points,
        windows=len(windows),
        rest=sum(len(errors) for errors, _ in windows),
        error=float(np.mean([np.abs(errors).mean() for errors, _ in windows])),
        covered=float(np.concatenate([is_inside for _, is_inside in windows]).mean()),
    )


def predict_rest(
    window: Sequence[Measurement], points: int, laws: Laws, topology: Topology
) -> tuple[Floats, Floats]:
    """Return relative errors outside the profiled points, and 1 for each inside its band."""
    profiled = profile(window, points)
    model = fit_step_time(profiled, topology, forms=forms_of(laws))
    rest = [m for m in window if m not in profiled]
    grid = grid_of(m.config for m in rest)
    predicted = model.step_times(grid)
    measured = np.array([m.step_time for m in rest])
    apart = np.abs(np.log(np.maximum(predicted, measured * 1e-9) / measured))
    return predicted / measured - 1, np.asarray(apart <= TENTH * model.deviations(grid), float)


def profile(window: Sequence[Measurement], points: int) -> tuple[Measurement, ...]:
    """Return the measurements that a search would make with this many probes."""
    by_config = {m.config: m for m in window}
    return tuple(by_config[config] for config in spread_out(tuple(by_config), points))
