"""A plan that has aged: noise grows while a job trains, and with it the batch that pays best.

Only the work that is left is planned anew, with the money and time that are left, and only what
saves more than a resize takes is changed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from scavenger.cluster import ClusterConfig
from scavenger.errors import NothingFeasible
from scavenger.measurement.stability import detect_drift
from scavenger.models.performance import PerformanceModel
from scavenger.planning.curve import TradeoffPoint, predict_curve
from scavenger.planning.decision import time_weight_of
from scavenger.planning.objectives import Within
from scavenger.planning.search.value_of_information import log_loss
from scavenger.planning.state import CurvePreview, PlanningState, base_objective
from service.reconciler.actions import Replan
from service.state.curves import CurveDrawing
from service.state.job_state import JobState

LEAST_SAVING = 0.03


@dataclass(frozen=True, slots=True)
class Remainder:
    """What is left of a job.

    Attributes:
        epochs: Reference epochs to the target; None while it is not known how many it takes.
        most_epochs: Reference epochs until training stops anyway.
        money: Dollars it may still spend; None without limit.
        time: Seconds it may still take; None without limit.
    """

    epochs: float | None
    most_epochs: float
    money: float | None
    time: float | None

    @property
    def is_over(self) -> bool:
        """Tell whether nothing is left to plan."""
        figures = (self.epochs, self.most_epochs, self.money, self.time)
        return any(left is not None and left <= 0 for left in figures)


@dataclass(frozen=True, slots=True)
class Better:
    """A configuration that is worth a resize.

    Attributes:
        drawing: The curve of what is left, from which it was chosen.
    """

    config: ClusterConfig
    drawing: CurveDrawing


def replan(state: JobState) -> Replan | None:
    """The noise scale has left the one the configuration was chosen with: choose again."""
    directive, chosen, level = state.directive, state.job.chosen, state.job.spec.level
    if chosen is None or directive is None or directive.config != chosen or level == "observe":
        return None
    if not state.is_review_due:
        return None
    fitted_model = state.knowledge.fitted_model()
    planned = None if fitted_model is None else fitted_model.model.statistical.noise_scale
    if planned is None or what_is_left(state).is_over:
        return None
    drift = detect_drift(state.steps, chosen.global_batch, planned)
    if not drift.has_drifted or drift.noise_scale is None:
        return None
    better, why = choose_again(state, chosen, drift.noise_scale)
    said = f"{drift.why} since the choice: {why}"
    if level != "control":
        return Replan(None, drift.noise_scale, f"{said}; the job is only advised")
    if better is None:
        return Replan(None, drift.noise_scale, said)
    return Replan(better.config, drift.noise_scale, said, better.drawing)


def what_is_left(state: JobState) -> Remainder:
    """Return what is left of the target, and of the limits."""
    spec, expected = state.job.spec, state.knowledge.expected_epochs()
    done = state.epochs
    cap, longest = spec.limits.max_cost, spec.limits.max_time
    return Remainder(
        epochs=None if expected is None else expected - done,
        most_epochs=spec.stop_rule.max_progress - done,
        money=None if cap is None else float(cap - state.accrued),
        time=None if longest is None else longest - state.elapsed,
    )


def choose_again(
    state: JobState, chosen: ClusterConfig, noise_scale: float
) -> tuple[Better | None, str]:
    """Return the configuration that is worth a resize, None for none, and a sentence why."""
    knowledge = replace(state.knowledge, noise_scale=noise_scale)
    spec, rest, fitted_model = knowledge.spec, what_is_left(state), knowledge.fitted_model()
    assert fitted_model is not None
    model = replace(fitted_model.model, epochs_at_reference=rest.epochs)
    curve = predict_curve(spec.space, model, spec.price_model, fitted_model.observations)
    wish = Within(base_objective(spec), max_cost=rest.money, max_time=rest.time)
    try:
        choice = wish.choose(curve)
    except NothingFeasible as error:
        return None, f"{chosen} stays, since {error}"
    best, now = choice.point, next((p for p in curve.points if p.config == chosen), None)
    if now is None:
        return None, f"{chosen} stays, of which the curve tells nothing"
    if best == now:
        return None, f"{chosen} stays, {choice.why}"
    saving = saved(now, best, time_weight_of(wish))
    needed = least_saving(knowledge, model, rest, now)
    is_urgent = wish.violations(now, curve.basis) and not wish.violations(best, curve.basis)
    if saving >= needed or is_urgent:
        preview = CurvePreview(curve, model, fitted_model.observations, fitted_model.source)
        better = Better(best.config, CurveDrawing(preview, wish, choice, "rest"))
        return better, f"{best.config} saves {saving:.0%} of the rest, {choice.why}"
    much = f"{max(saving, 0.0):.1%} of the rest, but a resize has to save {needed:.1%}"
    return None, f"{chosen} stays: {best.config} would save {much}"


def saved(now: TradeoffPoint, best: TradeoffPoint, time_weight: float) -> float:
    """Return what one configuration saves against another, as a share; below 0 for a loss."""
    losses = [log_loss(point.time, point.cost, time_weight) for point in (best, now)]
    return 1 - math.exp(losses[0] - losses[1])


def least_saving(
    knowledge: PlanningState, model: PerformanceModel, rest: Remainder, now: TradeoffPoint
) -> float:
    """Return the share of the rest that a resize has to save to be worth its pause."""
    epochs = rest.most_epochs if rest.epochs is None else rest.epochs
    iterations = epochs / model.progress_per_iteration(now.config.global_batch)
    seconds = iterations * (now.measured_step_time or now.step_time)
    return max(LEAST_SAVING, knowledge.effort.pause / seconds if seconds > 0 else 1.0)
