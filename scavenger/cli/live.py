"""A job while it runs: a view that is redrawn on a terminal, or a line per change elsewhere."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from scavenger.cli.event_table import show_events
from scavenger.cli.figures import configuration, money, percent, span, words
from scavenger.cli.job_table import (
    cost_line,
    indicator_facts,
    metrics_line,
    phase_of,
    progress_line,
    running,
    share_done,
    show_facts,
)
from scavenger.view import EventView, JobView

SILENCE = "the controller does not answer; the job goes on, and so do the attempts"


def show_live(
    job: JobView, recent: Sequence[EventView], *, width: int, is_stale: bool = False
) -> RenderableType:
    """Show where a job stands.

    Args:
        job: The job.
        recent: Its last events, oldest first.
        width: Columns there are.
        is_stale: Whether the controller has not answered lately.
    """
    title = Text.assemble(
        (job.id, "bold"), "  ", words(job.name), "  ", phase_of(job), f"  {span(job.elapsed)}"
    )
    facts = [
        ("search", job.search),
        ("runs", running(job)),
        ("progress", progress_line(job, width=max(10, min(30, width - 70)))),
        ("metrics", metrics_line(job.progress)),
        ("diverged", job.progress.diverged or ""),
        *indicator_facts(job.indicators),
        ("cost", cost_line(job)),
    ]
    parts: list[RenderableType] = [title, show_facts(fact for fact in facts if fact[1])]
    if recent:
        parts += [Text(), show_events(recent, since=job.created_at)]
    if is_stale:
        parts.append(Text(f"! {SILENCE}", "yellow"))
    return Group(*parts)


def show_change(job: JobView) -> RenderableType:
    """Say where a job stands in one line."""
    parts = [
        f"{span(job.elapsed)}",
        job.phase.value,
        heading_for(job),
        percent(share_done(job)),
        metrics_line(job.progress),
        money(job.cost.accrued),
    ]
    return words(" · ".join(part for part in parts if part))


def heading_for(job: JobView) -> str:
    """Say the configuration that runs, or with an arrow the one it is being resized to."""
    is_there = job.phase.is_final or job.applied == job.target
    return configuration(job.applied) if is_there else f"→ {configuration(job.target)}"


def landmark(job: JobView) -> tuple[object, ...]:
    """Return what has to change for another line; progress counts in tenths."""
    return (job.phase, job.target, int(10 * share_done(job)))
