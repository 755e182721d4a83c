"""The paper's figures, drawn from our runs."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullFormatter, NullLocator
from PIL import Image

from scavenger.cluster import ClusterConfig
from scavenger.measurement.noise import noise_at
from scavenger.models.epochs import LawFamily
from scavenger.planning.curve import TradeoffCurve, pareto_front
from scavenger.planning.knee import find_knee
from scavenger.pricing import PriceModel
from tests.paper.evidence import (
    MEMORY_PRICE,
    Evidence,
    SearchName,
    bulges,
    draw_line,
    knees,
    throughput_knee,
    time_errors,
)

INK, FAINT, GRID = "#24292f", "#57606a", "#e6e8eb"
BLUE, GREEN, ORANGE, RED = "#1f5fbf", "#0b6e4f", "#b35900", "#b3261e"
# From the smallest to the largest, of batches or of workers.
RISING = ("#7fb2ea", "#3f82d4", "#1c56ad", "#0a2550")
OF_WORKLOAD = (BLUE, GREEN, ORANGE)
OF_SEARCH: dict[SearchName, str] = {"full": GREEN, "partial": RED, "universal": BLUE}
INCHES_PER_PIXEL = 0.01
LINK = "#b9c0c8"
COLORS = 64
LAWS: tuple[LawFamily, ...] = ("measured", "paper")
OFFSETS = (-0.26, 0.0, 0.26)
ABOVE = {"xytext": (0, 6), "ha": "center"}

STYLE = {
    "font.size": 9.5,
    "text.color": INK,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "lines.linewidth": 1.6,
}

Drawing = Callable[[Sequence[Evidence]], Figure]


def draw_all(evidences: Sequence[Evidence], folder: Path) -> None:
    """Write every figure as PNG."""
    folder.mkdir(parents=True, exist_ok=True)
    with mpl.rc_context(STYLE):  # type: ignore[arg-type]
        for name, draw in FIGURES.items():
            (folder / f"{name}.png").write_bytes(png(draw(evidences)))


def png(figure: Figure) -> bytes:
    """Return a figure as PNG with few colours, which is a third of the bytes."""
    drawn, packed = io.BytesIO(), io.BytesIO()
    figure.savefig(drawn, format="png", dpi=100)
    image = Image.open(drawn).convert("RGB").quantize(COLORS, dither=Image.Dither.NONE)
    image.save(packed, format="png", optimize=True)
    return packed.getvalue()


def start(panels: int = 1, width: int = 1000, height: int = 380) -> tuple[Figure, list[Axes]]:
    """Return a figure of panels side by side; sizes in pixels."""
    size = (width * INCHES_PER_PIXEL, height * INCHES_PER_PIXEL)
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(1, panels, squeeze=False)[0]
    return figure, list(axes)


def title_of(evidence: Evidence) -> str:
    """Name the paper's model and what stands for it."""
    return f"{evidence.workload.title}  ({evidence.workload.build.__name__})"


def note(axes: Axes, text: str, xy: tuple[float, float], color: str, **options: object) -> None:
    """Write beside a point, a few pixels off."""
    axes.annotate(
        text,
        xy,
        textcoords="offset points",
        color=color,
        **{"xytext": (6, 0), "va": "center", "size": 8.5, **options},  # type: ignore[arg-type]
    )


