"""EpochsLaw: the law of epochs by batch in use, and where it comes from."""

from __future__ import annotations

from dataclasses import dataclass

from scavenger.fit.epochs_fit import EpochsFit
from scavenger.fit.request import FitRequest
from scavenger.models.epochs import average_runs
from scavenger.models.statistical import StatisticalModel
from scavenger.tables.step_table import StepTable


@dataclass(frozen=True, slots=True)
class EpochsLaw:
    """The law of epochs by batch in use (Eq. 6).

    Attributes:
        law: In symbols.
        noise_scale: φ in samples; None where unknown.
        critical_batch: B_crit in samples; None without a rising arm.
        noisy_samples: w in samples; 0 without a falling arm.
        at_batch: Reference batch in samples.
        epochs: Epochs to target there; None while unknown.
        spread: Relative standard deviation of epochs around the law, at batches that were run.
        why: Where it comes from.
    """

    law: str
    noise_scale: float | None
    critical_batch: float | None
    noisy_samples: float
    at_batch: int
    epochs: float | None
    spread: float
    why: str


def describe_epochs(fit: EpochsFit, request: FitRequest, table: StepTable) -> EpochsLaw:
    """Describe the law of epochs and where it comes from."""
    law = fit.model
    return EpochsLaw(
        law=law.law,
        noise_scale=law.noise_scale,
        critical_batch=law.critical_batch,
        noisy_samples=law.noisy_samples,
        at_batch=fit.reference_batch,
        epochs=fit.epochs,
        spread=law.spread,
        why=why_epochs(law, request, table),
    )


def why_epochs(law: StatisticalModel, request: FitRequest, table: StepTable) -> str:
    """Say where the law of epochs comes from."""
    runs = average_runs(request.runs)
    if len(runs) > 1:
        bend = f", which say nothing of a bend: ±{law.bend:.0%} at others" if law.bend else ""
        return f"fitted to runs at {len(runs)} batches{bend}"
    if request.laws == "paper" and law.root_noise is not None:
        return f"epochs follow the noise of {len(table.observations)} configurations"
    if law.noise_scale is None:
        return "nothing tells what a batch costs in epochs, so they count as equal for all batches"
    source = "as given" if request.noise_scale is not None else "as measured"
    return f"a prior: B_crit is the noise scale, {source}; runs at two batches would decide"
