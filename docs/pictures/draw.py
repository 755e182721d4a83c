"""Draws the pictures of choosing.md from made-up laws: python docs/pictures/draw.py.

Nothing here was measured. Every line and point comes out of the library itself, so that a picture
shows what the code does; only the laws it is given are invented. Needs the extra ``plots``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from io import StringIO
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter, NullLocator

from scavenger.cluster import ClusterConfig, ConfigSpace, config_columns
from scavenger.learning_rate import LearningRateRule, prior_kappa
from scavenger.measurement.noise import ShardNorms, SmoothedNoise
from scavenger.measurement.profiling import Observation, ScalingIndicators
from scavenger.measurement.stability import (
    DRIFT_FACTOR,
    NEEDED_LOSS_DROP,
    assess_stability,
    detect_drift,
    first_row_after_drop,
)
from scavenger.measurement.steps import StepColumns
from scavenger.models.epochs import (
    KAPPA_DEVIATION,
    EpochsLaw,
    FinishedRun,
    Kappa,
    epochs_at,
    fit_epochs_to_runs,
)
from scavenger.models.iteration_time import Z_90, StepTimeLaw
from scavenger.planning.curve import TradeoffPoint
from scavenger.planning.decision import decide
from scavenger.planning.knee import Knee
from scavenger.planning.objectives import fastest_and_cheapest
from scavenger.planning.search.auto import value_of_next_probe
from scavenger.planning.search.strategy import Probe, TrainOn, choose_by_probes
from scavenger.planning.search.value_of_information import ProbeValue
from scavenger.planning.state import PlanningState, ProbeOverhead
from scavenger.pricing import on_demand_price_model

HERE = Path(__file__).parent
INK, FAINT, GRID = "#24292f", "#57606a", "#e6e8eb"
BLUE, GREEN, ORANGE, BROWN = "#1f5fbf", "#0b6e4f", "#b35900", "#8a4500"
LIGHT_BLUE, LIGHT_ORANGE = "#c9dcf7", "#f3d3ae"
# One unit of a figure is an inch of 100 pixels on a page, of 72 in a file.
WIDTH, HEIGHT, PIXEL = 8.6, 4.8, 0.72

STYLE: dict[str, Any] = {
    "font.size": 13 * PIXEL,
    "text.color": INK,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.linewidth": 1 * PIXEL,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.titlesize": 13 * PIXEL,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "grid.color": GRID,
    "grid.linewidth": 1 * PIXEL,
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "lines.linewidth": 2 * PIXEL,
    "svg.fonttype": "none",
    "svg.hashsalt": "scavenger",
}

# A job whose laws are known here and must be found by the search.
TRUTH = StepTimeLaw(0.05, 0.006, 0.08, 0.02, overlap=2.0)
NOISE_SCALE = 600.0
REFERENCE_BATCH = 128
# No configuration lies exactly on a law.
ROUGHNESS = 0.03
SITUATION = PlanningState(
    space=ConfigSpace((2, 3, 4, 6, 8, 12, 16, 24), (128, 256, 512, 1024)),
    search="auto",
    objective=Knee(),
    observations=(),
    stored=None,
    dataset_size=50_000,
    reference_batch=REFERENCE_BATCH,
    epochs_at_reference=200,
    price=on_demand_price_model(0.13402),
    kappa_prior=Kappa(1.0, 0.2),
    probe_overhead=ProbeOverhead(pause=37),
)


def main() -> None:
    """Draw every picture beside this script."""
    mpl.rcParams.update(STYLE)
    for name, draw in PICTURES.items():
        (HERE / f"{name}.svg").write_text(write_svg(draw()))


def write_svg(figure: Figure) -> str:
    """Return a figure as SVG whose text stays text, in the reader's own font."""
    file = StringIO()
    figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    text = re.sub(r"(font: [^;\"]*?[\d.]+px) [^;\"]+", r"\1 system-ui, sans-serif", file.getvalue())
    return "\n".join(line.rstrip() for line in text.splitlines()) + "\n"


# ---- Cost and time of every configuration


