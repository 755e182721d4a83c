"""Events of a job, one line each."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from rich.console import Group, RenderableType
from rich.table import Table

from scavenger.cli.figures import words
from scavenger.view import EventView


def show_events(events: Iterable[EventView], since: datetime | None = None) -> RenderableType:
    """Show events, oldest first.

    Args:
        events: What happened.
        since: Moment to count seconds from; times of day are shown if None.
    """
    return Group(*(show_event(event, since) for event in events))


def show_event(event: EventView, since: datetime | None = None) -> RenderableType:
    """Show one event: when, what kind, and its sentence."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True, min_width=8)
    grid.add_column(style="cyan", no_wrap=True, min_width=9)
    grid.add_column(overflow="fold")
    grid.add_row(moment(event.at, since), words(event.kind), words(event.message))
    return grid


def moment(at: datetime, since: datetime | None) -> str:
    """Write when something happened, in UTC or in seconds since another moment."""
    return f"{at:%H:%M:%S}" if since is None else f"{(at - since).total_seconds():+7.1f}s"
