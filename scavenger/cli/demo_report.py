"""The report of ``scavenger demo``: what was measured, what was chosen, and what it saved."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from scavenger.cli.curve import find_point, render_plot, render_points
from scavenger.cli.equations import curve_equations
from scavenger.cli.jobs import render_phase
from scavenger.cli.output import (
    UNKNOWN_VALUE,
    Cell,
    ResponsiveTable,
    format_amount,
    format_config,
    format_cost_to_target,
    format_dollars,
    format_milliseconds,
    format_number,
    format_percent,
    format_seconds,
    format_time_to_target,
    number_column,
    plain_text,
    pluralize,
    render_facts,
    text_column,
    word_column,
)
from scavenger.schemas.base import MoneyView
from scavenger.schemas.curves import CurveView, PointView, ProbeView, ResizeView
from scavenger.schemas.jobs import JobView

RowCells = tuple[str, ...]
# On an idle computer two measurements of a configuration differ by less than this.
PROBE_TOLERANCE = 0.2


def render_first_job(job: JobView, curve: CurveView, *, width: int) -> RenderableType:
    """Render the report of the job that searched."""
    return Group(
        *probes_section(curve),
        *curve_section(curve, width),
        *choice_section(curve),
        *resizes_section(curve),
        *outcome_section(job, curve),
    )


def render_heading(number_of: int, title: str) -> RenderableType:
    """Render the heading of a section."""
    return Group(Text(), Text(f"{number_of}  {title}", "bold"))


def probes_section(curve: CurveView) -> list[RenderableType]:
    """Report the probes."""
    if not curve.probes:
        title = "Nothing was probed: a stored model was reused"
        return [render_heading(1, title), indent(plain_text(curve.source))]
    seconds = sum(probe.seconds for probe in curve.probes)
    cost = float(sum(probe.cost for probe in curve.probes))
    probes = f"{pluralize(len(curve.probes), 'probe')} of {pluralize(len(curve.points), 'choice')}"
    title = f"While it trained, {probes} took {format_seconds(seconds)} and {format_dollars(cost)}"
    return [render_heading(1, title), render_probes(curve.probes)]


def curve_section(curve: CurveView, width: int) -> list[RenderableType]:
    """Report the equations and the curve that follows from them."""
    if not curve.points:
        return [render_heading(2, "No curve: too little was measured")]
    laws = [] if curve.laws is None else curve_equations(curve.laws, curve.points)
    return [
        render_heading(2, "What was measured gives laws, and the laws a curve of cost and time"),
        render_facts(laws),
        Text(),
        render_plot(curve, width=min(width, 100)),
        Text(),
        render_points(curve),
    ]


def choice_section(curve: CurveView) -> list[RenderableType]:
    """Report the choice and its reason."""
    return [
        render_heading(3, f"Chosen: {format_config(curve.chosen)}"),
        indent(plain_text(curve.why)),
    ]


def indent(text: Text) -> RenderableType:
    """Indent every line of a text."""
    return Padding(text, (0, 0, 0, 2))


def resizes_section(curve: CurveView) -> list[RenderableType]:
    """Report the resizes."""
    changes = [r for r in curve.resizes if r.before not in (None, r.after)]
    if not changes:
        return [render_heading(4, "It never had to change its configuration")]
    pauses = [resize.pause for resize in changes if resize.pause is not None]
    lost = sum(resize.iterations_lost or 0 for resize in changes)
    paused = f", {format_seconds(sum(pauses))} of pause" if pauses else ""
    title = f"{pluralize(len(changes), 'resize')} while it ran{paused}, {lost} iterations lost"
    return [render_heading(4, title), render_resizes(changes)]


def outcome_section(job: JobView, curve: CurveView) -> list[RenderableType]:
    """Report the end of the job, and what the choice saved against the start."""
    reached = " · ".join(
        f"{name} {format_number(value)}" for name, value in job.progress.metrics.items()
    )
    title = Text.assemble("5  Outcome: ", render_phase(job), f"  {reached}", style="bold")
    accrued, search = amount_of(job.cost.accrued), amount_of(job.cost.search)
    share = format_percent(search / accrued) if accrued > 0 else "0 %"
    spent = (
        f"{format_seconds(job.elapsed)} and {format_amount(job.cost.accrued)} in all, "
        f"{format_amount(job.cost.search)} of it searching ({share})"
    )
    return [
        Text(),
        title,
        render_facts([("reason", job.reason), ("took", spent), *prediction_facts(job, curve)]),
        *saving_section(curve),
    ]


def prediction_facts(job: JobView, curve: CurveView) -> list[tuple[str, str]]:
    """Compare the predicted iteration time with the last one measured."""
    point = find_point(curve, curve.chosen)
    if point is None or job.indicators is None or job.applied != curve.chosen:
        return []
    predicted, seen = point.step_time, job.indicators.step_time
    if predicted <= 0 or seen <= 0:
        return []
    off = f"{round(100 * (predicted / seen - 1)):+d} %"
    line = f"{format_milliseconds(predicted)} predicted, {format_milliseconds(seen)} seen ({off})"
    return [("iteration", line), *probe_facts(point.measured_step_time, seen)]


def probe_facts(probed: float | None, seen: float) -> list[tuple[str, str]]:
    """Return a note where a configuration is much slower or faster than in its probe."""
    if not probed or abs(seen / probed - 1) <= PROBE_TOLERANCE:
        return []
    how = "slower" if seen > probed else "faster"
    said = (
        f"{how} now than while it was probed ({format_milliseconds(probed)}): other programs on "
        "this computer come and go, and every time above is of one moment or the other"
    )
    return [("careful", said)]


def saving_section(curve: CurveView) -> list[RenderableType]:
    """Compare a whole training on the chosen configuration with one on the start."""
    start, chosen = find_point(curve, curve.start), find_point(curve, curve.chosen)
    if start is None or chosen is None:
        return []
    basis = curve.basis
    columns = (
        word_column("WHOLE TRAINING ON"),
        word_column("CONFIG"),
        number_column("TIME", 1),
        number_column("COST", 1),
    )
    rows = [_config_row("start", start, basis), _config_row("chosen", chosen, basis)]
    rows.append(
        (
            "",
            "",
            describe_speedup(start.time, chosen.time),
            describe_saving(float(start.cost), float(chosen.cost)),
        )
    )
    if start == chosen:
        dearest = max(curve.points, key=lambda point: point.cost)
        rows = [
            _config_row("start, and chosen", chosen, basis),
            _config_row("dearest", dearest, basis),
        ]
    return [Text(), ResponsiveTable(columns, rows)]


def _config_row(name: str, point: PointView, basis: str) -> RowCells:
    time, cost = (
        format_time_to_target(point.time, basis),
        format_cost_to_target(float(point.cost), basis),
    )
    return (name, format_config(point), time, cost)


def describe_speedup(before: float, after: float) -> str:
    """Write how much faster something became.

    >>> describe_speedup(30.0, 10.0), describe_speedup(10.0, 30.0), describe_speedup(1.0, 1.0)
    ('3.0× faster', '3.0× slower', 'as fast')
    """
    if before <= 0 or after <= 0:
        return ""
    if abs(before / after - 1) < 0.005:
        return "as fast"
    if after < before:
        return f"{format_factor(before / after)} faster"
    return f"{format_factor(after / before)} slower"


def format_factor(ratio: float) -> str:
    """Write a factor with enough digits to tell it from 1.

    >>> format_factor(1.034), format_factor(3.31)
    ('1.03×', '3.3×')
    """
    return f"{ratio:.2f}×" if ratio < 1.1 else f"{ratio:.1f}×"


def describe_saving(before: float, after: float) -> str:
    """Write how much cheaper something became.

    >>> describe_saving(4.0, 1.0), describe_saving(1.0, 1.5), describe_saving(1.0, 1.0)
    ('75 % cheaper', '50 % dearer', 'as cheap')
    """
    if before <= 0:
        return ""
    if abs(after / before - 1) < 0.005:
        return "as cheap"
    change = format_percent(abs(after / before - 1))
    return f"{change} cheaper" if after < before else f"{change} dearer"


def render_second_job(
    first: JobView, second: JobView, first_curve: CurveView, second_curve: CurveView
) -> RenderableType:
    """Render the report of the second job beside the first."""
    probes = len(second_curve.probes)
    title = f"The same job again: {pluralize(probes, 'probe')}"
    columns = (
        word_column("JOB"),
        word_column("SEARCH", 2),
        number_column("CONFIG"),
        number_column("TIME", 1),
        number_column("COST", 1),
        number_column("SEARCHING", 3),
    )
    rows = [
        _job_summary_row("first", first, first_curve),
        _job_summary_row("second", second, second_curve),
        (
            "",
            "",
            "",
            describe_speedup(first.elapsed, second.elapsed),
            describe_saving(amount_of(first.cost.accrued), amount_of(second.cost.accrued)),
            "",
        ),
    ]
    facts = [("search", second.search), ("outcome", f"{second.phase.value}: {second.reason}")]
    return Group(
        render_heading(6, title), render_facts(facts), Text(), ResponsiveTable(columns, rows)
    )


def _job_summary_row(name: str, job: JobView, curve: CurveView) -> RowCells:
    return (
        name,
        pluralize(len(curve.probes), "probe"),
        format_config(curve.chosen),
        format_seconds(job.elapsed),
        format_amount(job.cost.accrued),
        format_amount(job.cost.search),
    )


def amount_of(value: MoneyView) -> float:
    """Return an amount of money as a number to compare."""
    return float(value.amount)


PROBE_COLUMNS = (
    number_column("K"),
    number_column("B"),
    number_column("γ_n", 4),
    number_column("φ", 1),
    number_column("COMPUTE", 2),
    number_column("SYNC", 2),
    number_column("ITERATIONS", 5),
    number_column("TOOK", 3),
    number_column("SPENT", 3),
)
RESIZE_COLUMNS = (
    word_column("FROM"),
    word_column("TO"),
    number_column("PAUSE", 2),
    number_column("LOST", 3),
    text_column("WHY", 1),
)


def render_probes(probes: Sequence[ProbeView]) -> RenderableType:
    """Render probes in the order in which they were made."""
    return ResponsiveTable(PROBE_COLUMNS, [_probe_row(probe) for probe in probes])


def _probe_row(probe: ProbeView) -> tuple[str, ...]:
    return (
        str(probe.workers),
        str(probe.global_batch),
        format_number(probe.noise),
        format_number(probe.noise_scale),
        format_milliseconds(probe.compute_time),
        format_milliseconds(probe.sync_time),
        str(probe.iterations),
        format_seconds(probe.seconds),
        format_dollars(float(probe.cost)),
    )


def render_resizes(resizes: Sequence[ResizeView]) -> RenderableType:
    """Render resizes in the order in which they happened."""
    return ResponsiveTable(RESIZE_COLUMNS, [_resize_row(resize) for resize in resizes])


def _resize_row(resize: ResizeView) -> tuple[Cell, ...]:
    return (
        "start" if resize.before is None else format_config(resize.before),
        f"→ {format_config(resize.after)}",
        format_seconds(resize.pause),
        UNKNOWN_VALUE if resize.iterations_lost is None else str(resize.iterations_lost),
        plain_text(resize.why),
    )
