"""``scavenger curve``: the cost/time curve of a job as a plot, a table and equations."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Self

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from scavenger.cli.equations import curve_equations
from scavenger.cli.errors import CurveUnavailable
from scavenger.cli.options import JobArgument, find_job
from scavenger.cli.output import (
    Cell,
    OutputFormat,
    ResponsiveTable,
    format_config,
    format_cost_to_target,
    format_milliseconds,
    format_number,
    format_time_interval,
    format_time_to_target,
    get_terminal,
    number_column,
    plain_text,
    pluralize,
    render_facts,
    text_column,
    word_column,
)
from scavenger.cli.png import draw_png, write_png
from scavenger.drawing import draw_curve
from scavenger.schemas.curves import CurveView, PointView, WantedBasis
from scavenger.schemas.jobs import ConfigView


class CurveFormat(StrEnum):
    """Format of a curve: those of all results, pictures, and a table for other programs."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"
    NAME = "name"
    SVG = "svg"
    PNG = "png"
    CSV = "csv"


AllPointsOption = Annotated[
    bool, typer.Option("--all", help="Show all points, also dominated ones.")
]
CurveOutputOption = Annotated[
    CurveFormat,
    typer.Option(
        "-o",
        "--output",
        metavar="FORMAT",
        help="Output format; svg and png are pictures, csv has a row for each point.",
    ),
]
DecisionOption = Annotated[
    int | None,
    typer.Option("--decision", help="Number of the choice; the last one if absent.", min=1),
]
BasisOption = Annotated[
    WantedBasis,
    typer.Option(
        "--basis",
        help="What is counted: what is left, the total, or what the choice was made from. "
        "auto is what is left while the job runs, and else the total.",
    ),
]


def curve(
    context: typer.Context,
    job: JobArgument,
    every: AllPointsOption = False,
    decision: DecisionOption = None,
    basis: BasisOption = "auto",
    output: CurveOutputOption = CurveFormat.TABLE,
) -> None:
    """Show time and cost of each configuration, and why one was chosen.

    A picture is written like any other result: scavenger curve JOB -o svg > curve.svg
    """
    terminal = get_terminal(context)
    with terminal.connect() as client:
        shown = find_job(client, job)
        found = client.curve(shown.id, decision, basis)
    match output:
        case CurveFormat.SVG:
            terminal.write_line(draw_curve(found, shown.name))
        case CurveFormat.PNG:
            write_png(terminal, draw_png(found, shown.name), shown.id)
        case CurveFormat.CSV:
            terminal.write_line(found.to_csv().rstrip())
        case CurveFormat.TABLE if not found.points:
            pass
        case _:
            # Without points there are still probes and resizes, which programs may want.
            width = terminal.stdout.width
            table = render_curve(found, width=width, show_all=every) if found.points else ""
            terminal.print_result(found, OutputFormat(output), table)
    if not found.points:
        raise CurveUnavailable(shown, found.why)


MAX_CURVE_ROWS = 24
BASIS_NOTES = {
    "relative": "multiples of the start's: the epochs to target are not known yet",
    "remaining": "for what is left of the job",
}


def render_curve(curve: CurveView, *, width: int, show_all: bool = False) -> RenderableType:
    """Render a curve: plot, points, equations and choice.

    Args:
        curve: The curve; it has at least one point.
        width: Width of the terminal in columns.
        show_all: Whether to show all points of a long curve.
    """
    return Group(
        render_plot(curve, width=min(width, 100)),
        Text(),
        render_points(curve, show_all=show_all),
        Text(),
        render_facts(curve_facts(curve)),
    )


CURVE_COLUMNS = (
    number_column("K"),
    number_column("B"),
    word_column("", 3),
    number_column("τ", 4),
    number_column("γ", 5),
    number_column("e(B)", 6),
    number_column("TIME", 1),
    number_column("COST", 1),
    text_column("NOTE", 2),
)


def render_points(curve: CurveView, *, show_all: bool = False) -> RenderableType:
    """Render points from fast to slow; of a long curve only the important ones."""
    points = sorted(curve.points, key=lambda point: (point.time, point.cost))
    shown = points
    if len(points) > MAX_CURVE_ROWS and not show_all:
        shown = [
            p for p in points if p.on_front or p.source == "measured" or point_labels(p, curve)
        ]
    table = ResponsiveTable(CURVE_COLUMNS, [_point_row(point, curve) for point in shown])
    return Group(table, *(Text(f"· {line}", "dim") for line in table_footnotes(shown, len(points))))


