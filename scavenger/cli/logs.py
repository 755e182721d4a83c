"""``scavenger logs``: what the commands of a job's machines print."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

import typer
from rich.text import Text

from scavenger.cli.options import JobArgument, OutputOption, find_job
from scavenger.cli.output import OutputFormat, Terminal, get_terminal, plain_text
from scavenger.cli.watch import report_detached
from scavenger.errors import ExitCode
from scavenger.schemas.jobs import JobView
from scavenger.schemas.telemetry import LogLineView, LogList

MOST_LINES = 20_000  # a controller keeps no more of a job

FollowLogOption = Annotated[
    bool, typer.Option("--follow", "-f", help="Print further lines until the job ends.")
]
MachineOption = Annotated[
    str | None, typer.Option("--machine", help="Only lines of this machine. Default: of all.")
]
TailOption = Annotated[
    int,
    typer.Option("--tail", min=1, max=MOST_LINES, help="Begin with so many of the newest lines."),
]


def logs(
    context: typer.Context,
    job: JobArgument,
    follow: FollowLogOption = False,
    machine: MachineOption = None,
    tail: TailOption = 200,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Show what a job prints. --follow with JSON prints one line per document."""
    terminal = get_terminal(context)
    with terminal.connect() as client:
        found = find_job(client, job)
        if follow:
            lines = client.logs(found.id, machine, tail, follow=True)
            code, has_printed = follow_logs(terminal, found.id, lines, output)
            if found.phase.is_final and not has_printed:
                terminal.print_message(f"No line of it is kept. Next: scavenger events {found.id}")
            raise typer.Exit(code)
        printed = client.list_log(found.id, machine, tail)
    if printed.lines or output is not OutputFormat.TABLE:
        terminal.print_result(printed, output, render_lines(printed.lines, machine))
    report_missing(terminal, printed, found)


def follow_logs(
    terminal: Terminal, job: str, lines: Iterable[LogLineView], output_format: OutputFormat
) -> tuple[ExitCode, bool]:
    """Print lines as they come, until the job ends or the user presses Ctrl-C.

    Returns:
        The exit code, and whether there was any line.
    """
    has_printed = False
    try:
        for line in lines:
            has_printed = True
            if output_format is OutputFormat.TABLE:
                terminal.stdout.print(render_line(line, None), soft_wrap=True)
            else:
                terminal.write_update(line, output_format)
    except KeyboardInterrupt:
        return report_detached(terminal, job), has_printed
    return ExitCode.SUCCESS, has_printed


def report_missing(terminal: Terminal, printed: LogList, job: JobView) -> None:
    """Say what is not shown."""
    if not printed.lines:
        nothing = "No line of it is kept." if job.phase.is_final else "Nothing printed yet."
        terminal.print_message(f"{nothing} Next: scavenger events {job.id}")
    if printed.dropped:
        terminal.print_message(f"{printed.dropped} further lines are not kept (docs/logs.md).")


def render_lines(lines: Iterable[LogLineView], machine: str | None) -> Text:
    """Render lines; the machine before each, unless only one was asked for."""
    return Text("\n").join(render_line(line, machine) for line in lines)


def render_line(line: LogLineView, machine: str | None) -> Text:
    """Render one line."""
    place = "" if machine is not None else f"{line.machine.rpartition('-')[2]}  "
    return Text.assemble((f"{line.at:%Y-%m-%d %H:%M:%S}  {place}", "dim"), plain_text(line.text))
