"""Detects from reported steps whether gradient noise has settled, and whether it drifted.

Noise starts high on the initial plateau, dips when training takes off and rises slowly from then on
(SCIENCE §1). φ is as steady on the plateau as later, so only rows after the loss has fallen are
used. A fixed number of iterations would be wrong for most jobs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from scavenger.measurement.noise import (
    NoiseEstimate,
    ShardNorms,
    pool_noise,
    safe_mean,
    shard_norms,
)
from scavenger.measurement.steps import StepColumns

NEEDED_LOSS_DROP = 0.2
INITIAL_LOSSES = 5
SMOOTHED_LOSSES = 20
MIN_NOISE_WINDOW_ROWS = 40
# Without losses a plateau cannot be told from training, so only patience helps.
MIN_NOISE_WINDOW_ROWS_WITHOUT_LOSS = 160
WINDOW_SHARE = 2 / 3
# A small batch may never know φ better: its probe then ends, and larger batches know it sooner.
MAX_AWAITED_ROWS = 400
TOLERATED_DRIFT = 0.25
# Half-widths seen on recorded runs: 0.3 to 1.5. A tighter bound is hardly ever met by small runs.
MAX_DRIFT_HALF_WIDTH = 1.0
BLOCK_ROWS = 5
# φ follows training slowly; only a factor that moves the best batch is worth a new plan.
DRIFT_FACTOR = 1.5
DRIFT_ROWS = 600
MIN_DRIFT_ROWS = 160


@dataclass(frozen=True, slots=True)
class NoiseStability:
    """Whether the noise scale has settled, and on which figures that rests.

    Attributes:
        is_stable: φ may be used.
        drift: Change of φ from the older to the newer half of the window, relative to φ of the
            whole window; None while it cannot be computed.
        drift_half_width: Half-width of the 95 % interval of ``drift``; None when ``drift`` is.
        loss_drop: Share of its initial value that the smoothed loss has lost; None if the script
            logged too few losses.
        noise: Estimate over the window; None while it is too short.
        why: One sentence for people.
    """

    is_stable: bool
    drift: float | None
    drift_half_width: float | None
    loss_drop: float | None
    noise: NoiseEstimate | None
    why: str


def assess_stability(
    columns: StepColumns, global_batch: int, losses_before: Sequence[float | None] = ()
) -> NoiseStability:
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
        window = recent_window(shard_norms(columns), MIN_NOISE_WINDOW_ROWS_WITHOUT_LOSS)
        missing = MIN_NOISE_WINDOW_ROWS_WITHOUT_LOSS - len(window)
        note = "no loss is logged, so a plateau cannot be told from training"
        if missing > 0:
            return not_stable_yet(f"{note}; {missing} more noise rows are needed", drop)
        return compare_halves(window, global_batch, drop, f"{note}; ")
    began = first_row_after_drop(losses)
    if began is None:
        return not_stable_yet(explain_plateau(drop), drop)
    since = shard_norms(columns, start=max(began - len(losses_before), 0))
    window = recent_window(since, MIN_NOISE_WINDOW_ROWS)
    missing = MIN_NOISE_WINDOW_ROWS - len(window)
    if missing > 0:
        return not_stable_yet(f"the loss falls; {missing} more noise rows are needed", drop)
    stability = compare_halves(window, global_batch, drop, "")
    if stability.is_stable or len(since) < MAX_AWAITED_ROWS:
        return stability
    why = f"{stability.why}, which is as well as a batch of {global_batch} can tell"
    noise = pool_noise(window, global_batch)
    return replace(stability, is_stable=True, noise=noise, why=why)


@dataclass(frozen=True, slots=True)
class NoiseDrift:
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


def detect_drift(columns: StepColumns, global_batch: int, planned_noise_scale: float) -> NoiseDrift:
    """Tell whether φ has drifted away from the one the configuration was chosen with (SCIENCE §1).

    φ grows as training goes on, and with it the batch that costs no epochs. It has drifted when
    all of its 95 % interval over the newest 600 noise rows lies beyond a factor of 1.5.

    Args:
        columns: Rows of the running generation, the newest last.
        global_batch: Samples per iteration.
        planned_noise_scale: φ in samples the plan was made with.
    """
    rows = shard_norms(columns)[-DRIFT_ROWS:]
    if len(rows) < MIN_DRIFT_ROWS:
        missing = MIN_DRIFT_ROWS - len(rows)
        return NoiseDrift(False, None, None, f"{missing} more noise rows are needed to see a drift")
    found = noise_scale_with_error(rows, global_batch)
    if found is None:
        return NoiseDrift(False, None, None, f"noise hides the gradient in {len(rows)} rows")
    scale, error = found
    low, high = max(scale - 2 * error, 0.0), scale + 2 * error
    grew = low > planned_noise_scale * DRIFT_FACTOR
    fell = high < planned_noise_scale / DRIFT_FACTOR
    now = f"{scale:.3g} ({low:.3g} to {high:.3g} over {len(rows)} noise rows)"
    why = f"φ is {now}, near the {planned_noise_scale:.3g} of the plan"
    if grew or fell:
        why = f"φ {'grew' if grew else 'fell'} from {planned_noise_scale:.3g} to {now}"
    return NoiseDrift(grew or fell, scale, (low, high), why)


def loss_drop(losses: Sequence[float | None]) -> float | None:
    """Share of the initial loss that the newest losses have lost; None with too few."""
    logged = [loss for loss in losses if loss is not None]
    if len(logged) <= INITIAL_LOSSES:
        return None
    return relative_drop(safe_mean(logged[:INITIAL_LOSSES]), safe_mean(logged[-SMOOTHED_LOSSES:]))


def relative_drop(initial: float, loss: float) -> float | None:
    """Relative fall of a loss, of either sign; None when the initial one has no scale."""
    if initial == 0:
        return None
    drop = initial / abs(initial) - loss / abs(initial)
    return drop if math.isfinite(drop) else None


def first_row_after_drop(losses: Sequence[float | None]) -> int | None:
    """Return the first row at which the smoothed loss had fallen enough, None before it."""
    logged = [(row, loss) for row, loss in enumerate(losses) if loss is not None]
    values = [loss for _, loss in logged]
    initial = safe_mean(values[:INITIAL_LOSSES])
    for end in range(2 * INITIAL_LOSSES, len(values) + 1):
        drop = relative_drop(initial, safe_mean(values[max(0, end - SMOOTHED_LOSSES) : end]))
        if drop is not None and drop >= NEEDED_LOSS_DROP:
            return logged[end - 1][0]
    return None


def explain_plateau(drop: float | None) -> str:
    """Say how far the loss is from having taken off."""
    if drop is None:
        return "too few losses are logged yet to tell a plateau from training"
    fell = f"the loss fell {max(drop, 0.0):.0%} so far"
    return f"{fell}; noise misleads before it fell {NEEDED_LOSS_DROP:.0%}"


def not_stable_yet(why: str, drop: float | None) -> NoiseStability:
    """Return the answer for rows that cannot be compared yet."""
    return NoiseStability(
        is_stable=False, drift=None, drift_half_width=None, loss_drop=drop, noise=None, why=why
    )


def recent_window(rows: Sequence[ShardNorms], shortest: int) -> Sequence[ShardNorms]:
    """Return the newest two thirds of the rows, which leave out the dip; at least the shortest."""
    return rows[-max(shortest, int(WINDOW_SHARE * len(rows))) :]


def compare_halves(
    window: Sequence[ShardNorms], global_batch: int, drop: float | None, note: str
) -> NoiseStability:
    """Judge a window by the difference of φ between its older and its newer half."""
    half = len(window) // 2
    pooled = pool_noise(window, global_batch)
    halves = [noise_scale_with_error(rows, global_batch) for rows in (window[:half], window[half:])]
    if pooled is None or not pooled.noise_scale or halves[0] is None or halves[1] is None:
        return not_stable_yet(f"{note}noise hides the gradient in {len(window)} rows", drop)
    (early, early_error), (late, late_error) = halves[0], halves[1]
    drift = (late - early) / pooled.noise_scale
    interval = 2 * math.hypot(early_error, late_error) / pooled.noise_scale
    if not (math.isfinite(drift) and math.isfinite(interval)):
        return not_stable_yet(f"{note}noise jumps without bounds in {len(window)} rows", drop)
    # A drift within its own standard error is no news, and noisy gradients show nothing smaller.
    stable = interval <= MAX_DRIFT_HALF_WIDTH and abs(drift) <= max(TOLERATED_DRIFT, interval / 2)
    why = f"{note}φ {pooled.noise_scale:.3g} drifts {drift:+.0%} ± {interval:.0%}"
    return NoiseStability(
        is_stable=stable,
        drift=drift,
        drift_half_width=interval,
        loss_drop=drop,
        noise=pooled,
        why=f"{why} over {len(window)} noise rows: {'settled' if stable else 'not settled'}",
    )


def noise_scale_with_error(
    rows: Sequence[ShardNorms], global_batch: int
) -> tuple[float, float] | None:
    """Return φ and its standard error in samples; None where the rows give no φ.

    The error of a ratio of means, from means over blocks of rows, since rows that follow each
    other share most of their parameters.
    """
    pooled = pool_noise(rows, global_batch)
    if pooled is None or pooled.noise_scale is None:
        return None
    scale = pooled.noise_scale
    residuals = [row.gradient_variance(global_batch) - scale * row.gradient_norm_sq for row in rows]
    blocks = [
        safe_mean(residuals[start : start + BLOCK_ROWS])
        for start in range(0, len(residuals) - BLOCK_ROWS + 1, BLOCK_ROWS)
    ]
    error = standard_error(blocks) / pooled.gradient_norm_sq
    return (scale, error) if math.isfinite(error) else None


def standard_error(values: Sequence[float]) -> float:
    """Standard error of the mean of independent values."""
    mean = safe_mean(values)
    squares = sum((value - mean) * (value - mean) for value in values)
    return math.sqrt(squares / (len(values) - 1) / len(values))