def draw_choice() -> Figure:
    """Draw the curve of a job that has just chosen, with what each objective would choose."""
    run = search(SITUATION, seed=1)
    title = "Cost and time of one training, by workers K and global batch B"
    figure, axes = start(title, bottom=0.185)
    front = run.curve.frontier()
    times, costs = [p.time / 3600 for p in front], [p.cost for p in front]
    axes.plot(times, costs, color=GREEN, dashes=(5, 4), drawstyle="steps-post", zorder=2)
    for point in front:
        hours = [seconds / 3600 for seconds in point.time_range]
        axes.plot(hours, point.cost_range, color=GREEN, alpha=0.3, linewidth=6 * PIXEL)
    for point in run.curve.points:
        mark(axes, point)
    fast, cheap = fastest_and_cheapest(front)
    chosen = run.choice.point
    name_point(axes, "fastest", fast, (2, 12), "right")
    name_point(axes, "knee, chosen", chosen, (-12, -33), "right")
    name_point(axes, "cheapest", cheap, (-2, -32), "center")
    for point in front:
        if point not in (fast, chosen, cheap):
            axes.annotate(
                f"K={point.config.workers} B={point.config.global_batch}",
                (point.time / 3600, point.cost),
                xytext=(-14, -19),
                textcoords="offset points",
                ha="right",
                color=FAINT,
                size=11 * PIXEL,
            )
    axes.set(xscale="log", yscale="log", xlim=(2.05, 22), ylim=(1.45, 46))
    put_ticks(axes.xaxis, (3, 4, 6, 8, 10, 15, 20), "{:g} h")
    put_ticks(axes.yaxis, (2, 3, 5, 10, 20, 40), "${:g}")
    axes.set_xlabel("time to target (both axes logarithmic)")
    axes.set_ylabel("cost to target")
    explain(figure)
    return figure


def search(situation: PlanningState, seed: int) -> TrainOn:
    """Probe as the search asks for it until it has chosen."""
    rng = np.random.default_rng(seed)
    decision = decide(situation)
    while isinstance(decision, Probe):
        seen = (*situation.observations, observe(decision.config, rng))
        situation = replace(situation, observations=seen)
        decision = decide(situation)
    return decision


def observe(config: ClusterConfig, rng: np.random.Generator) -> Observation:
    """Measure a configuration of the known job."""
    factor = math.exp(ROUGHNESS * float(rng.standard_normal()))
    compute, sync = TRUTH.compute_time(config) * factor, TRUTH.sync_time(config) * factor
    return Observation(config, ScalingIndicators(None, NOISE_SCALE, compute, sync), 20)


def mark(axes: Axes, point: TradeoffPoint) -> None:
    """Put a filled circle where a configuration was measured, else a hollow diamond."""
    look = PREDICTED if point.measured_step_time is None else MEASURED
    axes.plot(point.time / 3600, point.cost, zorder=3, **look)


MARKER: dict[str, Any] = {
    "linestyle": "none",
    "markeredgecolor": BLUE,
    "markeredgewidth": 1.5 * PIXEL,
}
MEASURED = MARKER | {"marker": "o", "markersize": 9 * PIXEL, "markerfacecolor": BLUE}
PREDICTED = MARKER | {"marker": "D", "markersize": 6.5 * PIXEL, "markerfacecolor": "white"}
STAR: dict[str, Any] = {
    "linestyle": "none",
    "marker": "*",
    "markersize": 19 * PIXEL,
    "color": ORANGE,
    "markeredgecolor": "white",
}


def name_point(
    axes: Axes, word: str, point: TradeoffPoint, offset: tuple[float, float], align: str
) -> None:
    """Name a point and say what it takes."""
    hours = point.time / 3600
    axes.plot(hours, point.cost, zorder=5, **STAR)
    axes.annotate(
        f"{word}: K={point.config.workers} B={point.config.global_batch}\n"
        f"{hours:.1f} h, ${point.cost:.2f}",
        (hours, point.cost),
        xytext=offset,
        textcoords="offset points",
        ha=align,
        color=BROWN,
        weight="bold",
        linespacing=1.4,
        zorder=6,
    )


def explain(figure: Figure) -> None:
    """Say below the curve what its marks mean."""
    band: dict[str, Any] = {"color": GREEN, "alpha": 0.3, "linewidth": 6 * PIXEL}
    marks: tuple[tuple[float, dict[str, Any], str], ...] = (
        (0.1, MEASURED, "measured"),
        (0.22, PREDICTED, "predicted"),
        (0.345, {"color": GREEN, "dashes": (4, 2)}, "front"),
        (0.43, band, "80 % of outcomes: both err together"),
        (0.78, STAR, "objective's choice"),
    )
    for left, look, words in marks:
        ends_at = [left + 0.007] if "marker" in look else [left - 0.004, left + 0.018]
        line = Line2D(ends_at, [0.035] * len(ends_at), transform=figure.transFigure, **look)
        figure.add_artist(line)
        figure.text(left + 0.024, 0.035, words, va="center")


