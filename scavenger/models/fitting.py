"""From observations to a PerformanceModel, with coefficients that are never negative.

Least squares on relative error: plain least squares gives negative seconds and lets the slowest
configuration decide alone (SCIENCE §3).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.optimize import nnls

from scavenger.errors import NotEnoughData
from scavenger.indicators import Observation
from scavenger.models.parallel import ParallelModel
from scavenger.models.performance import PerformanceModel
from scavenger.models.statistical import StatisticalModel

NEGLIGIBLE = 1e-12


def fit_performance(
    observations: Sequence[Observation],
    dataset_size: int,
    reference_batch: int,
    epochs_at_reference: float | None,
    kappa: float = 1.0,
) -> PerformanceModel:
    """Fit everything that can be known from a job's probes.

    Args:
        observations: Settled probes, at least one.
        dataset_size: Samples of one epoch.
        reference_batch: Batch in samples at which ``epochs_at_reference`` holds.
        epochs_at_reference: Epochs to target; None while unknown.
        kappa: κ of B_crit = κ φ, learned from finished jobs (SCIENCE §2).

    Raises:
        NotEnoughData: No observations: probe one configuration.
    """
    parallel = fit_parallel(observations)
    statistical = fit_statistical(observations, kappa)
    return PerformanceModel(
        parallel, statistical, dataset_size, reference_batch, epochs_at_reference
    )


def fit_parallel(observations: Sequence[Observation]) -> ParallelModel:
    """Fit compute and synchronisation time, each on its own measurements (Eqs. 8-10).

    Where observations cannot tell the fixed part from the rest, the least is assumed: one local
    batch makes compute proportional to b (Eq. 9), one worker count above 1 makes synchronisation
    proportional to K (Eq. 10), and without any such count synchronisation counts as free.
    A time measured as 0, or as nothing beside the longest, has no relative error to speak of and
    is left out.

    Raises:
        NotEnoughData: No observations: probe one configuration.
    """
    if not observations:
        raise NotEnoughData("no observation to fit: probe at least one configuration")
    compute = [(o.config.local_batch, o.indicators.compute_time) for o in observations]
    several = [o for o in observations if o.config.workers > 1]
    sync = [(float(o.config.workers), o.indicators.sync_time) for o in several]
    return ParallelModel(*fit_line(compute), *fit_line(sync))


def fit_line(measured: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Fit seconds = fixed + slope · size to (size, seconds) pairs, both coefficients >= 0."""
    longest = max((seconds for _, seconds in measured), default=0.0)
    pairs = [(size, seconds) for size, seconds in measured if seconds > longest * NEGLIGIBLE]
    if not pairs:
        return 0.0, 0.0
    # Sizes and seconds of any unit become about 1, so that the solver's tolerance fits.
    largest = max(size for size, _ in pairs)
    sizes = np.array([size / largest for size, _ in pairs])
    weights = np.array([longest / seconds for _, seconds in pairs])
    if len({size for size, _ in pairs}) == 1:
        slope = float(nnls((sizes * weights)[:, None], np.ones(len(pairs)))[0][0])
        return 0.0, slope * longest / largest
    columns = np.column_stack([weights, sizes * weights])
    fixed, slope = nnls(columns, np.ones(len(pairs)))[0]
    return float(fixed) * longest, float(slope) * longest / largest


def fit_statistical(observations: Sequence[Observation], kappa: float = 1.0) -> StatisticalModel:
    """Take φ from the probes and B_crit = κ φ from it (SCIENCE §2).

    φ is the median of the probes, weighted by what they know of it: their iterations, times the
    square of the gradient's share B / (B + φ) in what was measured. When no observation
    has a noise scale, there is no B_crit: epochs then do not depend on the batch.
    """
    scales = [
        (scale, o.iterations * (o.config.global_batch / (o.config.global_batch + scale)) ** 2)
        for o in observations
        if (scale := o.indicators.noise_scale) is not None
    ]
    if not scales:
        return StatisticalModel(critical_batch=None, noise_scale=None)
    scale = weighted_median(scales)
    return StatisticalModel(critical_batch=kappa * scale, noise_scale=scale)


def weighted_median(weighted: Sequence[tuple[float, float]]) -> float:
    """Return the smallest value with at least half of the weight at or below it."""
    ordered = sorted(weighted)
    half = sum(weight for _, weight in ordered) / 2
    below = 0.0
    for value, weight in ordered:
        below += weight
        if below >= half:
            return value
    raise ValueError("no values")


def mean_relative_error(model: ParallelModel, observations: Sequence[Observation]) -> float:
    """Mean of |predicted / measured - 1| of the iteration time; 0 when none was measured."""
    longest = max((o.indicators.step_time for o in observations), default=0.0)
    errors = [
        abs(model.step_time(o.config) / o.indicators.step_time - 1)
        for o in observations
        if o.indicators.step_time > longest * NEGLIGIBLE
    ]
    return sum(errors) / len(errors) if errors else 0.0
