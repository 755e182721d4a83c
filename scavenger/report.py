"""CurveReport: a cost/time curve and what is wanted of it, for API, files, tables and pictures.

It is built from a curve, the laws it follows from and a choice. The API presenter and the file fit
read the same report, so that both judge points, front and marks alike. The classes below it are
the form in which ``scavenger fit`` writes a report as JSON.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from scavenger.cluster import ClusterConfig
from scavenger.errors import NothingFeasible
from scavenger.planning.curve import TradeoffPoint
from scavenger.planning.decision import CurvePreview
from scavenger.planning.knee import Knee
from scavenger.planning.limits import Within
from scavenger.planning.objective import Choice, Objective
from scavenger.planning.objectives import Cheapest, Fastest


@dataclass(frozen=True, slots=True)
class ReportedPoint:
    """One configuration of a curve, as it is judged.

    Attributes:
        point: What the configuration takes.
        is_on_front: Whether no other is cheaper and faster.
        violations: Limits it breaks or is not sure to meet, in words.
    """

    point: TradeoffPoint
    is_on_front: bool
    violations: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CurveReport:
    """A curve, and what is wanted of it.

    Attributes:
        preview: The curve and the laws it follows from; None while nothing is known.
        objective: What is chosen by, with the limits that points are judged by.
        choice: What the objective chooses; None where nothing meets the limits, or is known.
        part: Whether it is of the whole job or of what is left of it.
    """

    preview: CurvePreview | None
    objective: Within
    choice: Choice | None
    part: Literal["whole", "rest"] = "whole"

    @classmethod
    def of(cls, objective: Within, preview: CurvePreview | None) -> CurveReport:
        """Report the curve of a whole job, with the choice if anything meets the limits."""
        try:
            choice = None if preview is None else objective.choose(preview.curve)
        except NothingFeasible:
            choice = None
        return cls(preview, objective, choice)

    @property
    def basis(self) -> Literal["total", "remaining", "relative"]:
        """In what its points are counted."""
        if self.preview is None:
            return "relative"
        basis = self.preview.curve.basis
        return "remaining" if (self.part, basis) == ("rest", "total") else basis

    @property
    def points(self) -> tuple[ReportedPoint, ...]:
        """Every configuration of the space, in its order."""
        if self.preview is None:
            return ()
        curve, front = self.preview.curve, set(self.front)
        return tuple(
            ReportedPoint(
                point, point.config in front, self.objective.violations(point, curve.basis)
            )
            for point in curve.points
        )

    @property
    def front(self) -> tuple[ClusterConfig, ...]:
        """Configurations that no other is cheaper and faster than, from fast to slow."""
        points = () if self.preview is None else self.preview.curve.frontier()
        return tuple(point.config for point in points)

    def marks(self, limits: Within) -> dict[str, Choice]:
        """Choose knee, fastest and cheapest within limits, by name; none where nothing is chosen.

        Args:
            limits: Limits that these keep, which some configuration meets.
        """
        if self.preview is None or self.choice is None:
            return {}
        # How sure they are is not shown, and finding out takes longer than all the rest.
        curve = replace(self.preview.curve, draws={})
        wishes: tuple[Objective, ...] = (Knee(), Fastest(), Cheapest())
        return {each.name: replace(limits, objective=each).choose(curve) for each in wishes}


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


def points_by_time(report: CurveReport) -> tuple[PredictedPoint, ...]:
    """Return the points of a report from fast to slow."""
    ordered = sorted(report.points, key=lambda r: (r.point.time, r.point.cost, r.point.config))
    return tuple(
        PredictedPoint(
            place=reported_config(each.point.config),
            step_time=each.point.step_time,
            measured_step_time=each.point.measured_step_time,
            epochs=each.point.epochs,
            time=interval_around(each.point.time, each.point.time_range),
            cost=interval_around(each.point.cost, each.point.cost_range),
            is_on_front=each.is_on_front,
            violations=each.violations,
        )
        for each in ordered
    )


def interval_around(median: float, ends: tuple[float, float]) -> OutcomeInterval:
    """Return an interval from its median and ends."""
    return OutcomeInterval(ends[0], median, ends[1])
