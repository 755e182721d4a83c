"""The cost/time curve in words: its points, its laws, and why one of them was chosen."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from scavenger.cli.curve_plot import FRONT, MEASURED, PREDICTED, plot_curve
from scavenger.cli.figures import (
    configuration,
    cost_to_target,
    counted,
    milliseconds,
    number,
    percent,
    time_between,
    words,
)
from scavenger.cli.fitted_table import Cell, FittedTable, figure, folded, key_figure, word
from scavenger.cli.job_table import show_facts
from scavenger.cli.law_words import name_average
from scavenger.view import ConfigView, CurveView, LawsView, PointView

MOST_ROWS = 24
HEAVIEST = "; the lines above are the heaviest law"
FIGURES = {
    "relative": "multiples of the start's: the epochs to target are not known yet",
    "remaining": "of what was left of the job when this was chosen",
}


def show_curve(curve: CurveView, *, width: int, is_complete: bool = False) -> RenderableType:
    """Show a curve: plot, points, laws and choice.

    Args:
        curve: The curve; it has at least one point.
        width: Columns there are.
        is_complete: Whether to show every point of a long curve.
    """
    return Group(
        plot_curve(curve, width=min(width, 100)),
        Text(),
        show_points(curve, is_complete=is_complete),
        Text(),
        show_facts(curve_facts(curve)),
    )


POINT_COLUMNS = (
    key_figure("K"),
    key_figure("B"),
    word("", 3),
    figure("τ", 4),
    figure("γ", 5),
    figure("e(B)", 6),
    figure("TIME", 1),
    figure("COST", 1),
    folded("NOTE", 2),
)


def show_points(curve: CurveView, *, is_complete: bool = False) -> RenderableType:
    """Show points from fast to slow, those of a long curve that matter only."""
    points = sorted(curve.points, key=lambda point: (point.time, point.cost))
    shown = points if is_complete or len(points) <= MOST_ROWS else worth_a_row(points, curve)
    table = FittedTable(POINT_COLUMNS, [point_row(point, curve) for point in shown])
    return Group(table, *(Text(f"· {line}", "dim") for line in remarks(shown, len(points))))


def remarks(shown: Sequence[PointView], points: int) -> list[str]:
    """Say what the table does not show, and what its brackets mean."""
    lines = []
    if points > len(shown):
        hidden = counted(points - len(shown), "point")
        lines.append(f"{hidden} more, dominated or over limits: --all shows them")
    if any(point.time_low < point.time_high for point in shown):
        lines.append("80 % of what is possible lies within the brackets; costs err alike")
    return lines


def worth_a_row(points: Sequence[PointView], curve: CurveView) -> list[PointView]:
    """Return the points on the front, the measured and the marked ones."""
    return [point for point in points if point.on_front or point.measured or marks(point, curve)]


def point_row(point: PointView, curve: CurveView) -> tuple[Cell, ...]:
    """Return the cells of a point."""
    step_time = point.measured_step_time or point.step_time
    return (
        str(point.workers),
        str(point.global_batch),
        mark_of_source(point),
        milliseconds(step_time),
        number(point.noise),
        number(point.epochs),
        time_between(point.time_low, point.time, point.time_high, curve.basis),
        cost_to_target(point.cost, curve.basis),
        note(point, curve),
    )


def mark_of_source(point: PointView) -> str:
    """Return the shape the plot has for where the iteration time comes from."""
    if point.measured:
        return MEASURED.shape
    return FRONT.shape if point.on_front and not point.violations else PREDICTED.shape


def note(point: PointView, curve: CurveView) -> Text:
    """Say what is special about a point."""
    if point.violations:
        return words(f"✕ {'; '.join(point.violations)}", "dim")
    front = ["front"] if point.on_front else []
    return Text(" · ".join([*marks(point, curve), *front]))


def marks(point: PointView, curve: CurveView) -> list[str]:
    """Return the names a configuration goes by, with their shapes."""
    named = {
        "★ knee" if curve.knee_bends else "no knee": curve.knee,
        "✔ chosen": curve.chosen,
        "▣ current": curve.current,
        "runner-up": curve.runner_up,
        "fastest": curve.fastest,
        "cheapest": curve.cheapest,
        "start": curve.start,
    }
    return [name for name, config in named.items() if is_at(point, config)]


def is_at(point: PointView, config: ConfigView | None) -> bool:
    """Tell whether a point is this configuration."""
    return config is not None and (
        (point.workers, point.global_batch) == (config.workers, config.global_batch)
    )


def point_at(curve: CurveView, config: ConfigView | None) -> PointView | None:
    """Return the point of a configuration; None if the curve has none."""
    return next((point for point in curve.points if is_at(point, config)), None)


def curve_facts(curve: CurveView) -> list[tuple[str, str]]:
    """Say the laws, where they come from, and what was chosen."""
    basis = FIGURES.get(curve.basis)
    return [
        *([] if curve.laws is None else law_facts(curve.laws, curve.points)),
        *([] if basis is None else [("figures", basis)]),
        ("source", curve.source),
        ("objective", curve.objective),
        ("chosen", configuration(curve.chosen)),
        ("why", curve.why),
    ]


def law_facts(laws: LawsView, points: Sequence[PointView]) -> list[tuple[str, str]]:
    """Write the fitted laws as equations."""
    fixed, growing = milliseconds(laws.compute_fixed), milliseconds(laws.compute_per_sample)
    compute = combined(fixed, f"{growing} × b", laws.flatness)
    return [
        ("compute", f"{compute}, with b = B / K samples per worker"),
        ("sync", sync_law(laws)),
        ("iteration", f"τ = {combined('compute', 'sync', laws.overlap)}"),
        *([("forms", f"{name_average(laws.averaged)}{HEAVIEST}")] if laws.averaged[1:] else []),
        ("epochs", epochs_law(laws, points)),
        *([("noise", noise_law(laws))] if laws.noise_scale is not None else []),
        ("error", error_of(laws)),
    ]


def combined(one: str, other: str, power: float) -> str:
    """Write a sum, or a smooth maximum for a power above 1.

    >>> combined("compute", "sync", 1.0), combined("compute", "sync", 2.0)
    ('compute + sync', '(compute^2 + sync^2)^(1/2)')
    """
    if power == 1:
        return f"{one} + {other}"
    bases = (f"({part})" if " " in part else part for part in (one, other))
    return f"({' + '.join(f'{base}^{power:g}' for base in bases)})^(1/{power:g})"


def sync_law(laws: LawsView) -> str:
    """Write the law of synchronisation."""
    size = "log2 K" if laws.growth == "log" else "K"
    sync = f"{milliseconds(laws.sync_fixed)} + {milliseconds(laws.sync_per_worker)} × {size}"
    across = milliseconds(laws.sync_across_machines)
    more = f", {across} more across machines" if laws.sync_across_machines else ""
    return f"{sync}, for K above 1{more}"


def epochs_law(laws: LawsView, points: Sequence[PointView]) -> str:
    """Write the law of epochs; the curve's points tell its factor."""
    if laws.critical_batch == 0:
        return "e(B) grows like B: the gradients have no noise that more samples would average"
    terms = epochs_terms(laws)
    if not terms:
        return "e(B) is taken as constant: nothing tells what a batch costs"
    shapes = [shape_at(laws, point.global_batch) for point in points[:1]]
    factor = number(points[0].epochs / shapes[0]) if shapes and shapes[0] > 0 else "e*"
    return f"e(B) = {factor} × ({' + '.join(terms)})"


