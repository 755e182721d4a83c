"""``scavenger admin``: what whoever runs a controller needs now and then."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from scavenger.cli.errors import NothingHeld
from scavenger.cli.figures import counted, words
from scavenger.cli.option import FormOption, HomeOption
from scavenger.cli.sweep_table import show_newest, show_sweep
from scavenger.cli.terminal import Form, Terminal, terminal_of
from scavenger.client.client import Client
from scavenger.view import SweepList, SweepView

DryRun = Annotated[bool, typer.Option("--dry-run", help="Only look; this is the default.")]
Confirm = Annotated[bool, typer.Option("--confirm", help="Let what is held back be ended.")]
BackupFile = Annotated[Path, typer.Argument(metavar="FILE", dir_okay=False)]

admin = typer.Typer(no_args_is_help=True, help="Look after a controller.")


@admin.callback()
def root() -> None:
    """Look after a controller."""


@admin.command(epilog="Example: scavenger admin sweep")
def sweep(
    context: typer.Context,
    dry_run: DryRun = False,
    confirm: Confirm = False,
    output: FormOption = Form.TABLE,
) -> None:
    """Show machines that nobody wants, and whether they are ended, held back or spared."""
    if dry_run and confirm:
        raise typer.BadParameter("--dry-run only looks, --confirm ends: pass one of them")
    terminal = terminal_of(context)
    with terminal.connect() as client:
        newest = client.sweeps(limit=1)
        if confirm:
            let_end(terminal, client, newest, output)
            return
    if newest.sweeps or output is Form.JSON:
        terminal.show(newest, output, show_newest(newest))
    if not newest.sweeps:
        terminal.say(words("No sweep yet: the first comes seconds after the controller's start."))
    elif is_held(newest.sweeps[0]):
        terminal.say(words("If they may be ended: scavenger admin sweep --confirm"))


def let_end(terminal: Terminal, client: Client, newest: SweepList, form: Form) -> None:
    """Confirm exactly what the newest sweep held back, and show it."""
    held = next(iter(newest.sweeps), None)
    if held is None or not is_held(held):
        raise NothingHeld("Nothing is held back, so there is nothing to confirm")
    confirmed = client.confirm_sweep(held.number)
    terminal.show(confirmed, form, show_sweep(confirmed))
    number = sum(suspect.fate == "hold" for suspect in confirmed.suspects)
    terminal.say(words(f"{counted(number, 'machine')} may be ended by the next sweeps now."))


def is_held(sweep: SweepView) -> bool:
    """Whether a sweep waits for a confirmation."""
    return sweep.tripped is not None and sweep.confirmed_at is None


@admin.command(epilog="Example: scavenger admin backup scavenger.dump")
def backup(file: BackupFile, home: HomeOption = None) -> None:
    """Save all that the controller of this computer knows to a file, while it runs.

    A database of your own: with SCAVENGER_DATABASE_URL.
    """
    hand_over("backup", file, home)


@admin.command(epilog="Example: scavenger admin restore scavenger.dump --home /var/lib/scavenger")
def restore(file: BackupFile, home: HomeOption = None) -> None:
    """Read a backup into a database that is empty; the controller must not run."""
    hand_over("restore", file, home)


def hand_over(action: str, file: Path, home: Path | None) -> NoReturn:
    """Become the program that knows the database."""
    command = [sys.executable, "-m", "service.backup", action, str(file.expanduser().absolute())]
    if home is not None:
        command += ["--home", str(home.expanduser().absolute())]
    os.execv(command[0], command)  # noqa: S606
