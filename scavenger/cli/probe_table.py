"""Tables of what a job went through: its probes and its resizes."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import RenderableType
from rich.table import Table

from scavenger.cli.figures import (
    UNKNOWN,
    configuration,
    dollars,
    milliseconds,
    number,
    span,
    words,
)
from scavenger.view import ProbeView, ResizeView


def show_probes(probes: Sequence[ProbeView]) -> RenderableType:
    """Show probes in the order they were made."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    titles = ("K", "B", "γ", "φ", "COMPUTE", "SYNC", "ITERATIONS", "TIME", "COST")
    for title in titles:
        table.add_column(title, justify="right", no_wrap=True)
    for probe in probes:
        table.add_row(
            str(probe.workers),
            str(probe.global_batch),
            number(probe.noise),
            number(probe.noise_scale),
            milliseconds(probe.compute_time),
            milliseconds(probe.sync_time),
            str(probe.iterations),
            span(probe.seconds),
            dollars(probe.cost),
        )
    return table


def show_resizes(resizes: Sequence[ResizeView]) -> RenderableType:
    """Show changes of configuration in the order they happened."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("FROM", no_wrap=True)
    table.add_column("TO", no_wrap=True)
    table.add_column("PAUSE", justify="right", no_wrap=True)
    table.add_column("LOST", justify="right", no_wrap=True)
    table.add_column("WHY", overflow="fold")
    for resize in resizes:
        table.add_row(
            "start" if resize.before is None else configuration(resize.before),
            f"→ {configuration(resize.after)}",
            span(resize.pause),
            UNKNOWN if resize.iterations_lost is None else str(resize.iterations_lost),
            words(resize.why),
        )
    return table
