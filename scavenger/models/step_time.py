"""fit_step_time(): from measured iterations to a ParallelModel, its form chosen by the data.

Least squares on relative error with coefficients that are never negative: plain least squares
gives negative seconds and lets the slowest configuration decide alone (SCIENCE §3).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from scavenger.cluster import ClusterConfig
from scavenger.errors import NotEnoughData
from scavenger.grid import Floats, Grid, grid_of
from scavenger.indicators import Measurement
from scavenger.machine import hardware
from scavenger.models.parallel import (
    COEFFICIENTS,
    Growth,
    ParallelModel,
    Slowness,
    sync_features,
)
from scavenger.models.uncertainty import Uncertainty

Topology = Literal["all_reduce", "parameter_server"]

NEGLIGIBLE = 1e-12
# No clock shows less; smaller numbers only overflow when something is divided by them.
SHORTEST = 1e-100
# Forms compete by leave-one-out error from here on; with fewer points each would win by chance.
ENOUGH_TO_COMPARE = 5
# A form must be this much better than the usual one: the best of many is partly luck.
CLEARLY_BETTER = 0.8
ROUNDS = 30
# A fit without one point starts from the fit with it, and is only compared.
ROUNDS_FROM_START = 8
CONVERGED = 1e-9
MOST_FOLDS = 10
# Prior of the relative spread around the law, worth this many points (SCIENCE §3).
USUAL_SPREAD: dict[Topology, float] = {"parameter_server": 0.025, "all_reduce": 0.05}
USUAL_SPREAD_WORTH = 4.0
# Share of synchronisation that is held to grow with K where only one count above 1 was measured.
GROWING = 0.5


@dataclass(frozen=True, slots=True)
class Form:
    """The shape of a law, before its coefficients are fitted."""

    growth: Growth = "linear"
    overlap: float = 1.0
    flatness: float = 1.0


LINES = Form()
# Parameter servers serve one worker after the other (Eq. 10); all-reduce hides part of it.
USUAL: dict[Topology, Form] = {
    "parameter_server": Form(growth="servers"),
    "all_reduce": Form(overlap=2.0),
}
GROWTHS: dict[Topology, tuple[Growth, ...]] = {
    "parameter_server": ("servers",),
    "all_reduce": ("linear", "log"),
}
FORMS = tuple(
    Form(growth, overlap, flatness)
    for growth, overlap, flatness in product(get_args(Growth), (1.0, 2.0, 4.0), (1.0, 2.0))
)


def fit_step_time(
    measurements: Sequence[Measurement],
    topology: Topology = "all_reduce",
    *,
    forms: Sequence[Form] = FORMS,
) -> ParallelModel:
    """Fit iteration time, compute and synchronisation together (Eqs. 8-10).

    The form is chosen by leave-one-out error from five configurations on; with fewer by the fit
    where compute was measured apart, else the usual one of the topology is taken. Where
    measurements cannot tell the fixed part from the rest, one local batch makes compute
    proportional to b (Eq. 9), of one worker count above 1 a share of the synchronisation is held to
    grow with K (Eq. 10), which the uncertainty says, and without any such count it counts as free.
    A time measured as 0, or as nothing beside the longest, has no relative error to speak of and
    is left out.

    Args:
        measurements: Measured configurations, at least one.
        topology: How gradients travel.
        forms: Forms to choose from; ``(LINES,)`` for the paper's laws.

    Raises:
        NotEnoughData: No measurements: probe one configuration.
    """
    if not measurements:
        raise NotEnoughData("no measurement to fit: probe at least one configuration")
    return fitted(tuple(sorted(measurements, key=in_order)), topology, tuple(forms))


def in_order(measured: Measurement) -> tuple[ClusterConfig, float, float]:
    """Key of the order in which measurements are fitted, whatever order they came in."""
    compute = measured.compute_time
    return measured.config, measured.step_time, -1.0 if compute is None else compute


@lru_cache(maxsize=256)
def fitted(
    measurements: tuple[Measurement, ...], topology: Topology, forms: tuple[Form, ...]
) -> ParallelModel:
    """Fit in a canonical order, once for each set of measurements."""
    table = tabulate(measurements, topology)
    if table is None:
        return ParallelModel(0.0, 0.0, 0.0, 0.0)
    kinds = table.kinds
    reference = max(kinds, key=lambda kind: (kinds.count(kind), kind))
    own = table.of_kind(reference)
    form = choose_form(own, forms)
    model = with_uncertainty(fit_form(own, form), own)
    others = sorted(set(kinds) - {reference})
    slowness = {kind: compare(model, table.of_kind(kind)) for kind in others}
    return replace(model, slowness=slowness)


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """Measured configurations as columns.

    Attributes:
        grid: The configurations.
        seconds: Seconds per iteration, all positive.
        compute: Seconds of compute; nan where it was not measured apart, or as nothing.
        topology: How gradients travel.
    """

    grid: Grid
    seconds: Floats
    compute: Floats
    topology: Topology

    def __len__(self) -> int:
        return len(self.seconds)

    @property
    def kinds(self) -> list[str]:
        """Hardware of each configuration."""
        return [hardware(self.grid.machine_types[index]) for index in self.grid.type_of]

    def of_kind(self, kind: str) -> Table:
        """Return the rows of one kind of hardware."""
        return self.rows(np.array([own == kind for own in self.kinds]))

    def rows(self, kept: NDArray[np.bool_]) -> Table:
        """Return some of the rows."""
        return Table(self.grid.rows(kept), self.seconds[kept], self.compute[kept], self.topology)


def tabulate(measurements: Sequence[Measurement], topology: Topology) -> Table | None:
    """Put measurements into columns, without those that took no time; None if none is left."""
    longest = max(m.step_time for m in measurements)
    kept = [m for m in measurements if m.step_time > max(longest * NEGLIGIBLE, SHORTEST)]
    if not kept:
        return None
    seconds = np.array([m.step_time for m in kept])
    compute = np.array([np.nan if m.compute_time is None else m.compute_time for m in kept])
    compute[~(compute > max(longest * NEGLIGIBLE, SHORTEST))] = np.nan
    return Table(grid_of(m.config for m in kept), seconds, compute, topology)


def choose_form(table: Table, forms: Sequence[Form]) -> Form:
    """Return the usual form, or one that is clearly better at points it was not fitted to."""
    usual = USUAL[table.topology] if USUAL[table.topology] in forms else forms[0]
    forms = [form for form in forms if form.growth in GROWTHS[table.topology]]
    if len(forms) < 2:
        return usual
    if len(table) >= ENOUGH_TO_COMPARE:
        errors = {form: rms(left_out_errors(table, form)) for form in forms}
    elif np.isfinite(table.compute).all():
        errors = {
            form: rms(errors_of(fit_form(table, form), table))
            for form in forms
            if form.flatness == usual.flatness and form.growth == usual.growth
        }
    else:
        return usual
    best = min(errors, key=lambda form: (errors[form], form.overlap, form.flatness, form.growth))
    return best if errors[best] < CLEARLY_BETTER * errors[usual] else usual


def form_of(model: ParallelModel) -> Form:
    """Return the form a law was fitted in."""
    return Form(model.growth, model.overlap, model.flatness)


def left_out_errors(table: Table, form: Form) -> Floats:
    """Relative errors at points, of a law fitted without them; of many points, without a tenth.

    Points without which a coefficient could not be told apart are passed over.
    """
    fold = np.arange(len(table)) % min(len(table), MOST_FOLDS)
    errors = [
        errors_of(law, table.rows(fold == number))
        for number, law in enumerate(laws_without(table, form, fold))
        if law is not None
    ]
    return np.concatenate([*errors, np.empty(0)])


def laws_without(
    table: Table, form: Form, fold: NDArray[np.int_]
) -> Iterator[ParallelModel | None]:
    """Yield a law fitted without each part of the table in turn.

    None where a coefficient could not be told apart without the part: such a law is a guess, and
    says nothing about one fitted with it.

    Args:
        table: The table.
        form: The form of the law.
        fold: Number of the part that each row belongs to, from 0 on.
    """
    whole = fit_form(table, form)
    for number in range(int(fold.max()) + 1):
        rest = table.rows(fold != number)
        is_told = np.array_equal(identifiable(rest), identifiable(table))
        yield fit_form(rest, form, start=whole) if is_told else None


def errors_of(model: ParallelModel, table: Table) -> Floats:
    """Relative error of predicted seconds, as logarithm: halves and doubles weigh alike."""
    predicted = np.maximum(model.step_times(table.grid), table.seconds * 1e-6)
    return np.asarray(np.log(predicted / table.seconds))


def rms(errors: Floats) -> float:
    """Root of the mean square; 0 of nothing."""
    return float(np.sqrt(np.mean(np.square(errors)))) if len(errors) else 0.0


def fit_form(table: Table, form: Form, start: ParallelModel | None = None) -> ParallelModel:
    """Fit the coefficients of a form, which predict seconds and, where measured, compute.

    Seconds are homogeneous of degree 1 in the coefficients, so that the law is its own
    linearisation: slopes times coefficients. Non-negative least squares on it, repeated with the
    slopes at the last answer, is Gauss-Newton.
    """
    free = identifiable(table)
    size = reach(table, form.growth)
    model = solve(table, ParallelModel(0.0, 0.0, 0.0, 0.0, growth=form.growth), free)
    if form.overlap == 1 and form.flatness == 1:
        return model
    model = replace(model, overlap=form.overlap, flatness=form.flatness)
    near = model if start is None else start
    # A coefficient of zero has no slope where parts overlap and would stay zero for ever.
    coefficients = np.array(near.coefficients) + free * table.seconds.min() * 0.01 / size
    for _ in range(ROUNDS if start is None else ROUNDS_FROM_START):
        answer = solve(table, model.with_coefficients(coefficients), free)
        step = (np.array(answer.coefficients) - coefficients) / 2
        coefficients += step
        if (np.abs(step) * size).max() <= CONVERGED * table.seconds.min():
            break
    return model.with_coefficients(coefficients)


def reach(table: Table, growth: Growth) -> Floats:
    """Largest number each coefficient is multiplied with in the table."""
    largest = sync_features(table.grid, growth)[:, 1].max()
    return np.array([1.0, table.grid.local_batch.max(), 1.0, max(float(largest), 1.0), 1.0])


def identifiable(table: Table) -> Floats:
    """Which coefficients the measured configurations can tell apart, 1 or 0 each."""
    grid = table.grid
    several = grid.workers > 1
    across = grid.machines > 1
    counts = len(np.unique(grid.workers[several]))
    return np.array(
        [
            len(np.unique(grid.local_batch)) > 1,
            True,
            counts > 1,
            counts > 0,
            counts > 2 and across.any() and (across != several).any(),
        ],
        dtype=float,
    )


def solve(table: Table, model: ParallelModel, free: Floats) -> ParallelModel:
    """Solve for the coefficients with the slopes of a model, all relative to what was measured."""
    is_split = np.isfinite(table.compute)
    rows = model.slopes(table.grid) / table.seconds[:, None]
    of_compute = model.compute_slopes(table.grid.rows(is_split)) / table.compute[is_split, None]
    stacked = np.vstack([rows, of_compute]) * free
    # Columns of any unit become about 1, so that the solver's tolerance fits.
    scale = stacked.max(axis=0)
    scale[scale <= 0] = 1.0
    answer = nnls(stacked / scale, np.ones(len(stacked)))[0] / scale * free
    if free[3] and not free[2] and model.growth != "servers":
        answer[2] = answer[3] * (1 - GROWING) * reach(table, model.growth)[3]
        answer[3] *= GROWING
    return model.with_coefficients(answer)


def with_uncertainty(model: ParallelModel, table: Table) -> ParallelModel:
    """Add what the fit leaves open: the spread of what was measured, and of the coefficients.

    A few points cannot know their own spread, so it starts from what such laws usually leave.
    """
    count, free = len(table), int(np.count_nonzero(model.coefficients))
    if count >= ENOUGH_TO_COMPARE:
        errors = left_out_errors(table, form_of(model))
        weight = float(len(errors))
    else:
        errors, weight = errors_of(model, table), float(max(count - free, 0))
    known = float(np.square(np.minimum(np.abs(errors), 1.0)).sum())
    usual = USUAL_SPREAD_WORTH * USUAL_SPREAD[table.topology] ** 2
    variance = (usual + known) / (USUAL_SPREAD_WORTH + weight)
    elasticities = model.elasticities(table.grid)
    # A coefficient is off by its own size at most, or so it is held before anything is measured.
    information = elasticities.T @ elasticities + variance * np.eye(len(COEFFICIENTS))
    covariance = np.linalg.inv(information)
    return replace(
        model,
        uncertainty=Uncertainty(
            float(np.sqrt(variance)), tuple(tuple(map(float, row)) for row in covariance)
        ),
    )


def rescale(model: ParallelModel, measurements: Sequence[Measurement]) -> ParallelModel:
    """Give a law the speed of other measurements and keep its shape; unchanged without any."""
    table = tabulate(measurements, "all_reduce") if measurements else None
    if table is None:
        return model
    factors = compare(model, table)
    scales = np.array([factors.compute] * 2 + [factors.sync] * 3)
    return model.with_coefficients(np.array(model.coefficients) * scales)


def compare(model: ParallelModel, table: Table) -> Slowness:
    """Say how much slower other hardware is than what a model was fitted on, part by part."""
    compute, sync = model.compute_times(table.grid), model.whole_sync_times(table.grid)
    total = model.step_times(table.grid)
    has_both = np.isfinite(table.compute) & (sync > total * NEGLIGIBLE)
    if not has_both.any():
        both = typical(table.seconds, total)
        return Slowness(both, both)
    split = table.rows(has_both)
    whole = remainder(split.seconds, split.compute, model.overlap)
    return Slowness(typical(split.compute, compute[has_both]), typical(whole, sync[has_both]))


def remainder(total: Floats, part: Floats, power: float) -> Floats:
    """Return what a part was smoothly added to, (z^p - x^p)^(1/p); 0 where it is all there is."""
    return np.asarray(total * np.maximum(1 - (part / total) ** power, 0.0) ** (1 / power))


def typical(values: Floats, others: Floats) -> float:
    """Return the median ratio, finite."""
    above = others > 0
    ratios = values[above] / others[above]
    kept = ratios[np.isfinite(ratios)]
    return float(np.median(kept)) if len(kept) else 1.0
