"""The cost/time curve in words: its points, its laws, and why one of them was chosen."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from scavenger.cli.curve_plot import plot_curve
from scavenger.cli.figures import (
    configuration,
    cost_to_target,
    counted,
    milliseconds,
    number,
    percent,
    time_to_target,
    words,
)
from scavenger.cli.job_table import show_facts
from scavenger.view import ConfigView, CurveView, LawsView, PointView

MOST_ROWS = 24


def show_curve(curve: CurveView, *, width: int, is_complete: bool = False) -> RenderableType:
    """Show a curve: plot, points, laws and choice.

    Args:
        curve: The curve.
        width: Columns there are.
        is_complete: Whether to show every point of a long curve.
    """
    if not curve.points:
        return words(curve.why or "no curve yet: the first probe has not settled")
    return Group(
        plot_curve(curve, width=min(width, 100)),
        Text(),
        show_points(curve, is_complete=is_complete),
        Text(),
        show_facts(curve_facts(curve)),
    )


def show_points(curve: CurveView, *, is_complete: bool = False) -> RenderableType:
    """Show points from fast to slow, those of a long curve that matter only."""
    points = sorted(curve.points, key=lambda point: (point.time, point.cost))
    shown = points if is_complete or len(points) <= MOST_ROWS else worth_a_row(points, curve)
    table = Table(box=None, header_style="bold", pad_edge=False)
    for title in ("K", "B"):
        table.add_column(title, justify="right")
    table.add_column("SOURCE", no_wrap=True)
    for title in ("τ", "γ", "e(B)", "TIME", "COST"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("NOTE", overflow="fold")
    for point in shown:
        table.add_row(*point_row(point, curve))
    hidden = len(points) - len(shown)
    if hidden:
        rest = f"{counted(hidden, 'point')} more, dominated or over limits: --all shows them"
        return Group(table, Text(f"· {rest}", "dim"))
    return table


def worth_a_row(points: Sequence[PointView], curve: CurveView) -> list[PointView]:
    """Return the points on the front, the measured and the marked ones."""
    return [point for point in points if point.on_front or point.measured or marks(point, curve)]


def point_row(point: PointView, curve: CurveView) -> tuple[str | Text, ...]:
    """Return the cells of a point."""
    step_time = point.measured_step_time or point.step_time
    return (
        str(point.workers),
        str(point.global_batch),
        source_of(point),
        milliseconds(step_time),
        number(point.noise),
        number(point.epochs),
        time_to_target(point.time, curve.basis),
        cost_to_target(point.cost, curve.basis),
        note(point, curve),
    )


def source_of(point: PointView) -> str:
    """Say where the iteration time comes from, with the shape it has in the plot."""
    if point.measured:
        return "● measured"
    return "◆ predicted" if point.on_front and not point.violations else "◇ predicted"


def note(point: PointView, curve: CurveView) -> Text:
    """Say what is special about a point."""
    if point.violations:
        return words(f"✕ {'; '.join(point.violations)}", "dim")
    front = ["front"] if point.on_front else []
    return Text(" · ".join([*marks(point, curve), *front]))


def marks(point: PointView, curve: CurveView) -> list[str]:
    """Return the names a configuration goes by, with their shapes."""
    named = {
        "★ knee": curve.knee,
        "✔ chosen": curve.chosen,
        "▣ current": curve.current,
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
    is_relative = curve.basis == "relative"
    basis = "multiples of the start's: the epochs to target are not known yet"
    return [
        *([] if curve.laws is None else law_facts(curve.laws, curve.points)),
        *([("figures", basis)] if is_relative else []),
        ("source", curve.source),
        ("objective", curve.objective),
        ("chosen", configuration(curve.chosen)),
        ("why", curve.why),
    ]


def law_facts(laws: LawsView, points: Sequence[PointView]) -> list[tuple[str, str]]:
    """Write the fitted laws as equations."""
    compute = f"{milliseconds(laws.compute_fixed)} + {milliseconds(laws.compute_per_sample)} × b"
    sync = f"{milliseconds(laws.sync_fixed)} + {milliseconds(laws.sync_per_worker)} × K"
    noise = f"γ = K × (b + φ) / (B + φ), with φ = {number(laws.noise_scale)} samples"
    return [
        ("compute", f"{compute}, with b = B / K samples per worker"),
        ("sync", f"{sync}, for K above 1"),
        ("epochs", epochs_law(laws, points)),
        *([("noise", noise)] if laws.noise_scale is not None else []),
        ("error", f"iteration times ±{percent(laws.mean_relative_error)}"),
    ]


def epochs_law(laws: LawsView, points: Sequence[PointView]) -> str:
    """Write the law of epochs; the curve's points tell its factor."""
    critical = laws.critical_batch
    if critical is None or critical <= 0:
        return "e(B) is taken as constant: the noise of gradients is not known"
    minima = [point.epochs / (1 + point.global_batch / critical) for point in points[:1]]
    factor = number(minima[0]) if minima else "e*"
    return f"e(B) = {factor} × (1 + B / {number(critical)})"