# ---- One iteration


def draw_iteration() -> Figure:
    """Draw an iteration over the workers, its two parts one after the other and overlapping."""
    figure, (left, right) = start_pair("Seconds of one iteration at a global batch of 512")
    in_turn = replace(TRUTH, overlap=1.0)
    stack_parts(left, in_turn)
    stack_parts(right, TRUTH)
    left.set_title("one part after the other, q = 1")
    right.set_title("partly at the same time, q = 2")
    counts = np.arange(2, 33)
    total = in_turn.step_times(config_columns(ClusterConfig(int(count), 512) for count in counts))
    right.plot(counts, total, color=FAINT, dashes=(5, 4), linewidth=1.3 * PIXEL)
    right.text(31.5, 0.93, "the sum, as on the left", color=FAINT, ha="right")
    return figure


def stack_parts(axes: Axes, law: StepTimeLaw) -> None:
    """Draw compute, and what synchronisation adds to it."""
    counts = np.arange(2, 33)
    grid = config_columns(ClusterConfig(int(count), 512) for count in counts)
    compute, step = law.compute_times(grid), law.step_times(grid)
    axes.fill_between(counts, 0, compute, color=LIGHT_BLUE, linewidth=0)
    axes.fill_between(counts, compute, step, color=LIGHT_ORANGE, linewidth=0)
    axes.plot(counts, step, color=INK)
    best = int(np.argmin(step))
    axes.plot(counts[best], step[best], "o", color=INK, markersize=8 * PIXEL)
    axes.annotate(
        f"least: {step[best]:.2f} s\nwith {counts[best]} workers",
        (counts[best], step[best]),
        xytext=(counts[best], 1.12),
        ha="center",
        linespacing=1.4,
        arrowprops={"arrowstyle": "-", "color": FAINT, "linewidth": 1 * PIXEL, "shrinkB": 5},
    )
    axes.text(3, 0.06, "compute: c0 + c1 B / K", color=BLUE, weight="bold")
    axes.text(31.5, 0.33, "exposed synchronisation", color=BROWN, weight="bold", ha="right")
    axes.set(xlim=(2, 32), ylim=(0, 1.75), xlabel="workers K")
    put_ticks(axes.xaxis, (2, 8, 16, 24, 32), "{:g}")
    put_ticks(axes.yaxis, (0, 0.5, 1, 1.5), "{:g} s")


# ---- Epochs by batch


def draw_epochs() -> Figure:
    """Draw what is assumed before any run has finished, and what three runs tell."""
    figure, (left, right) = start_pair("Epochs to the target, by global batch")
    left.set_title("assumed before a run has finished")
    right.set_title("three finished runs decide")
    draw_prior(left)
    draw_arms(right)
    for axes in (left, right):
        axes.set(xscale="log", xlim=(32, 8192), xlabel="global batch B, samples (logarithmic)")
        put_ticks(axes.xaxis, (32, 128, 512, 2048, 8192), "{:g}")
    return figure


def draw_prior(axes: Axes) -> None:
    """Draw the rising arm that the noise scale and the learning-rate rule stand for."""
    batches = np.geomspace(32, 8192, 100)
    rules: tuple[tuple[LearningRateRule, str], ...] = (("none", BROWN), ("linear", BLUE))
    for rule, color in rules:
        critical = prior_kappa(rule) * SETTLED_SCALE
        law = EpochsLaw(critical, SETTLED_SCALE, critical_deviation=KAPPA_DEVIATION)
        shape = law.unscaled_epochs(np.append(batches, float(REFERENCE_BATCH)))
        ratio = shape[:-1] / shape[-1]
        factor = np.exp(Z_90 * law.deviations(batches, REFERENCE_BATCH))
        axes.fill_between(batches, ratio / factor, ratio * factor, color=color, alpha=0.13, lw=0)
        axes.plot(batches, ratio, color=color)
    axes.text(
        950, 8, "lr_scaling:\nnone or sqrt", color=BROWN, weight="bold", ha="right", linespacing=1.4
    )
    axes.text(7800, 0.7, "lr_scaling: linear", color=BLUE, weight="bold", ha="right")
    axes.axvline(SETTLED_SCALE, color=FAINT, dashes=(2, 3), linewidth=1.3 * PIXEL)
    axes.text(SETTLED_SCALE * 1.08, 30, "noise scale φ", color=FAINT)
    axes.plot(REFERENCE_BATCH, 1, "o", color=INK, markersize=8 * PIXEL)
    axes.text(REFERENCE_BATCH * 0.9, 1.3, "your recipe", ha="right")
    axes.set(yscale="log", ylim=(0.55, 40), ylabel="relative to the reference batch")
    put_ticks(axes.yaxis, (1, 2, 5, 10, 20), "×{:g}")


