"""The report of ``scavenger fit`` as tables, and as JSON for programs."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from scavenger.cli.curve import MEASURED_SYMBOL, PREDICTED_SYMBOL
from scavenger.cli.equations import describe_average, iteration_equations
from scavenger.cli.output import (
    UNKNOWN_VALUE,
    Cell,
    ResponsiveTable,
    format_change,
    format_dollars,
    format_milliseconds,
    format_number,
    format_percent,
    format_time_to_target,
    number_column,
    plain_text,
    pluralize,
    render_facts,
    text_column,
    word_column,
)
from scavenger.cluster import ClusterConfig
from scavenger.models.iteration_time import COEFFICIENT_NAMES, StepTimeLaw
from scavenger.offline.fit import CostUnit, FitReport, MeasuredPoint
from scavenger.offline.fitted_laws import EpochsFit, StepTimeFit
from scavenger.report import ReportedPoint

FIT_FORMAT_VERSION = 1  # counts up when a key of the JSON changes its meaning
MEASUREMENT_COLUMNS = (
    number_column("K"),
    number_column("B"),
    number_column("MEASURED τ", 1),
    number_column("PREDICTED τ", 1),
    number_column("ERROR", 2),
    number_column("LEFT OUT", 3),
)
PREDICTION_COLUMNS = (
    number_column("K"),
    number_column("B"),
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


def fit_document(report: FitReport) -> dict[str, object]:
    """Return a report as JSON values; docs/measurements.md says what their keys mean."""
    steps, epochs, chosen = report.steps, report.epochs, report.chosen
    model, law = steps.model, epochs.model
    # Written out key by key, because programs of users read them: a field that is renamed in the
    # library must not rename a key here.
    return {
        "version": FIT_FORMAT_VERSION,
        "table": report.table,
        "rows": report.rows,
        "topology": steps.topology,
        "laws": steps.laws,
        "basis": report.curve.basis,
        "cost_unit": report.cost_unit,
        "step_time": {
            **law_json(model.laws[0]),
            "averaged": [
                {"weight": weight, **law_json(each)}
                for weight, each in zip(model.weights, model.laws, strict=True)
            ],
            "spread": model.spread or 0.0,
            "error": steps.mean_error,
            "left_out_error": steps.cross_validation_error,
            "why": steps.why,
        },
        "epochs": {
            "law": law.formula,
            "noise_scale": law.noise_scale,
            "critical_batch": law.critical_batch,
            "noisy_samples": law.noisy_samples,
            "at_batch": epochs.reference_batch,
            "epochs": epochs.epochs,
            "spread": law.spread,
            "why": epochs.why,
        },
        "measured": [
            {
                "place": config_json(each.config),
                "step_time": each.step_time,
                "predicted": each.predicted,
                "error": each.error,
                "left_out_error": each.cross_validation_error,
            }
            for each in report.measured
        ],
        "points": [
            {
                "place": config_json(point.config),
                "step_time": point.step_time,
                "measured_step_time": point.measured_step_time,
                "epochs": point.epochs,
                "time": interval_json(point.time, point.time_range),
                "cost": interval_json(point.cost, point.cost_range),
                "is_on_front": judged.is_on_front,
                "violations": judged.violations,
            }
            for judged in report.points
            for point in (judged.point,)
        ],
        "start": config_json(report.start),
        **{name: config_json(report.marked(name)) for name in ("fastest", "cheapest", "knee")},
        "knee_bends": report.marks["knee"].bends,
        "chosen": {
            "place": config_json(chosen.point.config),
            "objective": report.curve.objective.name,
            "why": chosen.why,
            "support": chosen.support,
            # None where nothing is uncertain, or where no other was ever chosen.
            "runner_up": chosen.runner_up and config_json(chosen.runner_up.config),
        },
        "notes": report.notes,
    }


def config_json(config: ClusterConfig) -> dict[str, int]:
    """Return the JSON of a configuration."""
    return {
        "workers": config.workers,
        "global_batch": config.global_batch,
        "machines": config.machines,
    }


def interval_json(median: float, ends: tuple[float, float]) -> dict[str, float]:
    """Return the JSON of what 10, 50 and 90 % of the possible outcomes stay below."""
    return {"low": ends[0], "median": median, "high": ends[1]}


def law_json(law: StepTimeLaw) -> dict[str, float | str]:
    """Return the JSON of one law of seconds per iteration."""
    return {
        **dict(zip(COEFFICIENT_NAMES, law.coefficients, strict=True)),
        "growth": law.growth,
        "overlap": law.overlap,
        "flatness": law.flatness,
    }


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
    how = report.steps.topology.replace("_", "-")
    return f"{report.table}: {configurations}{rows}, {how}, laws {report.steps.laws}"


def render_measurements(report: FitReport) -> RenderableType:
    """Render measured and predicted seconds; of a long table the rows that differ most."""
    shown = report.measured
    if len(shown) > MAX_MEASUREMENT_ROWS:
        worst = sorted(shown, key=lambda point: -abs(point.error))[:MAX_MEASUREMENT_ROWS]
        shown = tuple(sorted(worst, key=lambda point: point.config))
    is_shared = shares_machines(report)
    table = ResponsiveTable(
        MEASUREMENT_COLUMNS, [_measurement_row(point, is_shared) for point in shown]
    )
    hidden = len(report.measured) - len(shown)
    if hidden:
        least = format_percent(min(abs(point.error) for point in shown))
        rest = f"{pluralize(hidden, 'more configuration')} within ±{least}; -o json has all"
        return Group(table, Text(f"· {rest}", "dim"))
    return table


def shares_machines(report: FitReport) -> bool:
    """Tell whether workers share machines in any configuration."""
    # With a machine for each worker the column would say the same number twice.
    return any(judged.point.config.workers_per_machine > 1 for judged in report.points)


def _measurement_row(point: MeasuredPoint, is_shared: bool) -> tuple[str, ...]:
    left_out = (
        UNKNOWN_VALUE
        if point.cross_validation_error is None
        else format_change(point.cross_validation_error)
    )
    return (
        format_workers(point.config, is_shared),
        str(point.config.global_batch),
        format_milliseconds(point.step_time),
        format_milliseconds(point.predicted),
        format_change(point.error),
        left_out,
    )


def format_workers(config: ClusterConfig, is_shared: bool) -> str:
    """Write workers, and the machines they run on where some share one.

    >>> format_workers(ClusterConfig(8, 64, workers_per_machine=4), is_shared=True)
    '8 on 2'
    """
    return f"{config.workers} on {config.machines}" if is_shared else str(config.workers)


def render_predictions(report: FitReport) -> RenderableType:
    """Render points from fast to slow; of a long curve only the important ones."""
    points = report.points
    shown: Sequence[ReportedPoint] = points
    if len(points) > MAX_PREDICTION_ROWS:
        shown = [p for p in points if p.is_on_front or prediction_labels(p, report)]
    is_shared = shares_machines(report)
    rows = [_prediction_row(point, report, is_shared) for point in shown]
    table = ResponsiveTable(PREDICTION_COLUMNS, rows, gap=1)
    hidden = len(points) - len(shown)
    if hidden:
        rest = f"{pluralize(hidden, 'point')} more, dominated or over limits; -o json has all"
        return Group(table, Text(f"· {rest}", "dim"))
    return table


def _prediction_row(judged: ReportedPoint, report: FitReport, is_shared: bool) -> tuple[Cell, ...]:
    point = judged.point
    is_measured = point.measured_step_time is not None
    time, time_low, time_high = (
        format_time_to_target(seconds, report.curve.basis)
        for seconds in (point.time, *point.time_range)
    )
    cost, cost_low, cost_high = (
        format_curve_cost(amount, report.cost_unit) for amount in (point.cost, *point.cost_range)
    )
    return (
        format_workers(point.config, is_shared),
        str(point.config.global_batch),
        (MEASURED_SYMBOL if is_measured else PREDICTED_SYMBOL).shape,
        format_milliseconds(point.measured_step_time or point.step_time),
        format_number(point.epochs),
        time,
        f"{time_low}–{time_high}",
        cost,
        f"{cost_low}–{cost_high}",
        describe_prediction(judged, report),
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


def describe_prediction(point: ReportedPoint, report: FitReport) -> Text:
    """Return the labels of a point and the limits that it breaks."""
    names = prediction_labels(point, report)
    if point.violations:
        return plain_text(" · ".join([*names, f"✕ {'; '.join(point.violations)}"]), "dim")
    return Text(" · ".join(names or (["front"] if point.is_on_front else [])))


def prediction_labels(judged: ReportedPoint, report: FitReport) -> list[str]:
    """Return the labels of a point."""
    runner_up = report.chosen.runner_up
    named = {
        "✔ chosen": report.chosen.point.config,
        "★ knee" if report.marks["knee"].bends else "least time × cost": report.marked("knee"),
        "fastest": report.marked("fastest"),
        "cheapest": report.marked("cheapest"),
        "start": report.start if report.curve.basis == "relative" else None,
        "runner-up": runner_up and runner_up.config,
    }
    return [name for name, marked in named.items() if marked == judged.point.config]


def fit_facts(report: FitReport) -> list[tuple[str, str]]:
    """Return equations, choice and notes."""
    chosen, config = report.chosen, report.chosen.point.config
    support = "" if chosen.support is None else f" · support {chosen.support:.0%}"
    return [
        *step_time_facts(report.steps),
        *epochs_facts(report.epochs),
        ("objective", report.curve.objective.name),
        ("chosen", f"K={config.workers} B={config.global_batch}{support}"),
        ("why", chosen.why),
        *(("note", sentence) for sentence in report.notes),
    ]


def step_time_facts(fit: StepTimeFit) -> list[tuple[str, str]]:
    """Return the equations of iteration time: the largest weight first, then all averaged forms."""
    model, left_out = fit.model, fit.cross_validation_error
    beyond = (
        "" if left_out is None else f", {format_percent(left_out)} at points left out of the fit"
    )
    spread = f"±{format_percent(model.spread or 0.0)} around the law"
    forms = fit.why
    if model.laws[1:]:
        shares = zip(model.weights, model.laws, strict=True)
        forms = f"{describe_average(shares)}, {forms}"
    return [
        *iteration_equations(model.laws[0]),
        ("forms", forms),
        ("error", f"{format_percent(fit.mean_error)} at measured points{beyond}; {spread}"),
    ]


def epochs_facts(fit: EpochsFit) -> list[tuple[str, str]]:
    """Write the law of epochs."""
    law = fit.model
    values = [
        f"{name} = {format_number(value)} samples"
        for name, value in (
            ("B_crit", law.critical_batch),
            ("φ", law.noise_scale),
            ("w", law.noisy_samples or None),
        )
        if value is not None
    ]
    level = (
        f"; e = {format_number(fit.epochs)} at batch {fit.reference_batch}" if fit.epochs else ""
    )
    where = f", {', '.join(values)}" if values else ""
    return [("epochs", f"{law.formula}{where}{level}; {fit.why}")]
