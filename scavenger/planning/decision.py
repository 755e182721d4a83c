"""decide(): from what is known about a job to its next probe or its configuration.

Step times are probed first, on several configurations. Noise is probed last and on one only, the
currently preferred one, because one φ predicts all. Where that one measures none, as one worker of
an unchanged script does, it is the best of those that do.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

from scavenger.cluster import ClusterConfig
from scavenger.errors import NothingFeasible
from scavenger.models.epochs import EpochsLaw
from scavenger.planning.constrained_objective import ConstrainedObjective
from scavenger.planning.curve import TradeoffCurve, predict_curve
from scavenger.planning.search.registry import SEARCHES
from scavenger.planning.search.strategy import (
    Probe,
    TrainOn,
    choose_by_probes,
    choose_config,
)
from scavenger.planning.state import FittedModel, PlanningState, describe_source, lent_epochs_law

_T = TypeVar("_T")

# Before anything is known, epochs do not depend on the batch.
UNKNOWN_EPOCHS_LAW = EpochsLaw(critical_batch=None, noise_scale=None)


@dataclass(frozen=True, slots=True)
class CurvePreview:
    """The curve as it can be drawn now, from however little is known.

    Attributes:
        curve: The curve.
        fitted: The laws it was predicted with, and where they come from.
    """

    curve: TradeoffCurve
    fitted: FittedModel


def decide(state: PlanningState) -> Probe | TrainOn:
    """Choose the next probe, or once enough is known the configuration to train on.

    Raises:
        NothingFeasible: No configuration meets the limits: show the message, change nothing.
    """
    return _without_estimate_if_needed(_decide, state)


def _decide(state: PlanningState) -> Probe | TrainOn:
    decision = SEARCHES[state.search].search(state)
    match decision:
        case TrainOn():
            return add_noise_probe(state, decision)
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
        return choose(replace(state, metric_history=()))


def decide_with_worker_cap(state: PlanningState, max_workers: int) -> Probe | TrainOn:
    """End the search of time with what at most so many workers can run, once one was measured.

    For money that pays for no more machines. Where nothing of that meets the limits, the objective
    chooses without them: they end the job when they are met.
    """
    wish = state.objective
    limits = wish if isinstance(wish, ConstrainedObjective) else ConstrainedObjective(wish)
    within = replace(state, objective=replace(limits, max_workers=max_workers))
    found = SEARCHES[within.search].search(within)
    # One more probe might pay, but there is no money for it.
    run = found if isinstance(found, TrainOn) else choose_by_probes(within)
    return add_noise_probe(within, run, max_workers)


def choose_without_further_probes(state: PlanningState) -> TrainOn:
    """Return the configuration to train on by the probes there are.

    Raises:
        NothingFeasible: No configuration meets the limits.
    """
    return _without_estimate_if_needed(choose_by_probes, state)


def add_noise_probe(
    state: PlanningState, run: TrainOn, max_workers: float = math.inf
) -> Probe | TrainOn:
    """Return a probe of noise, until the noise has settled or where none can.

    Args:
        state: What is known.
        run: What a search has chosen: the best place to wait, if it measures noise.
        max_workers: Most workers that may be used to measure noise elsewhere.
    """
    if not run.searched or state.is_noise_known:
        return run
    if state.can_measure_noise(run.config.workers):
        why = f"the noise settles at {run.config}, the choice so far: {run.why}"
        return Probe(run.config, why, measures="noise")
    best = best_config_with_noise(state, run, max_workers)
    if best is None:
        return replace(run, why=f"{run.why}; {explain_unsettled_noise(run.model.statistical)}")
    why = f"the noise settles at {best}, as {run.config}, the choice so far, shows none: {run.why}"
    return Probe(best, why, measures="noise")


def best_config_with_noise(
    state: PlanningState, run: TrainOn, max_workers: float
) -> ClusterConfig | None:
    """Choose among the configurations that measure noise; None where none is within the limits."""
    counts = {config.workers for config in state.space}
    able = sorted(k for k in counts if k <= max_workers and state.can_measure_noise(k))
    if not able:
        return None
    among = replace(state, space=replace(state.space, workers=tuple(able)))
    try:
        return choose_config(among, run.fitted, "", searched=True).config
    except NothingFeasible:
        return None


def explain_unsettled_noise(law: EpochsLaw) -> str:
    """Say that no noise settles, and what the law of epochs rests on instead."""
    basis = "every batch is taken to need as many epochs"
    if law.run_batches:
        basis = "earlier runs alone tell the epochs"
    elif law.noise_scale is not None:
        basis = "the epochs rest on noise that did not settle in this job"
    return f"no configuration within the limits measures noise, so {basis}"


def fit_model(state: PlanningState) -> FittedModel | None:
    """Return the laws as they are known now; None while nothing tells, as for Downpour."""
    found = SEARCHES[state.search].fit(state) if state.is_synchronous else None
    if found is None:
        return None
    model, source = found.model, found.source
    if state.drifted_noise_scale is not None:
        law = model.statistical.at_noise_scale(state.drifted_noise_scale)
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
    law = lent_epochs_law(state) if fitted is None else fitted.model.statistical
    law = law or UNKNOWN_EPOCHS_LAW
    return law.progress_per_iteration(
        config.global_batch, state.reference_batch, state.dataset_size
    )