SETTLED_SCALE = 200.0
RUNS = (FinishedRun(48, 29.0), FinishedRun(512, 21.0), FinishedRun(4096, 52.0))


def draw_arms(axes: Axes) -> None:
    """Draw the law of three runs as a stack of its three terms."""
    batches = np.geomspace(32, 8192, 100)
    law = fit_epochs_to_runs(RUNS, SETTLED_SCALE)
    epochs = np.array([epochs_at(law, RUNS, int(batch)) for batch in batches])
    falling = law.noisy_samples / (batches + SETTLED_SCALE)
    rising = batches / (law.critical_batch or math.inf)
    least = epochs / (1 + falling + rising)
    axes.fill_between(batches, 0, least, color=GRID, linewidth=0)
    axes.fill_between(batches, least, least * (1 + falling), color=LIGHT_ORANGE, linewidth=0)
    axes.fill_between(batches, least * (1 + falling), epochs, color=LIGHT_BLUE, linewidth=0)
    axes.plot(batches, epochs, color=INK)
    axes.plot([r.global_batch for r in RUNS], [r.epochs for r in RUNS], zorder=4, **MEASURED)
    axes.text(40, 5, "what no batch avoids", color=FAINT, weight="bold")
    axes.text(40, 17, "falling arm\nw / (B + φ)", color=BROWN, weight="bold", linespacing=1.4)
    rising_arm = "rising arm\nB / B_crit"
    axes.text(7500, 26, rising_arm, color=BLUE, weight="bold", ha="right", linespacing=1.4)
    axes.annotate(
        "finished runs",
        (RUNS[1].global_batch, RUNS[1].epochs),
        xytext=(RUNS[1].global_batch, 45),
        ha="center",
        arrowprops={"arrowstyle": "-", "color": FAINT, "linewidth": 1 * PIXEL, "shrinkB": 6},
    )
    axes.set(ylim=(0, 80), ylabel="epochs")
    put_ticks(axes.yaxis, (0, 20, 40, 60), "{:g}")


# ---- Noise along training

YOUNG = ClusterConfig(4, 256)
LENGTH, PLATEAU, DIRECTIONS = 4000, 400, 20
# Pixels do not show more.
EVERY = 10


@dataclass(frozen=True, slots=True)
class Story:
    """When each judgement about the noise of a young job is made, in iterations.

    Attributes:
        began: The loss has fallen enough.
        settled: φ is first used.
        window: Rows it rests on then.
        planned: φ in samples the plan is made with.
        drifted: The plan is made anew.
    """

    began: int
    settled: int
    window: int
    planned: float
    drifted: int


def draw_noise() -> Figure:
    """Draw loss and noise scale of a young job, and when each judgement is made."""
    rows = train_job(np.random.default_rng(7))
    story = judge(rows)
    figure = Figure(figsize=(WIDTH, HEIGHT))
    figure.text(0.1, 0.935, "Noise scale φ of a young job", size=16 * PIXEL, weight="bold")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(1, 3))
    figure.subplots_adjust(left=0.1, right=0.97, top=0.88, bottom=0.125, hspace=0.12)
    number = np.arange(0, LENGTH, EVERY)
    above.plot(number, rows.loss[::EVERY], color=FAINT, linewidth=1.3 * PIXEL)
    below.plot(number[4:], follow(rows)[4 * EVERY :: EVERY], color=BLUE)
    for axes in (above, below):
        axes.axvspan(0, story.began, color=GRID, linewidth=0)
        axes.axvspan(story.settled - story.window, story.settled, color=GREEN, alpha=0.25, lw=0)
        axes.axvline(story.drifted, color=ORANGE)
    since = [story.settled, story.drifted]
    factor = DRIFT_FACTOR
    below.fill_between(
        since, story.planned / factor, story.planned * factor, color=LIGHT_BLUE, lw=0
    )
    below.plot(since, [story.planned] * 2, color=BLUE, dashes=(5, 4), linewidth=1.3 * PIXEL)
    tell(above, below, story)
    above.set(ylim=(0, 2.6), ylabel="loss")
    below.set(xlim=(0, LENGTH), ylim=(0, 1000), xlabel="iterations", ylabel="samples")
    put_ticks(above.yaxis, (0, 1, 2), "{:g}")
    put_ticks(below.yaxis, (0, 200, 400, 600, 800), "{:g}")
    put_ticks(below.xaxis, (0, 1000, 2000, 3000, 4000), "{:,.0f}")
    return figure


