"""``scavenger stacks``: what each execution stack of a job is worth, and which were refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from scavenger.cli.curve import BASIS_NOTES
from scavenger.cli.errors import CurveUnavailable
from scavenger.cli.options import JobArgument, OutputOption, find_job
from scavenger.cli.output import (
    UNKNOWN_VALUE,
    Cell,
    OutputFormat,
    ResponsiveTable,
    format_cost_to_target,
    format_time_to_target,
    get_terminal,
    number_column,
    render_facts,
    text_column,
    word_column,
)
from scavenger.schemas.curves import CurveView, PointView, StackView

COLUMNS = (
    word_column("STACK"),
    number_column("K"),
    number_column("B"),
    number_column("SAMPLES/S"),
    number_column("TIME"),
    number_column("COST"),
    number_column("SPEED-UP"),
    number_column("MEMORY"),
    text_column("NOTE", 2),
)


@dataclass(frozen=True, slots=True)
class BestOfStack:
    """The configuration of a stack that costs least, and what it is worth.

    Attributes:
        stack: The stack.
        point: The configuration; None where none was measured or none meets the limits.
        speed_up: Time of the first stack's over this one's; None without either.
    """

    stack: StackView
    point: PointView | None
    speed_up: float | None


def stacks(
    context: typer.Context, job: JobArgument, output: OutputOption = OutputFormat.TABLE
) -> None:
    """Show what each way of computing a step is worth: its best batch, time and cost to target."""
    terminal = get_terminal(context)
    with terminal.connect() as client:
        shown = find_job(client, job)
        found = client.curve(shown.id)
    if found.points or output is not OutputFormat.TABLE:
        terminal.print_result(found, output, render_stacks(found))
    if not found.points:
        raise CurveUnavailable(shown, found.why)


def render_stacks(curve: CurveView) -> RenderableType:
    """Render a row for each stack of a job, the one it starts with first."""
    note = BASIS_NOTES.get(curve.basis)
    rows = [_stack_row(best, curve) for best in best_of_stacks(curve)]
    table = ResponsiveTable(COLUMNS, rows)
    if note is None:
        return table
    return Group(render_facts([("figures", note)]), Text(), table)


def best_of_stacks(curve: CurveView) -> Sequence[BestOfStack]:
    """Return the cheapest configuration of each stack within the limits, with its speed-up."""
    names = [stack.name for stack in curve.stacks] or [curve.start.stack]
    views = {stack.name: stack for stack in curve.stacks}
    best = {name: cheapest_with(curve, name) for name in names}
    first = best[names[0]]
    return [
        BestOfStack(
            views.get(name, StackView(name=name)),
            point,
            None if point is None or first is None else first.time / point.time,
        )
        for name, point in best.items()
    ]


def cheapest_with(curve: CurveView, stack: str) -> PointView | None:
    """Return the cheapest configuration of a stack within the limits; None without any."""
    feasible = [p for p in curve.points if p.stack == stack and not p.violations]
    return min(feasible, key=lambda point: (point.cost, point.time), default=None)


def _stack_row(best: BestOfStack, curve: CurveView) -> tuple[Cell, ...]:
    point, stack = best.point, best.stack
    is_chosen = curve.chosen is not None and curve.chosen.stack == stack.name
    notes = ["chosen"] if is_chosen else []
    if stack.refusal:
        notes.append(f"refused: {stack.refusal}")
    elif point is None:
        notes.append("not measured: no probe of it was expected to pay")
    if point is None:
        return (stack.name, *[UNKNOWN_VALUE] * 7, "; ".join(notes))
    seconds = point.measured_step_time or point.step_time
    return (
        stack.name,
        str(point.workers),
        str(point.global_batch),
        f"{point.global_batch / seconds:.4g}" if seconds > 0 else UNKNOWN_VALUE,
        format_time_to_target(point.time, curve.basis),
        format_cost_to_target(float(point.cost), curve.basis),
        UNKNOWN_VALUE if best.speed_up is None else f"{best.speed_up:.2f}",
        UNKNOWN_VALUE if stack.memory_share is None else f"{stack.memory_share:.2f}",
        "; ".join(notes),
    )
