"""Report of a cost/time curve: points, intervals and the choice, as tables and files show them."""

from __future__ import annotations

from dataclasses import dataclass

from scavenger.cluster import ClusterConfig
from scavenger.planning.curve import TradeoffCurve
from scavenger.planning.limits import Within
from scavenger.planning.objective import Choice, Objective


@dataclass(frozen=True, slots=True, order=True)
class ReportedConfig:
    """A configuration.

    Attributes:
        workers: K.
        global_batch: B in samples.
        machines: Machines the workers sit on.
    """

    workers: int
    global_batch: int
    machines: int


def reported_config(config: ClusterConfig) -> ReportedConfig:
    """Return where a configuration stands."""
    return ReportedConfig(config.workers, config.global_batch, config.machines)


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

    place: ReportedConfig
    objective: str
    why: str
    support: float | None
    runner_up: ReportedConfig | None


def describe_choice(choice: Choice, objective: Objective) -> ChosenPoint:
    """Describe what the objective chose."""
    return ChosenPoint(
        place=reported_config(choice.point.config),
        objective=objective.name,
        why=choice.why,
        support=choice.support,
        runner_up=None if choice.runner_up is None else reported_config(choice.runner_up.config),
    )


@dataclass(frozen=True, slots=True)
class OutcomeInterval:
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

    place: ReportedConfig
    step_time: float
    measured_step_time: float | None
    epochs: float
    time: OutcomeInterval
    cost: OutcomeInterval
    is_on_front: bool
    violations: tuple[str, ...]


def points_of(curve: TradeoffCurve, objective: Objective) -> tuple[PredictedPoint, ...]:
    """Return the points of a curve from fast to slow."""
    front = {point.config for point in curve.frontier()}
    limits = objective if isinstance(objective, Within) else Within(objective)
    ordered = sorted(curve.points, key=lambda point: (point.time, point.cost, point.config))
    return tuple(
        PredictedPoint(
            place=reported_config(point.config),
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


def interval_around(median: float, ends: tuple[float, float]) -> OutcomeInterval:
    """Return an interval from its median and ends."""
    return OutcomeInterval(ends[0], median, ends[1])
