"""Epochs to the target by global batch (Eqs. 6 and 7): the law, and how it is fitted.

Finished runs decide the law where there are enough of them; before, measured noise and the prior of
κ in B_crit = κ φ stand in.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from scavenger.cluster import ClusterConfig, Floats
from scavenger.errors import NotEnoughData
from scavenger.measurement.noise import noise_at
from scavenger.measurement.profiling import Observation
from scavenger.models.forms import solve_nnls
from scavenger.number_checks import require_above_zero, require_not_negative


@dataclass(frozen=True, slots=True)
class RootNoiseLaw:
    """The paper's noise, which falls with the root of the batch: γ/K = n0 + n1 / sqrt(B) (Eq. 7).

    Attributes:
        floor: γ/K that no batch removes.
        per_root: n1, in roots of samples.
    """

    floor: float
    per_root: float

    def __post_init__(self) -> None:
        require_not_negative(self, "floor", "per_root")
        if self.floor + self.per_root <= 0:
            raise ValueError("floor and per_root are both 0: there is no noise to follow")

    def normalized(self, global_batch: Floats) -> Floats:
        """γ/K of each batch (Eq. 7)."""
        return np.asarray(self.floor + self.per_root / np.sqrt(global_batch))


@dataclass(frozen=True, slots=True)
class EpochsLaw:
    """Epochs by batch, e(B) ∝ 1 + w / (B + φ) + B / B_crit, every term >= 0 (SCIENCE §2).

    The middle term is the paper's, epochs in proportion to noise (Eq. 6), with the exact noise
    ρ = φ / (B + φ) and w = θ φ. The last is the rising arm, right of the best learning rate; its
    prior is B_crit = κ φ. With ``root_noise`` it is the paper's law instead, e ∝ γ/K (Eqs. 6, 7).

    Attributes:
        critical_batch: B_crit in samples, at which the rising arm equals the constant. None where
            nothing tells: no batch is then held to cost epochs. Zero for gradients
            without noise, where every further sample is wasted.
        noise_scale: φ in samples; None where it could not be measured.
        noisy_samples: w in samples, 0 without a falling arm.
        root_noise: The paper's law of noise; None for the exact one.
        critical_deviation: Standard deviation of the logarithm of ``critical_batch``.
        spread: Relative standard deviation of epochs around the law where it was fitted to runs.
        bend: Further relative standard deviation at batches that were not run: of a law fitted to
            two batches nothing says how epochs bend between them and beyond.
        run_batches: The batches of these runs, in samples.
    """

    critical_batch: float | None
    noise_scale: float | None
    noisy_samples: float = 0.0
    root_noise: RootNoiseLaw | None = None
    critical_deviation: float = 0.0
    spread: float = 0.0
    bend: float = 0.0
    run_batches: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        require_not_negative(
            self,
            "critical_batch",
            "noise_scale",
            "noisy_samples",
            "critical_deviation",
            "spread",
            "bend",
        )

    def relative_epochs(self, global_batch: int, reference_batch: int) -> float:
        """Epochs at one batch per epoch at another, e(B) / e(B0) (Eq. 6, SCIENCE §2).

        >>> EpochsLaw(critical_batch=100, noise_scale=None).relative_epochs(300, 100)
        2.0
        """
        shape = self.unscaled_epochs(np.array([global_batch, reference_batch], dtype=float))
        return float(shape[0] / shape[1])

    def unscaled_epochs(self, global_batch: Floats) -> Floats:
        """Epochs of each batch up to a factor; only ratios mean anything."""
        if self.root_noise is not None:
            return self.root_noise.normalized(global_batch)
        falling = self.noisy_samples / (global_batch + (self.noise_scale or 0.0))
        if self.critical_batch is None:
            return np.asarray(1 + falling)
        # Multiplied by B_crit, which may be 0.
        return np.asarray((1 + falling) * self.critical_batch + global_batch)

    def deviations(self, global_batch: Floats, reference_batch: int) -> Floats:
        """Relative standard deviation of e(B) / e(B0), 0 at the reference batch itself."""
        batches = np.append(global_batch, float(reference_batch))
        rising = self.rising_share(batches)
        unknown = (rising[:-1] - rising[-1]) * self.critical_deviation
        elsewhere = np.hypot(self.spread, self._bends(batches))
        is_reference = global_batch == reference_batch
        return np.asarray(np.hypot(unknown, np.where(is_reference, 0.0, elsewhere)))

    def _bends(self, batches: Floats) -> Floats:
        """Deviation that a bend may cause between each batch and the last."""
        if not self.bend:
            return np.zeros(len(batches) - 1)
        bends = np.where(np.isin(batches, self.run_batches), 0.0, self.bend)
        return np.asarray(np.hypot(bends[:-1], bends[-1]))

    def rising_share(self, global_batch: Floats) -> Floats:
        """Share of the rising arm in each batch's epochs; how they follow 1 / B_crit."""
        if self.critical_batch is None or self.root_noise is not None:
            return np.zeros_like(global_batch)
        return np.asarray(global_batch / self.unscaled_epochs(global_batch))

    def progress_per_iteration(
        self, global_batch: int, reference_batch: int, dataset_size: int
    ) -> float:
        """Reference epochs one iteration is worth, B / D · e(B0) / e(B) (SCIENCE §2).

        Work done at any configuration counts in this unit, so a target known in reference epochs
        is reached when the progress of all iterations adds up to it.
        """
        relative = self.relative_epochs(global_batch, reference_batch)
        return global_batch / dataset_size / relative

    def noise(self, config: ClusterConfig) -> float | None:
        """Predicted noise γ of a configuration (Eqs. 2 and 7); None without a noise scale."""
        if self.root_noise is not None:
            batch = np.array([config.global_batch], dtype=float)
            return config.workers * float(self.root_noise.normalized(batch)[0])
        if self.noise_scale is None:
            return None
        return noise_at(self.noise_scale, config)

    def at_noise_scale(self, noise_scale: float) -> EpochsLaw:
        """Return the law at another φ in samples: B_crit = κ φ and w = θ φ follow it, κ and θ stay.

        A law that knows no noise scale has nothing to follow, and stays as it is.

        >>> EpochsLaw(critical_batch=100, noise_scale=50).at_noise_scale(150).critical_batch
        300.0
        """
        if not self.noise_scale:
            return self
        critical, factor = self.critical_batch, noise_scale / self.noise_scale
        return replace(
            self,
            noise_scale=noise_scale,
            critical_batch=None if critical is None else critical * factor,
            noisy_samples=self.noisy_samples * factor,
        )

    @property
    def formula(self) -> str:
        """The law in use, in symbols."""
        if self.root_noise is not None:
            return "e ∝ γ/K = n0 + n1/√B"
        terms = ["1"]
        if self.noisy_samples:
            terms.append("w/(B + φ)")
        if self.critical_batch is not None:
            terms.append("B/B_crit")
        return f"e ∝ {' + '.join(terms)}"


