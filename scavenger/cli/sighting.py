"""Sightings of a job: what was seen of it each time it was looked at, until it has ended."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from scavenger.client.client import Client
from scavenger.client.errors import Unreachable
from scavenger.view import EventView, JobView

INTERVAL = 0.5
PATIENCE = 30.0


@dataclass(frozen=True, slots=True)
class Sighting:
    """What was seen at one look.

    Attributes:
        job: The job.
        fresh: Events not seen before, oldest first.
        is_stale: Whether the controller did not answer, so that this is what was seen before.
    """

    job: JobView
    fresh: tuple[EventView, ...] = ()
    is_stale: bool = False


def sight(client: Client, job: str, pause: Callable[[float], None]) -> Iterator[Sighting]:
    """Look at a job every half second; the last sighting shows it ended, with all its events.

    A controller that restarts is waited for.

    Raises:
        Unreachable: The controller did not answer at first, or not for half a minute.
    """
    seen: JobView | None = None
    after, silence = 0, 0.0
    while True:
        try:
            # The job first: once it has ended, the events that follow are all there will be.
            found = client.job(job)
            fresh = tuple(client.events(job, after))
        except Unreachable:
            if seen is None or silence >= PATIENCE:
                raise
            silence += INTERVAL
            yield Sighting(seen, is_stale=True)
        else:
            seen, silence = found, 0.0
            after = fresh[-1].sequence if fresh else after
            yield Sighting(found, fresh)
            if found.phase.is_final:
                return
        pause(INTERVAL)
