"""SearchStrategy: the interface of all search strategies, and the steps that they share.

A strategy looks at a ``PlanningState`` and names the next probe of time, or the configuration to
train on by what is known of time. It keeps nothing in between, so that a restarted controller goes
on where the last one was. How to add one: docs/adding-a-search.md.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import ClassVar, Protocol

from scavenger.cluster import ClusterConfig, ConfigSpace
from scavenger.errors import NothingFeasible
from scavenger.measurement.profiling import MeasuredQuantity
from scavenger.models.epochs import explain_contradiction
from scavenger.models.performance import PerformanceModel
from scavenger.planning.constrained_objective import ConstrainedObjective
from scavenger.planning.curve import (
    Forecast,
    TradeoffCurve,
    curve_from_forecast,
    forecast_space,
)
from scavenger.planning.objective import Choice, Objective
from scavenger.planning.search.value_of_information import log_weighted_product
from scavenger.planning.state import (
    FittedModel,
    PlanningState,
    adapt_stored_model,
    describe_source,
    fit_probes,
    format_job_count,
    format_probe_count,
)
from scavenger.planning.transfer import StoredModel

# A larger space is not drawn point by point.
MAX_CURVE_POINTS = 2000


@dataclass(frozen=True, slots=True)
class Probe:
    """Probe this configuration next.

    Attributes:
        config: The configuration.
        why: One sentence for people.
        measures: Its iteration time, or also the noise, which takes as long as it needs to settle.
        next_config: The probe that follows this one with any result, so that its machines can boot
            meanwhile; None where that depends on what is measured.
    """

    config: ClusterConfig
    why: str
    measures: MeasuredQuantity = "time"
    next_config: ClusterConfig | None = None


@dataclass(frozen=True, slots=True)
class TrainOn:
    """Train on this configuration until something changes.

    Attributes:
        config: The chosen configuration.
        curve: What it was chosen from.
        fitted: What the curve was predicted with.
        why: One sentence for people: where the model comes from and why this point.
        searched: Whether this job probed configurations; if not, a stored model was reused.
        choice: The objective's choice, with support and runner-up.
    """

    config: ClusterConfig
    curve: TradeoffCurve
    fitted: FittedModel
    why: str
    searched: bool
    choice: Choice

    @property
    def model(self) -> PerformanceModel:
        """The laws the curve was predicted with."""
        return self.fitted.model


class SearchStrategy(Protocol):
    """A way to search: which configurations to probe, and with which laws to choose."""

    name: ClassVar[str]
    """Word for the strategy in job documents and on the command line."""

    def search(self, state: PlanningState) -> Probe | TrainOn:
        """Return the next probe of time, or the choice by what is known of time.

        Raises:
            NothingFeasible: No configuration meets the limits.
        """

    def fit(self, state: PlanningState) -> FittedModel | None:
        """Return the laws that ``search`` would choose with now; None while nothing tells.

        Pages draw the curve from these, so a ``TrainOn`` has to rest on the same laws.
        """

    def describe(self, space: ConfigSpace) -> str:
        """Say, after the name, how the strategy will find a configuration of a space."""


def fit_own_or_stored(state: PlanningState) -> FittedModel | None:
    """Return the laws of this job's own probes; before the first, those of the stored model."""
    if state.observations:
        return fit_probes(state)
    return None if state.stored is None else adapt_stored_model(state, state.stored)


def probe_in_order(
    state: PlanningState, probes: Collection[ClusterConfig], reason: str
) -> Probe | TrainOn:
    """Probe the configurations of a list in its order, then choose by what was measured."""
    seen = {observation.config for observation in state.observations}
    left = [config for config in probes if config not in seen]
    if not left:
        return choose_by_probes(state)
    number = min(sum(1 for known in seen if known in state.space) + 1, len(probes))
    why = f"probe {number} of {len(probes)}, {left[0]}: {reason}"
    return Probe(left[0], why, next_config=left[1] if len(left) > 1 else None)


def choose_by_probes(state: PlanningState) -> TrainOn:
    """Choose with a model fitted to this job's own probes."""
    with_ = f" with the {state.lent}" if state.lent else ""
    source = f"after {format_probe_count(state)}{with_}"
    return choose_config(state, fit_probes(state), source, searched=True)


def choose_by_stored_model(state: PlanningState, stored: StoredModel) -> TrainOn:
    """Choose with a stored model; what this job measured itself replaces older measurements."""
    note = "" if stored.covers(state.space) else ", which it does not span"
    source = f"no search: model of {format_job_count([stored])}{note}"
    return choose_config(state, adapt_stored_model(state, stored), source, searched=False)


def choose_config(
    state: PlanningState, fitted: FittedModel, source: str, *, searched: bool
) -> TrainOn:
    """Predict the curve and let the objective choose from it.

    Args:
        state: What is known.
        fitted: The laws to predict with.
        source: Beginning of the sentence that says why.
        searched: Whether this job probed configurations.

    Raises:
        NothingFeasible: No configuration meets the limits.
    """
    model = fitted.model
    whole = forecast_space(state.space, model, state.price, fitted.observations)
    shown = whole if len(whole) <= MAX_CURVE_POINTS else _shortlist(whole, state.objective)
    curve = replace(curve_from_forecast(shown), omitted_points=len(whole) - len(shown))
    choice = choose_with_starts(state, curve)
    warning = explain_contradiction(model.statistical, state.earlier_runs)
    why = f"{source}: {choice.point.config}, {choice.why}{'; ' + warning if warning else ''}"
    fitted = replace(fitted, source=describe_source(state, fitted.source))
    return TrainOn(choice.point.config, curve, fitted, why, searched, choice)


def choose_with_starts(state: PlanningState, curve: TradeoffCurve) -> Choice:
    """Let the objective choose, and keep the layout of the workers where leaving it does not pay.

    A curve tells of whole jobs, and nothing of what processes take that start again in another
    layout. Where the curve is relative that is no share of anything, and is left out.

    Raises:
        NothingFeasible: No configuration meets the limits.
    """
    choice = state.objective.choose(curve)
    best, observed = choice.point, state.observations
    stack = observed[-1].config.stack if observed else state.space.stacks[0].name
    seconds = state.space.switch_seconds(stack, best.config.stack)
    own = tuple(point for point in curve.points if point.config.stack == stack)
    if not (seconds and own and curve.basis == "total"):
        return choice
    try:
        kept = state.objective.choose(replace(curve, points=own))
    except NothingFeasible:
        return choice
    longer, weight = 1 + seconds / best.time, state.objective.time_weight
    moved = log_weighted_product(best.time * longer, best.cost * longer, weight)
    if moved < log_weighted_product(kept.point.time, kept.point.cost, weight):
        return choice
    why = f"{best.config} would save less than the {seconds:.0f} s of its start"
    return replace(kept, why=f"{kept.why}; {why}")


def _shortlist(forecast: Forecast, objective: Objective) -> Forecast:
    limits = (
        objective
        if isinstance(objective, ConstrainedObjective)
        else ConstrainedObjective(objective)
    )
    return forecast.select(limits.shortlist(forecast))
