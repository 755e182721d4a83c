"""FitReport: everything a table of measurements says, with the configuration to choose.

Without any service: ``cli`` hands it the table somebody measured, and shows what comes back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from scavenger.cluster import ClusterConfig
from scavenger.errors import NotEnoughData
from scavenger.fit.candidates import list_candidates
from scavenger.fit.chosen_point import ChosenPoint, describe_choice
from scavenger.fit.epochs_fit import EpochsFit, learn_epochs
from scavenger.fit.epochs_law import EpochsLaw, describe_epochs
from scavenger.fit.measured_point import MeasuredPoint, compare
from scavenger.fit.notes import note
from scavenger.fit.place import Place, place_of
from scavenger.fit.predicted_point import PredictedPoint, points_of
from scavenger.fit.request import FitRequest
from scavenger.fit.step_time_fit import StepTimeFit, fit_steps
from scavenger.fit.step_time_law import StepTimeLaw, describe_steps
from scavenger.forecast import foresee
from scavenger.grid import grid_of
from scavenger.models.epochs import Laws
from scavenger.models.form import Topology
from scavenger.models.performance import PerformanceModel
from scavenger.objective import Cheapest, Fastest, Knee
from scavenger.pricing import on_demand
from scavenger.tables.step_table import StepTable
from scavenger.tradeoff import Basis, TradeoffCurve, draw_curve

# Every form is fitted as often as there are configurations; more than these take minutes.
MOST_MEASURED = 1000

CostUnit = Literal["USD", "machine-hours", "relative"]


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
        knee: Where the front bends, or else the end where time times cost is least.
        knee_bends: Whether it bends there.
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
    knee_bends: bool
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
    steps, epochs = fit_steps(table, request), learn_epochs(table, request)
    configs = list_candidates(table, request)
    curve = draw(configs, steps, epochs, request)
    choice, knee = request.objective.choose(curve), Knee().choose(curve)
    return FitReport(
        table=table.name,
        rows=table.rows,
        topology=steps.topology,
        laws=request.laws,
        basis=curve.basis,
        cost_unit=cost_unit_of(curve.basis, request),
        step_time=describe_steps(steps),
        epochs=describe_epochs(epochs, request, table),
        measured=compare(steps),
        points=points_of(curve, request.objective),
        start=place_of(configs[0]),
        fastest=place_of(Fastest().choose(curve).point.config),
        cheapest=place_of(Cheapest().choose(curve).point.config),
        knee=place_of(knee.point.config),
        knee_bends=knee.bends,
        chosen=describe_choice(choice, request.objective),
        notes=tuple(note(table, request, epochs.model)),
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


def draw(
    configs: Sequence[ClusterConfig], steps: StepTimeFit, epochs: EpochsFit, request: FitRequest
) -> TradeoffCurve:
    """Draw the curve over all candidates; measured seconds count as they were measured."""
    # Machine-hours are what a price of one dollar per machine-hour makes of dollars.
    price = on_demand(1.0 if request.price_per_hour is None else request.price_per_hour)
    measured = {m.config: m.step_time for m in steps.measurements}
    model = combine(steps, epochs, request.dataset_size)
    return draw_curve(foresee(grid_of(configs), model, price, measured))


def combine(steps: StepTimeFit, epochs: EpochsFit, dataset_size: int | None) -> PerformanceModel:
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
