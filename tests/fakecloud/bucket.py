"""Bucket: tokens that fill up steadily; each request takes one."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Bucket:
    """Lets a burst through, then a steady pace.

    Attributes:
        per_second: Tokens that come each second; None for no bound.
        size: Most tokens it holds; it begins full.
    """

    per_second: float | None
    size: float
    _left: float = 0.0
    _at: float = 0.0

    def __post_init__(self) -> None:
        self._left = self.size

    def take(self, now: float) -> bool:
        """Take a token; whether there was one."""
        if self.per_second is None:
            return True
        self._left = min(self._left + (now - self._at) * self.per_second, self.size)
        self._at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True