def table_footnotes(shown: Sequence[PointView], points: int) -> list[str]:
    """Return notes about hidden points and about the intervals in brackets."""
    lines = []
    if points > len(shown):
        hidden = pluralize(points - len(shown), "point")
        lines.append(f"{hidden} more, dominated or over limits: --all shows them")
    if any(point.time_low < point.time_high for point in shown):
        lines.append("brackets: 80 % interval of the time; the cost varies in proportion")
    return lines


def _point_row(point: PointView, curve: CurveView) -> tuple[Cell, ...]:
    step_time = point.measured_step_time or point.step_time
    return (
        str(point.workers),
        str(point.global_batch),
        source_symbol(point),
        format_milliseconds(step_time),
        format_number(point.noise),
        format_number(point.epochs),
        format_time_interval(point.time_low, point.time, point.time_high, curve.basis),
        format_cost_to_target(float(point.cost), curve.basis),
        describe_point(point, curve),
    )


def source_symbol(point: PointView) -> str:
    """Return the plot's symbol for the source of the iteration time."""
    return symbol_of_source(point).shape


def symbol_of_source(point: PointView) -> PlotSymbol:
    """Return the symbol for what a point rests on."""
    match point.source:
        case "measured":
            return MEASURED_SYMBOL
        case "extrapolated":
            return EXTRAPOLATED_SYMBOL
        case "predicted":
            return FRONT_SYMBOL if point.on_front else PREDICTED_SYMBOL


def describe_point(point: PointView, curve: CurveView) -> Text:
    """Return the labels of a point, or the limits that it breaks."""
    if point.violations:
        return plain_text(f"✕ {'; '.join(point.violations)}", "dim")
    front = ["front"] if point.on_front else []
    return Text(" · ".join([*point_labels(point, curve), *front]))


def point_labels(point: PointView, curve: CurveView) -> list[str]:
    """Return the labels of a configuration, with their symbols."""
    named = {
        "★ knee" if curve.knee_bends else "least time × cost": curve.knee,
        "✔ chosen": curve.chosen,
        "▣ current": curve.current,
        "runner-up": curve.runner_up,
        "fastest": curve.fastest,
        "cheapest": curve.cheapest,
        "start": curve.start,
    }
    return [name for name, config in named.items() if is_at(point, config)]


def is_at(point: PointView, config: ConfigView | None) -> bool:
    """Tell whether a point has this configuration."""
    return config is not None and (
        (point.workers, point.global_batch) == (config.workers, config.global_batch)
    )


def find_point(curve: CurveView, config: ConfigView | None) -> PointView | None:
    """Return the point of a configuration; None if the curve has none."""
    return next((point for point in curve.points if is_at(point, config)), None)


def curve_facts(curve: CurveView) -> list[tuple[str, str]]:
    """Return the equations, their source, and the choice."""
    basis = BASIS_NOTES.get(curve.basis)
    return [
        *([] if curve.laws is None else curve_equations(curve.laws, curve.points)),
        *([] if basis is None else [("figures", basis)]),
        ("source", curve.source),
        ("objective", curve.objective),
        ("chosen", format_config(curve.chosen)),
        ("why", curve.why),
    ]


PLOT_HEIGHT = 14
PLOT_MARGIN = 10
PLOT_OVERSHOOT = 0.3


@dataclass(frozen=True, slots=True)
class PlotSymbol:
    """A symbol of the plot and its style."""

    shape: str
    style: str
    meaning: str


INFEASIBLE_SYMBOL = PlotSymbol("✕", "dim", "excluded")
EXTRAPOLATED_SYMBOL = PlotSymbol("◌", "dim", "outside the probed range")
PREDICTED_SYMBOL = PlotSymbol("◇", "", "predicted")
FRONT_SYMBOL = PlotSymbol("◆", "cyan", "predicted, on the front")
MEASURED_SYMBOL = PlotSymbol("●", "blue", "measured")
CHOSEN_SYMBOL = PlotSymbol("✔", "bold green", "chosen")
KNEE_SYMBOL = PlotSymbol("★", "bold yellow", "knee")
CHOSEN_KNEE_SYMBOL = PlotSymbol("✪", "bold yellow", "knee, chosen")
# Where two points share a character, the symbol further right wins.
PLOT_SYMBOLS = (
    INFEASIBLE_SYMBOL,
    EXTRAPOLATED_SYMBOL,
    PREDICTED_SYMBOL,
    FRONT_SYMBOL,
    MEASURED_SYMBOL,
    CHOSEN_SYMBOL,
    KNEE_SYMBOL,
    CHOSEN_KNEE_SYMBOL,
)


