"""Table of the machines a sweep found that nobody wants."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from scavenger.cli.figures import UNKNOWN, counted, words
from scavenger.cli.fitted_table import Cell, FittedTable, folded, long_name, word
from scavenger.view import SuspectView, SweepList, SweepView

FATES = {
    "end": ("✗ ended", "red"),
    "wait": ("◔ ended soon", "yellow"),
    "hold": ("▲ held back", "yellow"),
    "keep": ("▶ kept", "blue"),
    "spare": ("○ spared", "dim"),
}


COLUMNS = (
    long_name("MACHINE"),
    folded("LAUNCH KEY", 3),
    folded("JOB", 2),
    word("FATE", 1),
    folded("WHY", 1),
)


def show_newest(sweeps: SweepList) -> RenderableType:
    """Show the newest of some sweeps, if there is any."""
    return show_sweep(sweeps.sweeps[0]) if sweeps.sweeps else Text("")


def show_sweep(sweep: SweepView) -> RenderableType:
    """Show a sweep: in one line what was seen, then a row for each machine that stood out."""
    seen = f"{sweep.at:%Y-%m-%d %H:%M:%S} UTC: {counted(sweep.shown, 'machine')} of ours"
    parts: list[RenderableType] = [words(f"{seen}, {sweep.ended} ended")]
    if sweep.tripped is not None:
        parts.append(words(f"▲ Held back: {sweep.tripped}", "bold yellow"))
    if sweep.confirmed_at is not None:
        parts.append(words(f"Confirmed at {sweep.confirmed_at:%Y-%m-%d %H:%M:%S} UTC"))
    parts.append(show_suspects(sweep) if sweep.suspects else words("Nothing stands out."))
    return Group(*parts)


def show_suspects(sweep: SweepView) -> RenderableType:
    """Show machines that stood out, one row each."""
    return FittedTable(COLUMNS, [suspect_row(suspect) for suspect in sweep.suspects])


def suspect_row(suspect: SuspectView) -> tuple[Cell, ...]:
    """Return the cells of a machine that stood out."""
    names = (suspect.machine, suspect.launch_key, suspect.job)
    cells = (words(known or UNKNOWN) for known in names)
    return (*cells, fate_of(suspect), words(suspect.reason))


def fate_of(suspect: SuspectView) -> Text:
    """Show what becomes of a machine, with a shape of its own, because colour alone fails."""
    fate, style = FATES.get(suspect.fate, (suspect.fate, ""))
    return words(fate, style)
