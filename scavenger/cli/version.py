"""``scavenger version``: which program this is, and which controller answers it."""

from __future__ import annotations

from importlib.metadata import version

import typer

from scavenger.cli.options import OutputOption
from scavenger.cli.output import OutputFormat, get_terminal, render_facts


def show_version(context: typer.Context, output: OutputOption = OutputFormat.TABLE) -> None:
    """Show the versions of this program and of the controller; --version asks no controller."""
    terminal = get_terminal(context)
    with terminal.connect() as client:
        found = client.get_version()
    facts = [
        ("program", version("scavenger")),
        ("controller", f"{found.version}, API {found.api}, schema {found.schema_revision}"),
    ]
    terminal.print_result(found, output, render_facts(facts))
