"""The report of ``scavenger fit`` as tables, and as JSON for programs."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import TypeAdapter
from rich.console import Group, RenderableType
from rich.text import Text

from scavenger.cli.curve import MEASURED_SYMBOL, PREDICTED_SYMBOL
from scavenger.cli.equations import describe_average, iteration_equations
from scavenger.cli.output import (
    UNKNOWN_VALUE,
    Cell,
    FittedTable,
    dump_json,
    format_change,
    format_dollars,
    format_milliseconds,
    format_number,
    format_percent,
    format_time_to_target,
    key_number_column,
    number_column,
    plain_text,
    pluralize,
    render_facts,
    text_column,
    word_column,
)
from scavenger.offline.fit import CostUnit, FitReport, MeasuredPoint
from scavenger.offline.fitted_laws import EpochsLaw, StepTimeLaw
from scavenger.report import PredictedPoint, ReportedConfig

FIT_FORMAT_VERSION = 1  # counts up when a key of the JSON changes its meaning
MEASUREMENT_COLUMNS = (
    key_number_column("K"),
    key_number_column("B"),
    number_column("MEASURED τ", 1),
    number_column("PREDICTED τ", 1),
    number_column("ERROR", 2),
    number_column("LEFT OUT", 3),
)
PREDICTION_COLUMNS = (
    key_number_column("K"),
    key_number_column("B"),
    word_column("", 3),
    number_column("τ", 5),
    number_column("e(B)", 7),
    number_column("TIME", 1),
    number_column("10–90 %", 4),
    number_column("COST", 1),
    number_column("10–90 %", 6),
    text_column("NOTE", 2),
)
MAX_PREDICTION_ROWS = 24
MAX_MEASUREMENT_ROWS = 16


def fit_to_json(report: FitReport) -> str:
    """Write a report as JSON; docs/measurements.md says what its keys mean."""
    document = TypeAdapter(FitReport).dump_python(report, mode="json")
    return dump_json({"version": FIT_FORMAT_VERSION, **document})


def render_fit(report: FitReport) -> RenderableType:
    """Render measurements, curve, equations and choice."""
    return Group(
        plain_text(fit_title(report), "bold"),
        Text(),
        render_measurements(report),
        Text(),
        render_predictions(report),
        Text(),
        render_facts(fit_facts(report)),
    )


def fit_title(report: FitReport) -> str:
    """Write what was fitted."""
    configurations = pluralize(len(report.measured), "configuration")
    rows = f" from {pluralize(report.rows, 'row')}" if report.rows > len(report.measured) else ""
    how = report.topology.replace("_", "-")
    return f"{report.table}: {configurations}{rows}, {how}, laws {report.laws}"


def render_measurements(report: FitReport) -> RenderableType:
    """Render measured and predicted seconds; of a long table the rows that differ most."""
    shown = report.measured
    if len(shown) > MAX_MEASUREMENT_ROWS:
        worst = sorted(shown, key=lambda point: -abs(point.error))[:MAX_MEASUREMENT_ROWS]
        shown = tuple(sorted(worst, key=lambda point: point.place))
    is_shared = shares_machines(report)
    table = FittedTable(
        MEASUREMENT_COLUMNS, [_measurement_row(point, is_shared) for point in shown]
    )
    hidden = len(report.measured) - len(shown)
    if hidden:
        least = format_percent(min(abs(point.error) for point in shown))
        rest = f"{pluralize(hidden, 'more configuration')} within ±{least}; --json has all"
        return Group(table, Text(f"· {rest}", "dim"))
    return table


def shares_machines(report: FitReport) -> bool:
    """Tell whether workers share machines in any configuration."""
    return any(point.place.machines != point.place.workers for point in report.points)


def _measurement_row(point: MeasuredPoint, is_shared: bool) -> tuple[str, ...]:
    left_out = (
        UNKNOWN_VALUE if point.left_out_error is None else format_change(point.left_out_error)
    )
    return (
        format_workers(point.place, is_shared),
        str(point.place.global_batch),
        format_milliseconds(point.step_time),
        format_milliseconds(point.predicted),
        format_change(point.error),
        left_out,
    )


def format_workers(place: ReportedConfig, is_shared: bool) -> str:
    """Write workers, and the machines they run on where some share one.

    >>> format_workers(ReportedConfig(8, 64, 2), is_shared=True)
    '8 on 2'
    """
    return f"{place.workers} on {place.machines}" if is_shared else str(place.workers)


def render_predictions(report: FitReport) -> RenderableType:
    """Render points from fast to slow; of a long curve only the important ones."""
    points = report.points
    shown: Sequence[PredictedPoint] = points
    if len(points) > MAX_PREDICTION_ROWS:
        shown = [p for p in points if p.is_on_front or prediction_labels(p.place, report)]
    is_shared = shares_machines(report)
    rows = [_prediction_row(point, report, is_shared) for point in shown]
    table = FittedTable(PREDICTION_COLUMNS, rows, gap=1)
    hidden = len(points) - len(shown)
    if hidden:
        rest = f"{pluralize(hidden, 'point')} more, dominated or over limits; --json has all"
        return Group(table, Text(f"· {rest}", "dim"))
    return table


def _prediction_row(point: PredictedPoint, report: FitReport, is_shared: bool) -> tuple[Cell, ...]:
    is_measured = point.measured_step_time is not None
    time, time_low, time_high = (
        format_time_to_target(seconds, report.basis)
        for seconds in (point.time.median, point.time.low, point.time.high)
    )
    cost, cost_low, cost_high = (
        format_curve_cost(amount, report.cost_unit)
        for amount in (point.cost.median, point.cost.low, point.cost.high)
    )
    return (
        format_workers(point.place, is_shared),
        str(point.place.global_batch),
        (MEASURED_SYMBOL if is_measured else PREDICTED_SYMBOL).shape,
        format_milliseconds(point.measured_step_time or point.step_time),
        format_number(point.epochs),
        time,
        f"{time_low}–{time_high}",
        cost,
        f"{cost_low}–{cost_high}",
        describe_prediction(point, report),
    )


def format_curve_cost(amount: float, unit: CostUnit) -> str:
    """Write a cost of the curve.

    >>> [format_curve_cost(2.5, unit) for unit in ("USD", "machine-hours", "relative")]
    ['$2.50', '2.5 h', '×2.5']
    """
    match unit:
        case "USD":
            return format_dollars(amount)
        case "machine-hours":
            return f"{format_number(amount)} h"
        case "relative":
            return f"×{format_number(amount)}"


def describe_prediction(point: PredictedPoint, report: FitReport) -> Text:
    """Return the labels of a point and the limits that it breaks."""
    names = prediction_labels(point.place, report)
    if point.violations:
        return plain_text(" · ".join([*names, f"✕ {'; '.join(point.violations)}"]), "dim")
    return Text(" · ".join(names or (["front"] if point.is_on_front else [])))


def prediction_labels(place: ReportedConfig, report: FitReport) -> list[str]:
    """Return the labels of a configuration."""
    named = {
        "✔ chosen": report.chosen.place,
        "★ knee" if report.knee_bends else "no knee": report.knee,
        "fastest": report.fastest,
        "cheapest": report.cheapest,
        "start": report.start if report.basis == "relative" else None,
        "runner-up": report.chosen.runner_up,
    }
    return [name for name, marked in named.items() if marked == place]


def fit_facts(report: FitReport) -> list[tuple[str, str]]:
    """Return equations, choice and notes."""
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
    """Return the equations of iteration time: the largest weight first, then all averaged forms."""
    left_out = law.left_out_error
    beyond = (
        "" if left_out is None else f", {format_percent(left_out)} at points left out of the fit"
    )
    spread = f"±{format_percent(law.spread)} around the law"
    return [
        *iteration_equations(law),
        ("forms", f"{describe_average(law.averaged)}, {law.why}" if law.averaged[1:] else law.why),
        ("error", f"{format_percent(law.error)} at measured points{beyond}; {spread}"),
    ]


def epochs_facts(law: EpochsLaw) -> list[tuple[str, str]]:
    """Write the law of epochs."""
    values = [
        f"{name} = {format_number(value)} samples"
        for name, value in (
            ("B_crit", law.critical_batch),
            ("φ", law.noise_scale),
            ("w", law.noisy_samples or None),
        )
        if value is not None
    ]
    level = f"; e = {format_number(law.epochs)} at batch {law.at_batch}" if law.epochs else ""
    where = f", {', '.join(values)}" if values else ""
    return [("epochs", f"{law.law}{where}{level}; {law.why}")]
