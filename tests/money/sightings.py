"""Sightings: since when a cloud's lists miss machines, which is what a provider promises about."""

from __future__ import annotations

from collections.abc import Set
from datetime import datetime, timedelta


class Sightings:
    """Knows what a controller must have written down, without reading what it wrote.

    A list that misses a machine counts from the start of its tick, and one that shows it once that
    tick has come to its end: what a controller heard before it died is unknown.

    Attributes:
        lag: For how long lists may miss a machine.
    """

    def __init__(self, lag: timedelta, now: datetime) -> None:
        self.lag, self._now = lag, now
        self._missed_since: dict[str, datetime] = {}
        self._shown: Set[str] | None = None

    def begin(self, now: datetime) -> None:
        """Let a tick begin."""
        self._now, self._shown = now, None

    def may_miss(self, launch_key: str, now: datetime) -> bool:
        """Whether a list may miss a machine now: never for as long as lists may lag."""
        return now - self._missed_since.get(launch_key, now) < self.lag

    def hear(self, existing: Set[str], shown: Set[str]) -> None:
        """Note which of the machines there are a list has shown."""
        for launch_key in existing - shown:
            self._missed_since.setdefault(launch_key, self._now)
        self._shown = shown if self._shown is None else self._shown & shown

    def end(self) -> None:
        """Let a tick have written down what it heard."""
        for launch_key in self._shown or ():
            self._missed_since.pop(launch_key, None)
