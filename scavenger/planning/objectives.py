"""The objectives fastest, cheapest and weighted, and the registry of all (III-E)."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, ClassVar

from scavenger.planning.curve import TradeoffCurve, TradeoffPoint, pareto_front
from scavenger.planning.knee import Knee
from scavenger.planning.objective import (
    Choice,
    Objective,
    compare_with_cheapest,
    compare_with_fastest,
    fastest_and_cheapest,
    format_point_count,
)


@dataclass(frozen=True, slots=True)
class Fastest:
    """Least time; among equals the cheapest."""

    name: ClassVar[str] = "fastest"
    time_weight: ClassVar[float] = 1.0

    def choose(self, curve: TradeoffCurve) -> Choice:
        """Return the fastest point."""
        fast, cheap = fastest_and_cheapest(curve.points)
        return Choice(
            fast,
            f"fastest of {format_point_count(curve.points)}: {compare_with_cheapest(fast, cheap)}",
        )


@dataclass(frozen=True, slots=True)
class Cheapest:
    """Least cost; among equals the fastest."""

    name: ClassVar[str] = "cheapest"
    time_weight: ClassVar[float] = 0.0

    def choose(self, curve: TradeoffCurve) -> Choice:
        """Return the cheapest point."""
        fast, cheap = fastest_and_cheapest(curve.points)
        return Choice(
            cheap,
            f"cheapest of {format_point_count(curve.points)}: {compare_with_fastest(cheap, fast)}",
        )


@dataclass(frozen=True, slots=True)
class Weighted:
    """Least time^w times cost^(1-w): each percent of time is worth w / (1-w) percent of cost.

    Attributes:
        time_weight: w, from 0 for the cheapest to 1 for the fastest.
    """

    time_weight: float

    name: ClassVar[str] = "weighted"

    def __post_init__(self) -> None:
        if not 0 <= self.time_weight <= 1:
            raise ValueError(f"time_weight must be from 0 to 1, got {self.time_weight}")

    def choose(self, curve: TradeoffCurve) -> Choice:
        """Return the point of the front with the least weighted product."""
        front = pareto_front(curve.points)
        best = min(front, key=lambda point: (self.loss(point), point.time, point.config))
        fast, _ = fastest_and_cheapest(front)
        weights = f"time {self.time_weight:.0%}, cost {1 - self.time_weight:.0%}"
        return Choice(best, f"least weighted loss ({weights}): {compare_with_fastest(best, fast)}")

    def loss(self, point: TradeoffPoint) -> float:
        """Logarithm of the weighted product; nothing beats what costs nothing."""
        factors = ((self.time_weight, point.time), (1 - self.time_weight, point.cost))
        return sum(
            weight * (math.log(value) if value > 0 else -math.inf)
            for weight, value in factors
            if weight > 0
        )


# What job documents and commands can name; a new objective is one line here.
OBJECTIVES: dict[str, type[Objective]] = {
    objective.name: objective for objective in (Knee, Cheapest, Fastest, Weighted)
}


def make_objective(name: str, **parameters: float) -> Objective:
    """Build the objective of a name, with those of the parameters that it has.

    Raises:
        KeyError: No objective has this name.
        ValueError: A parameter is out of its range.

    >>> make_objective("weighted", time_weight=0.7), make_objective("knee", time_weight=0.7)
    (Weighted(time_weight=0.7), Knee())
    """
    own = parameters_of(name)
    return OBJECTIVES[name](**{key: value for key, value in parameters.items() if key in own})


def parameters_of(name: str) -> tuple[str, ...]:
    """Return the names of the parameters an objective has."""
    objective: Any = OBJECTIVES[name]
    return tuple(field.name for field in fields(objective)) if is_dataclass(objective) else ()


def plain_objectives() -> tuple[str, ...]:
    """Return the names of the objectives without parameters, which documents write as a word."""
    return tuple(name for name in OBJECTIVES if not parameters_of(name))
