"""fit_statistical(): from noise, and from finished runs if there are any, to epochs by batch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.optimize import nnls

from scavenger.grid import Floats
from scavenger.indicators import Observation
from scavenger.models.statistical import RootNoise, StatisticalModel

Laws = Literal["measured", "paper"]

# Prior of κ in B_crit = κ φ: true values of public workloads lie within a factor of 2 (SCIENCE §2).
KAPPA_DEVIATION = 0.7
# How far, as a factor, noise that has not settled lies from the noise that will (SCIENCE §1).
EARLY_NOISE_DEVIATION = 0.5
# How much harder the falling arm has to be argued for than the rising one, from three batches on.
FALLING_ARM_PRIOR = 0.5
# Epochs to target differ from run to run (SCIENCE §2), worth this many batches of evidence.
USUAL_SPREAD = 0.1
USUAL_SPREAD_WORTH = 3.0
# Two batches do not tell how epochs bend between them: with this, 80 % of the epochs in public
# tables lie within the 80 % band of a law fitted to the two extremes.
BEND = 0.25
LEAST_CONSTANT = 1e-3
NEGLIGIBLE = 1e-9


@dataclass(frozen=True, slots=True, order=True)
class EpochsSeen:
    """How many epochs a run at one batch took to its target.

    Attributes:
        global_batch: Samples per iteration.
        epochs: Epochs to target.
    """

    global_batch: int
    epochs: float

    def __post_init__(self) -> None:
        if self.global_batch < 1:
            raise ValueError(f"global_batch must be at least 1, got {self.global_batch}")
        if not (math.isfinite(self.epochs) and self.epochs > 0):
            raise ValueError(f"epochs must be finite and positive, got {self.epochs}")


@dataclass(frozen=True, slots=True)
class Kappa:
    """κ in B_crit = κ φ.

    Attributes:
        value: The estimate.
        deviation: Standard deviation of its logarithm, 0 where it is known.
    """

    value: float = 1.0
    deviation: float = KAPPA_DEVIATION

    def __post_init__(self) -> None:
        if not (math.isfinite(self.value) and self.value > 0):
            raise ValueError(f"value must be finite and positive, got {self.value}")
        if not (math.isfinite(self.deviation) and self.deviation >= 0):
            raise ValueError(f"deviation must be finite and not negative, got {self.deviation}")


def fit_statistical(
    observations: Sequence[Observation],
    kappa: Kappa = Kappa(),
    runs: Sequence[EpochsSeen] = (),
    laws: Laws = "measured",
) -> StatisticalModel:
    """Fit the law of epochs to what is known of it (SCIENCE §2).

    Runs at two or more batches decide for themselves; before, the rising arm is the prior, with
    B_crit = κ φ. φ is the median of the probes, weighted by what they know of it: their
    iterations, times the square of the gradient's share B / (B + φ) in what was measured. Noise
    that had not settled counts only while there is no other, and widens B_crit. When no
    observation has a noise scale and no runs differ, epochs do not depend on the batch.
    """
    scale = noise_scale_of(observations)
    if laws == "paper":
        return follow_paper(observations, scale, runs)
    points = average_runs(runs)
    if len(points) > 1:
        return fit_epochs(points, scale)
    if scale is None:
        return StatisticalModel(critical_batch=None, noise_scale=None)
    is_early = not any(observation.has_settled_noise for observation in observations)
    return StatisticalModel(
        critical_batch=kappa.value * scale,
        noise_scale=scale,
        critical_deviation=math.hypot(kappa.deviation, EARLY_NOISE_DEVIATION * is_early),
    )


def noise_scale_of(observations: Sequence[Observation]) -> float | None:
    """Return φ of the probes in samples; None where none of them could tell."""
    settled = [observation for observation in observations if observation.has_settled_noise]
    scales = [
        (scale, o.iterations * (o.config.global_batch / (o.config.global_batch + scale)) ** 2)
        for o in settled or observations
        if (scale := o.indicators.noise_scale) is not None
    ]
    return weighted_median(scales) if scales else None


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


def average_runs(runs: Sequence[EpochsSeen]) -> tuple[EpochsSeen, ...]:
    """Return one figure for each batch, the geometric mean of its runs."""
    batches = sorted({run.global_batch for run in runs})
    return tuple(
        EpochsSeen(batch, math.exp(mean_log([r.epochs for r in runs if r.global_batch == batch])))
        for batch in batches
    )


def mean_log(values: Sequence[float]) -> float:
    """Return the mean of logarithms."""
    return sum(map(math.log, values)) / len(values)


def fit_epochs(runs: Sequence[EpochsSeen], noise_scale: float | None) -> StatisticalModel:
    """Fit e(B) = a + θ γ̂(B) + c B to runs at two or more batches, all terms >= 0.

    Two batches choose the arm by their slope; three or more fit all terms, the falling arm with a
    prior against it. On relative error, so that long runs do not decide alone.
    """
    batches = np.array([run.global_batch for run in runs], dtype=float)
    epochs = np.array([run.epochs for run in runs])
    offset = noise_scale or 0.0
    smallest, largest = batches[0], batches[-1]
    columns = np.column_stack(
        [np.ones(len(runs)), (smallest + offset) / (batches + offset), batches / largest]
    )
    allowed = np.array([1.0, 1.0, 1.0])
    if len(runs) == 2:
        allowed[1 if epochs[-1] >= epochs[0] else 2] = 0.0
    rows = columns * allowed / epochs[:, None]
    typical = 1 / float(np.mean(1 / epochs))
    prior = np.array([[0.0, FALLING_ARM_PRIOR / typical, 0.0]]) * (len(runs) > 2)
    answer = nnls(np.vstack([rows, prior]), np.append(np.ones(len(runs)), 0.0))[0]
    # Rounding is no arm.
    answer[answer < NEGLIGIBLE * typical] = 0.0
    constant = max(answer[0], LEAST_CONSTANT * typical)
    predicted = np.maximum(columns @ (answer * allowed), NEGLIGIBLE * typical)
    return StatisticalModel(
        critical_batch=float(constant * largest / answer[2]) if answer[2] > 0 else None,
        noise_scale=noise_scale,
        noisy_samples=float(answer[1] * (smallest + offset) / constant),
        spread=spread_of(np.log(predicted / epochs), int(np.count_nonzero(answer))),
        bend=BEND if len(runs) == 2 else 0.0,
        run_batches=tuple(run.global_batch for run in runs),
    )


def spread_of(errors: Floats, terms: int) -> float:
    """Relative standard deviation around a law, from its errors and what is usual."""
    free = max(len(errors) - terms, 0)
    usual = USUAL_SPREAD_WORTH * USUAL_SPREAD**2
    return math.sqrt((usual + float(np.square(errors).sum())) / (USUAL_SPREAD_WORTH + free))


def follow_paper(
    observations: Sequence[Observation], scale: float | None, runs: Sequence[EpochsSeen]
) -> StatisticalModel:
    """Fit the paper's laws: γ/K = n0 + n1 / sqrt(B) over all K, and e = e* + θ γ/K (Eqs. 6, 7).

    Without runs at two batches e* and θ are unknown, and epochs count as proportional to noise.
    """
    points = average_runs(runs)
    measured = [
        (float(o.config.global_batch), o.indicators.noise / o.config.workers)
        for o in observations
        if o.indicators.noise and o.config.workers > 1
    ]
    if len(points) > 1:
        measured = [(float(run.global_batch), run.epochs) for run in points]
    if not measured:
        return StatisticalModel(critical_batch=None, noise_scale=scale)
    batches, values = (np.array(column) for column in zip(*measured, strict=True))
    roots = 1 / np.sqrt(batches)
    is_one = len(set(batches)) == 1
    columns = np.column_stack([np.zeros_like(roots) if is_one else np.ones_like(roots), roots])
    floor, per_root = nnls(columns / values[:, None], np.ones(len(values)))[0]
    if floor + per_root <= 0:
        return StatisticalModel(critical_batch=None, noise_scale=scale)
    return StatisticalModel(
        critical_batch=None, noise_scale=scale, root_noise=RootNoise(float(floor), float(per_root))
    )


def convert_run(
    samples: Mapping[int, float], dataset_size: int, law: StatisticalModel
) -> EpochsSeen:
    """Say what a run that changed its batch would have taken at the one it mostly trained at.

    e(B*) = sum over its batches of S_B / D · e(B*) / e(B): samples trained at B* count as they
    are, those of other batches by the progress they made (SCIENCE §2).

    Args:
        samples: Samples trained at each global batch, at least one batch.
        dataset_size: Samples of one epoch, D.
        law: Epochs by batch as far as they are known.
    """
    main = max(samples, key=lambda batch: (samples[batch], batch))
    epochs = [
        count / dataset_size * law.relative_epochs(main, batch) for batch, count in samples.items()
    ]
    return EpochsSeen(main, sum(epochs))


def learn_kappa(runs: Sequence[EpochsSeen], noise_scale: float | None, prior: Kappa) -> Kappa:
    """Correct κ by what finished runs at several batches took; the prior where they cannot tell."""
    points = average_runs(runs)
    if len(points) < 2 or not noise_scale or not prior.deviation:
        return prior
    seen = fit_epochs(points, noise_scale).critical_batch
    if seen is None:
        return prior
    usual = prior.deviation**-2
    told = USUAL_SPREAD**-2 * (math.log(points[-1].global_batch / points[0].global_batch) / 4) ** 2
    mean = (usual * math.log(prior.value) + told * math.log(seen / noise_scale)) / (usual + told)
    return Kappa(math.exp(mean), (usual + told) ** -0.5)


def contradiction(model: StatisticalModel, runs: Sequence[EpochsSeen]) -> str | None:
    """Say so when finished runs contradict the sign of the law in use; None while they agree."""
    points = average_runs(runs)
    if len(points) < 2:
        return None
    first, last = points[0], points[-1]
    predicted = model.relative_epochs(last.global_batch, first.global_batch)
    seen = last.epochs / first.epochs
    if math.log(predicted) * math.log(seen) >= 0 or abs(math.log(seen)) <= USUAL_SPREAD:
        return None
    return (
        f"epochs went from {first.epochs:.3g} at batch {first.global_batch} to {last.epochs:.3g} "
        f"at batch {last.global_batch}, but the law in use, {model.law}, says "
        f"{'more' if predicted > 1 else 'fewer'} for larger batches: check lr_scaling"
    )
