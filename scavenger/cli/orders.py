"""``scavenger resize``, ``probe``, ``pause``, ``resume`` and ``limit``; ``orders`` lists them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer
from rich.console import RenderableType

from scavenger.cli.errors import CapRemoved, ConfirmationRequired
from scavenger.cli.options import JobArgument, NoCapOption, OutputOption, find_job
from scavenger.cli.output import (
    Cell,
    OutputFormat,
    ResponsiveTable,
    Terminal,
    format_amount,
    format_config,
    get_terminal,
    number_column,
    plain_text,
    text_column,
    word_column,
)
from scavenger.schemas.jobs import ConfigView, JobView
from scavenger.schemas.orders import PREFERENCES, OrderList, OrderView, Preference
from scavenger.stack import Stack

NO_LIMIT = "none"


Config = tuple[int, int] | tuple[int, int, str]


def parse_config(text: str) -> Config:
    """Read workers and global batch, such as ``2,64``, and perhaps a stack: ``2,64,bf16+fused``.

    A layout is a stack, too: ``2,64,P=2 T=1``.

    Raises:
        typer.BadParameter: It is not two whole numbers from 1 up, or a part of the stack unknown.
    """
    numbers, stack = text.split(",", 2)[:2], text.split(",", 2)[2:]
    if len(numbers) == 2 and all(part.strip().isdecimal() for part in numbers):
        workers, batch = (int(part) for part in numbers)
        if workers >= 1 and batch >= 1:
            return (workers, batch, read_stack(stack[0])) if stack else (workers, batch)
    why = f"{text!r} is no configuration: write workers and batch, e.g. 2,64, or 2,64,bf16+fused"
    raise typer.BadParameter(why)


def read_stack(text: str) -> str:
    """Read the name of a stack; raises typer.BadParameter."""
    try:
        return str(Stack.parse(text.strip()))
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def parse_target(text: str) -> Preference | Config:
    """Read where to: an objective, ``auto``, or workers and global batch.

    Raises:
        typer.BadParameter: It is none of them.
    """
    named = next((name for name in PREFERENCES if name == text), None)
    if named is not None:
        return named
    if "," in text:
        return parse_config(text)
    words = ", ".join(PREFERENCES)
    raise typer.BadParameter(f"{text!r} is no target: write {words}, or K,B, e.g. 2,64")


ReasonOption = Annotated[str, typer.Option("--reason", help="Why, for those who read it later.")]
ConfirmMoveOption = Annotated[
    bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")
]
TargetOption = Annotated[
    str,
    typer.Option("--to", metavar="TARGET", help="knee, cheapest, fastest, auto, or K,B[,STACK]."),
]
ConfigArgument = Annotated[
    str,
    typer.Argument(metavar="K,B", help="Workers and global batch, e.g. 2,64, or 2,64,bf16+fused."),
]
NewMaxCostOption = Annotated[
    str | None, typer.Option("--max-cost", help="The most it may spend, e.g. '5 USD', or none.")
]
NewMaxTimeOption = Annotated[
    str | None, typer.Option("--max-time", help="The longest it may take, e.g. 3h12m, or none.")
]
NewObjectiveOption = Annotated[
    str | None, typer.Option("--objective", help="knee, cheapest or fastest.")
]


def resize(
    context: typer.Context,
    job: JobArgument,
    to: TargetOption,
    yes: ConfirmMoveOption = False,
    reason: ReasonOption = "",
) -> None:
    """Move a job to another configuration, and keep it there until 'auto'."""
    terminal, target = get_terminal(context), parse_target(to)
    with terminal.connect() as client:
        found = find_job(client, job)
        question = resize_question(found, to)
        if not (yes or found.phase.is_final):
            if not terminal.is_interactive:
                raise ConfirmationRequired(question, "--yes")
            typer.confirm(question, abort=True, err=True)
        given = client.resize(found.id, target, reason=reason)
    print_order(terminal, given)


def probe(
    context: typer.Context, job: JobArgument, config: ConfigArgument, reason: ReasonOption = ""
) -> None:
    """Measure a configuration once, for about 30 iterations; the job then goes back."""
    terminal, wanted = get_terminal(context), parse_config(config)
    with terminal.connect() as client:
        given = client.probe(find_job(client, job).id, *wanted, reason=reason)
    print_order(terminal, given)


def pause(context: typer.Context, job: JobArgument, reason: ReasonOption = "") -> None:
    """Save a checkpoint and end all machines of a job until it is resumed."""
    terminal = get_terminal(context)
    with terminal.connect() as client:
        given = client.pause(find_job(client, job).id, reason=reason)
    print_order(terminal, given)


def resume(context: typer.Context, job: JobArgument, reason: ReasonOption = "") -> None:
    """Launch machines of a paused job again; it goes on from its checkpoint."""
    terminal = get_terminal(context)
    with terminal.connect() as client:
        given = client.resume(find_job(client, job).id, reason=reason)
    print_order(terminal, given)


def limit(
    context: typer.Context,
    job: JobArgument,
    max_cost: NewMaxCostOption = None,
    max_time: NewMaxTimeOption = None,
    objective: NewObjectiveOption = None,
    no_cap: NoCapOption = False,
    reason: ReasonOption = "",
) -> None:
    """Change what a job may spend, how long it may take, or its objective.

    --max-cost none takes its cap away, and so needs --no-cap.
    """
    terminal, given = get_terminal(context), {"max_cost": max_cost, "max_time": max_time}
    limits = {
        name: None if text == NO_LIMIT else text for name, text in given.items() if text is not None
    }
    if not limits and objective is None:
        raise typer.BadParameter("write what to change: --max-cost, --max-time or --objective")
    if max_cost == NO_LIMIT and not no_cap:
        raise CapRemoved(job)
    with terminal.connect() as client:
        found = find_job(client, job)
        order = client.change_limits(found.id, limits, objective=objective, reason=reason)
    print_order(terminal, order)


def list_orders(
    context: typer.Context, job: JobArgument, output: OutputOption = OutputFormat.TABLE
) -> None:
    """Show what was ordered of a job, and what became of it, newest first."""
    terminal = get_terminal(context)
    with terminal.connect() as client:
        found = find_job(client, job)
        given = list(client.orders(found.id))
    if given or output is not OutputFormat.TABLE:
        orders = OrderList(orders=given, next_cursor=None)
        terminal.print_result(orders, output, render_orders(given))
    if not given:
        none = f"No orders yet. Next: scavenger resize {found.id} --to cheapest"
        ended = f"{found.id} has ended, and was given no orders."
        terminal.print_message(ended if found.phase.is_final else none)


def resize_question(job: JobView, to: str) -> str:
    """Ask whether to move a job, and say where it is and what it should cost there."""
    forecast = job.cost.forecast
    cost = "" if forecast is None else f", ≈{format_amount(forecast)} in the end"
    place = format_config(job.applied or job.target)
    return f"Move {job.name} ({job.id}; {place}{cost}) to {to}?"


def print_order(terminal: Terminal, given: OrderView) -> None:
    """Write the number of an order, and say where to look what became of it."""
    terminal.write_line(str(given.number))
    words = f"Ordered: {describe_order(given)}. Next: scavenger orders {given.job}"
    terminal.print_message(words)


ORDER_COLUMNS = (
    number_column("ORDER"),
    word_column("STATE"),
    word_column("WISH", 1),
    word_column("AT", 4),
    text_column("WHAT BECAME OF IT", 2),
    text_column("REASON", 3),
)


def render_orders(orders: Sequence[OrderView]) -> RenderableType:
    """Render a table of orders."""
    return ResponsiveTable(ORDER_COLUMNS, [_order_row(order) for order in orders], gap=1)


def _order_row(order: OrderView) -> tuple[Cell, ...]:
    return (
        str(order.number),
        order.state,
        plain_text(describe_order(order)),
        f"{order.at:%Y-%m-%d %H:%M:%S}",
        plain_text(order.told),
        plain_text(order.reason),
    )


def describe_order(order: OrderView) -> str:
    """Say what an order asks for."""
    match order.wish:
        case {"to": str(to)}:
            return f"{order.kind} to {to}"
        case {"to": {"workers": _} as point}:
            return f"{order.kind} to {ConfigView.model_validate(point)}"
        case {"workers": _} as point:
            return f"{order.kind} {ConfigView.model_validate(point)}"
        case {} if order.kind in ("pause", "resume"):
            return order.kind
        case wish:
            limits = dict(wish.get("limits", {}))
            own = {"objective": wish["objective"]} if "objective" in wish else {}
            wanted = (limits | own).items()
            parts = [f"{name} to {NO_LIMIT if v is None else v}" for name, v in wanted]
            return f"{order.kind} {', '.join(parts)}"