def tell(above: Axes, below: Axes, story: Story) -> None:
    """Say what happens when, where it happens."""
    above.text(story.began + 90, 2.0, f"the loss has fallen by {NEEDED_LOSS_DROP:.0%}", color=FAINT)
    words: dict[str, Any] = {"weight": "bold", "linespacing": 1.4, "va": "top"}
    below.text(20, 150, "plateau:\nnot used", color=FAINT, **words)
    below.text(
        story.settled + 25,
        950,
        "settled: both halves of this\nwindow give the same φ",
        color=GREEN,
        **words,
    )
    below.text(
        story.drifted - 40,
        story.planned / DRIFT_FACTOR - 15,
        f"within a factor of {DRIFT_FACTOR} of the plan: nothing to do",
        color=BLUE,
        ha="right",
        **words,
    )
    below.text(
        story.drifted - 40, 950, "left it for sure:\na new plan", color=BROWN, ha="right", **words
    )


def judge(rows: StepColumns) -> Story:
    """Judge the rows again and again as they come in, as the controller does."""
    began = first_row_after_drop(rows.loss) or 0
    batch = YOUNG.global_batch
    settled = next(
        end for end in range(began, LENGTH, EVERY) if assess_stability(rows[0:end], batch).is_stable
    )
    noise = assess_stability(rows[0:settled], batch).noise
    assert noise is not None
    assert noise.noise_scale is not None
    drifted = next(
        end
        for end in range(settled + EVERY, LENGTH, EVERY)
        if detect_drift(rows[settled:end], batch, noise.noise_scale).has_drifted
    )
    return Story(began, settled, noise.rows, noise.noise_scale, drifted)


def train_job(rng: np.random.Generator) -> StepColumns:
    """Return the rows of a job whose noise starts high, dips as training takes off, and grows."""
    number = np.arange(LENGTH)
    since = np.maximum(number - PLATEAU, 0)
    loss = 2.3 * (0.1 + 0.9 * np.exp(-since / 700)) * np.exp(rng.normal(0, 0.03, LENGTH))
    early = 450 * np.exp(-since / 60)
    scale = 200 + early + 0.00005 * since**2
    norm_sq = 1 / scale
    each = 1 / YOUNG.global_batch / DIRECTIONS
    mean = each * rng.noncentral_chisquare(DIRECTIONS, norm_sq / each)
    within = each * rng.chisquare(DIRECTIONS * (YOUNG.workers - 1), LENGTH)
    seconds = (0.0,) * LENGTH
    return StepColumns(
        iteration=tuple(range(LENGTH)),
        shards=(YOUNG.workers,) * LENGTH,
        local_norm_sq=tuple((mean + within).tolist()),
        mean_norm_sq=tuple(mean.tolist()),
        compute_time=seconds,
        sync_time=seconds,
        step_time=seconds,
        loss=tuple(loss.tolist()),
    )


def follow(rows: StepColumns) -> list[float]:
    """Return the smoothed noise scale after each row; nan while noise hides the gradient."""
    smoothed, scales = SmoothedNoise(decay=0.99), []
    for local, mean in zip(rows.local_norm_sq, rows.mean_norm_sq, strict=True):
        row = ShardNorms(YOUNG.workers, local or 0.0, mean or 0.0)
        smoothed = smoothed.with_row(row, YOUNG.global_batch)
        scales.append(smoothed.noise_scale or math.nan)
    return scales


# ---- What a probe is worth

SEEDS = range(6)
LARGE = replace(
    SITUATION,
    space=ConfigSpace((1, 2, 3, 4, 6, 8, 12, 16, 24), (64, 128, 256, 512, 1024)),
    kappa_prior=Kappa(1.0, 0.0),
)
SHORT, LONG = 20, 400
MOST_PROBES = 8


