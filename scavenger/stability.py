"""Has the noise of a young job settled? Detected from its rows, never after a fixed count.

Noise starts high on the initial plateau, dips when training takes off and rises slowly from then
on (SCIENCE §1). φ is as steady on the plateau as later, so only rows after the loss has fallen
are looked at.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from scavenger.noise import NoiseEstimate, ShardNorms, mean_of, pooled_noise, shard_norms
from scavenger.protocol import StepColumns

NEEDED_LOSS_DROP = 0.2
INITIAL_LOSSES = 5
SMOOTHED_LOSSES = 20
SHORTEST_WINDOW = 40
# Without losses a plateau cannot be told from training, so only patience helps.
SHORTEST_WINDOW_WITHOUT_LOSS = 160
WINDOW_SHARE = 2 / 3
# A small batch may never know φ better: its probe then ends, and larger batches know it sooner.
PATIENT_ROWS = 400
TOLERATED_DRIFT = 0.25
# Half-widths seen on recorded runs: 0.3 to 1.5. A tighter bound is hardly ever met by small runs.
WIDEST_INTERVAL = 1.0
BLOCK = 5
# φ follows training slowly; only a factor that moves the best batch is worth a new plan.
DRIFT_FACTOR = 1.5
DRIFT_ROWS = 600
FEWEST_DRIFT_ROWS = 160


@dataclass(frozen=True, slots=True)
class Stability:
    """Whether the noise scale has settled, and on which figures that rests.

    Attributes:
        is_stable: φ may be used.
        drift: Change of φ from the older to the newer half of the window, relative to φ of the
            whole window; None while it cannot be computed.
        interval: Half-width of the 95 % interval of ``drift``; None when ``drift`` is.
        loss_drop: Share of its initial value that the smoothed loss has lost; None if the script
            logged too few losses.
        noise: Estimate over the window; None while it is too short.
        why: One sentence for people.
    """

    is_stable: bool
    drift: float | None
    interval: float | None
    loss_drop: float | None
    noise: NoiseEstimate | None
    why: str


def judge_stability(
    columns: StepColumns, global_batch: int, losses_before: Sequence[float | None] = ()
) -> Stability:
    """Tell whether the noise of a young job has settled.

    The window is the newer two thirds of the noise rows since the loss fell by a fifth, at least
    40. Its two halves must give the same φ, within 25 % or one standard error of their difference,
    and that difference must be known to within 100 %. Where the script logs no loss, the window
    has at least 160 rows and the sentence says what cannot be known. After 400 noise rows since
    the loss fell φ is taken as it is: waiting longer costs more than larger batches will.

    Args:
        columns: Every row of the configuration that waits for it.
        global_batch: Samples per iteration.
        losses_before: Losses the script logged before these rows, from the job's first iteration,
            None where it logged none: whether the loss has fallen is judged against its beginning.
    """
    losses = (*losses_before, *columns.loss)
    drop = loss_drop(losses)
    if all(loss is None for loss in losses):
        window = newest(shard_norms(columns), SHORTEST_WINDOW_WITHOUT_LOSS)
        missing = SHORTEST_WINDOW_WITHOUT_LOSS - len(window)
        note = "no loss is logged, so a plateau cannot be told from training"
        if missing > 0:
            return waiting(f"{note}; {missing} more noise rows are needed", drop)
        return compare_halves(window, global_batch, drop, f"{note}; ")
    began = takeoff(losses)
    if began is None:
        return waiting(plateau_sentence(drop), drop)
    since = shard_norms(columns, start=max(began - len(losses_before), 0))
    window = newest(since, SHORTEST_WINDOW)
    missing = SHORTEST_WINDOW - len(window)
    if missing > 0:
        return waiting(f"the loss falls; {missing} more noise rows are needed", drop)
    stability = compare_halves(window, global_batch, drop, "")
    if stability.is_stable or len(since) < PATIENT_ROWS:
        return stability
    why = f"{stability.why}, which is as well as a batch of {global_batch} can tell"
    noise = pooled_noise(window, global_batch)
    return replace(stability, is_stable=True, noise=noise, why=why)


@dataclass(frozen=True, slots=True)
class Drift:
    """Whether the noise scale has left the one a plan was made with.

    Attributes:
        has_drifted: The plan should be made anew.
        noise_scale: φ of the newest rows in samples; None while they are too few.
        interval: 95 % interval of ``noise_scale``; None when it is.
        why: One sentence for people.
    """

    has_drifted: bool
    noise_scale: float | None
    interval: tuple[float, float] | None
    why: str


def judge_drift(columns: StepColumns, global_batch: int, planned_noise_scale: float) -> Drift:
    """Tell whether φ has drifted away from the one the configuration was chosen with (SCIENCE §1).

    φ grows as training goes on, and with it the batch that costs no epochs. It has drifted when
    all of its 95 % interval over the newest 600 noise rows lies beyond a factor of 1.5.

    Args:
        columns: Rows of the running generation, the newest last.
        global_batch: Samples per iteration.
        planned_noise_scale: φ in samples the plan was made with.
    """
    rows = shard_norms(columns)[-DRIFT_ROWS:]
    if len(rows) < FEWEST_DRIFT_ROWS:
        missing = FEWEST_DRIFT_ROWS - len(rows)
        return Drift(False, None, None, f"{missing} more noise rows are needed to see a drift")
    found = scale_with_error(rows, global_batch)
    if found is None:
        return Drift(False, None, None, f"noise hides the gradient in {len(rows)} rows")
    scale, error = found
    low, high = max(scale - 2 * error, 0.0), scale + 2 * error
    grew = low > planned_noise_scale * DRIFT_FACTOR
    fell = high < planned_noise_scale / DRIFT_FACTOR
    now = f"{scale:.3g} ({low:.3g} to {high:.3g} over {len(rows)} noise rows)"
    why = f"φ is {now}, near the {planned_noise_scale:.3g} of the plan"
    if grew or fell:
        why = f"φ {'grew' if grew else 'fell'} from {planned_noise_scale:.3g} to {now}"
    return Drift(grew or fell, scale, (low, high), why)


def loss_drop(losses: Sequence[float | None]) -> float | None:
    """Share of the initial loss that the newest losses have lost; None with too few."""
    logged = [loss for loss in losses if loss is not None]
    if len(logged) <= INITIAL_LOSSES:
        return None
    return drop_from(mean_of(logged[:INITIAL_LOSSES]), mean_of(logged[-SMOOTHED_LOSSES:]))


def drop_from(initial: float, loss: float) -> float | None:
    """Relative fall of a loss, of either sign; None when the initial one has no scale."""
    if initial == 0:
        return None
    drop = initial / abs(initial) - loss / abs(initial)
    return drop if math.isfinite(drop) else None


def takeoff(losses: Sequence[float | None]) -> int | None:
    """Return the first row at which the smoothed loss had fallen enough, None before it."""
    logged = [(row, loss) for row, loss in enumerate(losses) if loss is not None]
    values = [loss for _, loss in logged]
    initial = mean_of(values[:INITIAL_LOSSES])
    for end in range(2 * INITIAL_LOSSES, len(values) + 1):
        drop = drop_from(initial, mean_of(values[max(0, end - SMOOTHED_LOSSES) : end]))
        if drop is not None and drop >= NEEDED_LOSS_DROP:
            return logged[end - 1][0]
    return None


def plateau_sentence(drop: float | None) -> str:
    """Say how far the loss is from having taken off."""
    if drop is None:
        return "too few losses are logged yet to tell a plateau from training"
    fell = f"the loss fell {max(drop, 0.0):.0%} so far"
    return f"{fell}; noise misleads before it fell {NEEDED_LOSS_DROP:.0%}"


def waiting(why: str, drop: float | None) -> Stability:
    """Return the answer for rows that cannot be compared yet."""
    return Stability(
        is_stable=False, drift=None, interval=None, loss_drop=drop, noise=None, why=why
    )


def newest(rows: Sequence[ShardNorms], shortest: int) -> Sequence[ShardNorms]:
    """Return the newest share of the rows: it forgets the dip and still grows with patience."""
    return rows[-max(shortest, int(WINDOW_SHARE * len(rows))) :]


def compare_halves(
    window: Sequence[ShardNorms], global_batch: int, drop: float | None, note: str
) -> Stability:
    """Judge a window by the difference of φ between its older and its newer half."""
    half = len(window) // 2
    pooled = pooled_noise(window, global_batch)
    halves = [scale_with_error(rows, global_batch) for rows in (window[:half], window[half:])]
    if pooled is None or not pooled.noise_scale or halves[0] is None or halves[1] is None:
        return waiting(f"{note}noise hides the gradient in {len(window)} rows", drop)
    (early, early_error), (late, late_error) = halves[0], halves[1]
    drift = (late - early) / pooled.noise_scale
    interval = 2 * math.hypot(early_error, late_error) / pooled.noise_scale
    if not (math.isfinite(drift) and math.isfinite(interval)):
        return waiting(f"{note}noise jumps without bounds in {len(window)} rows", drop)
    # A drift within its own standard error is no news, and noisy gradients show nothing smaller.
    stable = interval <= WIDEST_INTERVAL and abs(drift) <= max(TOLERATED_DRIFT, interval / 2)
    why = f"{note}φ {pooled.noise_scale:.3g} drifts {drift:+.0%} ± {interval:.0%}"
    return Stability(
        is_stable=stable,
        drift=drift,
        interval=interval,
        loss_drop=drop,
        noise=pooled,
        why=f"{why} over {len(window)} noise rows: {'settled' if stable else 'not settled'}",
    )


def scale_with_error(rows: Sequence[ShardNorms], global_batch: int) -> tuple[float, float] | None:
    """Return φ and its standard error in samples; None where the rows give no φ.

    The error of a ratio of means, from means over blocks of rows, since rows that follow each
    other share most of their parameters.
    """
    pooled = pooled_noise(rows, global_batch)
    if pooled is None or pooled.noise_scale is None:
        return None
    scale = pooled.noise_scale
    residuals = [row.gradient_variance(global_batch) - scale * row.gradient_norm_sq for row in rows]
    blocks = [
        mean_of(residuals[start : start + BLOCK])
        for start in range(0, len(residuals) - BLOCK + 1, BLOCK)
    ]
    error = standard_error(blocks) / pooled.gradient_norm_sq
    return (scale, error) if math.isfinite(error) else None


def standard_error(values: Sequence[float]) -> float:
    """Standard error of the mean of independent values."""
    mean = mean_of(values)
    squares = sum((value - mean) * (value - mean) for value in values)
    return math.sqrt(squares / (len(values) - 1) / len(values))
