"""CurveReport: a cost/time curve with its objective and choice, for API, files and pictures.

It is built from a curve, the laws it follows from and a choice. The API presenter and the file fit
read the same report, so that both judge points, front and marks alike.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from scavenger.cluster import ClusterConfig
from scavenger.errors import NothingFeasible
from scavenger.planning.constrained_objective import ConstrainedObjective, LimitChances
from scavenger.planning.curve import TradeoffPoint, pareto_front
from scavenger.planning.decision import CurvePreview
from scavenger.planning.knee import Knee
from scavenger.planning.objective import Choice, Objective
from scavenger.planning.objectives import Cheapest, Fastest
from scavenger.planning.transfer import is_within_range

PointSource = Literal["measured", "predicted", "extrapolated"]
SECONDS_PER_HOUR = 3600


@dataclass(frozen=True, slots=True)
class ReportedPoint:
    """One configuration of a curve, as it is judged.

    Attributes:
        point: What the configuration takes.
        is_on_front: Whether it meets the limits, and no other that does is cheaper and faster.
        violations: Limits it breaks or is not sure to meet, in words.
        source: Whether its iterations were timed; if not, whether its workers and local batch lie
            in the range of those that were.
        chances: How probable it is that it meets each limit.
        parallel_efficiency: Share of an iteration in which its workers compute, 0 to 1.
        statistical_efficiency: Epochs at the reference batch as a multiple of epochs at its own:
            what one of its samples teaches, against one at the reference batch.
        marginal_price: Dollars for each hour that it saves against the next cheaper point of the
            front; None off the front, for the cheapest, and on a relative curve.
        dominated_by: The point of the front that is as fast and cheaper, or as cheap and faster;
            None where none is.
    """

    point: TradeoffPoint
    is_on_front: bool
    violations: tuple[str, ...]
    source: PointSource = "predicted"
    chances: LimitChances = LimitChances()  # noqa: RUF009
    parallel_efficiency: float | None = None
    statistical_efficiency: float | None = None
    marginal_price: float | None = None
    dominated_by: ClusterConfig | None = None


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
        """Every configuration of the space whose figures are finite, in its order."""
        if self.preview is None:
            return ()
        preview, judge, front = self.preview, self.objective, self.front
        basis, places = preview.curve.basis, {point.config for point in front}
        prices = {} if basis == "relative" else marginal_prices(front)
        probed = [observation.config for observation in preview.fitted.observations]
        at_reference = preview.fitted.model.epochs_needed(preview.fitted.model.reference_batch)
        return tuple(
            ReportedPoint(
                point,
                point.config in places,
                judge.violations(point, basis),
                source_of(point, probed),
                judge.chances(point, basis),
                share_of(point.compute_time, point.step_time),
                quotient(at_reference, point.epochs),
                prices.get(point.config),
                find_dominating(point, front),
            )
            for point in self._finite_points
        )

    @property
    def front(self) -> tuple[TradeoffPoint, ...]:
        """Points within the limits that no other of these is cheaper and faster than, fast first.

        Empty where no point meets the limits.
        """
        if self.preview is None:
            return ()
        basis = self.preview.curve.basis
        return pareto_front(
            p for p in self._finite_points if not self.objective.violations(p, basis)
        )

    @property
    def _finite_points(self) -> tuple[TradeoffPoint, ...]:
        points = () if self.preview is None else self.preview.curve.points
        # What overflowed can be neither drawn nor compared.
        return tuple(p for p in points if math.isfinite(p.time) and math.isfinite(p.cost))

    @property
    def points_by_time(self) -> tuple[ReportedPoint, ...]:
        """Every configuration, from fast to slow."""
        return tuple(
            sorted(self.points, key=lambda r: (r.point.time, r.point.cost, r.point.config))
        )

    def marks(self, limits: ConstrainedObjective) -> dict[str, Choice]:
        """Choose knee, fastest and cheapest within limits, by name; none where nothing is chosen.

        Args:
            limits: Limits that these keep; where no configuration meets them, there are no marks.
        """
        if self.preview is None or self.choice is None:
            return {}
        # How sure they are is not shown, and finding out takes longer than all the rest.
        curve = replace(self.preview.curve, draws={})
        if all(limits.violations(point, curve.basis) for point in curve.points):
            return {}
        wishes: tuple[Objective, ...] = (Knee(), Fastest(), Cheapest())
        return {each.name: replace(limits, objective=each).choose(curve) for each in wishes}


def source_of(point: TradeoffPoint, probed: Sequence[ClusterConfig]) -> PointSource:
    """Say what a point rests on.

    Args:
        point: The point.
        probed: Configurations that the laws were fitted to.
    """
    if point.measured_step_time is not None:
        return "measured"
    return "predicted" if probed and is_within_range(point.config, list(probed)) else "extrapolated"


def marginal_prices(front: Sequence[TradeoffPoint]) -> Mapping[ClusterConfig, float]:
    """Return dollars for each hour saved against the next cheaper point, by configuration.

    Args:
        front: From fast to slow, as ``pareto_front`` returns it; equal points share their price.
    """
    found: dict[ClusterConfig, float] = {}
    for place, point in enumerate(front):
        cheaper = next((other for other in front[place + 1 :] if other.cost < point.cost), None)
        if cheaper is not None:
            hours = (cheaper.time - point.time) / SECONDS_PER_HOUR
            price = quotient(point.cost - cheaper.cost, hours)
            if price is not None:
                found[point.config] = price
    return found


def find_dominating(point: TradeoffPoint, front: Sequence[TradeoffPoint]) -> ClusterConfig | None:
    """Return the cheapest point of a front that is no slower, if it dominates a point."""
    place = bisect_right(front, point.time, key=lambda other: other.time) - 1
    if place < 0:
        return None
    rival = front[place]
    is_equal = (rival.time, rival.cost) == (point.time, point.cost)
    return rival.config if rival.cost <= point.cost and not is_equal else None


def share_of(part: float, whole: float) -> float | None:
    """Return a part as a share of the whole, 1 at most; None where that is no number."""
    share = quotient(part, whole)
    return None if share is None else min(share, 1.0)


def quotient(above: float, below: float) -> float | None:
    """Return a quotient; None where it is not finite.

    >>> quotient(1.0, 4.0), quotient(1.0, 0.0)
    (0.25, None)
    """
    value = above / below if below else math.inf
    return value if math.isfinite(value) else None
