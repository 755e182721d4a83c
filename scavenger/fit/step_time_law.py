"""StepTimeLaw: the fitted law of seconds per iteration, and why it has this form."""

from __future__ import annotations

from dataclasses import dataclass

from scavenger.fit.step_time_fit import StepTimeFit
from scavenger.models.form import FORMS, USUAL
from scavenger.models.parallel import Growth
from scavenger.models.step_time import ENOUGH_TO_COMPARE


@dataclass(frozen=True, slots=True)
class StepTimeLaw:
    """The fitted law of seconds per iteration (Eqs. 8-10); coefficients in seconds.

    Attributes:
        compute_fixed: Of an iteration, whatever the batch.
        compute_per_sample: Of each sample of the local batch.
        sync_fixed: As soon as there are two workers.
        sync_per_worker: Per worker, or per doubling of the workers where ``growth`` is log.
        sync_across_machines: As soon as there are two machines.
        growth: How synchronisation grows with the workers.
        overlap: q of (c^q + s^q)^(1/q); 1 where nothing overlaps.
        flatness: r of compute (c0^r + (c1 b)^r)^(1/r); 1 for a line.
        spread: Relative standard deviation of one configuration around the law.
        error: Mean of |predicted / measured - 1| at the measured points.
        left_out_error: Root mean square relative error at points left out of the fit, in turn;
            None below five points, and where no fit can do without one.
        why: Why this form.
    """

    compute_fixed: float
    compute_per_sample: float
    sync_fixed: float
    sync_per_worker: float
    sync_across_machines: float
    growth: Growth
    overlap: float
    flatness: float
    spread: float
    error: float
    left_out_error: float | None
    why: str


def describe_steps(fit: StepTimeFit) -> StepTimeLaw:
    """Describe the law of seconds per iteration."""
    model, errors = fit.model, fit.errors
    left_out = fit.left_out_error(fit.form)
    return StepTimeLaw(
        *model.coefficients,
        growth=model.growth,
        overlap=model.overlap,
        flatness=model.flatness,
        spread=0.0 if model.uncertainty is None else model.uncertainty.spread,
        error=sum(map(abs, errors)) / len(errors),
        left_out_error=left_out,
        why=why_form(fit, left_out),
    )


def why_form(fit: StepTimeFit, left_out: float | None) -> str:
    """Say why a form was taken, given its error at points left out of the fit."""
    if fit.laws == "paper":
        return "the paper's lines, as asked for"
    usual, name = USUAL[fit.topology], fit.topology.replace("_", " ")
    if left_out is None:
        if fit.form == usual:
            return f"usual for {name}; forms compete from {ENOUGH_TO_COMPARE} configurations on"
        return "it explains best what was measured of compute alone"
    if fit.form == usual:
        return f"usual for {name}; none of {len(FORMS)} forms predicts left-out points much better"
    usual_error = fit.left_out_error(usual)
    beside = "cannot" if usual_error is None else f"to {usual_error:.1%}"
    return f"it predicts left-out points to {left_out:.1%}, the usual form for {name} {beside}"
