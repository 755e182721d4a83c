"""From observations to a PerformanceModel, whose coefficients are never negative."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from scavenger.grid import grid_of
from scavenger.indicators import Measurement, Observation
from scavenger.models.averaged import StepTimeModel
from scavenger.models.epochs import EpochsSeen, Kappa, Laws, fit_statistical
from scavenger.models.form import FORMS, LINES, Form, Topology
from scavenger.models.performance import PerformanceModel
from scavenger.models.step_time import fit_step_time

NEGLIGIBLE = 1e-12


def fit_performance(
    observations: Sequence[Observation],
    dataset_size: int,
    reference_batch: int,
    epochs_at_reference: float | None,
    *,
    kappa: Kappa = Kappa(),  # noqa: B008
    runs: Sequence[EpochsSeen] = (),
    topology: Topology = "all_reduce",
    laws: Laws = "measured",
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
    parallel = fit_parallel(observations, topology, laws)
    statistical = fit_statistical(observations, kappa, runs, laws)
    return PerformanceModel(
        parallel,
        statistical,
        dataset_size,
        reference_batch,
        epochs_at_reference,
        0.0 if epochs_at_reference is None else epochs_deviation,
    )


def fit_parallel(
    observations: Sequence[Observation],
    topology: Topology = "all_reduce",
    laws: Laws = "measured",
) -> StepTimeModel:
    """Fit iteration time to a job's probes (Eqs. 8-10), the newest of each configuration.

    Raises:
        NotEnoughData: No observations: probe one configuration.
    """
    newest = {o.config: o.measurement for o in observations}
    return fit_step_time(tuple(newest.values()), topology, forms=forms_of(laws))


def forms_of(laws: Laws) -> tuple[Form, ...]:
    """Return the forms of iteration time that laws choose from."""
    return (LINES,) if laws == "paper" else FORMS


def mean_relative_error(model: StepTimeModel, measurements: Sequence[Measurement]) -> float:
    """Mean of |predicted / measured - 1| of the iteration time; 0 when none was measured."""
    longest = max((m.step_time for m in measurements), default=0.0)
    told = [m for m in measurements if m.step_time > longest * NEGLIGIBLE]
    if not told:
        return 0.0
    predicted = model.step_times(grid_of([m.config for m in told]))
    return float(np.mean(np.abs(predicted / [m.step_time for m in told] - 1)))
