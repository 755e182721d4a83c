"""StepError: seconds per iteration predicted from a few points of a table, beside its rest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scavenger.evaluation.design import Design, DesignName, Profile
from scavenger.evaluation.restriction import Restriction
from scavenger.grid import Floats, grid_of
from scavenger.indicators import Measurement
from scavenger.models.epochs import Laws
from scavenger.models.fitting import forms_of
from scavenger.models.form import Topology
from scavenger.models.step_time import fit_step_time
from scavenger.models.uncertainty import TENTH
from scavenger.tables.step_table import StepTable


@dataclass(frozen=True, slots=True)
class StepError:
    """How far predictions of a table lie from what was measured.

    Attributes:
        table: Name of the table.
        laws: Whether the data choose the form, or the paper's lines are taken.
        points: Configurations the law was fitted to.
        design: How these were chosen.
        windows: Parts of the table that were predicted one by one.
        rest: Configurations predicted, over all windows and choices.
        error: Mean of |predicted / measured - 1| over the rest, then over windows and choices.
        covered: Share of the rest within the predicted 80 % band.
    """

    table: str
    laws: Laws
    points: int
    design: DesignName
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
    design: Design,
) -> StepError | None:
    """Predict a table from a few of its points; None where no window has more than these."""
    windows = [w for w in restriction.windows(table.measurements) if len(w) > points]
    if not windows:
        return None
    found = [
        predict_rest(window, profiled, laws, topology)
        for window in windows
        for profiled in design.profiles(window, points)
    ]
    return StepError(
        table=table.name,
        laws=laws,
        points=points,
        design=design.name,
        windows=len(windows),
        rest=sum(len(errors) for errors, _ in found),
        error=float(np.mean([np.abs(errors).mean() for errors, _ in found])),
        covered=float(np.concatenate([is_inside for _, is_inside in found]).mean()),
    )


def predict_rest(
    window: Sequence[Measurement], profiled: Profile, laws: Laws, topology: Topology
) -> tuple[Floats, Floats]:
    """Return relative errors outside the profiled points, and 1 for each inside its band."""
    model = fit_step_time(profiled, topology, forms=forms_of(laws))
    rest = [m for m in window if m not in profiled]
    grid = grid_of(m.config for m in rest)
    predicted = model.step_times(grid)
    measured = np.array([m.step_time for m in rest])
    apart = np.abs(np.log(np.maximum(predicted, measured * 1e-9) / measured))
    return predicted / measured - 1, np.asarray(apart <= TENTH * model.deviations(grid), float)
