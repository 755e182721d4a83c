"""``scavenger curve``: the cost/time curve of a job."""

from __future__ import annotations

from typing import Annotated

import typer

from scavenger.cli.curve_table import show_curve
from scavenger.cli.errors import NoCurve
from scavenger.cli.option import FormOption, JobArgument
from scavenger.cli.reference import find_job
from scavenger.cli.terminal import Form, terminal_of

All = Annotated[bool, typer.Option("--all", help="Show every point, dominated ones too.")]


def curve(
    context: typer.Context,
    job: JobArgument,
    every: All = False,
    output: FormOption = Form.TABLE,
) -> None:
    """Show what each configuration costs and takes, and why one was chosen."""
    terminal = terminal_of(context)
    with terminal.connect() as client:
        shown = find_job(client, job)
        found = client.curve(shown.id)
    if found.points:
        table = show_curve(found, width=terminal.data.width, is_complete=every)
        terminal.show(found, output, table)
        return
    if output is Form.JSON:
        # Its probes and resizes are data all the same.
        terminal.write(found.model_dump_json(indent=2))
    raise NoCurve(shown, found.why)
