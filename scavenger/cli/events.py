"""``scavenger events``: what happened to a job, and why."""

from __future__ import annotations

from typing import Annotated

import typer

from scavenger.cli.event_table import show_event, show_events
from scavenger.cli.exit_code import ExitCode
from scavenger.cli.option import FormOption, JobArgument
from scavenger.cli.reference import find_job
from scavenger.cli.sighting import sight
from scavenger.cli.terminal import Form, Terminal, terminal_of
from scavenger.client.client import Client
from scavenger.view import EventList

Follow = Annotated[bool, typer.Option("--follow", "-f", help="Go on until the job has ended.")]


def events(
    context: typer.Context,
    job: JobArgument,
    follow: Follow = False,
    output: FormOption = Form.TABLE,
) -> None:
    """Show what happened to a job, and why. With --follow and JSON, one event a line."""
    terminal = terminal_of(context)
    with terminal.connect() as client:
        found = find_job(client, job)
        if follow:
            raise typer.Exit(follow_events(terminal, client, found.id, output))
        happened = list(client.events(found.id))
    terminal.show(EventList(events=happened), output, show_events(happened))


def follow_events(terminal: Terminal, client: Client, job: str, form: Form) -> ExitCode:
    """Show events as they happen."""
    try:
        for sighting in sight(client, job, terminal.pause):
            for event in sighting.fresh:
                if form is Form.JSON:
                    terminal.write(event.model_dump_json())
                else:
                    terminal.data.print(show_event(event))
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    return ExitCode.SUCCESS
