"""Forms of the law of iteration time, and the least-squares fit of one form's coefficients.

Non-negative least squares on relative error: plain least squares gives negative seconds and lets
the slowest configuration decide alone (SCIENCE §3).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from scavenger.cluster import ConfigColumns, Floats, config_columns, hardware_of
from scavenger.measurement.profiling import Measurement
from scavenger.models.iteration_time import (
    Growth,
    StepTimeLaw,
    smooth_maximum,
    smooth_maximum_slope,
    sync_features,
)

Topology = Literal["all_reduce", "parameter_server"]
SyncStart = Literal["workers", "machines"]


@dataclass(frozen=True, slots=True)
class StepTimeForm:
    """The shape of a law, before its coefficients are fitted.

    Attributes:
        growth: How synchronisation grows with the workers.
        overlap: q, how much of it hides behind compute.
        flatness: r, how abruptly small batches stop saving time.
        fixed_sync_from: Whether synchronisation that does not grow begins with the second worker or
            the second machine, where measurements cannot tell the two.
        growing_sync_share: Share of synchronisation that grows, where a single worker count above 1
            was measured.
    """

    growth: Growth = "linear"
    overlap: float = 1.0
    flatness: float = 1.0
    fixed_sync_from: SyncStart = "workers"
    growing_sync_share: float = 0.5


PAPER_FORM = StepTimeForm()
# Parameter servers serve one worker after the other (Eq. 10); all-reduce hides part of it.
USUAL_FORMS: dict[Topology, StepTimeForm] = {
    "parameter_server": StepTimeForm(growth="servers"),
    "all_reduce": StepTimeForm(overlap=2.0),
}
TOPOLOGY_GROWTHS: dict[Topology, tuple[Growth, ...]] = {
    "parameter_server": ("servers",),
    "all_reduce": ("linear", "log"),
}
ALL_FORMS = tuple(
    StepTimeForm(growth, overlap, flatness)
    for growth, overlap, flatness in product(get_args(Growth), (1.0, 2.0, 4.0), (1.0, 2.0))
)

NEGLIGIBLE_TIME = 1e-12
# No clock shows less; smaller numbers only overflow when something is divided by them.
MIN_SECONDS = 1e-100
GAUSS_NEWTON_ROUNDS = 30
# A fit without one point starts from the fit with it, and is only compared.
WARM_START_ROUNDS = 8
CONVERGENCE_TOLERANCE = 1e-9
# No part of an iteration takes longer than the whole of it; measurements are a little off.
MAX_PART_RATIO = 2.0
# Parts this short beside any iteration are none.
NEGLIGIBLE_PART_RATIO = 1e-7


@dataclass(frozen=True, slots=True, eq=False)
class MeasurementColumns:
    """Measured configurations as columns.

    Attributes:
        grid: The configurations.
        seconds: Seconds per iteration, all positive.
        compute: Seconds of compute; nan where it was not measured apart, or as nothing.
        topology: How gradients travel.
    """

    grid: ConfigColumns
    seconds: Floats
    compute: Floats
    topology: Topology

    def __len__(self) -> int:
        return len(self.seconds)

    @property
    def hardware(self) -> list[str]:
        """Hardware of each configuration, as in ``hardware_of``."""
        return [hardware_of(self.grid.machine_types[index]) for index in self.grid.type_index]

    @property
    def stacks(self) -> list[str]:
        """Stack of each configuration."""
        return [self.grid.stacks[index] for index in self.grid.stack_index]

    def on_hardware(self, hardware: str) -> MeasurementColumns:
        """Return the rows of one kind of hardware."""
        return self.select(np.array([own == hardware for own in self.hardware]))

    def with_stack(self, stack: str) -> MeasurementColumns:
        """Return the rows of one stack."""
        return self.select(np.array([own == stack for own in self.stacks]))

    def select(self, kept: NDArray[np.bool_]) -> MeasurementColumns:
        """Return some of the rows."""
        return MeasurementColumns(
            self.grid.select(kept), self.seconds[kept], self.compute[kept], self.topology
        )


def measurement_columns(
    measurements: Sequence[Measurement], topology: Topology
) -> MeasurementColumns | None:
    """Put measurements into columns, without those that took no time; None if none is left."""
    longest = max(m.step_time for m in measurements)
    kept = [m for m in measurements if m.step_time > max(longest * NEGLIGIBLE_TIME, MIN_SECONDS)]
    if not kept:
        return None
    seconds = np.array([m.step_time for m in kept])
    compute = np.array([np.nan if m.compute_time is None else m.compute_time for m in kept])
    compute[~(compute > max(longest * NEGLIGIBLE_TIME, MIN_SECONDS))] = np.nan
    return MeasurementColumns(config_columns(m.config for m in kept), seconds, compute, topology)


def identifiable_coefficients(
    table: MeasurementColumns, fixed_sync_from: SyncStart = "workers"
) -> Floats:
    """Which coefficients the measured configurations can tell apart, 1 or 0 each.

    Args:
        table: The table.
        fixed_sync_from: Where synchronisation that does not grow is held to begin, as long as not
            both of its parts can be told.
    """
    grid = table.grid
    several, across = grid.workers > 1, grid.machines > 1
    counts = len(set(grid.workers[several].tolist()))
    apart = bool(across.any() and (across != several).any())
    fixed, step = counts > 1, counts > 2 and apart
    if fixed_sync_from == "machines" and not step:
        far = len(set(grid.workers[across].tolist()))
        fixed, step = False, counts > 1 and (apart or far > 1)
    batches = len(set(grid.local_batch.tolist()))
    return np.array([batches > 1, True, fixed, counts > 0, step], dtype=float)


def fit_form(
    table: MeasurementColumns, form: StepTimeForm, start: StepTimeLaw | None = None
) -> StepTimeLaw:
    """Fit the coefficients of a form, which predict seconds and, where measured, compute.

    Seconds are homogeneous of degree 1 in the coefficients, so that the law is its own
    linearisation: slopes times coefficients. Non-negative least squares on it, repeated with the
    slopes at the last answer, is Gauss-Newton.
    """
    law = StepTimeLaw(
        0.0, 0.0, 0.0, 0.0, 0.0, growth=form.growth, overlap=form.overlap, flatness=form.flatness
    )
    problem = pose_least_squares(table, form)
    if form.overlap == 1 and form.flatness == 1:
        return law.with_coefficients(problem.solve(np.zeros(5)))
    if start is None:
        lines = pose_least_squares(table, StepTimeForm(form.growth)).solve(np.zeros(5))
        return law.with_coefficients(problem.descend(lines, GAUSS_NEWTON_ROUNDS))
    return law.with_coefficients(problem.descend(np.array(start.coefficients), WARM_START_ROUNDS))


@dataclass(frozen=True, slots=True, eq=False)
class LeastSquaresProblem:
    """What the coefficients of one form have to explain, on one kind of hardware.

    Plain columns, because a choice among forms solves this a thousand times.

    Attributes:
        batch: Samples per worker of each row.
        sync: What the coefficients of synchronisation are multiplied with, one row each.
        seconds: Seconds per iteration.
        compute: Seconds of compute of the rows in which it was measured apart.
        is_split: Which rows these are.
        free: 1 for each coefficient that can be told from the others.
        max_multiplier: Largest number each coefficient is multiplied with.
        upper_bounds: Largest value each coefficient can have.
        form: The form.
    """

    batch: Floats
    sync: Floats
    seconds: Floats
    compute: Floats
    is_split: NDArray[np.bool_]
    free: Floats
    max_multiplier: Floats
    upper_bounds: Floats
    form: StepTimeForm

    def descend(self, initial: Floats, rounds: int) -> Floats:
        """Return the coefficients that explain most, searched for from initial ones."""
        smallest = self.seconds.min()
        # A coefficient of zero has no slope where parts overlap and would stay zero for ever.
        coefficients: Floats = initial + self.free * smallest * 0.01 / self.max_multiplier
        for _ in range(rounds):
            # Where a part hides behind another it has hardly any slope, so that a step may go
            # beyond anything that was measured, and from there nowhere.
            answer = np.minimum(self.solve(coefficients), self.upper_bounds)
            step = (answer - coefficients) / 2
            coefficients = coefficients + step
            if (np.abs(step) * self.max_multiplier).max() <= CONVERGENCE_TOLERANCE * smallest:
                break
        # What halving has left of a part that is none.
        coefficients[coefficients * self.max_multiplier < NEGLIGIBLE_PART_RATIO * smallest] = 0.0
        return coefficients

    def solve(self, initial: Floats) -> Floats:
        """Solve for the coefficients with the slopes at others, all relative to measurements."""
        slopes, of_compute = self.slopes(initial)
        rows = slopes / self.seconds[:, None]
        split = of_compute[self.is_split] / self.compute[:, None]
        stacked = np.vstack([rows, split]) * self.free
        # Columns of any unit become about 1, so that the solver's tolerance fits.
        scale = stacked.max(axis=0)
        scale[scale <= 0] = 1.0
        answer = solve_nnls(stacked / scale, np.ones(len(stacked))) / scale * self.free
        fixed = 4 if self.form.fixed_sync_from == "machines" else 2
        if self.free[3] and not self.free[fixed] and self.form.growth != "servers":
            answer[fixed] = answer[3] * (1 - self.form.growing_sync_share) * self.max_multiplier[3]
            answer[3] *= self.form.growing_sync_share
        return np.asarray(answer)

    def slopes(self, coefficients: Floats) -> tuple[Floats, Floats]:
        """Derivatives of each row's seconds, and of its compute, by each coefficient.

        Both are homogeneous of degree 1 in the coefficients, so slopes times coefficients add up
        to them (Euler).
        """
        q, r = self.form.overlap, self.form.flatness
        fixed = np.full_like(self.batch, coefficients[0])
        variable = coefficients[1] * self.batch
        compute = smooth_maximum(fixed, variable, r)
        sync = self.sync @ coefficients[2:]
        total = smooth_maximum(compute, sync, q)
        of_compute = np.zeros((len(self.batch), 5))
        of_compute[:, 0] = smooth_maximum_slope(fixed, compute, r)
        of_compute[:, 1] = smooth_maximum_slope(variable, compute, r) * self.batch
        slopes = of_compute * smooth_maximum_slope(compute, total, q)[:, None]
        slopes[:, 2:] = self.sync * smooth_maximum_slope(sync, total, q)[:, None]
        return slopes, of_compute


def pose_least_squares(table: MeasurementColumns, form: StepTimeForm) -> LeastSquaresProblem:
    """Lay out what a form has to explain."""
    sync = sync_features(table.grid, form.growth)
    batch = table.grid.local_batch
    is_split = np.isfinite(table.compute)
    whole = np.column_stack([np.ones_like(batch), batch, sync]) / table.seconds[:, None]
    largest = whole.max(axis=0)
    upper_bounds = np.divide(MAX_PART_RATIO, largest, out=np.full(5, np.inf), where=largest > 0)
    return LeastSquaresProblem(
        batch=batch,
        sync=sync,
        seconds=table.seconds,
        compute=table.compute[is_split],
        is_split=is_split,
        free=identifiable_coefficients(table, form.fixed_sync_from),
        max_multiplier=np.array([1.0, batch.max(), 1.0, max(float(sync[:, 1].max()), 1.0), 1.0]),
        upper_bounds=upper_bounds,
        form=form,
    )


def solve_nnls(matrix: Floats, values: Floats) -> Floats:
    """Return the non-negative coefficients of least squared error."""
    # Importing scipy takes longer than all commands that only read a job document, and a document
    # names a search strategy, so the import waits for the first fit.
    from scipy.optimize import nnls

    return np.asarray(nnls(matrix, values)[0])
