"""A FitReport as tables for people, and as JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

from pydantic import TypeAdapter
from rich.console import Group, RenderableType
from rich.text import Text

from scavenger.cli.figures import (
    UNKNOWN,
    counted,
    dollars,
    milliseconds,
    number,
    percent,
    span,
    words,
)
from scavenger.cli.fitted_table import Cell, FittedTable, figure, folded, key_figure, word
from scavenger.cli.job_table import show_facts
from scavenger.cli.law_words import name_average
from scavenger.fit.epochs_law import EpochsLaw
from scavenger.fit.measured_point import MeasuredPoint
from scavenger.fit.place import Place
from scavenger.fit.predicted_point import Interval, PredictedPoint
from scavenger.fit.report import CostUnit, FitReport
from scavenger.fit.step_time_law import StepTimeLaw
from scavenger.tradeoff import Basis

VERSION = 1
MEASURED_COLUMNS = (
    key_figure("K"),
    key_figure("B"),
    figure("MEASURED τ", 1),
    figure("PREDICTED τ", 1),
    figure("ERROR", 2),
    figure("LEFT OUT", 3),
)
POINT_COLUMNS = (
    key_figure("K"),
    key_figure("B"),
    word("", 3),
    figure("τ", 5),
    figure("e(B)", 7),
    figure("TIME", 1),
    figure("10–90 %", 4),
    figure("COST", 1),
    figure("10–90 %", 6),
    folded("NOTE", 2),
)
MOST_ROWS = 24
MOST_MEASURED = 16


def write_fit(report: FitReport) -> str:
    """Write a report as JSON; docs/measurements.md says what its keys mean."""
    document = TypeAdapter(FitReport).dump_python(report, mode="json")
    return json.dumps({"version": VERSION, **document}, indent=2, allow_nan=False)


def show_fit(report: FitReport) -> RenderableType:
    """Show a report: what was measured, the laws, the curve, and the choice."""
    return Group(
        words(title(report), "bold"),
        Text(),
        show_measured(report),
        Text(),
        show_points(report),
        Text(),
        show_facts(facts(report)),
    )


def title(report: FitReport) -> str:
    """Say what was fitted."""
    configurations = counted(len(report.measured), "configuration")
    rows = f" from {counted(report.rows, 'row')}" if report.rows > len(report.measured) else ""
    how = report.topology.replace("_", "-")
    return f"{report.table}: {configurations}{rows}, {how}, laws {report.laws}"


def show_measured(report: FitReport) -> RenderableType:
    """Show measured beside predicted seconds, of a long table those that differ most."""
    shown = report.measured
    if len(shown) > MOST_MEASURED:
        worst = sorted(shown, key=lambda point: -abs(point.error))[:MOST_MEASURED]
        shown = tuple(sorted(worst, key=lambda point: point.place))
    is_shared = has_machines(report)
    table = FittedTable(MEASURED_COLUMNS, [measured_row(point, is_shared) for point in shown])
    hidden = len(report.measured) - len(shown)
    if hidden:
        least = percent(min(abs(point.error) for point in shown))
        rest = f"{counted(hidden, 'more configuration')} within ±{least}; --json has all"
        return Group(table, Text(f"· {rest}", "dim"))
    return table


def has_machines(report: FitReport) -> bool:
    """Tell whether workers share machines anywhere."""
    return any(point.place.machines != point.place.workers for point in report.points)


def measured_row(point: MeasuredPoint, is_shared: bool) -> tuple[str, ...]:
    """Return the cells of a measured configuration."""
    left_out = UNKNOWN if point.left_out_error is None else signed(point.left_out_error)
    return (
        workers_of(point.place, is_shared),
        str(point.place.global_batch),
        milliseconds(point.step_time),
        milliseconds(point.predicted),
        signed(point.error),
        left_out,
    )


def workers_of(place: Place, is_shared: bool) -> str:
    """Write workers, and on how many machines they sit where some share one.

    >>> workers_of(Place(8, 64, 2), True), workers_of(Place(8, 64, 8), False)
    ('8 on 2', '8')
    """
    return f"{place.workers} on {place.machines}" if is_shared else str(place.workers)


def signed(error: float) -> str:
    """Write a relative error with its sign.

    >>> signed(0.0123), signed(-0.2)
    ('+1.2 %', '-20.0 %')
    """
    return f"{100 * error:+.1f} %"


def show_points(report: FitReport) -> RenderableType:
    """Show points from fast to slow, of a long curve those that matter."""
    points = report.points
    shown = points if len(points) <= MOST_ROWS else worth_a_row(report)
    is_shared = has_machines(report)
    rows = [point_row(point, report, is_shared) for point in shown]
    table = FittedTable(POINT_COLUMNS, rows, gap=1)
    hidden = len(points) - len(shown)
    if hidden:
        rest = f"{counted(hidden, 'point')} more, dominated or over limits; --json has all"
        return Group(table, Text(f"· {rest}", "dim"))
    return table


def worth_a_row(report: FitReport) -> Sequence[PredictedPoint]:
    """Return the points on the front and the marked ones."""
    return [p for p in report.points if p.is_on_front or marks(p.place, report)]


def point_row(point: PredictedPoint, report: FitReport, is_shared: bool) -> tuple[Cell, ...]:
    """Return the cells of a point."""
    is_measured = point.measured_step_time is not None
    return (
        workers_of(point.place, is_shared),
        str(point.place.global_batch),
        "●" if is_measured else "◇",
        milliseconds(point.measured_step_time or point.step_time),
        number(point.epochs),
        time_of(point.time.median, report.basis),
        reach(point.time, lambda value: time_of(value, report.basis)),
        cost_of(point.cost.median, report.cost_unit),
        reach(point.cost, lambda value: cost_of(value, report.cost_unit)),
        note(point, report),
    )


def time_of(seconds: float, basis: Basis) -> str:
    """Write a time of the curve."""
    return f"×{number(seconds)}" if basis == "relative" else span(seconds)


def cost_of(amount: float, unit: CostUnit) -> str:
    """Write a cost of the curve.

    >>> [cost_of(2.5, unit) for unit in ("USD", "machine-hours", "relative")]
    ['$2.50', '2.5 h', '×2.5']
    """
    match unit:
        case "USD":
            return dollars(amount)
        case "machine-hours":
            return f"{number(amount)} h"
        case "relative":
            return f"×{number(amount)}"


def reach(interval: Interval, write: Callable[[float], str]) -> str:
    """Write the ends of an interval."""
    return f"{write(interval.low)}–{write(interval.high)}"


def note(point: PredictedPoint, report: FitReport) -> Text:
    """Say what is special about a point."""
    names = marks(point.place, report)
    if point.violations:
        return words(" · ".join([*names, f"✕ {'; '.join(point.violations)}"]), "dim")
    return Text(" · ".join(names or (["front"] if point.is_on_front else [])))


def marks(place: Place, report: FitReport) -> list[str]:
    """Return the names a configuration goes by."""
    named = {
        "✔ chosen": report.chosen.place,
        "★ knee" if report.knee_bends else "no knee": report.knee,
        "fastest": report.fastest,
        "cheapest": report.cheapest,
        "start": report.start if report.basis == "relative" else None,
        "runner-up": report.chosen.runner_up,
    }
    return [name for name, marked in named.items() if marked == place]


def facts(report: FitReport) -> list[tuple[str, str]]:
    """Say the laws, the choice, and what else to know."""
    chosen = report.chosen
    support = "" if chosen.support is None else f" · support {chosen.support:.0%}"
    return [
        *step_time_facts(report.step_time),
        *epochs_facts(report.epochs),
        ("objective", chosen.objective),
        ("chosen", f"K={chosen.place.workers} B={chosen.place.global_batch}{support}"),
        ("why", chosen.why),
        *(("note", sentence) for sentence in report.notes),
    ]


def step_time_facts(law: StepTimeLaw) -> list[tuple[str, str]]:
    """Write the laws of seconds per iteration: the heaviest, then all that are averaged."""
    left_out = law.left_out_error
    beyond = "" if left_out is None else f", {percent(left_out)} at points left out of the fit"
    spread = f"±{percent(law.spread)} around the law"
    return [
        ("compute", compute_law(law)),
        ("sync", sync_law(law)),
        ("together", together(law)),
        ("form", f"{name_average(law.averaged)}, {law.why}" if law.averaged[1:] else law.why),
        ("error", f"{percent(law.error)} at measured points{beyond}; {spread}"),
    ]


def compute_law(law: StepTimeLaw) -> str:
    """Write compute by local batch."""
    fixed, slope = milliseconds(law.compute_fixed), milliseconds(law.compute_per_sample)
    where = "with b = B / K samples per worker"
    if law.flatness == 1:
        return f"c = {fixed} + {slope} × b, {where}"
    power = f"{law.flatness:g}"
    return f"c = (({fixed})^{power} + ({slope} × b)^{power})^(1/{power}), {where}"


def sync_law(law: StepTimeLaw) -> str:
    """Write synchronisation by workers."""
    fixed, slope = milliseconds(law.sync_fixed), milliseconds(law.sync_per_worker)
    across = milliseconds(law.sync_across_machines)
    beyond = f" + {across} on several machines" if law.sync_across_machines > 0 else ""
    match law.growth:
        case "linear":
            return f"s = {fixed} + {slope} × K{beyond}, for K above 1"
        case "log":
            return f"s = {fixed} + {slope} × log2 K{beyond}, for K above 1"
        case "servers":
            return f"s = {slope} × K{beyond}, and {fixed} more for K above 1"


def together(law: StepTimeLaw) -> str:
    """Write how compute and synchronisation add up."""
    if law.overlap == 1:
        return "τ = c + s, nothing overlaps"
    power = f"{law.overlap:g}"
    return f"τ = (c^{power} + s^{power})^(1/{power}), they overlap in part"


def epochs_facts(law: EpochsLaw) -> list[tuple[str, str]]:
    """Write the law of epochs."""
    values = [
        f"{name} = {number(value)} samples"
        for name, value in (
            ("B_crit", law.critical_batch),
            ("φ", law.noise_scale),
            ("w", law.noisy_samples or None),
        )
        if value is not None
    ]
    level = f"; e = {number(law.epochs)} at batch {law.at_batch}" if law.epochs else ""
    where = f", {', '.join(values)}" if values else ""
    return [("epochs", f"{law.law}{where}{level}; {law.why}")]
