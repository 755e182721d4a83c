"""Prediction errors of the laws on measurements left out of the fit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scavenger.cluster import Floats, config_columns
from scavenger.measurement.profiling import Measurement
from scavenger.models.epochs import (
    FinishedRun,
    LawFamily,
    average_runs,
    epochs_at,
    fit_epochs_law,
    fit_root_noise,
)
from scavenger.models.forms import Topology
from scavenger.models.iteration_time import Z_90
from scavenger.models.iteration_time_fitting import fit_step_time
from scavenger.models.performance import forms_for
from scavenger.offline.evaluation.sampling import Design, DesignName, ProbedRows, Restriction
from scavenger.offline.tables.runs import EpochsTable, NoiseTable
from scavenger.offline.tables.steps import StepTable


@dataclass(frozen=True, slots=True)
class StepTimeAccuracy:
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
    laws: LawFamily
    points: int
    design: DesignName
    windows: int
    rest: int
    error: float
    covered: float


def step_time_accuracy(
    table: StepTable,
    points: int,
    laws: LawFamily,
    restriction: Restriction,
    topology: Topology,
    design: Design,
) -> StepTimeAccuracy | None:
    """Predict a table from a few of its points; None where no window has more than these."""
    windows = [w for w in restriction.windows(table.measurements) if len(w) > points]
    if not windows:
        return None
    found = [
        predict_rest(window, probed, laws, topology)
        for window in windows
        for probed in design.choose_rows(window, points)
    ]
    return StepTimeAccuracy(
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
    window: Sequence[Measurement], probed: ProbedRows, laws: LawFamily, topology: Topology
) -> tuple[Floats, Floats]:
    """Return relative errors outside the probed points, and 1 for each inside its band."""
    model = fit_step_time(probed, topology, forms=forms_for(laws))
    rest = [m for m in window if m not in probed]
    grid = config_columns(m.config for m in rest)
    predicted = model.step_times(grid)
    measured = np.array([m.step_time for m in rest])
    apart = np.abs(np.log(np.maximum(predicted, measured * 1e-9) / measured))
    return predicted / measured - 1, np.asarray(apart <= Z_90 * model.deviations(grid), float)


@dataclass(frozen=True, slots=True)
class EpochsAccuracy:
    """How far predicted epochs of a table lie from what was measured.

    Attributes:
        table: Name of the table.
        laws: Whether the adaptive law or the paper's was fitted.
        batches: Batches the law was fitted to.
        rest: Batches predicted.
        error: Mean of |predicted / measured - 1| over the rest.
        covered: Share of the rest within the predicted 80 % band; None of a law without one.
    """

    table: str
    laws: LawFamily
    batches: int
    rest: int
    error: float
    covered: float | None


def epochs_accuracy(table: EpochsTable, batches: int, laws: LawFamily) -> EpochsAccuracy | None:
    """Predict a table from some of its batches; None where it has no more than these."""
    runs = average_runs(table.runs)
    if len(runs) <= batches:
        return None
    known = spread_batches(runs, batches)
    model = fit_epochs_law((), runs=known, laws=laws)
    rest = [run for run in runs if run not in known]
    predicted = np.array([epochs_at(model, known, run.global_batch) for run in rest])
    measured = np.array([run.epochs for run in rest])
    apart = np.abs(np.log(predicted / measured))
    batches_left = np.array([float(run.global_batch) for run in rest])
    band = Z_90 * model.deviations(batches_left, known[0].global_batch)
    return EpochsAccuracy(
        table=table.name,
        laws=laws,
        batches=batches,
        rest=len(rest),
        error=float(np.abs(predicted / measured - 1).mean()),
        covered=float((apart <= band).mean()) if model.spread else None,
    )


def spread_batches(runs: Sequence[FinishedRun], count: int) -> tuple[FinishedRun, ...]:
    """Return the two extreme batches and, of three, the one nearest their geometric mean.

    Of two equally near it is the smaller, where epochs bend most.

    Args:
        runs: One run for each batch, ascending.
        count: 2 or 3, fewer where there are fewer.
    """
    if len(runs) <= count:
        return tuple(runs)
    first, last = runs[0], runs[-1]
    if count == 2:
        return first, last
    middle = math.sqrt(first.global_batch * last.global_batch)
    # Rounded, because powers of two lie equally near but for the last digit of a logarithm.
    gaps = {run: round(abs(math.log(run.global_batch / middle)), 9) for run in runs[1:-1]}
    return first, min(gaps, key=lambda run: (gaps[run], run.global_batch)), last


MIN_BATCHES = 3


@dataclass(frozen=True, slots=True)
class NoiseAccuracy:
    """How far the laws of noise lie from what runs at several batches recorded.

    Attributes:
        table: Name of the table.
        noise_scale: φ in samples of the exact law, (B + φ) / B, from the two extreme batches.
        error: Mean relative error of that law at the other batches.
        root_error: The same of the paper's law, n0 + n1 / sqrt(B) (Eq. 7).
    """

    table: str
    noise_scale: float
    error: float
    root_error: float


def noise_accuracy(table: NoiseTable) -> NoiseAccuracy | None:
    """Predict noise from the two extreme batches; None where the table cannot tell.

    The noise of a whole run is iterations over progress: how many it took for what one iteration
    at the smallest batch does, which is (B + φ) / B in units of that batch.
    """
    ends = {r.global_batch: r for r in table.records if r.progress}
    batches = np.array(sorted(ends), dtype=float)
    if len(batches) < MIN_BATCHES:
        return None
    records = [ends[int(batch)] for batch in batches]
    noise = np.array([record.iteration / (record.progress or 1.0) for record in records])
    scale = noise_scale_between(batches, noise / noise[0])
    law = fit_root_noise(batches[[0, -1]], noise[[0, -1]])
    if scale is None or law is None:
        return None
    exact = noise[0] * (batches + scale) / (batches[0] + scale) * batches[0] / batches
    root = law.normalized(batches)
    return NoiseAccuracy(
        table=table.name,
        noise_scale=scale,
        error=float(np.abs(exact / noise - 1)[1:-1].mean()),
        root_error=float(np.abs(root / noise - 1)[1:-1].mean()),
    )


def noise_scale_between(batches: Floats, noise: Floats) -> float | None:
    """Return φ that explains how noise falls from the first batch to the last; None if none does.

    Args:
        batches: Samples, ascending.
        noise: Noise, 1 at the first batch.
    """
    first, last, fall = float(batches[0]), float(batches[-1]), float(noise[-1])
    spare = fall * last - first
    if spare <= 0 or fall >= 1:
        return None
    return last * first * (1 - fall) / spare
