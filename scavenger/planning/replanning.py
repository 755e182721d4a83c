"""Replanning: noise grows while a job trains, and with it the batch that pays best.

``replan`` compares the newest steps with the noise scale of the choice. Only the work that is left
is planned anew, with the money and time that are left, and only a configuration that saves more
than a resize takes replaces the running one. Controller and simulator call the same function.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from scavenger.cluster import ClusterConfig
from scavenger.errors import NothingFeasible
from scavenger.measurement.stability import detect_drift
from scavenger.measurement.steps import StepColumns
from scavenger.models.performance import PerformanceModel
from scavenger.planning.constrained_objective import ConstrainedObjective
from scavenger.planning.curve import TradeoffPoint, predict_curve
from scavenger.planning.decision import CurvePreview, fit_model
from scavenger.planning.objective import Choice
from scavenger.planning.search.value_of_information import log_weighted_product
from scavenger.planning.state import PlanningState

# What saves less of the rest is not worth a resize, even a short one: predictions err by as much.
MIN_SAVED_SHARE = 0.03


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
    money: float | None = None
    time: float | None = None

    @property
    def is_over(self) -> bool:
        """Tell whether nothing is left to plan."""
        figures = (self.epochs, self.most_epochs, self.money, self.time)
        return any(left is not None and left <= 0 for left in figures)


@dataclass(frozen=True, slots=True)
class BetterConfig:
    """A configuration that is worth a resize.

    Attributes:
        config: The configuration.
        preview: The curve of what is left, from which it was chosen.
        objective: What was wanted of that curve.
        choice: What the objective chose.
    """

    config: ClusterConfig
    preview: CurvePreview
    objective: ConstrainedObjective
    choice: Choice


@dataclass(frozen=True, slots=True)
class Replanning:
    """The noise scale has left the one that the configuration was chosen with.

    Attributes:
        better: What to change to; None where the running configuration stays.
        noise_scale: φ in samples that the plan rests on from now on.
        why: One sentence for people.
    """

    better: BetterConfig | None
    noise_scale: float
    why: str


def replan(
    state: PlanningState, chosen: ClusterConfig, steps: StepColumns, rest: Remainder
) -> Replanning | None:
    """Choose again if the noise scale has drifted; None while it holds.

    B_crit = κ φ follows the noise scale, and κ stays (SCIENCE §2).

    Args:
        state: What the plan rests on, with the noise scale it was last made with.
        chosen: The configuration that trains.
        steps: Its newest measured iterations.
        rest: What is left of the job.
    """
    fitted = fit_model(state)
    planned = None if fitted is None else fitted.model.statistical.noise_scale
    if planned is None or rest.is_over:
        return None
    drift = detect_drift(steps, chosen.global_batch, planned)
    if not drift.has_drifted or drift.noise_scale is None:
        return None
    drifted = replace(state, drifted_noise_scale=drift.noise_scale)
    better, why = choose_again(drifted, chosen, rest)
    return Replanning(better, drift.noise_scale, f"{drift.why} since the choice: {why}")


def choose_again(
    state: PlanningState, chosen: ClusterConfig, rest: Remainder
) -> tuple[BetterConfig | None, str]:
    """Return the configuration that is worth a resize, None for none, and a sentence why."""
    preview = preview_rest(state, rest)
    assert preview is not None
    try:
        better = choose_for_rest(state, rest, preview)
    except NothingFeasible as error:
        return None, f"{chosen} stays, since {error}"
    curve, objective, choice = preview.curve, better.objective, better.choice
    best, now = choice.point, next((p for p in curve.points if p.config == chosen), None)
    if now is None:
        return None, f"{chosen} stays, of which the curve tells nothing"
    if best == now:
        return None, f"{chosen} stays, {choice.why}"
    losses = [
        log_weighted_product(point.time, point.cost, objective.time_weight) for point in (best, now)
    ]
    saving = 1 - math.exp(losses[0] - losses[1])
    needed = least_saving(state, preview.fitted.model, rest, now, best)
    # A configuration that breaks the limits is left for any that keeps them, even at a loss.
    is_urgent = objective.violations(now, curve.basis) and not objective.violations(
        best, curve.basis
    )
    if saving >= needed or is_urgent:
        return better, f"{best.config} saves {saving:.0%} of the rest, {choice.why}"
    much = f"{max(saving, 0.0):.1%} of the rest, but a resize has to save {needed:.1%}"
    return None, f"{chosen} stays: {best.config} would save {much}"


def preview_rest(state: PlanningState, rest: Remainder) -> CurvePreview | None:
    """Predict the curve of what is left of a job; None while nothing tells."""
    fitted = fit_model(state)
    if fitted is None:
        return None
    model = replace(fitted.model, epochs_at_reference=rest.epochs)
    curve = predict_curve(state.space, model, state.price, fitted.observations)
    return CurvePreview(curve, replace(fitted, model=model))


def choose_for_rest(state: PlanningState, rest: Remainder, preview: CurvePreview) -> BetterConfig:
    """Choose from the curve of what is left, within the money and time that are left.

    Raises:
        NothingFeasible: No configuration meets what is left of the limits.
    """
    wanted = state.objective
    base = wanted.objective if isinstance(wanted, ConstrainedObjective) else wanted
    objective = ConstrainedObjective(base, max_cost=rest.money, max_time=rest.time)
    choice = objective.choose(preview.curve)
    return BetterConfig(choice.point.config, preview, objective, choice)


def least_saving(
    state: PlanningState,
    model: PerformanceModel,
    rest: Remainder,
    now: TradeoffPoint,
    best: TradeoffPoint,
) -> float:
    """Return the share of the rest that a resize has to save to be worth its pause."""
    epochs = rest.most_epochs if rest.epochs is None else rest.epochs
    iterations = epochs / model.progress_per_iteration(now.config.global_batch)
    seconds = iterations * (now.measured_step_time or now.step_time)
    starting = state.space.switch_seconds(now.config.stack, best.config.stack)
    pause = state.probe_overhead.pause + starting
    return max(MIN_SAVED_SHARE, pause / seconds if seconds > 0 else 1.0)
