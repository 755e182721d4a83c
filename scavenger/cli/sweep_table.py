"""Table of the machines a sweep found that nobody wants."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from scavenger.cli.figures import UNKNOWN, counted, words
from scavenger.view import SuspectView, SweepList, SweepView

FATES = {
    "end": ("✗ ended", "red"),
    "wait": ("◔ ended soon", "yellow"),
    "hold": ("▲ held back", "yellow"),
    "keep": ("▶ kept", "blue"),
    "spare": ("○ spared", "dim"),
}


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
    table = Table(box=None, header_style="bold", pad_edge=False)
    for title in ("MACHINE", "LAUNCH KEY", "JOB"):
        table.add_column(title, overflow="fold")
    table.add_column("FATE", no_wrap=True)
    table.add_column("WHY", overflow="fold")
    for suspect in sweep.suspects:
        names = (suspect.machine, suspect.launch_key, suspect.job)
        cells = [words(name or UNKNOWN) for name in names]
        table.add_row(*cells, fate_of(suspect), words(suspect.reason))
    return table


def fate_of(suspect: SuspectView) -> Text:
    """Show what becomes of a machine, with a shape of its own, because colour alone fails."""
    fate, style = FATES.get(suspect.fate, (suspect.fate, ""))
    return words(fate, style)
