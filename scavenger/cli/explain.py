"""``scavenger explain``: why a job runs on its configuration, and what the others would take."""

from __future__ import annotations

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from scavenger.cli.curve import BASIS_NOTES, DecisionOption
from scavenger.cli.errors import CurveUnavailable
from scavenger.cli.options import JobArgument, OutputOption, find_job
from scavenger.cli.output import (
    Cell,
    OutputFormat,
    ResponsiveTable,
    format_change,
    format_config,
    format_cost_to_target,
    format_percent,
    format_seconds,
    format_time_to_target,
    get_terminal,
    number_column,
    pluralize,
    render_facts,
    text_column,
    word_column,
)
from scavenger.cluster import ClusterConfig
from scavenger.schemas.curves import CurveView, PointView
from scavenger.schemas.jobs import ConfigView


def explain(
    context: typer.Context,
    job: JobArgument,
    decision: DecisionOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Explain a choice: from what it follows, and what the alternatives would have taken."""
    terminal = get_terminal(context)
    with terminal.connect() as client:
        shown = find_job(client, job)
        found = client.curve(shown.id, decision)
        choices = list(client.decisions(shown.id))
    # Standard output is for a curve; without one a reader of tables gets the reason alone.
    if found.points or output is not OutputFormat.TABLE:
        terminal.print_result(found, output, render_choice(found, len(choices)))
    if not found.points:
        raise CurveUnavailable(shown, found.why)


def render_choice(curve: CurveView, kept: int) -> RenderableType:
    """Render a choice: facts, then the alternatives against it.

    Args:
        curve: The curve it was made from.
        kept: How many choices of the job are kept.
    """
    rows = alternatives(curve)
    facts = render_facts(choice_facts(curve, kept))
    if not rows:
        return facts
    return Group(facts, Text(), ResponsiveTable(ALTERNATIVE_COLUMNS, rows))


def choice_facts(curve: CurveView, kept: int) -> list[tuple[str, str]]:
    """Return what a choice rests on, one fact per line."""
    when = f"{curve.as_of:%Y-%m-%d %H:%M:%S} UTC"
    number = "none yet" if curve.decision is None else f"{curve.decision}, {when}"
    note = BASIS_NOTES.get(curve.basis)
    return [
        ("decision", f"{number}; {pluralize(kept, 'decision')} kept" if kept > 1 else number),
        ("chosen", format_config(curve.chosen)),
        ("why", curve.why),
        ("knows", describe_knowledge(curve)),
        ("objective", curve.objective),
        ("limits", describe_curve_limits(curve)),
        *([] if note is None else [("figures", note)]),
        *([] if curve.support is None else [("sure", describe_support(curve))]),
    ]


def describe_knowledge(curve: CurveView) -> str:
    """Say what was known for a choice, and how good earlier forecasts were."""
    if curve.calibration is None:
        return curve.source
    judged = curve.calibration
    share = format_percent(judged.coverage)
    jobs = pluralize(judged.forecasts, "earlier forecast")
    return f"{curve.source}; {share} of {jobs} held, and 80 % should"


def describe_curve_limits(curve: CurveView) -> str:
    """Say which limits bound a choice, and how many configurations they exclude."""
    limits = curve.limits
    if limits is None or (limits.max_cost, limits.max_time) == (None, None):
        return "none"
    cost = (
        [] if limits.max_cost is None else [format_cost_to_target(float(limits.max_cost), "total")]
    )
    time = [] if limits.max_time is None else [format_seconds(limits.max_time)]
    excluded = sum(bool(point.violations) for point in curve.points)
    return f"{', '.join([*cost, *time])}; {excluded} of {len(curve.points)} options are over them"


def describe_support(curve: CurveView) -> str:
    """Say how many posterior samples choose the same, and what most others choose."""
    share = format_percent(curve.support or 0.0)
    other = (
        "" if curve.runner_up is None else f", most others choose {format_config(curve.runner_up)}"
    )
    return f"{share} of the posterior samples agree{other}"


ALTERNATIVE_COLUMNS = (
    word_column("OPTION"),
    word_column("CONFIG"),
    number_column("TIME", 1),
    number_column("COST", 1),
    text_column("AGAINST THE CHOICE", 2),
)


def alternatives(curve: CurveView) -> list[tuple[Cell, ...]]:
    """Return a row for each configuration with a name, against the chosen one."""
    points = {point.config: point for point in curve.points}
    named = {
        "chosen": curve.chosen,
        "knee" if curve.knee_bends else "least time × cost": curve.knee,
        "fastest": curve.fastest,
        "cheapest": curve.cheapest,
        "runner-up": curve.runner_up,
        "start": curve.start,
        "current": curve.current,
    }
    chosen = find_point(points, curve.chosen)
    found = {name: find_point(points, config) for name, config in named.items()}
    return [
        (
            name,
            str(point.config),
            format_time_to_target(point.time, curve.basis),
            format_cost_to_target(float(point.cost), curve.basis),
            "; ".join([*describe_difference(point, chosen), *point.violations]),
        )
        for name, point in found.items()
        if point is not None
    ]


def find_point(
    points: dict[ClusterConfig, PointView], config: ConfigView | None
) -> PointView | None:
    """Return the point of a configuration, if the curve has one."""
    return None if config is None else points.get(config.config)


def describe_difference(point: PointView, chosen: PointView | None) -> list[str]:
    """Say how much more time and money a point takes than the chosen one."""
    if chosen is None or chosen.id == point.id or not (chosen.time and chosen.cost):
        return []
    time, cost = point.time / chosen.time - 1, float(point.cost / chosen.cost) - 1
    # Without blanks, so that no number is parted from its sign at the end of a line.
    return [f"{format_change(time)} time, {format_change(cost)} cost".replace(" %", "%")]
