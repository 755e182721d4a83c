"""``scavenger cost``: what the machines of a project cost."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer
from rich.console import Group, RenderableType

from scavenger.cli.options import OneProjectOption, OutputOption, SinceOption
from scavenger.cli.output import (
    Cell,
    OutputFormat,
    ResponsiveTable,
    format_amount,
    get_terminal,
    long_name_column,
    number_column,
    plain_text,
    word_column,
)
from scavenger.schemas.prices import CostEntryView, CostReportView


class CostBy(StrEnum):
    """What one row of a cost report is."""

    JOB = "job"
    MODEL = "model"
    PROJECT = "project"
    CLOUD = "cloud"
    DAY = "day"


ByOption = Annotated[CostBy, typer.Option("--by", help="What one row is; days are those of UTC.")]


def cost(
    context: typer.Context,
    by: ByOption = CostBy.JOB,
    since: SinceOption = None,
    project: OneProjectOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Show what the machines of the project cost, from when each was asked for to its end."""
    terminal = get_terminal(context)
    with terminal.connect() as client:
        report = client.get_cost(by.value, since, project)
    if report.entries or output is not OutputFormat.TABLE:
        terminal.print_result(report, output, render_cost(report))
    if not report.entries:
        terminal.print_message("No machine has cost anything yet.")
    elif output is OutputFormat.TABLE:
        terminal.print_message(f"Not included: {'; '.join(report.not_included)}.", "dim")


def render_cost(report: CostReportView) -> RenderableType:
    """Render a cost report, its total last."""
    is_of_jobs = report.by == CostBy.JOB
    columns = (
        word_column(report.by.upper()),
        *((long_name_column("NAME"),) if is_of_jobs else ()),
        number_column("COST"),
    )
    rows = [_cost_row(entry, is_of_jobs) for entry in report.entries]
    begin = "" if report.since is None else f"from {report.since:%Y-%m-%d %H:%M:%S} "
    span = f"{begin}until {report.until:%Y-%m-%d %H:%M:%S} UTC"
    total = f"total {format_amount(report.total)} {span}"
    return Group(ResponsiveTable(columns, rows), plain_text(total, "bold"))


def _cost_row(entry: CostEntryView, is_of_jobs: bool) -> tuple[Cell, ...]:
    name = (plain_text(entry.name),) if is_of_jobs else ()
    return (plain_text(entry.key), *name, format_amount(entry.cost))
