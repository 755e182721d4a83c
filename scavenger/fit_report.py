"""FitReport: what a table of measurements says about time and cost of every configuration.

Without any service: ``cli`` hands it the table somebody measured, and shows what comes back.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from scavenger.cluster import ClusterConfig
from scavenger.errors import NotEnoughData
from scavenger.forecast import foresee
from scavenger.grid import grid_of
from scavenger.indicators import Measurement, Observation, ScalingIndicators
from scavenger.models.epochs import (
    EpochsSeen,
    Laws,
    average_runs,
    contradiction,
    fit_statistical,
)
from scavenger.models.epochs_level import epochs_at
from scavenger.models.parallel import Growth, ParallelModel
from scavenger.models.performance import PerformanceModel
from scavenger.models.statistical import StatisticalModel
from scavenger.models.step_time import (
    ENOUGH_TO_COMPARE,
    FORMS,
    LINES,
    USUAL,
    Form,
    Table,
    Topology,
    errors_of,
    fit_form,
    fit_step_time,
    identifiable,
    left_out_errors,
    rms,
    tabulate,
)
from scavenger.objective import Cheapest, Choice, Fastest, Knee, Objective, Within
from scavenger.pricing import on_demand
from scavenger.tables.step_table import StepTable
from scavenger.tradeoff import Basis, TradeoffCurve, TradeoffPoint, draw_curve

MOST_POINTS = 2000
# Every form is fitted as often as there are configurations; more than these take minutes.
MOST_MEASURED = 1000

CostUnit = Literal["USD", "machine-hours", "relative"]


@dataclass(frozen=True, slots=True)
class FitRequest:
    """What somebody wants to know about a table.

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
    runs: tuple[EpochsSeen, ...] = ()
    noise_scale: float | None = None
    topology: Topology | None = None
    laws: Laws = "measured"
    workers: tuple[int, ...] = ()
    global_batches: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """A configuration.

    Attributes:
        workers: K.
        global_batch: B in samples.
        machines: Machines the workers sit on.
    """

    workers: int
    global_batch: int
    machines: int


@dataclass(frozen=True, slots=True)
class StepTimeLaw:
    """The fitted law of seconds per iteration (Eqs. 8-10); coefficients in seconds.

    Attributes:
        compute_fixed: Of an iteration, whatever the batch.
        compute_per_sample: Of each sample of the local batch.
        sync_fixed: As soon as there are two workers.
        sync_per_worker: Per worker, or per doubling of the workers where ``growth`` is log.
        sync_across_machines: As soon as there are two machines.
        growth: How synchronisation grows with the workers.
        overlap: q of (c^q + s^q)^(1/q); 1 where nothing overlaps.
        flatness: r of compute (c0^r + (c1 b)^r)^(1/r); 1 for a line.
        spread: Relative standard deviation of one configuration around the law.
        error: Mean of |predicted / measured - 1| at the measured points.
        left_out_error: Root mean square relative error at points left out of the fit, in turn;
            None below five points, and where no fit can do without one.
        why: Why this form.
    """

    compute_fixed: float
    compute_per_sample: float
    sync_fixed: float
    sync_per_worker: float
    sync_across_machines: float
    growth: Growth
    overlap: float
    flatness: float
    spread: float
    error: float
    left_out_error: float | None
    why: str


@dataclass(frozen=True, slots=True)
class EpochsLaw:
    """The law of epochs by batch in use (Eq. 6).

    Attributes:
        law: In symbols.
        noise_scale: φ in samples; None where unknown.
        critical_batch: B_crit in samples; None without a rising arm.
        noisy_samples: w in samples; 0 without a falling arm.
        at_batch: Reference batch in samples.
        epochs: Epochs to target there; None while unknown.
        spread: Relative standard deviation of epochs around the law.
        why: Where it comes from.
    """

    law: str
    noise_scale: float | None
    critical_batch: float | None
    noisy_samples: float
    at_batch: int
    epochs: float | None
    spread: float
    why: str


@dataclass(frozen=True, slots=True)
class Interval:
    """What 10, 50 and 90 % of the possible outcomes stay below."""

    low: float
    median: float
    high: float


