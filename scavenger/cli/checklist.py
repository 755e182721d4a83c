"""Checklist: one line for each thing that was looked at, and what to do below it."""

from __future__ import annotations

from rich.console import RenderableType
from rich.table import Table

from scavenger.cli.figures import words
from scavenger.view import CheckupView

STATES = {"ok": ("✔", "green"), "warning": ("▲", "yellow"), "failed": ("✗", "red")}


def show_checks(checkup: CheckupView) -> RenderableType:
    """Show every check: a shape of its own, for colour alone fails, then what was found."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True)
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for check in checkup.checks:
        mark, style = STATES.get(check.state, (check.state, ""))
        grid.add_row(words(mark, style), words(check.name), words(check.found))
        if check.remedy:
            grid.add_row("", "", words(f"→ {check.remedy}", "bold"))
    return grid
