"""PerformanceModel: time to target from iterations and seconds per iteration (Eqs. 3, 4).

``fit_performance`` fits all of it to the probes of one job; no coefficient is ever negative.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scavenger.cluster import ConfigColumns, Floats, config_columns
from scavenger.measurement.profiling import Measurement, Observation
from scavenger.models.epochs import EpochsLaw, FinishedRun, Kappa, LawFamily, fit_epochs_law
from scavenger.models.forms import ALL_FORMS, PAPER_FORM, StepTimeForm, Topology
from scavenger.models.iteration_time import StepTimeModel
from scavenger.models.iteration_time_fitting import fit_step_time
from scavenger.number_checks import require_above_zero, require_not_negative


@dataclass(frozen=True, slots=True)
class PerformanceModel:
    """Everything that is known about a job's speed (Eqs. 3 and 4).

    Attributes:
        parallel: Seconds per iteration.
        statistical: What a batch costs in epochs.
        dataset_size: Samples of one epoch, D.
        reference_batch: B0 in samples, the batch the user's recipe was written for.
        epochs_at_reference: Epochs to target at ``reference_batch``; None while unknown, when
            every result is per epoch at the reference batch.
        epochs_deviation: Relative standard deviation of ``epochs_at_reference``, 0 where it is
            what the user asked for; runs to a metric differ.
    """

    parallel: StepTimeModel
    statistical: EpochsLaw
    dataset_size: int
    reference_batch: int
    epochs_at_reference: float | None
    epochs_deviation: float = 0.0

    def __post_init__(self) -> None:
        for name in ("dataset_size", "reference_batch"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        require_above_zero(self, "epochs_at_reference")
        require_not_negative(self, "epochs_deviation")

    def epochs_needed(self, global_batch: int) -> float:
        """Epochs to target, e(B); with unknown epochs relative to e(B0) = 1 (Eq. 6)."""
        at_reference = 1.0 if self.epochs_at_reference is None else self.epochs_at_reference
        return at_reference * self.statistical.relative_epochs(global_batch, self.reference_batch)

    def progress_per_iteration(self, global_batch: int) -> float:
        """Reference epochs one iteration is worth, B / D · e(B0) / e(B) (SCIENCE §2)."""
        return self.statistical.progress_per_iteration(
            global_batch, self.reference_batch, self.dataset_size
        )

    def epochs_on_grid(self, grid: ConfigColumns) -> Floats:
        """Epochs to target of each configuration, e(B) (Eq. 6)."""
        at_reference = 1.0 if self.epochs_at_reference is None else self.epochs_at_reference
        shape = self.statistical.unscaled_epochs(
            np.append(grid.global_batch, float(self.reference_batch))
        )
        return np.asarray(at_reference * shape[:-1] / shape[-1])

    def iterations(self, grid: ConfigColumns) -> Floats:
        """Iterations to target of each configuration, e D / B (Eq. 4)."""
        return self.epochs_on_grid(grid) * self.dataset_size / grid.global_batch

    def deviations(self, grid: ConfigColumns, is_measured: NDArray[np.bool_]) -> Floats:
        """Relative standard deviation of time to target, less where an iteration was timed."""
        epochs = self.statistical.deviations(grid.global_batch, self.reference_batch)
        steps = np.where(
            is_measured, self.parallel.repeat_deviation, self.parallel.deviations(grid)
        )
        return np.asarray(np.sqrt(epochs**2 + self.epochs_deviation**2 + steps**2))


NEGLIGIBLE_STEP_TIME = 1e-12


def fit_performance(
    observations: Sequence[Observation],
    dataset_size: int,
    reference_batch: int,
    epochs_at_reference: float | None,
    *,
    kappa: Kappa = Kappa(),  # noqa: B008
    runs: Sequence[FinishedRun] = (),
    topology: Topology = "all_reduce",
    laws: LawFamily = "measured",
    epochs_deviation: float = 0.0,
) -> PerformanceModel:
    """Fit everything that can be known from a job's probes.

    Args:
        observations: Settled probes, at least one.
        dataset_size: Samples of one epoch.
        reference_batch: Batch in samples at which ``epochs_at_reference`` holds.
        epochs_at_reference: Epochs to target; None while unknown.
        kappa: κ of B_crit = κ φ, learned from finished jobs (SCIENCE §2).
        runs: What finished runs to the same target took, by batch.
        topology: How gradients travel.
        laws: ``measured`` lets the data choose among the forms; ``paper`` takes the paper's.
        epochs_deviation: Relative standard deviation of ``epochs_at_reference``.

    Raises:
        NotEnoughData: No observations: probe one configuration.
    """
    parallel = fit_step_time_to_probes(observations, topology, laws)
    statistical = fit_epochs_law(observations, kappa, runs, laws)
    return PerformanceModel(
        parallel,
        statistical,
        dataset_size,
        reference_batch,
        epochs_at_reference,
        0.0 if epochs_at_reference is None else epochs_deviation,
    )


def fit_step_time_to_probes(
    observations: Sequence[Observation],
    topology: Topology = "all_reduce",
    laws: LawFamily = "measured",
) -> StepTimeModel:
    """Fit iteration time to a job's probes (Eqs. 8-10), the newest of each configuration.

    Raises:
        NotEnoughData: No observations: probe one configuration.
    """
    newest = {o.config: o.measurement for o in observations}
    return fit_step_time(tuple(newest.values()), topology, forms=forms_for(laws))


def forms_for(laws: LawFamily) -> tuple[StepTimeForm, ...]:
    """Return the forms of iteration time that laws choose from."""
    return (PAPER_FORM,) if laws == "paper" else ALL_FORMS


def mean_relative_error(model: StepTimeModel, measurements: Sequence[Measurement]) -> float:
    """Mean of |predicted / measured - 1| of the iteration time; 0 when none was measured."""
    longest = max((m.step_time for m in measurements), default=0.0)
    told = [m for m in measurements if m.step_time > longest * NEGLIGIBLE_STEP_TIME]
    if not told:
        return 0.0
    predicted = model.step_times(config_columns([m.config for m in told]))
    return float(np.mean(np.abs(predicted / [m.step_time for m in told] - 1)))
