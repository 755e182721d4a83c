"""NoiseError: gradient noise predicted from the extreme batches, beside that of the others."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import nnls

from scavenger.grid import Floats
from scavenger.tables.noise_table import NoiseTable

FEWEST_BATCHES = 3


@dataclass(frozen=True, slots=True)
class NoiseError:
    """How far the laws of noise lie from what runs at several batches recorded.

    Attributes:
        table: Name of the table.
        noise_scale: φ in samples of the exact law, (B + φ) / B, from the two extreme batches.
        error: Mean relative error of that law at the other batches.
        root_error: The same of the paper's law, n0 + n1 / sqrt(B) (Eq. 7).
    """

    table: str
    noise_scale: float
    error: float
    root_error: float


def noise_error(table: NoiseTable) -> NoiseError | None:
    """Predict noise from the two extreme batches; None where the table cannot tell.

    The noise of a whole run is iterations over progress: how many it took for what one iteration
    at the smallest batch does, which is (B + φ) / B in units of that batch.
    """
    ends = {r.global_batch: r for r in table.records if r.progress}
    batches = np.array(sorted(ends), dtype=float)
    if len(batches) < FEWEST_BATCHES:
        return None
    records = [ends[int(batch)] for batch in batches]
    noise = np.array([record.iteration / (record.progress or 1.0) for record in records])
    scale = scale_between(batches, noise / noise[0])
    if scale is None:
        return None
    exact = noise[0] * (batches + scale) / (batches[0] + scale) * batches[0] / batches
    root = fit_root(batches[[0, -1]], noise[[0, -1]], batches)
    return NoiseError(
        table=table.name,
        noise_scale=scale,
        error=float(np.abs(exact / noise - 1)[1:-1].mean()),
        root_error=float(np.abs(root / noise - 1)[1:-1].mean()),
    )


def scale_between(batches: Floats, noise: Floats) -> float | None:
    """Return φ that explains how noise falls from the first batch to the last; None if none does.

    Args:
        batches: Samples, ascending.
        noise: Noise, 1 at the first batch.
    """
    first, last, fall = float(batches[0]), float(batches[-1]), float(noise[-1])
    spare = fall * last - first
    if spare <= 0 or fall >= 1:
        return None
    return last * first * (1 - fall) / spare


def fit_root(batches: Floats, noise: Floats, wanted: Floats) -> Floats:
    """Fit n0 + n1 / sqrt(B), neither negative, on relative error, and predict (Eq. 7)."""
    columns = np.column_stack([np.ones_like(batches), 1 / np.sqrt(batches)])
    floor, per_root = nnls(columns / noise[:, None], np.ones(len(noise)))[0]
    return np.asarray(floor + per_root / np.sqrt(wanted))
