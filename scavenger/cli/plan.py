"""``scavenger plan``: what would become of a job document, before it costs anything."""

from __future__ import annotations

import json
from contextlib import nullcontext
from datetime import datetime
from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from scavenger.cli.curve import point_labels, source_symbol
from scavenger.cli.layouts import plan_layouts
from scavenger.cli.options import OutputOption
from scavenger.cli.output import (
    Cell,
    Column,
    OutputFormat,
    ResponsiveTable,
    format_amount,
    format_config,
    format_cost_to_target,
    format_seconds,
    format_time_interval,
    get_terminal,
    number_column,
    plain_text,
    pluralize,
    render_facts,
    text_column,
    word_column,
)
from scavenger.cli.submit import CodeOption, JobFileArgument, NameOption, read_job_file, send_code
from scavenger.client.code import pack_code
from scavenger.errors import ExitCode, NothingFeasible
from scavenger.schemas.curves import CurveView, PointView
from scavenger.schemas.jobs import ConfigView
from scavenger.schemas.plans import PlanView

EveryPointOption = Annotated[
    bool, typer.Option("--all", help="Show all points, also dominated ones and those over limits.")
]
DetailedExitCodeOption = Annotated[
    bool,
    typer.Option("--detailed-exitcode", help="Exit with 3 if submitting the plan would spend."),
]

LayoutsOption = Annotated[
    bool,
    typer.Option("--layouts", help="FILE is a profile of a model: compare its layouts, offline."),
]
LayoutProcessesOption = Annotated[
    str | None,
    typer.Option("--processes", help="With --layouts: process counts, e.g. 1..8 or 2,4."),
]
LayoutBatchOption = Annotated[
    int | None, typer.Option("--batch", min=1, help="With --layouts: global batch in samples.")
]


