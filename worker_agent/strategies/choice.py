"""Choice: the strategy that a job's first Directive names, made when that is known."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from scavenger.protocol import Directive, StrategyName
from worker_agent.errors import Broken
from worker_agent.sampler import Indices
from worker_agent.strategies.strategy import (
    Clock,
    Meeting,
    Place,
    Slice,
    Strategy,
    Tally,
    Words,
)


class Choice:
    """A strategy that is chosen when the first generation is entered.

    Args:
        meeting: Where the workers find each other, whatever the strategy.
        makers: What makes each strategy; it hooks into the model when it is made.
    """

    def __init__(
        self, meeting: Meeting, makers: Mapping[StrategyName, Callable[[], Strategy]]
    ) -> None:
        self._meeting, self.makers = meeting, makers
        self.made: Strategy | None = None

    @property
    def meeting(self) -> Meeting:
        """Where members and newcomers of a generation find each other."""
        return self._meeting

    @property
    def chosen(self) -> Strategy:
        """The strategy; ask for it after the first generation was entered."""
        if self.made is None:
            raise RuntimeError("no generation was entered yet")
        return self.made

    def join(self, directive: Directive, place: Place, clock: Clock, *, is_new: bool) -> Clock:
        """Enter a generation; the first one decides on the strategy.

        Raises:
            Broken: It cannot be formed, or names a strategy this session does not know.
        """
        if self.made is None:
            if directive.strategy not in self.makers:
                raise Broken(f"this session cannot train with {directive.strategy}")
            self.made = self.makers[directive.strategy]()
        return self.made.join(directive, place, clock, is_new=is_new)

    def begin(self, part: Slice, words: Words) -> None:
        """Prepare for one forward and backward pass."""
        self.chosen.begin(part, words)

    def end(self) -> bool:
        """Close the iteration; False when it must be redone."""
        return self.chosen.end()

    def tally(self) -> Tally | None:
        """Return what was agreed one iteration ago."""
        return self.chosen.tally()

    def scale_learning_rate(self, factor: float) -> None:
        """Let the steps from now on use the script's learning rates times this factor."""
        self.chosen.scale_learning_rate(factor)

    def seed(self, number: int, position: int) -> None:
        """Set all random streams as a function of a seed and of the first sample's position."""
        self.chosen.seed(number, position)

    def to_batch(self, indices: Indices) -> Any:
        """Return indices as the framework's own integer tensor."""
        return self.chosen.to_batch(indices)

    def close(self) -> None:
        """Leave the group and release its resources."""
        if self.made is None:
            self._meeting.close()
        else:
            self.made.close()
