"""decide(): from what is known about a job to its next probe or its configuration.

Time is measured first and noise last. A probe of time takes seconds and may be anywhere. Noise
takes as long as it needs to settle, but one configuration tells it for all: the job waits for it
where it will probably stay, on what the objective chooses by what is known until then.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

from scavenger.cluster import ClusterConfig
from scavenger.errors import NothingFeasible
from scavenger.models.epochs import StatisticalModel
from scavenger.planning.curve import TradeoffCurve, predict_curve
from scavenger.planning.limits import Within
from scavenger.planning.search.registry import SEARCHES
from scavenger.planning.search.strategy import Probe, Run, choose_by_probes
from scavenger.planning.state import FittedModel, PlanningState, describe_source

_T = TypeVar("_T")

# Before anything is known, epochs do not depend on the batch.
UNKNOWN_EPOCHS_LAW = StatisticalModel(critical_batch=None, noise_scale=None)


@dataclass(frozen=True, slots=True)
class CurvePreview:
    """The curve as it can be drawn now, from however little is known.

    Attributes:
        curve: The curve.
        fitted: The laws it was predicted with, and where they come from.
    """

    curve: TradeoffCurve
    fitted: FittedModel


def decide(state: PlanningState) -> Probe | Run:
    """Choose the next probe, or once enough is known the configuration to train on.

    Raises:
        NothingFeasible: No configuration meets the limits: show the message, change nothing.
    """
    return _without_estimate_if_needed(_decide, state)


def _decide(state: PlanningState) -> Probe | Run:
    decision = SEARCHES[state.search].search(state)
    match decision:
        case Run():
            return settle_noise(state, decision)
        case Probe() if state.laws == "paper" and not state.has_settled_noise:
            # Its noise is measured in every probe, and may be compared once it has settled (V-B).
            return replace(decision, measures="noise")
        case _:
            return decision


def _without_estimate_if_needed(choose: Callable[[PlanningState], _T], state: PlanningState) -> _T:
    """Choose; where that fails by an extrapolated number of epochs, choose without it.

    An estimate ends no job: its limits stop it when they are met.
    """
    try:
        return choose(state)
    except NothingFeasible:
        if state.extrapolated is None:
            raise
        return choose(replace(state, history=()))


def decide_within(state: PlanningState, most_workers: int) -> Probe | Run:
    """End the search of time with what at most so many workers can run, once one was measured.

    For money that pays for no more machines. Where nothing of that meets the limits, the objective
    chooses without them: they end the job when they are met.
    """
    wish = state.objective
    limits = wish if isinstance(wish, Within) else Within(wish)
    within = replace(state, objective=replace(limits, max_workers=most_workers))
    found = SEARCHES[within.search].search(within)
    # One more probe might pay, but there is no money for it.
    return settle_noise(within, found if isinstance(found, Run) else choose_by_probes(within))


def choose_now(state: PlanningState) -> Run:
    """Return the configuration to train on by the probes there are.

    Raises:
        NothingFeasible: No configuration meets the limits.
    """
    return _without_estimate_if_needed(choose_by_probes, state)


def settle_noise(state: PlanningState, run: Run) -> Probe | Run:
    """Let the noise settle on what a search has chosen, before that is final."""
    if not run.searched or state.has_settled_noise:
        return run
    why = f"the noise settles on {run.config}, for the time being: {run.why}"
    return Probe(run.config, why, measures="noise")


def fit_model(state: PlanningState) -> FittedModel | None:
    """Return the laws as they are known now; None while nothing tells, as for Downpour."""
    found = SEARCHES[state.search].fit(state) if state.has_common_steps else None
    if found is None:
        return None
    model, source = found.model, found.source
    if state.noise_scale is not None:
        law = model.statistical.at_noise_scale(state.noise_scale)
        model, source = replace(model, statistical=law), f"{source}, and a noise that drifted"
    return replace(found, model=model, source=describe_source(state, source))


def preview_curve(state: PlanningState) -> CurvePreview | None:
    """Predict the curve of the whole job from the laws as they are known; None without any."""
    fitted = fit_model(state)
    if fitted is None:
        return None
    curve = predict_curve(state.space, fitted.model, state.price, fitted.observations)
    return CurvePreview(curve, fitted)


def progress_per_iteration(state: PlanningState, config: ClusterConfig) -> float:
    """Reference epochs one iteration is worth, by the best law known so far (SCIENCE §2)."""
    fitted = fit_model(state)
    law = UNKNOWN_EPOCHS_LAW if fitted is None else fitted.model.statistical
    return law.progress(config.global_batch, state.reference_batch, state.dataset_size)