def epochs_terms(laws: LawsView) -> list[str]:
    """Write what epochs are in proportion to; empty where they do not depend on the batch."""
    if laws.noise_floor is not None and laws.noise_per_root is not None:
        return [number(laws.noise_floor), f"{number(laws.noise_per_root)} / √B"]
    terms = []
    if laws.noisy_samples:
        terms.append(f"{number(laws.noisy_samples)} / (B + {number(laws.noise_scale or 0.0)})")
    if laws.critical_batch is not None:
        terms.append(f"B / {number(laws.critical_batch)}")
    return ["1", *terms] if terms else []


def shape_at(laws: LawsView, global_batch: int) -> float:
    """Return what epochs are in proportion to at a batch in samples."""
    if laws.noise_floor is not None and laws.noise_per_root is not None:
        return laws.noise_floor + laws.noise_per_root / math.sqrt(global_batch)
    falling = laws.noisy_samples / (global_batch + (laws.noise_scale or 0.0))
    rising = global_batch / laws.critical_batch if laws.critical_batch else 0.0
    return 1 + falling + rising


def noise_law(laws: LawsView) -> str:
    """Write the law of noise."""
    scale = number(laws.noise_scale)
    if laws.noise_floor is not None and laws.noise_per_root is not None:
        root = f"{number(laws.noise_floor)} + {number(laws.noise_per_root)} / √B"
        return f"γ = K × ({root}), the paper's law; measured φ = {scale} samples"
    return f"γ = K × (b + φ) / (B + φ), with φ = {scale} samples"


def error_of(laws: LawsView) -> str:
    """Say how far iteration times are from the laws."""
    measured = f"iteration times ±{percent(laws.mean_relative_error)} where measured"
    return measured if laws.spread is None else f"{measured}, ±{percent(laws.spread)} elsewhere"