@dataclass(frozen=True, slots=True)
class PlotWindow:
    """The part of the time/cost plane that is drawn."""

    fastest: float
    slowest: float
    cheapest: float
    dearest: float

    @classmethod
    def around(cls, points: Sequence[PointView]) -> Self:
        """Return the window of the feasible points and of what lies just beyond them."""
        feasible = [point for point in points if not point.violations] or points
        fastest, slowest = axis_range([p.time for p in feasible], [p.time for p in points])
        cheapest, dearest = axis_range(
            [float(p.cost) for p in feasible], [float(p.cost) for p in points]
        )
        return cls(fastest, slowest, cheapest, dearest)

    def __contains__(self, point: PointView) -> bool:
        is_in_time = self.fastest <= point.time <= self.slowest
        return is_in_time and self.cheapest <= float(point.cost) <= self.dearest

    def place(self, point: PointView, width: int, height: int) -> tuple[int, int]:
        """Return row and column of a point; row 0 is the most expensive."""
        column = position_between(point.time, self.fastest, self.slowest)
        row = 1 - position_between(float(point.cost), self.cheapest, self.dearest)
        return round(row * (height - 1)), round(column * (width - 1))


def axis_range(feasible: Sequence[float], values: Sequence[float]) -> tuple[float, float]:
    """Return the ends of an axis: points slightly over a limit are shown, those far over are not.

    >>> axis_range([1.0, 2.0], [1.0, 2.0, 2.2, 9.0])
    (1.0, 2.2)
    """
    low, high = min(feasible), max(feasible)
    furthest = high + PLOT_OVERSHOOT * (high - low)
    return low, max(value for value in values if value <= furthest)


def position_between(value: float, low: float, high: float) -> float:
    """Return the position of a value between two others, 0 to 1; 0.5 where they are equal."""
    return (value - low) / (high - low) if high > low else 0.5


def render_plot(curve: CurveView, *, width: int, height: int = PLOT_HEIGHT) -> Text:
    """Draw cost over time.

    Args:
        curve: The curve; it has at least one point.
        width: Width in columns, axis included.
        height: Rows of the plane without its axis.
    """
    window = PlotWindow.around(curve.points)
    seen = [point for point in curve.points if point in window]
    columns = max(width - PLOT_MARGIN - 2, 10)
    marked = [(_symbol_of(point, curve), point) for point in seen]
    marked.sort(key=lambda pair: PLOT_SYMBOLS.index(pair[0]))
    cells = {window.place(point, columns, height): mark for mark, point in marked}
    plot = Text("cost to target\n", "dim")
    for row in range(height):
        plot.append(f"{row_label(row, height, window, curve.basis):>{PLOT_MARGIN}} ┤", "dim")
        _append_row(plot, cells, row, columns)
    plot.append(time_axis(window, curve.basis, columns), "dim")
    plot.append_text(render_legend((mark for mark, _ in marked), len(curve.points) - len(seen)))
    return plot


def _symbol_of(point: PointView, curve: CurveView) -> PlotSymbol:
    config = ConfigView(workers=point.workers, global_batch=point.global_batch)
    if config == curve.knee and curve.knee_bends:
        return CHOSEN_KNEE_SYMBOL if config == curve.chosen else KNEE_SYMBOL
    if config == curve.chosen:
        return CHOSEN_SYMBOL
    return INFEASIBLE_SYMBOL if point.violations else symbol_of_source(point)


def row_label(row: int, height: int, window: PlotWindow, basis: str) -> str:
    """Return the cost beside the top and the bottom row."""
    if row == 0:
        return format_cost_to_target(window.dearest, basis)
    return format_cost_to_target(window.cheapest, basis) if row == height - 1 else ""


def _append_row(
    plot: Text, cells: dict[tuple[int, int], PlotSymbol], row: int, columns: int
) -> None:
    for column in range(columns):
        mark = cells.get((row, column))
        plot.append(mark.shape if mark else " ", mark.style if mark else "")
    plot.append("\n")


def time_axis(window: PlotWindow, basis: str, columns: int) -> str:
    """Draw the time axis with its ends."""
    low, high = (format_time_to_target(time, basis) for time in (window.fastest, window.slowest))
    gap = columns - len(low) - len(high)
    title = "time to target".center(gap) if gap > 14 else " " * max(gap, 1)
    margin = " " * (PLOT_MARGIN + 1)
    return f"{margin}└{'─' * columns}\n{margin} {low}{title}{high}\n"


def render_legend(marks: Iterable[PlotSymbol], hidden: int) -> Text:
    """Explain the symbols that were drawn."""
    drawn = set(marks)
    margin = " " * (PLOT_MARGIN + 2)
    text = Text(margin)
    text.append("  ".join(f"{mark.shape} {mark.meaning}" for mark in PLOT_SYMBOLS if mark in drawn))
    if hidden:
        text.append(f"\n{margin}{pluralize(hidden, 'point')} far over a limit not shown", "dim")
    return text
