"""ConstrainedObjective: any objective under limits of time, cost and workers (III-E)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np

from scavenger.cluster import Floats, RowIndices
from scavenger.errors import NothingFeasible
from scavenger.models.iteration_time import Z_90
from scavenger.money import format_dollars
from scavenger.planning.curve import Basis, Forecast, TradeoffCurve, TradeoffPoint, pareto_rows
from scavenger.planning.objective import Choice, Objective, relative_change

# A limit counts as met when it is met this surely: an error of 5 % flips what lies at the border.
REQUIRED_CHANCE = 0.9
# A probability and its quantile differ in their last digits.
CHANCE_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class LimitChances:
    """How probable it is that a configuration meets each limit, 0 to 1; None without a limit."""

    max_cost: float | None = None
    max_time: float | None = None


@dataclass(frozen=True, slots=True)
class ConstrainedObjective:
    """An objective under limits, which count as met when that is at least 90 % sure.

    Attributes:
        objective: What is optimised among the points within the limits.
        max_cost: Dollars the job may cost; None without limit.
        max_time: Seconds the job may take; None without limit.
        max_workers: Most workers the money left can pay; None without a cap. The smallest worker
            count is always allowed. Where none of these points meets the other limits, the
            objective alone chooses.
    """

    objective: Objective
    max_cost: float | None = None
    max_time: float | None = None
    max_workers: int | None = None

    def __post_init__(self) -> None:
        for name in ("max_cost", "max_time"):
            limit = getattr(self, name)
            if limit is not None and not limit > 0:
                raise ValueError(f"{name} must be positive, got {limit}")

    @property
    def name(self) -> str:
        """Word for the objective that is limited."""
        return self.objective.name

    @property
    def time_weight(self) -> float:
        return self.objective.time_weight

    def choose(self, curve: TradeoffCurve) -> Choice:
        """Return what the objective chooses among the feasible points.

        Where no point is 90 % sure to meet the limits, the surest that is expected to is taken.
        A relative curve has no dollars and no seconds, so nothing is excluded and the sentence
        says that the limits cannot be judged yet.

        Raises:
            NothingFeasible: No point is expected to meet the limits; the message names the
                nearest relaxation.
        """
        if self.max_workers is not None:
            return self._choose_among(curve, self.max_workers)
        if self.max_cost is None and self.max_time is None:
            return self.objective.choose(curve)
        if curve.basis == "relative":
            choice = self.objective.choose(curve)
            note = "the limits cannot be judged before the epochs to target are known"
            return replace(choice, why=f"{choice.why}; {note}")
        chances = {point.config: self.chance(point) for point in curve.points}
        kept = tuple(point for point in curve.points if chances[point.config] >= REQUIRED_CHANCE)
        if not kept:
            return self._surest(curve)
        choice = self.objective.choose(replace(curve, points=kept))
        drawn = "drawn " if curve.omitted_points else ""
        share = f"{len(kept)} of {len(curve.points)} {drawn}configurations meet the limits"
        likely = tuple(point for point in curve.points if chances[point.config] >= 0.5)
        # How sure it is does not matter, so that no posterior samples are needed.
        missed = self.objective.choose(replace(curve, points=likely, draws={})).point
        if missed in kept:
            return replace(choice, why=f"{choice.why}; {share}")
        chance = f"only a {chances[missed.config]:.0%} chance of meeting them"
        near = f"{missed.config} would be better but has {chance}"
        return replace(choice, why=f"{choice.why}; {share}; {near}")

    def _choose_among(self, curve: TradeoffCurve, workers: int) -> Choice:
        most = max(workers, min(point.config.workers for point in curve.points))
        fewer = replace(curve, points=tuple(p for p in curve.points if p.config.workers <= most))
        try:
            return replace(self, max_workers=None).choose(fewer)
        except NothingFeasible:
            return self.objective.choose(fewer)

    def chance(self, point: TradeoffPoint) -> float:
        """Probability that a point meets every limit; the less sure of the two where both hold.

        Time and cost err together, since both follow the same iterations and epochs.
        """
        chances = self.chances(point)
        known = (each for each in (chances.max_cost, chances.max_time) if each is not None)
        return min(known, default=1.0)

    def chances(self, point: TradeoffPoint, basis: Basis = "total") -> LimitChances:
        """Probability that a point meets each limit; unknown on a relative curve."""
        if basis == "relative":
            return LimitChances()
        limits = ((point.cost, self.max_cost), (point.time, self.max_time))
        return LimitChances(
            *(
                None if limit is None else chance_below(value, point.deviation, limit)
                for value, limit in limits
            )
        )

    def violations(self, point: TradeoffPoint, basis: Basis = "total") -> tuple[str, ...]:
        """Say which limits a point breaks, or is not sure to meet; none on a relative curve."""
        if basis == "relative":
            return ()
        broken = []
        if self.max_cost is not None and point.cost > self.max_cost:
            broken.append(f"costs {describe_excess(point.cost, self.max_cost, format_dollars)}")
        if self.max_time is not None and point.time > self.max_time:
            broken.append(
                f"takes {describe_excess(point.time, self.max_time, format_precise_seconds)}"
            )
        chance = self.chance(point)
        if not broken and chance < REQUIRED_CHANCE:
            broken.append(f"has only a {chance:.0%} chance of meeting the limits")
        return tuple(broken)

    def shortlist(self, forecast: Forecast) -> RowIndices:
        """Return the rows that can matter: the start, the front, and the front of the feasible.

        For spaces too large to draw, so that their other points need not be made at all.
        """
        if forecast.model.epochs_at_reference is None:
            feasible = np.arange(len(forecast))
        else:
            sureness = self._sureness(forecast)
            # Where nothing is sure enough, the surest are what is chosen from.
            enough = min(Z_90, float(sureness.max()))
            feasible = np.flatnonzero(sureness >= enough - CHANCE_ROUNDING)
        every = pareto_rows(forecast.time, forecast.cost)
        among = feasible[pareto_rows(forecast.time[feasible], forecast.cost[feasible])]
        return np.unique(np.concatenate([[0], every, among, self._payable(forecast)]))

    def _payable(self, forecast: Forecast) -> RowIndices:
        """Return the rows that can matter among those whose workers can be paid."""
        if self.max_workers is None:
            return np.arange(0)
        workers = forecast.grid.workers
        rows = np.flatnonzero(workers <= max(self.max_workers, workers.min()))
        return rows[replace(self, max_workers=None).shortlist(forecast.select(rows))]

    def _sureness(self, forecast: Forecast) -> Floats:
        """Standard deviations by which each row stays below the tighter limit."""
        limits = ((forecast.cost, self.max_cost), (forecast.time, self.max_time))
        sureness = np.full(len(forecast), np.inf)
        for values, limit in limits:
            if limit is not None:
                with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
                    apart = (math.log(limit) - np.log(values)) / forecast.deviation
                # What is known to take exactly the limit meets it.
                sureness = np.minimum(sureness, np.where(np.isnan(apart), np.inf, apart))
        return sureness

    def _surest(self, curve: TradeoffCurve) -> Choice:
        surest = max(curve.points, key=lambda p: (self.chance(p), -p.time, -p.cost))
        chance = self.chance(surest)
        if chance < 0.5:
            raise NothingFeasible(self._nearest_relaxation(curve.points))
        return Choice(
            surest,
            f"the surest to meet the limits, though with a chance of only {chance:.0%}: "
            f"{format_dollars(surest.cost)} and {format_precise_seconds(surest.time)} "
            "are expected",
        )

    def _nearest_relaxation(self, points: Sequence[TradeoffPoint]) -> str:
        nearest = min(points, key=lambda point: (self._excess(point), point.config))
        broken = " and ".join(self.violations(nearest))
        return f"no configuration meets the limits; the nearest, {nearest.config}, {broken}"

    def _excess(self, point: TradeoffPoint) -> float:
        """Factor by which every limit would have to grow to admit a point."""
        cost = point.cost / self.max_cost if self.max_cost is not None else 0.0
        time = point.time / self.max_time if self.max_time is not None else 0.0
        return max(cost, time)


def chance_below(median: float, deviation: float, limit: float) -> float:
    """Probability that a log-normal figure stays below a limit."""
    if median <= 0:
        return 1.0
    if deviation == 0:
        return 1.0 if median <= limit else 0.0
    return NormalDist().cdf((math.log(limit) - math.log(median)) / deviation)


def describe_excess(value: float, limit: float, write: Callable[[float], str]) -> str:
    """Say by how much a figure exceeds its limit."""
    return f"{write(value)}, {relative_change(value, limit):.1%} more than {write(limit)}"


def format_precise_seconds(seconds: float) -> str:
    """Write seconds for people, to a precision at which 1 % shows."""
    if seconds < 600:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.2f} h"
