"""Tables of what a job went through: its probes and its resizes."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import RenderableType

from scavenger.cli.figures import (
    UNKNOWN,
    configuration,
    dollars,
    milliseconds,
    number,
    span,
    words,
)
from scavenger.cli.fitted_table import Cell, FittedTable, figure, folded, key_figure, name
from scavenger.view import ProbeView, ResizeView

PROBE_COLUMNS = (
    key_figure("K"),
    key_figure("B"),
    figure("γ_n", 4),
    figure("φ", 1),
    figure("COMPUTE", 2),
    figure("SYNC", 2),
    figure("ITERATIONS", 5),
    figure("TOOK", 3),
    figure("SPENT", 3),
)
RESIZE_COLUMNS = (
    name("FROM"),
    name("TO"),
    figure("PAUSE", 2),
    figure("LOST", 3),
    folded("WHY", 1),
)


def show_probes(probes: Sequence[ProbeView]) -> RenderableType:
    """Show probes in the order they were made."""
    return FittedTable(PROBE_COLUMNS, [probe_row(probe) for probe in probes])


def probe_row(probe: ProbeView) -> tuple[str, ...]:
    """Return the cells of a probe."""
    return (
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


def show_resizes(resizes: Sequence[ResizeView]) -> RenderableType:
    """Show changes of configuration in the order they happened."""
    return FittedTable(RESIZE_COLUMNS, [resize_row(resize) for resize in resizes])


def resize_row(resize: ResizeView) -> tuple[Cell, ...]:
    """Return the cells of a change of configuration."""
    return (
        "start" if resize.before is None else configuration(resize.before),
        f"→ {configuration(resize.after)}",
        span(resize.pause),
        UNKNOWN if resize.iterations_lost is None else str(resize.iterations_lost),
        words(resize.why),
    )
