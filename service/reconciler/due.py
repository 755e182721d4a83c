"""due(): between which moments a job should end well; how often that held is measured."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from scavenger.decision import Run
from service.reconciler.snapshot import Snapshot

FARTHEST = timedelta(days=3650)


@dataclass(frozen=True, slots=True)
class Due:
    """When a target should be reached, in eight of ten worlds that the measurements allow.

    Attributes:
        since: In one of ten it is reached before.
        until: In one of ten it is not reached by then.
    """

    since: datetime
    until: datetime


def due(snapshot: Snapshot, run: Run) -> Due | None:
    """Return when the target should be reached on what was just chosen; None if nobody knows.

    The curve is of whole jobs; what was trained while searching need not be trained again. Getting
    to another configuration takes a while first.
    """
    expected, point = snapshot.knowledge.expected_epochs(), run.choice.point
    if expected is None or run.curve.basis != "total" or point.deviation == 0:
        return None
    left, told = max(1 - snapshot.epochs / expected, 0.0), snapshot.directive
    is_there = told is not None and told.config == run.config
    pause = 0.0 if is_there else snapshot.knowledge.effort.pause
    low, high = (snapshot.now + span(pause + left * seconds) for seconds in point.time_range)
    return Due(low, high)


def span(seconds: float) -> timedelta:
    """Return seconds as a span, of ten years at most.

    >>> str(span(90.0)), span(1e300) == FARTHEST
    ('0:01:30', True)
    """
    return timedelta(seconds=min(seconds, FARTHEST.total_seconds()))
