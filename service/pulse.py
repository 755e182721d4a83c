"""Pulse: when a part of the controller last went round, so that one that stands still shows."""

from __future__ import annotations

import time
from collections.abc import Callable


class Pulse:
    """The beat of something that goes round for ever.

    Args:
        patience: Seconds without a beat after which it counts as standing still.
        clock: Tells seconds.
    """

    def __init__(self, patience: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._patience, self._clock = patience, clock
        self._beaten_at = clock()

    def beat(self) -> None:
        """Note that a round was finished."""
        self._beaten_at = self._clock()

    @property
    def lag(self) -> float:
        """Seconds since the last round was finished, or since the start."""
        return self._clock() - self._beaten_at

    @property
    def is_alive(self) -> bool:
        """Whether the last round was recently."""
        return self.lag < self._patience