@dataclass(frozen=True, slots=True)
class PredictedPoint:
    """What one configuration takes.

    Attributes:
        place: The configuration.
        step_time: Predicted seconds per iteration.
        measured_step_time: Measured ones, which ``time`` and ``cost`` use; None if there are none.
        epochs: Epochs to target; on a relative curve, to those at the reference batch.
        time: Seconds to target; on a relative curve, to the start's.
        cost: Cost to target in the report's unit; on a relative curve, to the start's.
        is_on_front: Whether no other is cheaper and faster.
        violations: Limits it breaks or is not sure to meet.
    """

    place: Place
    step_time: float
    measured_step_time: float | None
    epochs: float
    time: Interval
    cost: Interval
    is_on_front: bool
    violations: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class MeasuredPoint:
    """One measured configuration beside its prediction.

    Attributes:
        place: The configuration.
        step_time: Measured seconds per iteration.
        predicted: Seconds of the law fitted to all points.
        error: predicted / measured - 1.
        left_out_error: The same of a law fitted to all other points; None below five points, and
            where the others cannot tell all coefficients.
    """

    place: Place
    step_time: float
    predicted: float
    error: float
    left_out_error: float | None


@dataclass(frozen=True, slots=True)
class ChosenPoint:
    """What the objective chose.

    Attributes:
        place: The configuration.
        objective: Name of the objective.
        why: One sentence with figures.
        support: Share of the worlds the measurements allow in which it is chosen too.
        runner_up: What is chosen in most of the others.
    """

    place: Place
    objective: str
    why: str
    support: float | None
    runner_up: Place | None


@dataclass(frozen=True, slots=True)
class FitReport:
    """Everything a table says.

    Attributes:
        table: Name of the table.
        rows: Rows it has.
        topology: How gradients travel.
        laws: Laws that were fitted.
        basis: ``total`` in seconds and ``cost_unit``, ``relative`` to the start.
        cost_unit: Unit of costs.
        step_time: The law of seconds per iteration.
        epochs: The law of epochs.
        measured: Measured points, by configuration.
        points: Predicted points, from fast to slow.
        start: What a relative curve counts as 1: fewest workers, smallest batch.
        fastest: The fastest configuration, whatever the objective.
        cheapest: The cheapest.
        knee: Where the front bends.
        chosen: What the objective chose.
        notes: What else to know, such as what is missing.
    """

    table: str
    rows: int
    topology: Topology
    laws: Laws
    basis: Basis
    cost_unit: CostUnit
    step_time: StepTimeLaw
    epochs: EpochsLaw
    measured: tuple[MeasuredPoint, ...]
    points: tuple[PredictedPoint, ...]
    start: Place
    fastest: Place
    cheapest: Place
    knee: Place
    chosen: ChosenPoint
    notes: tuple[str, ...]

    def point_at(self, place: Place) -> PredictedPoint:
        """Return the point of one of the report's configurations."""
        return next(point for point in self.points if point.place == place)


def report_fit(table: StepTable, request: FitRequest) -> FitReport:
    """Fit the laws to a table, predict its configurations, and choose (Eqs. 3-10).

    Raises:
        NotEnoughData: A single configuration, or more than can be fitted: the message says what
            to measure or leave out.
        NothingFeasible: No configuration meets the limits: the message names the nearest.
    """
    require_enough(table)
    table = replace(table, measurements=tuple(sorted(table.measurements, key=lambda m: m.config)))
    topology = request.topology or table.topology or "all_reduce"
    parallel = fit_step_time(table.measurements, topology, forms=forms_of(request.laws))
    model = complete(parallel, table, request)
    measured = {m.config: m.step_time for m in table.measurements}
    configs = configs_of(table, request)
    # Machine-hours are what a price of one dollar per machine-hour makes of dollars.
    price = on_demand(1.0 if request.price_per_hour is None else request.price_per_hour)
    curve = draw_curve(foresee(grid_of(configs), model, price, measured))
    choice = request.objective.choose(curve)
    return FitReport(
        table=table.name,
        rows=table.rows,
        topology=topology,
        laws=request.laws,
        basis=curve.basis,
        cost_unit=cost_unit_of(curve.basis, request),
        step_time=describe_steps(parallel, table.measurements, topology, request.laws),
        epochs=describe_epochs(model, request, table),
        measured=compare(parallel, table.measurements, topology),
        points=points_of(curve, request.objective),
        start=place_of(configs[0]),
        fastest=place_of(Fastest().choose(curve).point.config),
        cheapest=place_of(Cheapest().choose(curve).point.config),
        knee=place_of(Knee().choose(curve).point.config),
        chosen=describe_choice(choice, request.objective),
        notes=tuple(notes_on(table, request, model)),
    )