LawFamily = Literal["measured", "paper"]

# Prior of κ in B_crit = κ φ: true values of public workloads lie within a factor of 2 (SCIENCE §2).
KAPPA_DEVIATION = 0.7
# How far, as a factor, noise that has not settled lies from the noise that will (SCIENCE §1).
EARLY_NOISE_DEVIATION = 0.5
# How much harder the falling arm has to be argued for than the rising one, from three batches on.
FALLING_ARM_PRIOR = 0.5
# Epochs to target differ from run to run (SCIENCE §2), worth this many batches of evidence.
EPOCHS_SPREAD = 0.1
EPOCHS_SPREAD_PRIOR_WEIGHT = 3.0
# Two batches do not tell how epochs bend between them: with this, 80 % of the epochs in public
# tables lie within the 80 % band of a law fitted to the two extremes.
BEND_DEVIATION = 0.25
MIN_CONSTANT_SHARE = 1e-3
NEGLIGIBLE_EPOCHS = 1e-9


@dataclass(frozen=True, slots=True, order=True)
class FinishedRun:
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
        require_above_zero(self, "epochs")


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
        require_above_zero(self, "value")
        require_not_negative(self, "deviation")


def fit_epochs_law(
    observations: Sequence[Observation],
    kappa: Kappa = Kappa(),
    runs: Sequence[FinishedRun] = (),
    laws: LawFamily = "measured",
) -> EpochsLaw:
    """Fit the law of epochs to what is known of it (SCIENCE §2).

    Runs at two or more batches decide for themselves; before, the rising arm is the prior, with
    B_crit = κ φ. φ is the median of the probes, weighted by what they know of it: their
    iterations, times the square of the gradient's share B / (B + φ) in what was measured. Noise
    that had not settled counts only while there is no other, and widens B_crit. When no
    observation has a noise scale and no runs differ, epochs do not depend on the batch.
    """
    scale = median_noise_scale(observations)
    if laws == "paper":
        return fit_paper_laws(observations, scale, runs)
    points = average_runs(runs)
    if len(points) > 1:
        return fit_epochs_to_runs(points, scale)
    if scale is None:
        return EpochsLaw(critical_batch=None, noise_scale=None)
    is_early = not any(observation.has_settled_noise for observation in observations)
    return EpochsLaw(
        critical_batch=kappa.value * scale,
        noise_scale=scale,
        critical_deviation=math.hypot(kappa.deviation, EARLY_NOISE_DEVIATION * is_early),
    )


def median_noise_scale(observations: Sequence[Observation]) -> float | None:
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


def average_runs(runs: Sequence[FinishedRun]) -> tuple[FinishedRun, ...]:
    """Return one figure for each batch, the geometric mean of its runs."""
    logs: dict[int, list[float]] = defaultdict(list)
    for run in runs:
        logs[run.global_batch].append(math.log(run.epochs))
    return tuple(
        FinishedRun(batch, math.exp(sum(own) / len(own))) for batch, own in sorted(logs.items())
    )


