"""fit_step_time(): from measured iterations to a ParallelModel, its form chosen by the data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from scavenger.cluster import ClusterConfig
from scavenger.errors import NotEnoughData
from scavenger.grid import Floats
from scavenger.indicators import Measurement
from scavenger.models.form import FORMS, GROWTHS, USUAL, Form, Topology
from scavenger.models.least_squares import NEGLIGIBLE, Table, fit_form, identifiable, tabulate
from scavenger.models.parallel import COEFFICIENTS, ParallelModel, Slowness
from scavenger.models.uncertainty import Uncertainty

# Forms compete by leave-one-out error from here on; with fewer points each would win by chance.
ENOUGH_TO_COMPARE = 5
# A form must be this much better than the usual one: the best of many is partly luck.
CLEARLY_BETTER = 0.8
MOST_FOLDS = 10
# Prior of the relative spread around the law, worth this many points (SCIENCE §3).
USUAL_SPREAD: dict[Topology, float] = {"parameter_server": 0.025, "all_reduce": 0.05}
USUAL_SPREAD_WORTH = 4.0


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
