"""Laws fitted to a table of measurements, and why they have their form.

``FitRequest`` says what to fit. Iteration time and epochs are fitted apart.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from scavenger.cluster import Floats
from scavenger.measurement.profiling import Measurement, Observation, ScalingIndicators
from scavenger.models.epochs import (
    EpochsLaw,
    FinishedRun,
    LawFamily,
    average_runs,
    epochs_at,
    fit_epochs_law,
)
from scavenger.models.forms import USUAL_FORMS, Topology, measurement_columns
from scavenger.models.iteration_time import StepTimeModel
from scavenger.models.iteration_time_fitting import (
    ENOUGH_TO_COMPARE,
    FormCandidate,
    fit_step_time,
    in_fitting_order,
    leave_one_out_errors,
    mean_errors,
    weighted_candidates,
)
from scavenger.models.performance import forms_for
from scavenger.offline.tables.steps import StepTable
from scavenger.planning.knee import Knee
from scavenger.planning.objective import Objective


@dataclass(frozen=True, slots=True)
class FitRequest:
    """What a user wants to know about a table.

    Attributes:
        objective: What to choose by.
        price_per_hour: Dollars per machine-hour; None to count machine-hours instead.
        dataset_size: Samples of one epoch; None while unknown, when the curve is relative.
        epochs: Epochs to target at ``at_batch``; None where runs or nothing tells.
        at_batch: Batch ``epochs`` holds at; None for the middle one of the runs, else the least.
        runs: What finished runs took, by batch.
        noise_scale: φ in samples; None for what the table says.
        topology: How gradients travel; None for what the table says, or all-reduce.
        laws: Whether the data choose among forms, or the paper's are taken.
        workers: Worker counts to predict; empty for those that were measured.
        global_batches: Batches to predict; empty for those that were measured.
    """

    objective: Objective = Knee()  # noqa: RUF009
    price_per_hour: float | None = None
    dataset_size: int | None = None
    epochs: float | None = None
    at_batch: int | None = None
    runs: tuple[FinishedRun, ...] = ()
    noise_scale: float | None = None
    topology: Topology | None = None
    laws: LawFamily = "measured"
    workers: tuple[int, ...] = ()
    global_batches: tuple[int, ...] = ()


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
    laws: LawFamily
    candidates: tuple[FormCandidate, ...]

    @property
    def errors(self) -> tuple[float, ...]:
        """Predicted over measured seconds, less 1, of each measurement."""
        return tuple(self.model.step_time(m.config) / m.step_time - 1 for m in self.measurements)

    @property
    def mean_error(self) -> float:
        """Mean of |predicted / measured - 1| at the measured points."""
        return sum(map(abs, self.errors)) / len(self.errors)

    @property
    def cross_validation_error(self) -> float | None:
        """Root mean square relative error at points left out of the fit, in turn.

        None below five points, and where no fit can do without one.
        """
        if not self.candidates:
            return None
        errors = mean_errors(self.candidates, [each.errors for each in self.candidates])
        told = errors[np.isfinite(errors)]
        return float(np.sqrt(np.mean(np.square(told)))) if len(told) else None

    @property
    def cross_validation_errors(self) -> Floats:
        """Relative error at each measurement of laws fitted to all others, nan if none tells."""
        table = measurement_columns(self.measurements, self.topology)
        if table is None or not len(table) == len(self.measurements) >= ENOUGH_TO_COMPARE:
            return np.full(len(self.measurements), np.nan)
        return np.expm1(leave_one_out_errors(table, self.candidates))

    @property
    def why(self) -> str:
        """Why these forms are in use."""
        if self.laws == "paper":
            return "the paper's lines, as asked for"
        usual = USUAL_FORMS[self.topology]
        if len(self.measurements) >= ENOUGH_TO_COMPARE:
            return "forms are weighted by their cross-validation error"
        if all(each.form == usual for each in self.candidates):
            name = self.topology.replace("_", " ")
            return f"usual for {name}; forms compete from {ENOUGH_TO_COMPARE} configurations on"
        return "it explains best what was measured of compute alone"


def fit_steps(table: StepTable, request: FitRequest) -> StepTimeFit:
    """Fit the laws of seconds per iteration to a table (Eqs. 8-10)."""
    topology = request.topology or table.topology or "all_reduce"
    forms, measured = forms_for(request.laws), in_fitting_order(table.measurements)
    model = fit_step_time(measured, topology, forms=forms)
    candidates = weighted_candidates(measured, topology, forms)
    return StepTimeFit(model, measured, topology, request.laws, candidates)


@dataclass(frozen=True, slots=True)
class EpochsFit:
    """A law of epochs by batch, and its level.

    Attributes:
        model: The law.
        reference_batch: Batch at which epochs are counted, samples.
        epochs: Epochs to target there; None while unknown.
        deviation: Relative standard deviation of ``epochs``.
        why: Where the law comes from.
    """

    model: EpochsLaw
    reference_batch: int
    epochs: float | None
    deviation: float
    why: str


def fit_epochs(table: StepTable, request: FitRequest) -> EpochsFit:
    """Fit the law of epochs to what runs, a given noise scale or the table's noise tell."""
    runs = average_runs(request.runs)
    model = fit_epochs_law(noise_observations(table, request), runs=runs, laws=request.laws)
    reference = choose_reference_batch(table, request, runs)
    why = explain_epochs_law(model, request, table)
    if request.epochs is not None or not runs:
        return EpochsFit(model, reference, request.epochs, 0.0, why)
    # The level is a mean over the runs; their law alone is what it deviates by.
    deviation = model.spread / math.sqrt(len(runs))
    return EpochsFit(model, reference, epochs_at(model, runs, reference), deviation, why)


def noise_observations(table: StepTable, request: FitRequest) -> tuple[Observation, ...]:
    """Return what tells about noise: the noise scale that was given, or else the table."""
    if request.noise_scale is None:
        return table.observations
    indicators = ScalingIndicators(None, request.noise_scale, 0.0, 0.0)
    return (Observation(table.measurements[0].config, indicators, 1),)


def choose_reference_batch(
    table: StepTable, request: FitRequest, runs: tuple[FinishedRun, ...]
) -> int:
    """Return the batch at which epochs are counted; ``runs`` are one for each batch."""
    if request.at_batch is not None:
        return request.at_batch
    if runs:
        return runs[len(runs) // 2].global_batch
    return min(m.config.global_batch for m in table.measurements)


def explain_epochs_law(law: EpochsLaw, request: FitRequest, table: StepTable) -> str:
    """Say where the law of epochs comes from."""
    runs = average_runs(request.runs)
    if len(runs) > 1:
        bend = f", which say nothing of a bend: ±{law.bend:.0%} at others" if law.bend else ""
        return f"fitted to runs at {len(runs)} batches{bend}"
    if request.laws == "paper" and law.root_noise is not None:
        return f"epochs follow the noise of {len(table.observations)} configurations"
    if law.noise_scale is None:
        return "nothing tells what a batch costs in epochs, so they count as equal for all batches"
    source = "as given" if request.noise_scale is not None else "as measured"
    return f"a prior: B_crit is the noise scale, {source}; runs at two batches would decide"