def fit_epochs_to_runs(runs: Sequence[FinishedRun], noise_scale: float | None) -> EpochsLaw:
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
    answer = solve_nnls(np.vstack([rows, prior]), np.append(np.ones(len(runs)), 0.0))
    # Rounding is no arm.
    answer[answer < NEGLIGIBLE_EPOCHS * typical] = 0.0
    constant = max(answer[0], MIN_CONSTANT_SHARE * typical)
    predicted = np.maximum(columns @ (answer * allowed), NEGLIGIBLE_EPOCHS * typical)
    return EpochsLaw(
        critical_batch=float(constant * largest / answer[2]) if answer[2] > 0 else None,
        noise_scale=noise_scale,
        noisy_samples=float(answer[1] * (smallest + offset) / constant),
        spread=epochs_spread(np.log(predicted / epochs), int(np.count_nonzero(answer))),
        bend=BEND_DEVIATION if len(runs) == 2 else 0.0,
        run_batches=tuple(run.global_batch for run in runs),
    )


def epochs_spread(errors: Floats, terms: int) -> float:
    """Relative standard deviation around a law, from its errors and what is usual."""
    free = max(len(errors) - terms, 0)
    usual = EPOCHS_SPREAD_PRIOR_WEIGHT * EPOCHS_SPREAD**2
    return math.sqrt((usual + float(np.square(errors).sum())) / (EPOCHS_SPREAD_PRIOR_WEIGHT + free))


def fit_paper_laws(
    observations: Sequence[Observation], scale: float | None, runs: Sequence[FinishedRun]
) -> EpochsLaw:
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
    law = None
    if measured:
        law = fit_root_noise(*(np.array(column) for column in zip(*measured, strict=True)))
    return EpochsLaw(critical_batch=None, noise_scale=scale, root_noise=law)


def fit_root_noise(batches: Floats, values: Floats) -> RootNoiseLaw | None:
    """Fit n0 + n1 / sqrt(B) on relative error (Eq. 7); None where neither explains anything."""
    roots = 1 / np.sqrt(batches)
    is_one = len(set(batches)) == 1
    columns = np.column_stack([np.zeros_like(roots) if is_one else np.ones_like(roots), roots])
    floor, per_root = solve_nnls(columns / values[:, None], np.ones(len(values)))
    return RootNoiseLaw(float(floor), float(per_root)) if floor + per_root > 0 else None


def convert_to_one_batch(
    samples: Mapping[int, float], dataset_size: int, law: EpochsLaw
) -> FinishedRun:
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
    return FinishedRun(main, sum(epochs))


def learn_kappa(runs: Sequence[FinishedRun], noise_scale: float | None, prior: Kappa) -> Kappa:
    """Correct κ by what finished runs at several batches took; the prior where they cannot tell."""
    points = average_runs(runs)
    if len(points) < 2 or not noise_scale or not prior.deviation:
        return prior
    seen = fit_epochs_to_runs(points, noise_scale).critical_batch
    if seen is None:
        return prior
    usual = prior.deviation**-2
    told = EPOCHS_SPREAD**-2 * (math.log(points[-1].global_batch / points[0].global_batch) / 4) ** 2
    mean = (usual * math.log(prior.value) + told * math.log(seen / noise_scale)) / (usual + told)
    return Kappa(math.exp(mean), (usual + told) ** -0.5)


def explain_contradiction(model: EpochsLaw, runs: Sequence[FinishedRun]) -> str | None:
    """Say so when finished runs contradict the sign of the law in use; None while they agree."""
    points = average_runs(runs)
    if len(points) < 2:
        return None
    first, last = points[0], points[-1]
    predicted = model.relative_epochs(last.global_batch, first.global_batch)
    seen = last.epochs / first.epochs
    if math.log(predicted) * math.log(seen) >= 0 or abs(math.log(seen)) <= EPOCHS_SPREAD:
        return None
    return (
        f"epochs went from {first.epochs:.3g} at batch {first.global_batch} to {last.epochs:.3g} "
        f"at batch {last.global_batch}, but the law in use, {model.formula}, says "
        f"{'more' if predicted > 1 else 'fewer'} for larger batches: check lr_scaling"
    )


def epochs_at(model: EpochsLaw, runs: Sequence[FinishedRun], global_batch: int) -> float:
    """Return epochs to target at a batch, by relative least squares on runs.

    Raises:
        NotEnoughData: No run, so only ratios of epochs are known: finish one.
    """
    if not runs:
        raise NotEnoughData("no finished run tells how many epochs the target takes")
    batches = np.array([run.global_batch for run in runs], dtype=float)
    ratios = model.unscaled_epochs(batches) / np.array([run.epochs for run in runs])
    factor = ratios.sum() / np.square(ratios).sum()
    return float(factor * model.unscaled_epochs(np.array([float(global_batch)]))[0])