def plain_ticks(axes: Axes, values: Sequence[float]) -> None:
    """Put plain numbers on a logarithmic x axis."""
    axes.xaxis.set_major_locator(FixedLocator(list(values)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_minor_formatter(NullFormatter())


# ---- Cost and time


def draw_tradeoff(evidences: Sequence[Evidence]) -> Figure:
    """Draw cost and time of ResNet18 by batch and workers (Fig. 1)."""
    figure, (axes,) = start(height=460)
    draw_curves(axes, evidences[0], None)
    name_workers(axes, evidences[0], None)
    axes.set(title=title_of(evidences[0]), xlabel="time to target, hours", ylabel="cost, $")
    return figure


def draw_tradeoffs(evidences: Sequence[Evidence]) -> Figure:
    """Draw cost and time of all models (Fig. 10)."""
    return draw_panels_of_curves(evidences, None)


def draw_memory_price(evidences: Sequence[Evidence]) -> Figure:
    """Draw cost and time where memory is paid by the GiB (Fig. 12)."""
    return draw_panels_of_curves(evidences, MEMORY_PRICE)


def draw_panels_of_curves(evidences: Sequence[Evidence], price: PriceModel | None) -> Figure:
    """Draw one panel of curves per model."""
    figure, panels = start(3, height=400)
    for axes, evidence in zip(panels, evidences, strict=True):
        draw_curves(axes, evidence, price)
        axes.set(title=title_of(evidence), xlabel="time to target, hours")
    panels[0].set_ylabel("cost, $")
    return figure


def draw_curves(axes: Axes, evidence: Evidence, price: PriceModel | None) -> None:
    """Draw one curve per batch: points are real runs, dashes the prediction, rings the knees."""
    actual = evidence.actual_curve(price)
    predicted = evidence.predicted_curve(price)
    for color, batch in zip(RISING, evidence.batches, strict=True):
        times, costs = column(actual, batch)
        axes.plot(times, costs, "o", color=color, markersize=5, zorder=3)
        axes.plot(*column(predicted, batch), color=color, dashes=(4, 2.5), linewidth=1.2)
        for knee in knees(actual, batch):
            at = (knee.time / 3600, knee.cost)
            axes.plot(*at, "o", color=color, markersize=11, fillstyle="none", zorder=4)
        for bulge in bulges(actual, batch):
            at = (bulge.time / 3600, bulge.cost)
            axes.plot(*at, "D", color=color, markersize=10, fillstyle="none", zorder=4)
        note(axes, f"B={batch}", (times[0], costs[0]), color, xytext=(-2, 8), ha="center")
    best = find_knee(pareto_front(actual.points)).point
    axes.plot(best.time / 3600, best.cost, "*", color=ORANGE, markersize=15, zorder=5)
    axes.margins(0.14, 0.12)


def name_workers(axes: Axes, evidence: Evidence, price: PriceModel | None) -> None:
    """Write the workers beside the points of the smallest batch."""
    batch = evidence.batches[0]
    for point in evidence.actual_curve(price).points:
        if point.config.global_batch == batch:
            at = (point.time / 3600, point.cost)
            note(axes, f"K={point.config.workers}", at, FAINT, xytext=(11, 0))


def column(curve: TradeoffCurve, batch: int) -> tuple[list[float], list[float]]:
    """Return hours and dollars of one batch, from most workers to fewest."""
    points = [p for p in curve.points if p.config.global_batch == batch][::-1]
    return [p.time / 3600 for p in points], [p.cost for p in points]


# ---- Throughput


def draw_throughput(evidences: Sequence[Evidence]) -> Figure:
    """Draw samples per second by batch at 16 workers (Fig. 5)."""
    figure, (axes,) = start(height=400)
    batches = np.unique(np.geomspace(64, 8192, 60).astype(int))
    for color, evidence in zip(OF_WORKLOAD, evidences, strict=True):
        rates = [evidence.throughput(int(batch)) for batch in batches]
        axes.plot(batches, rates, color=color)
        knee = throughput_knee(evidence)
        axes.plot(knee, evidence.throughput(knee), "o", color=color, markersize=9, fillstyle="none")
        name = f"{evidence.workload.title}, knee at {knee}"
        note(axes, name, (batches[-1], rates[-1]), color)
    axes.set(
        title="Throughput at 16 workers",
        xlabel="global batch B, samples",
        ylabel="samples per second",
        ylim=(0, None),
    )
    axes.margins(x=0.02)
    axes.set_xlim(0, 9900)
    return figure


# ---- Noise


def draw_settling(evidences: Sequence[Evidence]) -> Figure:
    """Draw how noise goes over a run, by workers (Fig. 6)."""
    figure, panels = start(3)
    for axes, evidence in zip(panels, evidences, strict=True):
        for color, path in zip(RISING, evidence.runs.trajectories, strict=True):
            axes.plot(path.iterations, path.noise, color=color)
            note(axes, f"K={path.workers}", (path.iterations[-1], path.noise[-1]), color)
            if path.settled_after is not None:
                height = np.interp(path.settled_after, path.iterations, path.noise)
                axes.plot(path.settled_after, height, "o", color=color, markersize=6)
        batch = evidence.runs.trajectories[0].global_batch
        axes.set(title=title_of(evidence), xlabel=f"iteration (B={batch})", ylim=(0, None))
        axes.set_xlim(0, evidence.workload.followed * 1.16)
    panels[0].set_ylabel("gradient noise γ, smoothed")
    note(panels[0], "● settled", (0, 0), FAINT, xycoords="axes fraction", xytext=(8, 8))
    return figure


def draw_time_by_noise(evidences: Sequence[Evidence]) -> Figure:
    """Draw total time against normalised noise (Fig. 7)."""
    figure, panels = start(3)
    for axes, evidence in zip(panels, evidences, strict=True):
        noise = evidence.normalized_noise()
        times = {p.config: p.time / 3600 for p in evidence.actual_curve().points}
        sixteen = [ClusterConfig(16, batch) for batch in evidence.batches]
        axes.plot([noise[c] for c in sixteen], [times[c] for c in sixteen], color=LINK, zorder=1)
        for color, batch in zip(RISING, evidence.batches, strict=True):
            own = [config for config in noise if config.global_batch == batch]
            axes.plot(
                [noise[config] for config in own],
                [times[config] for config in own],
                "o",
                color=color,
                markersize=5,
            )
            last = max(own, key=lambda config: noise[config])
            note(axes, f"B={batch}", (noise[last], times[last]), color)
        axes.set(title=title_of(evidence), xlabel="normalised noise γ/K")
        axes.margins(0.16, 0.1)
    panels[0].set_ylabel("time to target, hours")
    return figure


def draw_epochs_by_noise(evidences: Sequence[Evidence]) -> Figure:
    """Draw epochs against normalised noise by level, and where the paper's sign is (Fig. 8)."""
    figure, panels = start(4, width=1100)
    for axes, evidence in zip(panels, evidences, strict=False):
        for color, goal in zip(RISING[1:], evidence.workload.levels, strict=True):
            points = evidence.epochs_by_noise(goal)
            draw_levels(axes, points, f"{goal:g}", color)
        axes.set(title=title_of(evidence).replace("  ", "\n"), ylim=(0, None))
        axes.set_xlabel("normalised noise γ/K")
        axes.yaxis.set_major_locator(MaxNLocator(6, integer=True))
        axes.margins(x=0.2)
    draw_hot(panels[3], evidences[1])
    panels[0].set_ylabel("epochs to the level")
    return figure


def draw_levels(axes: Axes, points: Sequence[tuple[float, float]], name: str, color: str) -> None:
    """Draw epochs over noise with a straight line through them."""
    noise, epochs = zip(*points, strict=True)
    line = draw_line(noise, epochs)
    ends = np.array([min(noise), max(noise)])
    axes.plot(noise, epochs, "o", color=color, markersize=4)
    axes.plot(ends, line.intercept + line.slope * ends, color=color, linewidth=1.1)
    right = max(points)
    note(axes, name, (right[0], line.intercept + line.slope * right[0]), color)


def draw_hot(axes: Axes, evidence: Evidence) -> None:
    """Draw epochs by batch with learning rates that nothing rescales."""
    goal = evidence.workload.target
    recipes = [recipe for recipe in evidence.workload.recipes if recipe.rule == "none"][1:]
    for row, (color, recipe) in enumerate(zip(RISING[1:], recipes, strict=True)):
        failed = [b for b in recipe.batches if evidence.runs.epochs(recipe.name, b, goal) is None]
        axes.plot(failed, [15 + row] * len(failed), "x", color=color, markersize=5)
        points = [
            (batch, epochs)
            for batch in recipe.batches
            if (epochs := evidence.runs.epochs(recipe.name, batch, goal)) is not None
        ]
        axes.plot(*zip(*points, strict=True), "o-", color=color, markersize=4, linewidth=1.1)
        note(axes, f"rate {recipe.rate:g}", points[-1], color)
    axes.set(title=f"{title_of(evidence)}\nlearning rate fixed", xlabel="global batch B")
    note(axes, "× never", (470, 16), FAINT)
    axes.set(xscale="log", ylim=(0, None), xlim=(52, 2600))
    plain_ticks(axes, (64, 128, 256, 512))


def draw_noise_by_batch(evidences: Sequence[Evidence]) -> Figure:
    """Draw normalised noise over 1/sqrt(B), by workers, with both laws (Fig. 9)."""
    figure, panels = start(3)
    for axes, evidence in zip(panels, evidences, strict=True):
        noise = evidence.normalized_noise()
        for color, workers in zip(RISING, evidence.workload.space.workers, strict=True):
            own = [config for config in noise if config.workers == workers]
            x = [config.global_batch**-0.5 for config in own]
            axes.plot(x, [noise[config] for config in own], "o", color=color, markersize=5)
        name_ends(axes, evidence)
        batches = np.linspace(evidence.batches[0], evidence.batches[-1], 40)
        scale = evidence.noise_scale_of_weights()
        root = evidence.root_law()
        axes.plot(batches**-0.5, root.normalized(batches), color=INK)
        for color, workers in zip(RISING, evidence.workload.space.workers, strict=True):
            exact = [noise_at(scale, ClusterConfig(workers, round(b))) / workers for b in batches]
            axes.plot(batches**-0.5, exact, color=color, linewidth=0.9, dashes=(4, 2.5))
        axes.set(title=title_of(evidence), xlabel="1/√B")
        axes.margins(0.12, 0.1)
        axes.set_xlim(right=evidence.batches[0] ** -0.5 * 1.06)
    panels[0].set_ylabel("normalised noise γ/K, same weights")
    return figure


def name_ends(axes: Axes, evidence: Evidence) -> None:
    """Write the workers beside the points of the smallest batch, apart from each other."""
    noise, batch = evidence.normalized_noise(), evidence.batches[0]
    highs = sorted((noise[ClusterConfig(k, batch)], k) for k in evidence.workload.space.workers)
    gap = (max(noise.values()) - min(noise.values())) / 16
    height = -np.inf
    for value, workers in highs:
        height = max(value, height + gap)
        color = RISING[evidence.workload.space.workers.index(workers)]
        note(axes, f"K={workers}", (batch**-0.5, height), color)


# ---- Prediction


def draw_errors(evidences: Sequence[Evidence]) -> Figure:
    """Draw the distribution of prediction errors by search and laws (Fig. 11)."""
    figure, panels = start(2, height=420)
    for axes, laws in zip(panels, LAWS, strict=True):
        for place, evidence in enumerate(evidences):
            for offset, (strategy, color) in zip(OFFSETS, OF_SEARCH.items(), strict=True):
                errors = time_errors(evidences, evidence, strategy, laws)
                sizes = [100 * abs(error) for error in errors]
                draw_box(axes, sizes, place + offset, color)
                mean = f"{sum(sizes) / len(sizes):.1f}"
                note(axes, mean, (place + offset, max(sizes)), color, **ABOVE)
        axes.set_xticks(range(len(evidences)), [e.workload.title for e in evidences])
        axes.grid(axis="x", visible=False)
        axes.set(title=f"laws: {laws}")
    top = max(axes.get_ylim()[1] for axes in panels)
    for axes in panels:
        axes.set_ylim(0, 1.05 * top)
    for row, (strategy, color) in enumerate(OF_SEARCH.items()):
        corner = {"xycoords": "axes fraction", "xytext": (8, -15 * row), "size": 9.5}
        note(panels[0], f"■ {strategy}", (0.0, 0.95), color, **corner)
    panels[0].set_ylabel("error of predicted time, %  (figures: means)")
    return figure


def draw_box(axes: Axes, values: Sequence[float], at: float, color: str) -> None:
    """Draw a box from quarter to quarter with a line at the median and whiskers to the ends."""
    axes.boxplot(
        [values],
        positions=[at],
        widths=0.18,
        whis=(0, 100),
        patch_artist=True,
        boxprops={"facecolor": color, "alpha": 0.25, "edgecolor": color},
        medianprops={"color": color, "linewidth": 2},
        whiskerprops={"color": color},
        capprops={"color": color},
        manage_ticks=False,
    )


FIGURES: dict[str, Drawing] = {
    "figure-01": draw_tradeoff,
    "figure-05": draw_throughput,
    "figure-06": draw_settling,
    "figure-07": draw_time_by_noise,
    "figure-08": draw_epochs_by_noise,
    "figure-09": draw_noise_by_batch,
    "figure-10": draw_tradeoffs,
    "figure-11": draw_errors,
    "figure-12": draw_memory_price,
}
