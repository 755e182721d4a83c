"""report_fit(): from a table of measurements to the curve, the choice and notes on both.

The command ``fit`` calls it with a table that the user measured; no controller is involved.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from scavenger.cluster import ClusterConfig, config_columns
from scavenger.errors import NotEnoughData
from scavenger.models.epochs import EpochsLaw, explain_contradiction
from scavenger.models.performance import PerformanceModel
from scavenger.offline.fitted_laws import (
    EpochsFit,
    FitRequest,
    StepTimeFit,
    fit_epochs,
    fit_steps,
)
from scavenger.offline.tables.steps import StepTable
from scavenger.planning.constrained_objective import ConstrainedObjective
from scavenger.planning.curve import Basis, curve_from_forecast, forecast_grid
from scavenger.planning.decision import CurvePreview
from scavenger.planning.objective import Choice
from scavenger.planning.state import FittedModel
from scavenger.pricing import on_demand_price_model
from scavenger.report import CurveReport, ReportedPoint

MAX_PREDICTED_POINTS = 2000


def list_candidates(table: StepTable, request: FitRequest) -> tuple[ClusterConfig, ...]:
    """Return what to predict: measured configurations, and those between them or asked for.

    Raises:
        NotEnoughData: None is left, or more than can be shown: the message says what to ask for.
    """
    found = cross_product(table, request)
    if not request.workers and not request.global_batches:
        # Several machines may have been filled differently at the same workers and batch.
        measured = tuple(m.config for m in table.measurements)
        every = tuple(sorted({*found, *measured}))
        found = every if len(every) <= MAX_PREDICTED_POINTS else measured
    if not found:
        raise NotEnoughData(explain_none_left(table, request))
    if len(found) > MAX_PREDICTED_POINTS:
        raise NotEnoughData(
            f"{len(found):,} configurations are more than {MAX_PREDICTED_POINTS:,} that can be "
            "shown: "
            "narrow --workers or --batch"
        )
    return found


def cross_product(table: StepTable, request: FitRequest) -> tuple[ClusterConfig, ...]:
    """Return all worker counts with all batches.

    Unless other batches are asked for, local batches stay within the measured ones, and machines
    are filled as the fullest measured one.
    """
    measured = [m.config for m in table.measurements]
    hosted = max(config.workers_per_machine for config in measured)
    low, high = local_batches(table)
    known = {(c.workers, c.global_batch): c for c in reversed(measured)}
    return tuple(
        known.get((count, batch), ClusterConfig(count, batch, hosted))
        for count in worker_counts(table, request)
        for batch in global_batches(table, request)
        if batch >= count and (request.global_batches or low <= batch / count <= high)
    )


def worker_counts(table: StepTable, request: FitRequest) -> tuple[int, ...]:
    """Return the worker counts that are asked for, else the measured ones."""
    return request.workers or tuple(sorted({m.config.workers for m in table.measurements}))


def global_batches(table: StepTable, request: FitRequest) -> tuple[int, ...]:
    """Return the batches that are asked for, else the measured ones."""
    measured = {m.config.global_batch for m in table.measurements}
    return request.global_batches or tuple(sorted(measured))


def local_batches(table: StepTable) -> tuple[float, float]:
    """Return the ends of the measured samples per worker."""
    shares = [m.config.local_batch for m in table.measurements]
    return min(shares), max(shares)


def explain_none_left(table: StepTable, request: FitRequest) -> str:
    """Say why no configuration is left."""
    low, high = local_batches(table)
    workers = format_range(worker_counts(table, request))
    batches = format_range(global_batches(table, request))
    return (
        f"no configuration is left: none of workers {workers} can share a batch of {batches} "
        f"within the measured {low:g} to {high:g} samples per worker"
    )


def format_range(values: Sequence[int]) -> str:
    """Write whole numbers by their ends.

    >>> format_range([8]), format_range([2, 4, 8])
    ('8', '2 to 8')
    """
    return str(values[0]) if len(values) == 1 else f"{values[0]} to {values[-1]}"


@dataclass(frozen=True, slots=True)
class MeasuredPoint:
    """One measured configuration beside its prediction.

    Attributes:
        config: The configuration.
        step_time: Measured seconds per iteration.
        predicted: Seconds of the laws fitted to all points.
        error: predicted / measured - 1.
        cross_validation_error: The same of laws fitted to all other points; None below five points,
            and where the others cannot tell all coefficients.
    """

    config: ClusterConfig
    step_time: float
    predicted: float
    error: float
    cross_validation_error: float | None


def compare_measured(fit: StepTimeFit) -> tuple[MeasuredPoint, ...]:
    """Put each measured configuration beside its prediction."""
    return tuple(
        MeasuredPoint(
            config=m.config,
            step_time=m.step_time,
            predicted=fit.model.step_time(m.config),
            error=error,
            cross_validation_error=None if math.isnan(left_out) else left_out,
        )
        for m, error, left_out in zip(
            fit.measurements, fit.errors, fit.cross_validation_errors.tolist(), strict=True
        )
    )


def list_notes(table: StepTable, request: FitRequest, law: EpochsLaw) -> Iterator[str]:
    """Yield what else to know: what is missing, and what contradicts the law of epochs in use."""
    missing = tuple(name_missing(request))
    if missing:
        yield (
            "time and cost are relative to the starting configuration, because "
            f"{' and '.join(missing)} {'are' if len(missing) > 1 else 'is'} not given"
        )
    elif request.price_per_hour is None:
        yield "cost counts machine-hours, because no --price was given"
    warning = explain_contradiction(law, request.runs)
    if warning is not None:
        yield warning
    yield from note_topology(table, request)
    yield from note_design(table, request)


def name_missing(request: FitRequest) -> Iterator[str]:
    """Yield what is not known and options that would tell it."""
    if request.dataset_size is None:
        yield "the samples of one epoch (--dataset-size)"
    if request.epochs is None and not request.runs:
        yield "the epochs to the target (--epochs and --at-batch, or a table of epochs)"


def note_topology(table: StepTable, request: FitRequest) -> Iterator[str]:
    """Yield what is assumed of how gradients travel."""
    if table.topology is not None and request.topology not in (None, table.topology):
        yield f"fitted as {request.topology}, though the table says {table.topology}"
    if request.topology is None and table.topology is None:
        yield "fitted as all-reduce, because neither the table nor --topology says otherwise"


def note_design(table: StepTable, request: FitRequest) -> Iterator[str]:
    """Yield what the measured configurations leave open."""
    counts = {m.config.workers for m in table.measurements}
    shares = {m.config.local_batch for m in table.measurements}
    if len(shares) == 1:
        yield "one local batch was measured, so that compute counts as proportional to it"
    if len(counts) == 1:
        yield "one worker count was measured, so that the cost of further workers is a guess"
    beyond = [count for count in request.workers if not min(counts) <= count <= max(counts)]
    if beyond:
        yield (
            f"workers {format_range(beyond)} lie beyond the measured {min(counts)} to {max(counts)}"
            ": expect more error than the intervals say"
        )


# Every form is fitted as often as there are configurations; more than these take minutes.
MAX_FITTED_CONFIGURATIONS = 1000

CostUnit = Literal["USD", "machine-hours", "relative"]


@dataclass(frozen=True, slots=True)
class FitReport:
    """Everything a table says.

    Attributes:
        table: Name of the table.
        rows: Rows it has.
        cost_unit: Unit of costs.
        steps: The laws of seconds per iteration.
        epochs: The law of epochs.
        measured: Measured points, by configuration.
        curve: The curve, and what the objective chose of it.
        points: Predicted points, from fast to slow.
        start: What a relative curve counts as 1: fewest workers, smallest batch.
        marks: Knee, fastest and cheapest of all points, whether they keep the limits or not. A
            front without a knee has its end there, where time times cost is least.
        chosen: What the objective chose.
        notes: What else to know, such as what is missing.
    """

    table: str
    rows: int
    cost_unit: CostUnit
    steps: StepTimeFit
    epochs: EpochsFit
    measured: tuple[MeasuredPoint, ...]
    curve: CurveReport
    points: tuple[ReportedPoint, ...]
    start: ClusterConfig
    marks: Mapping[str, Choice]
    chosen: Choice
    notes: tuple[str, ...]

    def marked(self, name: str) -> ClusterConfig:
        """Return the configuration of a mark."""
        return self.marks[name].point.config


def report_fit(table: StepTable, request: FitRequest) -> FitReport:
    """Fit the laws to a table, predict its configurations, and choose (Eqs. 3-10).

    Raises:
        NotEnoughData: A single configuration, or more than can be fitted: the message says what
            to measure or leave out.
        NothingFeasible: No configuration meets the limits: the message names the nearest.
    """
    require_enough(table)
    table = replace(table, measurements=tuple(sorted(table.measurements, key=lambda m: m.config)))
    steps, epochs = fit_steps(table, request), fit_epochs(table, request)
    configs = list_candidates(table, request)
    preview = predict_candidates(configs, steps, epochs, request)
    objective = request.objective
    chosen = objective.choose(preview.curve)
    limits = (
        objective
        if isinstance(objective, ConstrainedObjective)
        else ConstrainedObjective(objective)
    )
    curve = CurveReport(preview, limits, chosen)
    return FitReport(
        table=table.name,
        rows=table.rows,
        cost_unit=cost_unit_of(preview.curve.basis, request),
        steps=steps,
        epochs=epochs,
        measured=compare_measured(steps),
        curve=curve,
        points=curve.points_by_time,
        start=configs[0],
        # Without the limits: a picture also names the fastest of what breaks them.
        marks=curve.marks(ConstrainedObjective(objective)),
        chosen=chosen,
        notes=tuple(list_notes(table, request, epochs.model)),
    )


def require_enough(table: StepTable) -> None:
    """Raise NotEnoughData for a table that cannot be fitted."""
    count = len(table.measurements)
    if count < 2:
        raise NotEnoughData(
            f"table {table.name} has one configuration, and a curve needs two: measure fewest and "
            "most workers, each with the smallest and the largest batch"
        )
    if count > MAX_FITTED_CONFIGURATIONS:
        raise NotEnoughData(
            f"table {table.name} has {count:,} configurations, more than "
            f"{MAX_FITTED_CONFIGURATIONS:,} that "
            "can be fitted: give every job its own name in a column table"
        )


def predict_candidates(
    configs: Sequence[ClusterConfig], steps: StepTimeFit, epochs: EpochsFit, request: FitRequest
) -> CurvePreview:
    """Predict the curve over all candidates; measured seconds count as they were measured."""
    # Machine-hours are what a price of one dollar per machine-hour makes of dollars.
    price = on_demand_price_model(1.0 if request.price_per_hour is None else request.price_per_hour)
    measured = {m.config: m.step_time for m in steps.measurements}
    model = combine_laws(steps, epochs, request.dataset_size)
    curve = curve_from_forecast(forecast_grid(config_columns(configs), model, price, measured))
    return CurvePreview(curve, FittedModel(model, (), "a table of measurements"))


def combine_laws(
    steps: StepTimeFit, epochs: EpochsFit, dataset_size: int | None
) -> PerformanceModel:
    """Put seconds and epochs together; relative where level or size of an epoch is unknown."""
    is_total = epochs.epochs is not None and dataset_size is not None
    return PerformanceModel(
        steps.model,
        epochs.model,
        dataset_size or 1,
        epochs.reference_batch,
        epochs.epochs if is_total else None,
        epochs.deviation if is_total else 0.0,
    )


def cost_unit_of(basis: Basis, request: FitRequest) -> CostUnit:
    """Return the unit of costs."""
    if basis == "relative":
        return "relative"
    return "machine-hours" if request.price_per_hour is None else "USD"