def require_enough(table: StepTable) -> None:
    """Raise NotEnoughData for a table that cannot be fitted."""
    count = len(table.measurements)
    if count < 2:
        raise NotEnoughData(
            f"table {table.name} has one configuration, and a curve needs two: measure fewest and "
            "most workers, each with the smallest and the largest batch"
        )
    if count > MOST_MEASURED:
        raise NotEnoughData(
            f"table {table.name} has {count:,} configurations, more than {MOST_MEASURED:,} that "
            "can be fitted: give every job its own name in a column table"
        )


def forms_of(laws: Laws) -> tuple[Form, ...]:
    """Return the forms that laws choose from."""
    return (LINES,) if laws == "paper" else FORMS


def complete(parallel: ParallelModel, table: StepTable, request: FitRequest) -> PerformanceModel:
    """Add epochs to the law of seconds, as far as they are known."""
    runs = average_runs(request.runs)
    statistical = fit_statistical(observations_of(table, request), runs=runs, laws=request.laws)
    reference = reference_batch(table, request)
    epochs, deviation = request.epochs, 0.0
    if epochs is None and runs:
        epochs = epochs_at(statistical, runs, reference)
        # The level is a mean over the runs; their law alone is what it deviates by.
        deviation = statistical.spread / math.sqrt(len(runs))
    is_total = epochs is not None and request.dataset_size is not None
    return PerformanceModel(
        parallel,
        statistical,
        request.dataset_size or 1,
        reference,
        epochs if is_total else None,
        deviation if is_total else 0.0,
    )


def observations_of(table: StepTable, request: FitRequest) -> tuple[Observation, ...]:
    """Return what tells about noise: the noise scale that was given, or else the table."""
    if request.noise_scale is None:
        return table.observations
    indicators = ScalingIndicators(None, request.noise_scale, 0.0, 0.0)
    return (Observation(table.measurements[0].config, indicators, 1),)


