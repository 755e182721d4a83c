"""StepTimeLaw: the fitted laws of seconds per iteration, and why they have these forms."""

from __future__ import annotations

from dataclasses import dataclass

from scavenger.fit.step_time_fit import StepTimeFit
from scavenger.models.form import USUAL
from scavenger.models.parallel import Growth, ParallelModel
from scavenger.models.step_time import ENOUGH_TO_COMPARE


@dataclass(frozen=True, slots=True)
class LawShare:
    """One of the laws whose seconds are averaged (Eqs. 8-10); coefficients in seconds.

    Attributes:
        weight: Its share of the average, as an exponent; all add up to 1.
        compute_fixed: Of an iteration, whatever the batch.
        compute_per_sample: Of each sample of the local batch.
        sync_fixed: As soon as there are two workers.
        sync_per_worker: Per worker, or per doubling of the workers where ``growth`` is log.
        sync_across_machines: As soon as there are two machines.
        growth: How synchronisation grows with the workers.
        overlap: q of (c^q + s^q)^(1/q); 1 where nothing overlaps.
        flatness: r of compute (c0^r + (c1 b)^r)^(1/r); 1 for a line.
    """

    weight: float
    compute_fixed: float
    compute_per_sample: float
    sync_fixed: float
    sync_per_worker: float
    sync_across_machines: float
    growth: Growth
    overlap: float
    flatness: float


@dataclass(frozen=True, slots=True)
class StepTimeLaw:
    """The fitted laws of seconds per iteration (Eqs. 8-10).

    The coefficients are those of the heaviest law. Seconds are the geometric mean of all.

    Attributes:
        compute_fixed: Of an iteration, whatever the batch.
        compute_per_sample: Of each sample of the local batch.
        sync_fixed: As soon as there are two workers.
        sync_per_worker: Per worker, or per doubling of the workers where ``growth`` is log.
        sync_across_machines: As soon as there are two machines.
        growth: How synchronisation grows with the workers.
        overlap: q of (c^q + s^q)^(1/q); 1 where nothing overlaps.
        flatness: r of compute (c0^r + (c1 b)^r)^(1/r); 1 for a line.
        averaged: All laws, heaviest first; one where a single law is in use.
        spread: Relative standard deviation of one configuration around the laws.
        error: Mean of |predicted / measured - 1| at the measured points.
        left_out_error: Root mean square relative error at points left out of the fit, in turn;
            None below five points, and where no fit can do without one.
        why: Why these forms.
    """

    compute_fixed: float
    compute_per_sample: float
    sync_fixed: float
    sync_per_worker: float
    sync_across_machines: float
    growth: Growth
    overlap: float
    flatness: float
    averaged: tuple[LawShare, ...]
    spread: float
    error: float
    left_out_error: float | None
    why: str


def describe_steps(fit: StepTimeFit) -> StepTimeLaw:
    """Describe the laws of seconds per iteration."""
    model, errors = fit.model, fit.errors
    heaviest = model.laws[0]
    pairs = zip(model.weights, model.laws, strict=True)
    return StepTimeLaw(
        *heaviest.coefficients,
        growth=heaviest.growth,
        overlap=heaviest.overlap,
        flatness=heaviest.flatness,
        averaged=tuple(share_of(weight, law) for weight, law in pairs),
        spread=model.spread or 0.0,
        error=sum(map(abs, errors)) / len(errors),
        left_out_error=fit.left_out_error,
        why=why_forms(fit),
    )


def share_of(weight: float, law: ParallelModel) -> LawShare:
    """Describe one of the laws."""
    return LawShare(weight, *law.coefficients, law.growth, law.overlap, law.flatness)


def why_forms(fit: StepTimeFit) -> str:
    """Say why these forms are in use."""
    if fit.laws == "paper":
        return "the paper's lines, as asked for"
    usual = USUAL[fit.topology]
    if len(fit.measurements) >= ENOUGH_TO_COMPARE:
        return "each weighs as much as it predicts points that it was not fitted to"
    if all(each.form == usual for each in fit.candidates):
        name = fit.topology.replace("_", " ")
        return f"usual for {name}; forms compete from {ENOUGH_TO_COMPARE} configurations on"
    return "it explains best what was measured of compute alone"
