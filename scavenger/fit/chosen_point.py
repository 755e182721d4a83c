"""ChosenPoint: the configuration an objective chose, and why."""

from __future__ import annotations

from dataclasses import dataclass

from scavenger.fit.place import Place, place_of
from scavenger.objective import Choice, Objective


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


def describe_choice(choice: Choice, objective: Objective) -> ChosenPoint:
    """Describe what the objective chose."""
    return ChosenPoint(
        place=place_of(choice.point.config),
        objective=objective.name,
        why=choice.why,
        support=choice.support,
        runner_up=None if choice.runner_up is None else place_of(choice.runner_up.config),
    )
