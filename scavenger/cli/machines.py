"""``scavenger machine``: lists the machines of jobs, those that are gone too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, get_args

import typer
from rich.console import RenderableType

from scavenger.cli.options import OutputOption, choice_parser, find_job
from scavenger.cli.output import (
    UNKNOWN_VALUE,
    Cell,
    OutputFormat,
    ResponsiveTable,
    format_seconds,
    get_terminal,
    number_column,
    plain_text,
    text_column,
    word_column,
)
from scavenger.money import format_rate
from scavenger.schemas.machines import MachineState, MachineView

STATES: tuple[str, ...] = get_args(MachineState)

OfJobOption = Annotated[
    str | None,
    typer.Option("--job", metavar="JOB", help="Only of this job: its id, its name, or 'latest'."),
]
MachineStateOption = Annotated[
    list[str] | None,
    typer.Option(
        "--state",
        metavar="STATE",
        parser=choice_parser(STATES),
        help=f"Only in this state, {', '.join(STATES)}; again for others.",
    ),
]
MachineLimitOption = Annotated[int, typer.Option("--limit", min=1, help="Maximum number to list.")]

machine_commands = typer.Typer(no_args_is_help=True, help="Machines of jobs.")


@machine_commands.callback()
def root() -> None:
    """List the machines of jobs."""


@machine_commands.command("list", epilog="Example: scavenger machine list --state launched")
def list_machines(
    context: typer.Context,
    job: OfJobOption = None,
    state: MachineStateOption = None,
    limit: MachineLimitOption = 20,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """List machines, newest first: where each is, what it costs, and why it is gone."""
    terminal = get_terminal(context)
    wanted = {"state": ",".join(state)} if state else {}
    with terminal.connect() as client:
        if job is not None:
            wanted["job"] = find_job(client, job).id
        found = client.list_machines(limit, wanted)
    if found.machines or output is not OutputFormat.TABLE:
        terminal.print_result(found, output, render_machines(found.machines))
    if not found.machines:
        none = "No machine matches." if wanted else "No machines yet. Next: scavenger submit FILE"
        terminal.print_message(none)
    if found.next_cursor is not None:
        terminal.print_message(f"There are more: scavenger machine list --limit {10 * limit}")


MACHINE_COLUMNS = (
    word_column("MACHINE"),
    word_column("STATE"),
    word_column("TYPE", 2),
    word_column("ZONE", 3),
    word_column("MARKET", 4),
    number_column("PRICE", 1),
    number_column("HEARD", 5),
    word_column("ASKED FOR (UTC)", 6),
    text_column("WHY", 7),
)


def render_machines(machines: Sequence[MachineView]) -> RenderableType:
    """Render a table of machines."""
    return ResponsiveTable(MACHINE_COLUMNS, [_machine_row(machine) for machine in machines])


def _machine_row(machine: MachineView) -> tuple[Cell, ...]:
    # Of one that is gone, the time since it was heard only grows.
    heard = None if machine.state == "gone" else machine.lease_age
    asked = machine.launched_at
    return (
        plain_text(machine.id),
        machine.state,
        plain_text(machine.machine_type),
        plain_text(machine.zone or machine.cloud),
        machine.market,
        format_rate(float(machine.price_per_hour.amount)),
        UNKNOWN_VALUE if heard is None else f"{format_seconds(heard)} ago",
        UNKNOWN_VALUE if asked is None else f"{asked:%Y-%m-%d %H:%M:%S}",
        plain_text(machine.why),
    )
