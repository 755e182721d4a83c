"""In what a curve is counted: all that a job takes, or what is left of it from now.

The curve of a choice is kept as it was drawn. While its job trains, what was drawn is scaled to the
work that is left, and judged by the money and the time that are left. The total adds what was
spent, so that both ways say the same about every limit. API, pages, pictures and command line show
what this counts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Decimal

from scavenger.models.iteration_time import Z_90
from scavenger.money import forecast_dollars, optional_dollars
from scavenger.planning.constrained_objective import ConstrainedObjective
from scavenger.planning.curve import TradeoffPoint, pareto_front
from scavenger.planning.knee import Knee
from scavenger.report import find_dominating, marginal_prices
from scavenger.schemas.curves import (
    CurveView,
    LimitChancesView,
    LimitsView,
    PointView,
    SavingView,
    SpentView,
    WantedBasis,
    point_id,
)
from scavenger.schemas.jobs import ConfigView

TIME_FIELDS = ("time", "time_low", "time_high")
COST_FIELDS = ("cost", "cost_low", "cost_high")

# An objective takes positive limits only; this stands for one that is used up.
LEAST_LIMIT = 1e-9


@dataclass(frozen=True, slots=True)
class JobPosition:
    """Where a job is on the way to its target.

    Attributes:
        spent: What it has taken by now.
        epochs_left: Reference epochs to its target; None while these are not known.
        limits: Those of the whole job, as they hold now.
    """

    spent: SpentView
    epochs_left: float | None
    limits: LimitsView


def count_curve(curve: CurveView, wanted: WantedBasis, position: JobPosition | None) -> CurveView:
    """Count a curve from now or from the start of its job.

    Args:
        curve: The curve as it was drawn.
        wanted: ``auto`` counts what is left while the job runs, and else the total; ``decision``
            leaves the curve as it was drawn.
        position: Where its job is; None where there is no now: before it starts, after its end, and
            for the curve of an earlier choice.
    """
    return add_savings(count_points(curve, wanted, position))


def count_points(curve: CurveView, wanted: WantedBasis, position: JobPosition | None) -> CurveView:
    """Count the points of a curve from now or from the start of its job."""
    if wanted == "decision" or curve.basis == "relative" or not curve.points:
        return curve
    if position is None:
        is_rest = curve.basis == "remaining" and curve.spent is not None
        return add_spent(curve) if is_rest and wanted != "remaining" else curve
    left = share_left(curve, position)
    if left is None:
        return curve
    rest = judge_again(scale_points(curve, left), position)
    if wanted != "total":
        return rest
    # A limit that is passed already has nothing left, but is what it is.
    return add_spent(rest).model_copy(update={"limits": position.limits})


def add_savings(curve: CurveView) -> CurveView:
    """Say of each point what a move there saves beside the configuration that the job runs on."""
    own = curve.current
    here = None if own is None else next((p for p in curve.points if is_at(p, own)), None)
    if here is None or curve.basis == "relative":
        return curve

    def compared(point: PointView) -> PointView:
        saving = SavingView(seconds=here.time - point.time, cost=here.cost - point.cost)
        return point.model_copy(update={"saving": saving})

    return curve.model_copy(update={"points": [compared(point) for point in curve.points]})


def is_at(point: PointView, config: ConfigView) -> bool:
    """Whether a point is that of a configuration."""
    return (point.workers, point.global_batch) == (config.workers, config.global_batch)


def share_left(curve: CurveView, position: JobPosition) -> float | None:
    """Return what is left of the work that a curve counts; None where that is not known."""
    if position.epochs_left is None or not curve.epochs or position.epochs_left <= 0:
        return None
    return position.epochs_left / curve.epochs


def scale_points(curve: CurveView, factor: float) -> CurveView:
    """Return a curve with a multiple of its times and costs."""

    def scaled(point: PointView) -> PointView:
        changed = {name: factor * getattr(point, name) for name in TIME_FIELDS}
        costs = {
            name: forecast_dollars(factor * float(getattr(point, name))) for name in COST_FIELDS
        }
        return point.model_copy(update=changed | costs)

    return curve.model_copy(update={"points": [scaled(point) for point in curve.points]})


def add_spent(curve: CurveView) -> CurveView:
    """Return the curve of what is left of a job with what was spent before."""
    spent, limits = curve.spent, curve.limits
    assert spent is not None

    def total(point: PointView) -> PointView:
        changed = {name: spent.time + getattr(point, name) for name in TIME_FIELDS}
        costs = {
            name: forecast_dollars(float(spent.cost) + float(getattr(point, name)))
            for name in COST_FIELDS
        }
        return point.model_copy(update=changed | costs)

    whole = None
    if limits is not None:
        whole = LimitsView(
            max_cost=None if limits.max_cost is None else limits.max_cost + spent.cost,
            max_time=None if limits.max_time is None else limits.max_time + spent.time,
        )
    points = [total(point) for point in curve.points]
    return curve.model_copy(update={"basis": "total", "points": points, "limits": whole})


def judge_again(curve: CurveView, position: JobPosition) -> CurveView:
    """Judge the points of what is left by the limits that are left, and find the front anew."""
    spent, left = position.spent, limits_left(position.limits, position.spent)
    judge = ConstrainedObjective(
        Knee(), max_cost=usable_limit(left.max_cost), max_time=usable_limit(left.max_time)
    )
    points = [as_tradeoff(point) for point in curve.points]
    broken = [judge.violations(point) for point in points]
    front = pareto_front(p for p, why in zip(points, broken, strict=True) if not why)
    on_front, prices = {point.config for point in front}, marginal_prices(front)

    def judged(shown: PointView, point: TradeoffPoint, why: tuple[str, ...]) -> PointView:
        rival = find_dominating(point, front)
        changed = {
            "violations": list(why),
            "meets": LimitChancesView.model_validate(judge.chances(point)),
            "on_front": point.config in on_front,
            "marginal_price": optional_dollars(prices.get(point.config)),
            "dominated_by": rival and point_id(rival.workers, rival.global_batch),
        }
        return shown.model_copy(update=changed)

    configs = [ConfigView.model_validate(point.config) for point in front]
    knee = curve.knee if curve.knee in configs else None
    changed = {
        "basis": "remaining",
        "spent": spent,
        "limits": left,
        "points": list(map(judged, curve.points, points, broken)),
        "front": configs,
        "knee": knee,
        "knee_bends": curve.knee_bends and knee is not None,
        "other_knees": [each for each in curve.other_knees if each in configs],
        "fastest": configs[0] if configs else None,
        "cheapest": configs[-1] if configs else None,
    }
    return curve.model_copy(update=changed)


def limits_left(whole: LimitsView, spent: SpentView) -> LimitsView:
    """Return what is left of limits; nothing of one that is passed."""
    cost, time = whole.max_cost, whole.max_time
    return LimitsView(
        max_cost=None if cost is None else max(cost - spent.cost, Decimal(0)),
        max_time=None if time is None else max(time - spent.time, 0.0),
    )


def usable_limit(limit: Decimal | float | None) -> float | None:
    """Return a limit that an objective takes: one that is used up admits nothing."""
    return None if limit is None else max(float(limit), LEAST_LIMIT)


def as_tradeoff(point: PointView) -> TradeoffPoint:
    """Return the point that a view shows."""
    high = point.time_high / point.time if point.time > 0 else 1.0
    return TradeoffPoint(
        config=point.config,
        noise=point.noise,
        epochs=point.epochs,
        compute_time=point.compute_time,
        sync_time=point.sync_time,
        step_time=point.step_time,
        measured_step_time=point.measured_step_time,
        time=point.time,
        cost=float(point.cost),
        deviation=math.log(high) / Z_90 if high > 1 else 0.0,
    )
