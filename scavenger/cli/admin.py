"""``scavenger admin``: orphaned machines, backup and restore of a controller."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from scavenger.cli.errors import NothingToConfirm
from scavenger.cli.options import HomeOption, OutputOption
from scavenger.cli.output import (
    UNKNOWN_VALUE,
    Cell,
    OutputFormat,
    ResponsiveTable,
    Terminal,
    get_terminal,
    long_name_column,
    plain_text,
    pluralize,
    text_column,
    word_column,
)
from scavenger.cli.programs import replace_process, require_extra
from scavenger.client.client import Client
from scavenger.schemas.machines import OrphanView, SweepList, SweepView

DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="Only show what was found (default).")
]
ConfirmOption = Annotated[
    bool,
    typer.Option("--confirm", help="Confirm: terminate the orphaned machines that are held back."),
]
BackupFileArgument = Annotated[
    Path, typer.Argument(metavar="FILE", dir_okay=False, help="File to write.")
]
RestoredFileArgument = Annotated[
    Path, typer.Argument(metavar="FILE", dir_okay=False, exists=True, help="A backup.")
]

admin_commands = typer.Typer(no_args_is_help=True, help="Administer a controller.")


@admin_commands.callback()
def root() -> None:
    """Administer a controller."""


@admin_commands.command(epilog="Example: scavenger admin sweep")
def sweep(
    context: typer.Context,
    dry_run: DryRunOption = False,
    confirm: ConfirmOption = False,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Show orphaned machines, and whether they are terminated, held back or spared."""
    # --dry-run is the default and exists for scripts that want to say so.
    if dry_run and confirm:
        raise typer.BadParameter("--dry-run only looks, --confirm terminates: pass one of them")
    terminal = get_terminal(context)
    with terminal.connect() as client:
        newest = client.list_sweeps(limit=1)
        if confirm:
            confirm_newest_sweep(terminal, client, newest, output)
            return
    table = render_sweep(newest.sweeps[0]) if newest.sweeps else Text()
    if newest.sweeps or output is not OutputFormat.TABLE:
        terminal.print_result(newest, output, table)
    if not newest.sweeps:
        terminal.print_message(
            "No sweep yet. The first one runs seconds after the controller starts."
        )
    elif awaits_confirmation(newest.sweeps[0]):
        terminal.print_message("To terminate them: scavenger admin sweep --confirm")


def confirm_newest_sweep(
    terminal: Terminal, client: Client, newest: SweepList, output_format: OutputFormat
) -> None:
    """Confirm exactly what the newest sweep held back, and print it."""
    held = next(iter(newest.sweeps), None)
    if held is None or not awaits_confirmation(held):
        raise NothingToConfirm("Nothing is held back, so there is nothing to confirm")
    # By number: a newer sweep that found other machines must not be confirmed unseen.
    confirmed = client.confirm_sweep(held.number)
    terminal.print_result(confirmed, output_format, render_sweep(confirmed))
    number = sum(suspect.fate == "hold" for suspect in confirmed.suspects)
    terminal.print_message(f"{pluralize(number, 'machine')} will be terminated by the next sweeps.")


def awaits_confirmation(sweep: SweepView) -> bool:
    """Tell whether a sweep waits for a confirmation."""
    return sweep.tripped is not None and sweep.confirmed_at is None


@admin_commands.command(epilog="Example: scavenger admin backup scavenger.dump")
def backup(file: BackupFileArgument, home: HomeOption = None) -> None:
    """Save the database of this computer's controller to a file, while the controller runs.

    For a database of your own set SCAVENGER_DATABASE_URL.
    """
    run_backup_program("backup", file, home)


@admin_commands.command(
    epilog="Example: scavenger admin restore scavenger.dump --home /var/lib/scavenger"
)
def restore(file: RestoredFileArgument, home: HomeOption = None) -> None:
    """Restore a backup into an empty database. Stop the controller first."""
    run_backup_program("restore", file, home)


def run_backup_program(action: str, file: Path, home: Path | None) -> NoReturn:
    """Replace this process by the program that reads and writes the database."""
    require_extra("controller", "sqlalchemy")
    where = [] if home is None else ["--home", str(home.expanduser().absolute())]
    replace_process("service.postgres.backup", action, str(file.expanduser().absolute()), *where)


# A symbol of its own beside each colour: some terminals and readers have no colour.
FATE_LABELS = {
    "end": ("✗ ended", "red"),
    "wait": ("◔ ended soon", "yellow"),
    "hold": ("▲ held back", "yellow"),
    "keep": ("▶ kept", "blue"),
    "spare": ("○ spared", "dim"),
}


ORPHAN_COLUMNS = (
    long_name_column("MACHINE"),
    text_column("LAUNCH KEY", 3),
    text_column("JOB", 2),
    word_column("FATE", 1),
    text_column("WHY", 1),
)


def render_sweep(sweep: SweepView) -> RenderableType:
    """Render a sweep: a summary, then a row for each machine with a finding."""
    seen = f"{sweep.at:%Y-%m-%d %H:%M:%S} UTC: {pluralize(sweep.shown, 'machine')} of ours"
    parts: list[RenderableType] = [plain_text(f"{seen}, {sweep.ended} ended")]
    if sweep.tripped is not None:
        parts.append(plain_text(f"▲ Held back: {sweep.tripped}", "bold yellow"))
    if sweep.confirmed_at is not None:
        parts.append(plain_text(f"Confirmed at {sweep.confirmed_at:%Y-%m-%d %H:%M:%S} UTC"))
    if sweep.suspects:
        parts.append(
            ResponsiveTable(ORPHAN_COLUMNS, [_orphan_row(each) for each in sweep.suspects])
        )
    else:
        parts.append(plain_text("No orphaned machines."))
    return Group(*parts)


def _orphan_row(suspect: OrphanView) -> tuple[Cell, ...]:
    names = (suspect.machine, suspect.launch_key, suspect.job)
    cells = (plain_text(known or UNKNOWN_VALUE) for known in names)
    # A newer controller may know fates that this command line does not.
    fate, style = FATE_LABELS.get(suspect.fate, (suspect.fate, ""))
    return (*cells, plain_text(fate, style), plain_text(suspect.reason))