def plan(
    context: typer.Context,
    file: JobFileArgument,
    code: CodeOption = None,
    name: NameOption = None,
    every: EveryPointOption = False,
    detailed_exitcode: DetailedExitCodeOption = False,
    layouts: LayoutsOption = False,
    processes: LayoutProcessesOption = None,
    batch: LayoutBatchOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Show what a job would take, before it costs anything. Nothing is launched or spent.

    The plan is kept for 15 minutes; ``scavenger submit --plan ID`` submits exactly that. With
    --code the directory is sent already, so that the plan can be submitted.

    With --layouts the file is a profile of a model (docs/layouts.md), and no controller is asked.
    """
    terminal = get_terminal(context)
    if layouts:
        plan_layouts(terminal, file, processes, batch, output)
        return
    if processes is not None or batch is not None:
        raise typer.BadParameter(
            "--processes and --batch belong to --layouts: limits of a job are in its document"
        )
    with nullcontext() if code is None else pack_code(code) as packed:
        spec = read_job_file(file, name, None if packed is None else packed.digest)
        with terminal.connect() as client:
            if packed is not None:
                send_code(terminal, client, packed)
            made = client.plan(json.dumps(spec.document()), "json")
    terminal.print_result(made, output, render_job_plan(made, show_all=every))
    if not made.is_feasible:
        raise NothingFeasible(made.why)
    if output is OutputFormat.TABLE:
        terminal.print_message(f"Next: scavenger submit --plan {made.id}")
    if detailed_exitcode:
        raise typer.Exit(ExitCode.WOULD_SPEND)


def render_job_plan(made: PlanView, *, show_all: bool = False) -> RenderableType:
    """Render a plan: its options from fast to slow, and what else to know."""
    minutes = round((made.expires_at - made.created_at).total_seconds() / 60)
    title = Text.assemble(
        "Plan ", plain_text(made.id, "bold"), f"  (valid for {minutes} min)  ", made.model_key
    )
    options = [render_options(made, show_all=show_all), Text()] if made.curve.points else []
    return Group(title, Text(), *options, render_facts(job_plan_facts(made)))


OPTION_COLUMNS = (
    word_column(""),
    number_column("K"),
    number_column("B"),
    # Their intervals wrap: what a job costs is the last to be left out.
    Column("TIME TO TARGET", 1, "right", min_width=14),
    Column("COST TO TARGET", 1, "right", min_width=23),
    word_column("SOURCE", 3),
    text_column("NOTE", 2),
)


def render_options(made: PlanView, *, show_all: bool = False) -> RenderableType:
    """Render the options, the recommended one first, then from fast to slow."""
    curve = made.curve
    points = sorted(curve.points, key=lambda p: (not is_at(p, made.choice), p.time, p.cost))
    named = [p for p in points if p.on_front or option_labels(p, curve, made.choice)]
    shown = points if show_all or not named else named
    table = ResponsiveTable(
        OPTION_COLUMNS, [_option_row(point, curve, made.choice) for point in shown]
    )
    hidden = len(points) - len(shown)
    if not hidden:
        return table
    note = f"· {pluralize(hidden, 'option')} more, dominated or over limits: --all shows them"
    return Group(table, Text(note, "dim"))


def _option_row(point: PointView, curve: CurveView, choice: ConfigView | None) -> tuple[Cell, ...]:
    basis = curve.basis
    cost, low, high = (
        format_cost_to_target(float(each), basis)
        for each in (point.cost, point.cost_low, point.cost_high)
    )
    note = " · ".join(option_labels(point, curve, choice))
    broken = "; ".join(point.violations)
    return (
        "★" if is_at(point, choice) else "",
        str(point.workers),
        str(point.global_batch),
        format_time_interval(point.time_low, point.time, point.time_high, basis),
        cost if low == high else f"{cost} ({low}–{high})",
        f"{source_symbol(point)} {point.source}",
        plain_text(f"✕ {broken}", "dim") if broken else Text(note),
    )


def option_labels(point: PointView, curve: CurveView, choice: ConfigView | None) -> list[str]:
    """Return what is said of an option beside its figures."""
    names = {"★ knee": "knee", "✔ chosen": "", "least time × cost": ""}
    labels = (names.get(label, label) for label in point_labels(point, curve))
    recommended = ["recommended"] if is_at(point, choice) else []
    return [*recommended, *(label for label in labels if label)]


def is_at(point: PointView, config: ConfigView | None) -> bool:
    """Tell whether a point is of a configuration."""
    return config is not None and point.config == config.config


def job_plan_facts(made: PlanView) -> list[tuple[str, str]]:
    """Return what else to know of a plan, one fact per line."""
    choice = [] if made.choice is None else [("choice", format_config(made.choice))]
    reused = [("reuses", f"the model of {pluralize(made.would_reuse, 'earlier job')}")]
    return [
        *choice,
        ("why", made.why),
        ("search", describe_search(made)),
        *(reused if made.would_reuse else []),
        ("limits", describe_limits(made)),
        ("prices", describe_prices(made.prices_as_of, made.created_at)),
        ("cap", describe_most(made)),
        *(("check", sentence) for sentence in made.checks),
    ]


def describe_search(made: PlanView) -> str:
    """Say what is measured before a configuration is chosen."""
    search = made.search
    if search is None:
        return "none: nothing is probed"
    count = f"about {pluralize(search.probes, 'probe')}, while the job trains"
    if search.seconds is None or search.cost is None:
        return f"{count}; no earlier job tells how long they take"
    return f"{count}: {format_seconds(search.seconds)}, {format_amount(search.cost)}"


def describe_limits(made: PlanView) -> str:
    """Say which limits configurations are judged by."""
    limits = made.curve.limits
    time = None if limits is None else limits.max_time
    money = "no max_cost" if made.cap is None else f"max_cost {format_amount(made.cap)}"
    return f"{money} · {'no max_time' if time is None else f'max_time {format_seconds(time)}'}"


def describe_prices(as_of: datetime | None, now: datetime) -> str:
    """Say where prices come from and how old they are."""
    if as_of is None:
        return "as the document names them; traffic and taxes are not in them"
    age = format_seconds(max((now - as_of).total_seconds(), 0.0))
    return f"on demand, as of {as_of:%Y-%m-%d %H:%M} UTC ({age} old); without traffic and taxes"


def describe_most(made: PlanView) -> str:
    """Say what can be spent at most."""
    if made.cap is None:
        return "none: nothing limits what is spent"
    return f"at most {format_amount(made.cap)} can be spent, even if the controller dies"
