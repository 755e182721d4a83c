"""Fits iteration time to measurements: all forms that explain them, averaged by weight."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from scavenger.cluster import Floats
from scavenger.errors import NotEnoughData
from scavenger.measurement.profiling import Measurement
from scavenger.models.forms import (
    ALL_FORMS,
    NEGLIGIBLE_TIME,
    TOPOLOGY_GROWTHS,
    USUAL_FORMS,
    MeasurementColumns,
    StepTimeForm,
    SyncStart,
    Topology,
    fit_form,
    identifiable_coefficients,
    measurement_columns,
)
from scavenger.models.iteration_time import (
    COEFFICIENT_NAMES,
    REPEAT_DEVIATION,
    Slowness,
    StepTimeLaw,
    StepTimeModel,
    Uncertainty,
    average_laws,
)
from scavenger.models.stack_factors import expected_factors, fit_stack_factors
from scavenger.stack import EAGER_NAME, StackFactors

# Forms are weighted by cross-validation errors from here on; fewer points would weigh chance.
ENOUGH_TO_COMPARE = 5
MAX_FOLDS = 10
# Smaller errors do not make a form any likelier: repeats of one configuration differ as much.
MIN_RELATIVE_ERROR = 0.03
# Weight of forms before anything is measured. Parameter servers serve one worker after the other,
# and seldom anything else explains them. Compute that is flat up to some batch rises faster beyond
# what was measured than it does as a rule.
UNUSUAL_SERVERS_PRIOR = 0.1
FLAT_PRIOR = 0.3
# Lighter laws than this, relative to the heaviest, change no prediction and are forgotten.
MIN_RELATIVE_WEIGHT = 0.05
# A form that leaves less of an iteration for computing is none, but fits what hides it all.
MIN_COMPUTE_SHARE = 0.01
# Prior of the relative spread around the law, worth this many points (SCIENCE §3).
STEP_TIME_SPREAD: dict[Topology, float] = {"parameter_server": 0.035, "all_reduce": 0.05}
STEP_TIME_SPREAD_PRIOR_WEIGHT = 4.0


def fit_step_time(
    measurements: Sequence[Measurement],
    topology: Topology = "all_reduce",
    *,
    forms: Sequence[StepTimeForm] = ALL_FORMS,
) -> StepTimeModel:
    """Fit iteration time, compute and synchronisation together (Eqs. 8-10).

    Forms are averaged. Which ones, and by what weight:

    - From five configurations on: all of them, by their cross-validation errors.
    - With fewer, where compute was measured apart: those without flatness, by their fit.
    - With fewer, where it was not: those without flatness and of the usual overlap, or of none
      where workers share machines, all alike.
    - With fewer, for parameter servers: the usual form alone.

    What measurements cannot tell apart:

    - With one local batch, compute counts as proportional to b (Eq. 9).
    - With one worker count above 1, the share of synchronisation that grows (Eq. 10) is averaged.
    - Without a worker count above 1, synchronisation counts as free.

    A time measured as 0, or as nothing beside the longest, has no relative error and is left out.

    Args:
        measurements: Measured configurations, at least one.
        topology: How gradients travel.
        forms: Forms to average; ``(PAPER_FORM,)`` for the paper's laws.

    Raises:
        NotEnoughData: No measurements: probe one configuration.
    """
    if not measurements:
        raise NotEnoughData("no measurement to fit: probe at least one configuration")
    return fit_cached(in_fitting_order(measurements), topology, tuple(forms))


def in_fitting_order(measurements: Sequence[Measurement]) -> tuple[Measurement, ...]:
    """Return measurements in the order they are fitted in, so that equal sets give equal laws."""
    # None compares with no number: where compute was not measured apart, -1 comes before all.
    return tuple(
        sorted(
            measurements,
            key=lambda m: (m.config, m.step_time, -1 if m.compute_time is None else m.compute_time),
        )
    )


@lru_cache(maxsize=256)
def fit_cached(
    measurements: tuple[Measurement, ...], topology: Topology, forms: tuple[StepTimeForm, ...]
) -> StepTimeModel:
    """Fit in a canonical order, once for each set of measurements."""
    table = measurement_columns(measurements, topology)
    if table is None:
        return StepTimeLaw(0.0, 0.0, 0.0, 0.0)
    same_stack = table.with_stack(reference_stack(table))
    own = reference_rows(table)
    candidates = weighted_candidates(measurements, topology, forms)
    others = {kind: same_stack.on_hardware(kind) for kind in sorted(set(same_stack.hardware))}
    del others[reference_hardware(same_stack)]
    laws = tuple(with_uncertainty(each.law, own, each.errors) for each in candidates)
    compared = tuple(
        replace(
            law,
            slowness={kind: relative_slowness(law, rows) for kind, rows in others.items()},
            reference_stack=reference_stack(table),
        )
        for law in laws
    )
    with_stacks = tuple(replace(law, stacks=measured_stacks(law, table)) for law in compared)
    return average_laws(with_stacks, tuple(each.weight for each in candidates))


@lru_cache(maxsize=256)
def weighted_candidates(
    measurements: tuple[Measurement, ...], topology: Topology, forms: tuple[StepTimeForm, ...]
) -> tuple[FormCandidate, ...]:
    """Return the forms that explain the measurements that coefficients are fitted on, in order."""
    table = measurement_columns(measurements, topology)
    return () if table is None else compare_forms(reference_rows(table), forms)


def reference_rows(table: MeasurementColumns) -> MeasurementColumns:
    """Return the rows that the coefficients are fitted on: of one stack and one hardware."""
    own = table.with_stack(reference_stack(table))
    return own.on_hardware(reference_hardware(own))


def reference_stack(table: MeasurementColumns) -> str:
    """Return eager if any row is of it, or else the stack that most rows are of."""
    names = table.stacks
    return max(names, key=lambda name: (name == EAGER_NAME, names.count(name), name))


def measured_stacks(law: StepTimeLaw, table: MeasurementColumns) -> dict[str, StackFactors]:
    """Return the factors of each stack of a table but the one that the law was fitted on.

    Compute is compared, so rows of several workers count where it was measured apart. Where the
    law's own stack was measured in the same configuration, what the law misses there counts for
    both.
    """
    told = table.select(np.isfinite(table.compute) | (table.grid.workers == 1))
    compute = np.where(np.isfinite(told.compute), told.compute, told.seconds)
    missed = compute / law.compute_times(told.grid)
    configs = [told.grid.config(row) for row in range(len(told))]
    own = dict(zip(configs, missed.tolist(), strict=True))
    fixed, variable = law.compute_parts(told.grid)
    found = {}
    for name in sorted(set(told.stacks) - {law.reference_stack}):
        rows = [row for row, stack in enumerate(told.stacks) if stack == name]
        alike = [replace(configs[row], stack=law.reference_stack) for row in rows]
        corrections = np.array([own.get(config, 1.0) for config in alike])
        found[name] = fit_stack_factors(
            fixed[rows] * corrections,
            variable[rows] * corrections,
            law.flatness,
            compute[rows],
            REPEAT_DEVIATION,
            expected_factors(name, law.expected_stacks, law.reference_stack),
        )
    return found


def with_expected_stacks(
    model: StepTimeModel,
    expected: Mapping[str, StackFactors],
    measurements: Sequence[Measurement],
) -> StepTimeModel:
    """Tell laws what is expected of stacks, and fit the factors of measured ones from there."""
    if not expected:
        return model
    told = model.map_laws(lambda law: replace(law, expected_stacks=expected))
    return with_measured_stacks(told, measurements)


def with_measured_stacks(
    model: StepTimeModel, measurements: Sequence[Measurement]
) -> StepTimeModel:
    """Add the factors of further stacks that were measured to laws that do not know them."""
    table = measurement_columns(measurements, "all_reduce") if measurements else None
    if table is None:
        return model
    return model.map_laws(
        lambda law: replace(law, stacks={**law.stacks, **measured_stacks(law, table)})
    )


def reference_hardware(table: MeasurementColumns) -> str:
    """Return the hardware that most rows are of; the coefficients are fitted on it."""
    kinds = table.hardware
    return max(kinds, key=lambda kind: (kinds.count(kind), kind))


@dataclass(frozen=True, slots=True, eq=False)
class FormCandidate:
    """A form, and what speaks for it.

    Attributes:
        form: The form.
        law: The form fitted to all measurements.
        errors: Relative error at each measurement of the form fitted without it; nan where a
            coefficient could not be told apart without it, and below five measurements.
        weight: Weight of the law, against those of others of any scale.
    """

    form: StepTimeForm
    law: StepTimeLaw
    errors: Floats
    weight: float = 1.0


def compare_forms(
    table: MeasurementColumns, forms: Sequence[StepTimeForm]
) -> tuple[FormCandidate, ...]:
    """Return the forms that explain measurements of one kind of hardware, with their weights."""
    laws = [(form, fit_form(table, form)) for form in usable_forms(table, forms)]
    kept = [(form, law) for form, law in laws if has_compute(law, table)] or laws[:1]
    if len(table) < ENOUGH_TO_COMPARE:
        untold = np.full(len(table), np.nan)
        found = [FormCandidate(form, law, untold) for form, law in kept]
        return merge_equal_laws(
            weigh_candidates(found, *in_sample_errors(found, table), table.topology)
        )
    fold = np.arange(len(table)) % min(len(table), MAX_FOLDS)
    parts = tuple(folds_of(table, fold))
    found = [
        FormCandidate(form, law, cross_validation_errors(table, form, law, parts))
        for form, law in kept
    ]
    errors = np.array([each.errors for each in found])
    told = errors[:, np.isfinite(errors).all(axis=0)]
    return merge_equal_laws(weigh_candidates(found, told, told.shape[1], table.topology))


def usable_forms(
    table: MeasurementColumns, forms: Sequence[StepTimeForm]
) -> tuple[StepTimeForm, ...]:
    """Return the forms that so many measurements can speak for, at least one.

    Fewer than five say nothing of flatness, and of overlap only where compute was measured apart.
    Where workers share machines less of synchronisation hides, as far as public tables tell.
    """
    own = tuple(form for form in forms if form.growth in TOPOLOGY_GROWTHS[table.topology])
    if len(own) < 2:
        return own or tuple(forms[:1])
    shown = own if len(table) >= ENOUGH_TO_COMPARE else forms_for_few_points(table, own)
    return tuple(placed for form in shown for placed in sync_start_variants(form, table))


def forms_for_few_points(
    table: MeasurementColumns, own: Sequence[StepTimeForm]
) -> tuple[StepTimeForm, ...]:
    """Return those of several forms that fewer than five measurements can speak for."""
    usual = USUAL_FORMS[table.topology]
    if table.topology == "parameter_server":
        overlaps = {usual.overlap}
    elif np.isfinite(table.compute).all():
        overlaps = {form.overlap for form in own}
    else:
        overlaps = {usual.overlap, 1.0} if shares_machines(table) else {usual.overlap}
    kept = [f for f in own if f.flatness == usual.flatness and f.overlap in overlaps]
    return tuple(kept or own[:1])


def sync_start_variants(form: StepTimeForm, table: MeasurementColumns) -> tuple[StepTimeForm, ...]:
    """Return the forms that a table cannot tell from one, by where synchronisation begins.

    With a single worker count above 1 the growing share cannot be fitted, so shares 0, 0.5 and 1
    are tried with equal weight. Where workers share machines, what does not grow may begin with
    the second worker or the second machine; share 0 from the second worker on is left out then.
    """
    told = identifiable_coefficients(table)
    if form.growth == "servers" or not told[3]:
        return (form,)
    is_shared = shares_machines(table) and bool((table.grid.machines > 1).any())
    across = replace(form, fixed_sync_from="machines")
    if told[2]:
        is_open = is_shared and not told[4] and identifiable_coefficients(table, "machines")[4]
        return (form, across) if is_open else (form,)
    all_of_it = replace(form, growing_sync_share=1.0)
    if is_shared:
        return (form, across, all_of_it, replace(across, growing_sync_share=0.0))
    return (form, all_of_it, replace(form, growing_sync_share=0.0))


def shares_machines(table: MeasurementColumns) -> bool:
    """Tell whether workers share machines."""
    return bool((table.grid.workers_per_machine > 1).any())


def in_sample_errors(
    candidates: Sequence[FormCandidate], table: MeasurementColumns
) -> tuple[Floats, int]:
    """Return the errors of laws at what they were fitted to, and their degrees of freedom.

    None where compute was not measured apart: seconds alone can be met by any form then.
    """
    is_split = np.isfinite(table.compute)
    if not is_split.all():
        return np.empty((len(candidates), 0)), 0
    errors = [
        np.concatenate([log_errors(each.law, table), compute_errors(each.law, table)])
        for each in candidates
    ]
    free = int(identifiable_coefficients(table).sum())
    return np.array(errors), max(2 * len(table) - free, 0)


def compute_errors(law: StepTimeLaw, table: MeasurementColumns) -> Floats:
    """Relative error of predicted compute, where all of it was measured."""
    predicted = np.maximum(law.compute_times(table.grid), table.compute * 1e-6)
    return np.asarray(np.log(predicted / table.compute))


def has_compute(law: StepTimeLaw, table: MeasurementColumns) -> bool:
    """Tell whether a law leaves time for computing: an iteration of one worker is nothing else."""
    most = law.compute_fixed + law.compute_per_sample * float(table.grid.local_batch.max())
    return most > MIN_COMPUTE_SHARE * float(table.seconds.min())


def weigh_candidates(
    candidates: Sequence[FormCandidate], errors: Floats, degrees_of_freedom: int, topology: Topology
) -> tuple[FormCandidate, ...]:
    """Return the candidates with their weights, without those that hardly have any.

    A weight is the likelihood of a law's errors: (mean square + least²) to the power of minus
    half their number. With few points the forms share, with many the best ones decide.

    Args:
        candidates: Forms and their laws.
        errors: What tells them apart, one row for each candidate.
        degrees_of_freedom: How many of these errors could not be fitted away.
        topology: How gradients travel, which says what is usual.
    """
    squares = np.square(errors).mean(axis=1) if degrees_of_freedom else np.zeros(len(candidates))
    prior = np.array([form_prior(each.form, topology) for each in candidates])
    logs = np.log(prior) - degrees_of_freedom / 2 * np.log(squares + MIN_RELATIVE_ERROR**2)
    weights = np.exp(logs - logs.max())
    return tuple(
        replace(each, weight=float(weight))
        for each, weight in zip(candidates, weights, strict=True)
        if weight >= MIN_RELATIVE_WEIGHT
    )


def form_prior(form: StepTimeForm, topology: Topology) -> float:
    """Weight of a form before anything is measured."""
    if topology == "parameter_server":
        return 1.0 if form == USUAL_FORMS[topology] else UNUSUAL_SERVERS_PRIOR
    return FLAT_PRIOR if form.flatness > 1 else 1.0


def merge_equal_laws(candidates: Sequence[FormCandidate]) -> tuple[FormCandidate, ...]:
    """Return one candidate for forms that came to the same law, with the weight of all of them."""
    same: dict[tuple[object, ...], FormCandidate] = {}
    for each in candidates:
        law = simplify_law(each.law)
        digits = tuple(f"{value:.5g}" for value in law.coefficients)
        key = (law.growth, law.overlap, law.flatness, *digits)
        first = same.get(key)
        weight = each.weight + (0.0 if first is None else first.weight)
        same[key] = replace(first or each, law=law, weight=weight)
    return tuple(same.values())


def simplify_law(law: StepTimeLaw) -> StepTimeLaw:
    """Return a law in the plainest form that predicts the same: what is 0 has no shape."""
    _, _, *sync = law.coefficients
    is_line = 0.0 in (law.compute_fixed, law.compute_per_sample)
    return replace(
        law,
        growth="linear" if law.growth == "log" and law.sync_per_worker == 0 else law.growth,
        overlap=law.overlap if any(sync) else 1.0,
        flatness=1.0 if is_line else law.flatness,
    )


@dataclass(frozen=True, slots=True, eq=False)
class Fold:
    """Some rows of a table, and the others.

    Attributes:
        held_out_mask: Which rows are left out of the fit.
        held_out: These rows.
        training: The others, which are fitted.
    """

    held_out_mask: NDArray[np.bool_]
    held_out: MeasurementColumns
    training: MeasurementColumns


def folds_of(
    table: MeasurementColumns, fold: NDArray[np.int_], fixed_sync_from: SyncStart = "workers"
) -> Iterator[Fold]:
    """Yield the parts of a table to leave out of a fit in turn.

    Not those without which a coefficient could not be told apart: a law without them is a guess,
    and says nothing about one fitted with them.

    Args:
        table: The table.
        fold: Number of the part that each row belongs to, from 0 on.
        fixed_sync_from: Where synchronisation that does not grow is held to begin.
    """
    told = identifiable_coefficients(table, fixed_sync_from)
    for number in range(int(fold.max()) + 1):
        held_out_mask = fold == number
        training = table.select(~held_out_mask)
        if np.array_equal(identifiable_coefficients(training, fixed_sync_from), told):
            yield Fold(held_out_mask, table.select(held_out_mask), training)


def cross_validation_errors(
    table: MeasurementColumns, form: StepTimeForm, law: StepTimeLaw, parts: Sequence[Fold]
) -> Floats:
    """Relative error at each row of a form fitted without its part; nan of rows in none.

    Args:
        table: The table.
        form: The form.
        law: The form fitted to the whole table, from which each fit starts.
        parts: What is left out in turn.
    """
    errors = np.full(len(table), np.nan)
    for part in parts:
        errors[part.held_out_mask] = log_errors(
            fit_form(part.training, form, start=law), part.held_out
        )
    return errors


def leave_one_out_errors(table: MeasurementColumns, candidates: Sequence[FormCandidate]) -> Floats:
    """Relative error at each row of the average fitted without this row alone, nan if not told."""
    rows = np.arange(len(table))
    parts = {start: tuple(folds_of(table, rows, start)) for start in get_args(SyncStart)}
    errors = [
        cross_validation_errors(table, each.form, each.law, parts[each.form.fixed_sync_from])
        for each in candidates
    ]
    return mean_errors(candidates, errors)


def mean_errors(candidates: Sequence[FormCandidate], errors: Sequence[Floats]) -> Floats:
    """Return the errors of an average of candidates, from those of each."""
    weights = np.array([each.weight for each in candidates])
    return np.asarray(weights @ np.array(errors) / weights.sum())


def log_errors(model: StepTimeLaw, table: MeasurementColumns) -> Floats:
    """Relative error of predicted seconds, as logarithm: halves and doubles weigh alike."""
    predicted = np.maximum(model.step_times(table.grid), table.seconds * 1e-6)
    return np.asarray(np.log(predicted / table.seconds))


def with_uncertainty(
    model: StepTimeLaw, table: MeasurementColumns, held_out_errors: Floats
) -> StepTimeLaw:
    """Add what the fit leaves open: the spread of what was measured, and of the coefficients.

    A few points cannot know their own spread, so it starts from what such laws usually leave.
    """
    count, free = len(table), int(np.count_nonzero(model.coefficients))
    if count >= ENOUGH_TO_COMPARE:
        errors = held_out_errors[np.isfinite(held_out_errors)]
        weight = float(len(errors))
    else:
        errors, weight = log_errors(model, table), float(max(count - free, 0))
    known = float(np.square(np.minimum(np.abs(errors), 1.0)).sum())
    usual = STEP_TIME_SPREAD_PRIOR_WEIGHT * STEP_TIME_SPREAD[table.topology] ** 2
    variance = (usual + known) / (STEP_TIME_SPREAD_PRIOR_WEIGHT + weight)
    elasticities = model.elasticities(table.grid)
    # A coefficient is off by its own size at most, or so it is held before anything is measured.
    information = elasticities.T @ elasticities + variance * np.eye(len(COEFFICIENT_NAMES))
    covariance = np.linalg.inv(information)
    return replace(
        model,
        uncertainty=Uncertainty(
            float(np.sqrt(variance)), tuple(tuple(map(float, row)) for row in covariance)
        ),
    )


def rescale_laws(model: StepTimeModel, measurements: Sequence[Measurement]) -> StepTimeModel:
    """Give laws the speed of other measurements and keep their shape; unchanged without any."""
    table = measurement_columns(measurements, "all_reduce") if measurements else None
    if table is None:
        return model
    return model.map_laws(lambda law: rescale_law(law, table))


def rescale_law(law: StepTimeLaw, table: MeasurementColumns) -> StepTimeLaw:
    """Give a law the speed of a table, part by part."""
    factors = relative_slowness(law, table.with_stack(reference_stack(table)))
    scales = np.array([factors.compute] * 2 + [factors.sync] * 3)
    return law.with_coefficients(np.array(law.coefficients) * scales)


def relative_slowness(model: StepTimeLaw, table: MeasurementColumns) -> Slowness:
    """Say how much slower other hardware is than what a model was fitted on, part by part."""
    compute, sync = model.compute_times(table.grid), model.total_sync_times(table.grid)
    total = model.step_times(table.grid)
    has_both = np.isfinite(table.compute) & (sync > total * NEGLIGIBLE_TIME)
    if not has_both.any():
        both = median_ratio(table.seconds, total)
        return Slowness(both, both)
    split = table.select(has_both)
    whole = smooth_difference(split.seconds, split.compute, model.overlap)
    return Slowness(
        median_ratio(split.compute, compute[has_both]), median_ratio(whole, sync[has_both])
    )


def smooth_difference(total: Floats, part: Floats, power: float) -> Floats:
    """Return what a part was smoothly added to, (z^p - x^p)^(1/p); 0 where it is all there is."""
    return np.asarray(total * np.maximum(1 - (part / total) ** power, 0.0) ** (1 / power))


def median_ratio(values: Floats, others: Floats) -> float:
    """Return the median ratio, finite."""
    above = others > 0
    ratios = values[above] / others[above]
    kept = ratios[np.isfinite(ratios)]
    return float(np.median(kept)) if len(kept) else 1.0