def draw_probes() -> Figure:
    """Draw what the best further probe would save, beside its price in a short and a long job."""
    worths = np.array([weigh_probes(seed) for seed in SEEDS])
    saving, short, long = worths.mean(axis=0).T * 100
    counts = np.arange(len(LARGE.space.corners()), MOST_PROBES + 1)
    figure, axes = start("What one more probe is expected to save, and what it takes")
    axes.plot(counts, saving, "o-", color=BLUE, markersize=9 * PIXEL, zorder=3)
    axes.plot(counts, short, color=ORANGE, dashes=(5, 4))
    axes.plot(counts, long, color=ORANGE, dashes=(5, 4))
    axes.text(4.2, saving[0], "saving by choosing better", color=BLUE, weight="bold")
    words: dict[str, Any] = {"color": BROWN, "weight": "bold", "ha": "right"}
    axes.text(8.1, short[-2:].max() + 0.12, f"price in a job of {hours_of(SHORT)}", **words)
    axes.text(4.0, long[0] + 0.1, f"price in a job of {hours_of(LONG)}", **{**words, "ha": "left"})
    for prices, what, side in ((short, "short", "left"), (long, "long", "right")):
        place = int(np.argmax(saving < prices))
        axes.annotate(
            f"the {what} job\nstops here",
            (counts[place], saving[place]),
            xytext=(counts[place], saving[place] + 0.3),
            ha=side,
            linespacing=1.4,
            arrowprops={"arrowstyle": "-", "color": FAINT, "linewidth": 1 * PIXEL, "shrinkB": 5},
        )
    axes.set(xlim=(3.85, 8.15), ylim=(0, 1.1 * saving[0]), xlabel="probes made, the corners first")
    axes.set_ylabel("share of the whole job")
    put_ticks(axes.xaxis, tuple(counts), "{:g}")
    put_ticks(axes.yaxis, (0, 1, 2, 3), "{:g} %")
    return figure


def hours_of(epochs: float) -> str:
    """Say how long a job of so many epochs takes once it has chosen."""
    run = search(replace(LARGE, epochs_at_reference=epochs), seed=0)
    hours = run.choice.point.time / 3600
    return f"{hours:.0f} hours" if hours > 1.5 else f"{60 * hours:.0f} minutes"


def weigh_probes(seed: int) -> list[tuple[float, float, float]]:
    """Return saving and prices of the best further probe, from the corners on, as shares."""
    rng = np.random.default_rng(seed)
    observations = tuple(observe(config, rng) for config in LARGE.space.corners())
    weighed = []
    while len(observations) <= MOST_PROBES:
        short, long = (
            weigh(replace(LARGE, observations=observations, epochs_at_reference=epochs))
            for epochs in (SHORT, LONG)
        )
        weighed.append((long.saving, short.relative_cost, long.relative_cost))
        observations = (*observations, observe(long.config, rng))
    return weighed


def weigh(situation: PlanningState) -> ProbeValue:
    """Return what the best further probe is worth."""
    worth = value_of_next_probe(situation, choose_by_probes(situation))
    assert worth is not None, "there is a configuration left to probe"
    return worth


# ---- Frames


def start_pair(title: str) -> tuple[Figure, tuple[Axes, Axes]]:
    """Return an empty figure with a title and two pairs of axes side by side."""
    figure = Figure(figsize=(WIDTH, HEIGHT))
    figure.text(0.1, 0.935, title, size=16 * PIXEL, weight="bold")
    left, right = figure.subplots(1, 2)
    figure.subplots_adjust(left=0.1, right=0.975, top=0.82, bottom=0.125, wspace=0.16)
    return figure, (left, right)


def start(title: str, bottom: float = 0.125) -> tuple[Figure, Axes]:
    """Return an empty figure with a title and one pair of axes."""
    figure = Figure(figsize=(WIDTH, HEIGHT))
    axes = figure.add_axes((0.1, bottom, 0.87, 0.89 - bottom))
    figure.text(0.1, 0.935, title, size=16 * PIXEL, weight="bold")
    return figure, axes


def put_ticks(axis: Axis, values: Sequence[float], written: str) -> None:
    """Put ticks at these values only, written with their unit."""
    axis.set_major_locator(FixedLocator(list(values)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: written.format(value)))
    axis.set_minor_locator(NullLocator())
    axis.set_minor_formatter(NullFormatter())


PICTURES: dict[str, Callable[[], Figure]] = {
    "choice": draw_choice,
    "iteration": draw_iteration,
    "epochs": draw_epochs,
    "noise": draw_noise,
    "probes": draw_probes,
}

if __name__ == "__main__":
    main()
