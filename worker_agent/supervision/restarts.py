"""Restarts: how often and how soon a command that died is started again."""

from __future__ import annotations

from collections.abc import Sequence

HOUR = 3600.0
PAUSES = (1.0, 4.0, 16.0)  # one for each restart within an hour, the last well below a minute


class Restarts:
    """Counts the restarts of one machine.

    Args:
        pauses: Seconds before each restart within an hour; there are no more than these.
    """

    def __init__(self, pauses: Sequence[float] = PAUSES) -> None:
        self._pauses = pauses
        self._at: list[float] = []

    def pause(self, now: float) -> float | None:
        """Return the seconds to wait before another start, and count it; None for no more."""
        self._at = [at for at in self._at if now - at < HOUR]
        if len(self._at) >= len(self._pauses):
            return None
        self._at.append(now)
        return self._pauses[len(self._at) - 1]
