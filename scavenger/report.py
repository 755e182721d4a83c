"""CurveReport: a cost/time curve with its objective and choice, for API, files and pictures.

It is built from a curve, the laws it follows from and a choice. The API presenter and the file fit
read the same report, so that both judge points, front and marks alike.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from scavenger.cluster import ClusterConfig
from scavenger.errors import NothingFeasible
from scavenger.planning.constrained_objective import ConstrainedObjective
from scavenger.planning.curve import TradeoffPoint
from scavenger.planning.decision import CurvePreview
from scavenger.planning.knee import Knee
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
    """A curve with the objective, limits and choice made from it.

    Attributes:
        preview: The curve and the laws it follows from; None while nothing is known.
        objective: What is chosen by, with the limits that points are judged by.
        choice: What the objective chooses; None where nothing meets the limits, or is known.
        part: Whether it is of the whole job or of what is left of it.
    """

    preview: CurvePreview | None
    objective: ConstrainedObjective
    choice: Choice | None
    part: Literal["whole", "rest"] = "whole"

    @classmethod
    def of(cls, objective: ConstrainedObjective, preview: CurvePreview | None) -> CurveReport:
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

    @property
    def points_by_time(self) -> tuple[ReportedPoint, ...]:
        """Every configuration, from fast to slow."""
        return tuple(
            sorted(self.points, key=lambda r: (r.point.time, r.point.cost, r.point.config))
        )

    def marks(self, limits: ConstrainedObjective) -> dict[str, Choice]:
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
