"""The picture of ``scavenger fit --plot``: the cost/time curve as SVG or PNG, by matplotlib."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

from scavenger.offline.fit import FitReport
from scavenger.planning.curve import TradeoffPoint, pareto_front
from scavenger.report import ReportedPoint

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

# 900 pixels wide on a screen; twice as many in a PNG, for the screens that show more.
PICTURE_WIDTH, PICTURE_HEIGHT, DOTS_PER_INCH = 9.0, 5.7, 200
INK, DIM, PALE, GRID = "#24292f", "#57606a", "#8c959f", "#e6e8eb"
BLUE, ORANGE = "#0969da", "#bc4c00"
# Axes whose ends differ by more than this factor are logarithmic.
LOG_SCALE_RATIO = 6.0
# Points this far beyond the front, in widths of it, are left out.
PICTURE_OVERSHOOT = 0.35
# Logarithm of the factor between the ends of a front that counts as narrow.
NARROW_FRONT = math.log(3)
# Sizes of words, in points.
LETTER_WIDTH, LINE_HEIGHT = 6.4, 13.5


@dataclass(frozen=True, slots=True)
class AxisScale:
    """Unit and title of an axis.

    Attributes:
        divisor: Divisor of values in seconds or dollars.
        title: Quantity and unit.
    """

    divisor: float
    title: str


@dataclass(frozen=True, slots=True)
class PictureWindow:
    """The part of the plane that is drawn, in units of its axes."""

    left: float
    right: float
    low: float
    high: float

    def holds(self, time: float, cost: float) -> bool:
        """Tell whether a point is drawn."""
        return self.left <= time <= self.right and self.low <= cost <= self.high


@dataclass(frozen=True, slots=True)
class PointLabel:
    """Label of a point."""

    point: TradeoffPoint
    names: tuple[str, ...]

    @property
    def text(self) -> str:
        """The names, and the configuration below them."""
        where = f"K={self.point.config.workers}  B={self.point.config.global_batch}"
        return f"{' · '.join(self.names)}\n{where}"


def draw_fit(report: FitReport, file: Path) -> None:
    """Draw a report to an SVG or PNG file.

    Raises:
        OSError: The file cannot be written.
    """
    import matplotlib
    from matplotlib.figure import Figure

    # Text stays text in an SVG, so that it can be searched and read out; no dates, so that the
    # same report gives the same file.
    with matplotlib.rc_context(
        {"svg.fonttype": "none", "svg.hashsalt": "scavenger", "font.size": 10}
    ):
        figure = Figure(
            figsize=(PICTURE_WIDTH, PICTURE_HEIGHT), dpi=DOTS_PER_INCH, facecolor="white"
        )
        axes = figure.add_axes((0.1, 0.115, 0.87, 0.69))
        draw_axes(axes, report)
        write_title(figure, report)
        kind = file.suffix.lower().removeprefix(".")
        metadata = {"Date": None} if kind == "svg" else {}
        figure.savefig(file, format=kind, metadata=metadata)


def draw_axes(axes: Axes, report: FitReport) -> None:
    """Draw the front, the points and their labels."""
    time, cost = time_scale(report), cost_scale(report)
    front = front_of(report)
    window = window_around(report, time, cost)
    prepare_axes(axes, window, time, cost)
    draw_front(axes, front, time, cost)
    shown = [p for p in report.points if window.holds(*position_of(p.point, time, cost))]
    draw_points(axes, shown, time, cost)
    draw_labels(axes, report, window, time, cost)
    hidden = len(report.points) - len(shown)
    if hidden:
        note = f"{hidden} dominated point{'' if hidden == 1 else 's'} not shown"
        below = (1.0, -0.115)
        axes.text(*below, note, transform=axes.transAxes, ha="right", va="top", color=DIM, size=9)


def front_of(report: FitReport) -> list[TradeoffPoint]:
    """Return the points of the front, from fast to slow; of all where none meets the limits."""
    within = [judged.point for judged in report.points if judged.is_on_front]
    return within or list(pareto_front(judged.point for judged in report.points))


def time_scale(report: FitReport) -> AxisScale:
    """Return the unit for times of this size."""
    if report.curve.basis == "relative":
        return AxisScale(1.0, "time to target, in multiples of the start's")
    longest = max(point.time for point in front_of(report))
    for divisor, unit in ((3600.0, "hours"), (60.0, "minutes")):
        if longest >= 2 * divisor:
            return AxisScale(divisor, f"time to target, {unit}")
    return AxisScale(1.0, "time to target, seconds")


def cost_scale(report: FitReport) -> AxisScale:
    """Return the unit of costs."""
    match report.cost_unit:
        case "USD":
            return AxisScale(1.0, "cost to target, US dollars")
        case "machine-hours":
            return AxisScale(1.0, "cost to target, machine-hours")
        case "relative":
            return AxisScale(1.0, "cost to target, in multiples of the start's")


def position_of(point: TradeoffPoint, time: AxisScale, cost: AxisScale) -> tuple[float, float]:
    """Return the position of a point in units of the axes."""
    return point.time / time.divisor, point.cost / cost.divisor


def window_around(report: FitReport, time: AxisScale, cost: AxisScale) -> PictureWindow:
    """Return the window of the front with its band, and of what lies just beyond it."""
    front, points = front_of(report), [judged.point for judged in report.points]
    left, right = axis_limits([p.time_range for p in front], [p.time for p in points])
    low, high = axis_limits([p.cost_range for p in front], [p.cost for p in points])
    return PictureWindow(
        left / time.divisor, right / time.divisor, low / cost.divisor, high / cost.divisor
    )


def axis_limits(
    front: Sequence[tuple[float, float]], values: Iterable[float]
) -> tuple[float, float]:
    """Return the ends of an axis. Labels stand below their points, so the low end has a margin."""
    low, high = min(low for low, _ in front), max(high for _, high in front)
    if low <= 0:
        return 0.0, high * 1.1 or 1.0
    furthest = high * math.exp(PICTURE_OVERSHOOT * max(math.log(high / low), NARROW_FRONT))
    high = max(high, *(value for value in values if value <= furthest))
    width = max(math.log(high / low), NARROW_FRONT / 2)
    return low * math.exp(-0.2 * width), high * math.exp(0.04 * width)


def prepare_axes(axes: Axes, window: PictureWindow, time: AxisScale, cost: AxisScale) -> None:
    """Set ends, ticks and titles of the axes, and a light grid without a frame."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

    axes.set_xlim(window.left, window.right)
    axes.set_ylim(window.low, window.high)
    for axis, low, high, title in (
        (axes.xaxis, window.left, window.right, time.title),
        (axes.yaxis, window.low, window.high, cost.title),
    ):
        if low > 0 and high / low > LOG_SCALE_RATIO:
            axes.set(**{f"{axis.axis_name}scale": "log"})
            axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        else:
            axis.set_major_locator(MaxNLocator(7, steps=[1, 2, 2.5, 5, 10]))
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.4g}"))
        axis.set_label_text(title, color=INK)
    axes.grid(visible=True, color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(length=0, colors=DIM)
    for spine in axes.spines.values():
        spine.set_visible(False)


def draw_front(
    axes: Axes, front: Sequence[TradeoffPoint], time: AxisScale, cost: AxisScale
) -> None:
    """Draw the front and its band. Time and cost vary together, so the band follows diagonals."""
    low, high = (
        [(p.time_range[end] / time.divisor, p.cost_range[end] / cost.divisor) for p in front]
        for end in (0, 1)
    )
    outline = [*low, *reversed(high)]
    # A front of one point has a band without width.
    edge = 9.0 if len(front) == 1 else 0.0
    xs, ys = unzip_positions(outline)
    axes.fill(xs, ys, color=BLUE, alpha=0.12, linewidth=edge, zorder=1)
    xs, ys = unzip_positions([position_of(point, time, cost) for point in front])
    axes.plot(xs, ys, color=BLUE, linewidth=1.6, zorder=2)


def unzip_positions(spots: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
    """Return positions as two columns."""
    return [x for x, _ in spots], [y for _, y in spots]


def draw_points(
    axes: Axes, points: Sequence[ReportedPoint], time: AxisScale, cost: AxisScale
) -> None:
    """Draw points: measured filled circles, predicted hollow diamonds, dominated ones pale."""
    for is_front, is_measured in product((False, True), repeat=2):
        own = [
            position_of(p.point, time, cost)
            for p in points
            if p.is_on_front == is_front and (p.point.measured_step_time is not None) == is_measured
        ]
        color = BLUE if is_front else PALE
        xs, ys = unzip_positions(own)
        axes.scatter(
            xs,
            ys,
            s=44 if is_front else 20,
            marker="o" if is_measured else "D",
            facecolor=color if is_measured else "white",
            edgecolor=color,
            linewidth=1.2 if is_front else 0.8,
            alpha=1.0 if is_front else 0.75,
            zorder=4 if is_front else 3,
        )


def draw_labels(
    axes: Axes, report: FitReport, window: PictureWindow, time: AxisScale, cost: AxisScale
) -> None:
    """Write labels below and left of their points: a point there would dominate theirs."""
    taken: list[LabelBox] = []
    for label in list_labels(report):
        x, y = position_of(label.point, time, cost)
        if not window.holds(x, y):
            continue
        right, top = axes.transData.transform((x, y)) * 72 / DOTS_PER_INCH
        box = find_free_box(label, right - 9, top - 9, taken)
        taken.append(box)
        is_chosen = label.point == report.chosen.point
        axes.annotate(
            label.text,
            (x, y),
            xytext=(-9, box.top - top),
            textcoords="offset points",
            ha="right",
            va="top",
            color=ORANGE if is_chosen else INK,
            fontweight="bold" if is_chosen else "normal",
            linespacing=1.25,
            zorder=6,
            annotation_clip=False,
        )
        if is_chosen:
            axes.scatter(
                [x], [y], s=150, facecolor="none", edgecolor=ORANGE, linewidth=1.8, zorder=5
            )


@dataclass(frozen=True, slots=True)
class LabelBox:
    """Rectangle of a label on the page, in points."""

    left: float
    right: float
    bottom: float
    top: float

    def meets(self, other: LabelBox) -> bool:
        """Tell whether two labels would overlap."""
        is_beside = self.right < other.left or other.right < self.left
        return not (is_beside or self.top < other.bottom or other.top < self.bottom)


def find_free_box(
    label: PointLabel, right: float, top: float, taken: Sequence[LabelBox]
) -> LabelBox:
    """Return the highest free rectangle below a position."""
    lines = label.text.split("\n")
    width, height = LETTER_WIDTH * max(map(len, lines)), LINE_HEIGHT * len(lines)
    box = LabelBox(right - width, right, top - height, top)
    while any(box.meets(other) for other in taken):
        box = LabelBox(box.left, box.right, box.bottom - 2, box.top - 2)
    return box


def list_labels(report: FitReport) -> tuple[PointLabel, ...]:
    """Return each labelled point once, with all its names."""
    named = {
        "chosen": report.chosen,
        "knee" if report.marks["knee"].bends else "least time × cost": report.marks["knee"],
        "fastest": report.marks["fastest"],
        "cheapest": report.marks["cheapest"],
    }
    points = dict.fromkeys(choice.point for choice in named.values())
    return tuple(
        PointLabel(point, tuple(name for name, choice in named.items() if choice.point == point))
        for point in points
    )


def write_title(figure: Figure, report: FitReport) -> None:
    """Write title, subtitle and legend."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    figure.text(0.03, 0.94, report.table, fontsize=13, fontweight="bold", color=INK)
    figure.text(0.03, 0.897, subtitle(report), color=DIM)
    figure.legend(
        handles=[
            legend_entry("o", BLUE, BLUE, "measured"),
            legend_entry("D", "white", BLUE, "predicted"),
            Line2D([], [], color=BLUE, linewidth=1.6, label="front: none is cheaper and faster"),
            Patch(facecolor=BLUE, alpha=0.12, linewidth=0, label="80 % of possible outcomes"),
            legend_entry("o", PALE, PALE, "dominated"),
        ],
        loc="upper left",
        bbox_to_anchor=(0.022, 0.885),
        ncols=5,
        frameon=False,
        labelcolor=DIM,
        fontsize=9,
        handletextpad=0.4,
        columnspacing=1.5,
        borderaxespad=0.2,
    )


def legend_entry(marker: str, face: str, edge: str, label: str) -> Line2D:
    """Return one entry of the legend."""
    from matplotlib.lines import Line2D

    return Line2D(
        [],
        [],
        linestyle="none",
        marker=marker,
        markersize=6,
        markerfacecolor=face,
        markeredgecolor=edge,
        label=label,
    )


def subtitle(report: FitReport) -> str:
    """Write what is shown, and the error of the predictions."""
    left_out = report.steps.cross_validation_error
    error = report.steps.mean_error if left_out is None else left_out
    where = "measured" if left_out is None else "left-out"
    return (
        "Cost and time to target, by workers K and global batch B; "
        f"iteration times to {100 * error:.2g} % at {where} points"
    )