def reference_batch(table: StepTable, request: FitRequest) -> int:
    """Return the batch at which epochs are counted."""
    if request.at_batch is not None:
        return request.at_batch
    runs = average_runs(request.runs)
    if runs:
        return runs[len(runs) // 2].global_batch
    return min(m.config.global_batch for m in table.measurements)


def configs_of(table: StepTable, request: FitRequest) -> tuple[ClusterConfig, ...]:
    """Return what to predict: measured configurations, and those between them or asked for.

    Unless other batches are asked for, local batches stay within the measured ones, and machines
    are filled as the fullest measured one.
    """
    measured = tuple(m.config for m in table.measurements)
    hosted = max(config.workers_per_machine for config in measured)
    workers = request.workers or tuple(sorted({config.workers for config in measured}))
    batches = request.global_batches or tuple(sorted({c.global_batch for c in measured}))
    low = min(config.local_batch for config in measured)
    high = max(config.local_batch for config in measured)
    known = {(c.workers, c.global_batch): c for c in reversed(measured)}
    asked = tuple(
        known.get((count, batch), ClusterConfig(count, batch, hosted))
        for count in workers
        for batch in batches
        if batch >= count and (request.global_batches or low <= batch / count <= high)
    )
    if not request.workers and not request.global_batches:
        # Several machines may have been filled differently at the same workers and batch.
        every = tuple(sorted({*asked, *measured}))
        asked = every if len(every) <= MOST_POINTS else measured
    if not asked:
        raise NotEnoughData(
            f"no configuration is left: none of workers {listed(workers)} can share a batch of "
            f"{listed(batches)} within the measured {low:g} to {high:g} samples per worker"
        )
    if len(asked) > MOST_POINTS:
        raise NotEnoughData(
            f"{len(asked):,} configurations are more than {MOST_POINTS:,} that can be shown: "
            "narrow --workers or --batch"
        )
    return asked


def listed(values: Sequence[int]) -> str:
    """Write whole numbers by their ends."""
    return str(values[0]) if len(values) == 1 else f"{values[0]} to {values[-1]}"


def cost_unit_of(basis: Basis, request: FitRequest) -> CostUnit:
    """Return the unit of costs."""
    if basis == "relative":
        return "relative"
    return "machine-hours" if request.price_per_hour is None else "USD"


def describe_steps(
    model: ParallelModel, measurements: Sequence[Measurement], topology: Topology, laws: Laws
) -> StepTimeLaw:
    """Describe the law of seconds per iteration."""
    table = tabulate(measurements, topology)
    form = form_of(model)
    left_out = left_out_error(table, form)
    errors = [abs(model.step_time(m.config) / m.step_time - 1) for m in measurements]
    uncertainty = model.uncertainty
    return StepTimeLaw(
        *model.coefficients,
        growth=model.growth,
        overlap=model.overlap,
        flatness=model.flatness,
        spread=0.0 if uncertainty is None else uncertainty.spread,
        error=sum(errors) / len(errors),
        left_out_error=left_out,
        why=why_form(form, left_out, measurements, topology, laws),
    )


def left_out_error(table: Table | None, form: Form) -> float | None:
    """Return the error at points left out of the fit; None where no fit can do without one."""
    if table is None or len(table) < ENOUGH_TO_COMPARE:
        return None
    errors = left_out_errors(table, form)
    return rms(errors) if len(errors) else None


def why_form(
    form: Form,
    left_out: float | None,
    measurements: Sequence[Measurement],
    topology: Topology,
    laws: Laws,
) -> str:
    """Say why a form was taken."""
    usual = USUAL[topology]
    if laws == "paper":
        return "the paper's lines, as asked for"
    name = topology.replace("_", " ")
    if left_out is None:
        if form == usual:
            return f"usual for {name}; forms compete from {ENOUGH_TO_COMPARE} configurations on"
        return "it explains best what was measured of compute alone"
    if form == usual:
        return f"usual for {name}; none of {len(FORMS)} forms predicts left-out points much better"
    usual_error = left_out_error(tabulate(measurements, topology), usual)
    beside = "cannot" if usual_error is None else f"to {usual_error:.1%}"
    return f"it predicts left-out points to {left_out:.1%}, the usual form for {name} {beside}"


def describe_epochs(model: PerformanceModel, request: FitRequest, table: StepTable) -> EpochsLaw:
    """Describe the law of epochs and where it comes from."""
    law = model.statistical
    return EpochsLaw(
        law=law.law,
        noise_scale=law.noise_scale,
        critical_batch=law.critical_batch,
        noisy_samples=law.noisy_samples,
        at_batch=model.reference_batch,
        epochs=known_epochs(request, law, model.reference_batch),
        spread=law.spread,
        why=why_epochs(request, table, law),
    )


def known_epochs(request: FitRequest, law: StatisticalModel, reference: int) -> float | None:
    """Return epochs at the reference batch, also where no data set size makes them seconds."""
    if request.epochs is not None or not request.runs:
        return request.epochs
    return epochs_at(law, average_runs(request.runs), reference)


def why_epochs(request: FitRequest, table: StepTable, law: StatisticalModel) -> str:
    """Say where the law of epochs comes from."""
    runs = average_runs(request.runs)
    if len(runs) > 1:
        return f"fitted to runs at {len(runs)} batches"
    if request.laws == "paper" and law.root_noise is not None:
        return f"epochs follow the noise of {len(table.observations)} configurations"
    if law.noise_scale is None:
        return "nothing tells what a batch costs in epochs, so they count as equal for all batches"
    source = "as given" if request.noise_scale is not None else "as measured"
    return f"a prior: B_crit is the noise scale, {source}; runs at two batches would decide"


def compare(
    model: ParallelModel, measurements: Sequence[Measurement], topology: Topology
) -> tuple[MeasuredPoint, ...]:
    """Put each measured configuration beside its prediction."""
    table = tabulate(measurements, topology)
    left_out: Sequence[float | None] = [None] * len(measurements)
    if table is not None and len(table) == len(measurements) >= ENOUGH_TO_COMPARE:
        left_out = left_out_one_by_one(table, form_of(model))
    return tuple(
        MeasuredPoint(
            place=place_of(m.config),
            step_time=m.step_time,
            predicted=model.step_time(m.config),
            error=model.step_time(m.config) / m.step_time - 1,
            left_out_error=missed,
        )
        for m, missed in zip(measurements, left_out, strict=True)
    )


def left_out_one_by_one(table: Table, form: Form) -> list[float | None]:
    """Return the relative error at each point of a law fitted to all others.

    None for a point without which a coefficient could not be told apart.
    """
    whole = fit_form(table, form)
    errors: list[float | None] = []
    for row in range(len(table)):
        is_left = np.arange(len(table)) == row
        rest = table.rows(~is_left)
        if not np.array_equal(identifiable(rest), identifiable(table)):
            errors.append(None)
            continue
        missed = errors_of(fit_form(rest, form, start=whole), table.rows(is_left))
        errors.append(float(np.expm1(missed[0])))
    return errors


def form_of(model: ParallelModel) -> Form:
    """Return the form a law was fitted in."""
    return Form(model.growth, model.overlap, model.flatness)


def points_of(curve: TradeoffCurve, objective: Objective) -> tuple[PredictedPoint, ...]:
    """Return the points of a curve from fast to slow."""
    front = {point.config for point in curve.frontier()}
    limits = objective if isinstance(objective, Within) else Within(objective)
    ordered = sorted(curve.points, key=lambda point: (point.time, point.cost, point.config))
    return tuple(
        PredictedPoint(
            place=place_of(point.config),
            step_time=point.step_time,
            measured_step_time=point.measured_step_time,
            epochs=point.epochs,
            time=interval_around(point.time, point.time_range),
            cost=interval_around(point.cost, point.cost_range),
            is_on_front=point.config in front,
            violations=limits.violations(point, curve.basis),
        )
        for point in ordered
    )


def interval_around(median: float, ends: tuple[float, float]) -> Interval:
    """Return an interval from its median and ends."""
    return Interval(ends[0], median, ends[1])


def place_of(config: ClusterConfig) -> Place:
    """Return where a configuration stands."""
    return Place(config.workers, config.global_batch, config.machines)


def describe_choice(choice: Choice, objective: Objective) -> ChosenPoint:
    """Describe what the objective chose."""
    runner_up: TradeoffPoint | None = choice.runner_up
    return ChosenPoint(
        place=place_of(choice.point.config),
        objective=objective.name,
        why=choice.why,
        support=choice.support,
        runner_up=None if runner_up is None else place_of(runner_up.config),
    )


def notes_on(table: StepTable, request: FitRequest, model: PerformanceModel) -> Iterator[str]:
    """Yield what else to know: what is missing, and what contradicts the law in use."""
    missing = []
    if request.dataset_size is None:
        missing.append("the samples of one epoch (--dataset-size)")
    if request.epochs is None and not request.runs:
        missing.append("the epochs to the target (--epochs and --at-batch, or a table of epochs)")
    if missing:
        yield (
            "time and cost are multiples of the start's, because nothing tells "
            f"{' and '.join(missing)}"
        )
    elif request.price_per_hour is None:
        yield "cost counts machine-hours, because no --price was given"
    warning = contradiction(model.statistical, request.runs)
    if warning is not None:
        yield warning
    if table.topology is not None and request.topology not in (None, table.topology):
        yield f"fitted as {request.topology}, though the table says {table.topology}"
    if request.topology is None and table.topology is None:
        yield "fitted as all_reduce, because neither the table nor --topology says otherwise"
    yield from warnings_on_design(table, request)


def warnings_on_design(table: StepTable, request: FitRequest) -> Iterator[str]:
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
            f"workers {listed(beyond)} lie beyond the measured {min(counts)} to {max(counts)}: "
            "expect more error than the intervals say"
        )
