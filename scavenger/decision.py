"""decide(): the brain; from what is known about a job to its next probe or its configuration."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, assert_never

from scavenger.cluster import ClusterConfig, ConfigSpace
from scavenger.indicators import Observation
from scavenger.models.fitting import fit_performance
from scavenger.models.performance import PerformanceModel
from scavenger.objective import Objective
from scavenger.pricing import PriceModel
from scavenger.prior import StoredModel
from scavenger.search.full import FullSearch
from scavenger.search.no_search import NoSearch
from scavenger.search.partial import PartialSearch
from scavenger.search.strategy import SearchStrategy
from scavenger.tradeoff import TradeoffCurve, trace_curve

StrategyName = Literal["auto", "none", "partial", "full"]


@dataclass(frozen=True, slots=True)
class Situation:
    """Everything a decision rests on.

    Attributes:
        space: Configurations the job may use.
        strategy_name: How the user wants to search; ``auto`` reuses a model that covers the space
            and profiles the corners otherwise.
        objective: What the user wants.
        observations: Settled probes of this job, in the order they were made.
        stored: Model of earlier jobs with the same signature; None if there is none.
        dataset_size: Samples of one epoch.
        reference_batch: Batch in samples the user's recipe was written for.
        epochs_at_reference: Epochs to target at ``reference_batch``; None while unknown.
        price: What workers cost.
        target: The target in words, the key of ``StoredModel.epochs_by_target``.
        kappa: Prior of κ in B_crit = κ φ.
    """

    space: ConfigSpace
    strategy_name: StrategyName
    objective: Objective
    observations: tuple[Observation, ...]
    stored: StoredModel | None
    dataset_size: int
    reference_batch: int
    epochs_at_reference: float | None
    price: PriceModel
    target: str | None = None
    kappa: float = 1.0


@dataclass(frozen=True, slots=True)
class Probe:
    """Profile this configuration next.

    Attributes:
        config: The configuration.
        why: One sentence for people.
    """

    config: ClusterConfig
    why: str


@dataclass(frozen=True, slots=True)
class Run:
    """Train on this configuration until something changes.

    Attributes:
        config: The chosen configuration.
        curve: What it was chosen from.
        model: What the curve was predicted with.
        why: One sentence for people: where the model comes from and why this point.
        searched: Whether this job profiled configurations; if not, a stored model was reused.
    """

    config: ClusterConfig
    curve: TradeoffCurve
    model: PerformanceModel
    why: str
    searched: bool


def decide(situation: Situation) -> Probe | Run:
    """Choose the next probe, or once enough is known the configuration to train on.

    Raises:
        NothingFeasible: No configuration meets the limits: show the message, change nothing.
    """
    strategy = select_strategy(situation)
    if isinstance(strategy, NoSearch) and situation.stored is not None:
        return run_stored(situation, situation.stored)
    seen = {observation.config for observation in situation.observations}
    config = strategy.next_probe(situation.space, seen)
    if config is not None:
        return Probe(config, explain_probe(situation, strategy, config))
    return run_searched(situation)


def select_strategy(situation: Situation) -> SearchStrategy:
    """Return the strategy that can be followed: without a stored model, corners are needed."""
    stored = situation.stored
    match situation.strategy_name:
        case "full":
            return FullSearch()
        case "partial":
            return PartialSearch()
        case "none":
            return PartialSearch() if stored is None else NoSearch()
        case "auto":
            covered = stored is not None and stored.covers(situation.space)
            is_searching = bool(situation.observations)
            return NoSearch() if covered and not is_searching else PartialSearch()
        case _:
            assert_never(situation.strategy_name)


def explain_probe(situation: Situation, strategy: SearchStrategy, config: ClusterConfig) -> str:
    """Say which probe this is, and why the job searches at all."""
    planned = strategy.probes(situation.space)
    wanted = isinstance(strategy, FullSearch)
    reason = "full search profiles every one" if wanted else "partial search profiles corners only"
    if situation.strategy_name == "none":
        reason = "no model is stored to do without a search, so the corners are profiled"
    if situation.strategy_name == "auto" and situation.stored is not None:
        reason = "the stored model does not span this space, so the corners are profiled"
    number = sum(1 for o in situation.observations if o.config in situation.space) + 1
    return f"probe {min(number, planned)} of {planned}, {config}: {reason}"


def run_stored(situation: Situation, stored: StoredModel) -> Run:
    """Choose with a stored model; what this job measured itself replaces older measurements."""
    model = adapt(stored.model, situation)
    note = "" if stored.covers(situation.space) else ", which it does not span"
    jobs = f"{stored.jobs} earlier job{'' if stored.jobs == 1 else 's'}"
    source = f"no search: model of {jobs}{note}"
    measured = stored.observations + situation.observations
    return choose(situation, model, measured, source, searched=False)


def adapt(model: PerformanceModel, situation: Situation) -> PerformanceModel:
    """Give a stored model this job's data set, reference batch and epochs."""
    return replace(
        model,
        dataset_size=situation.dataset_size,
        reference_batch=situation.reference_batch,
        epochs_at_reference=known_epochs(situation),
    )


def run_searched(situation: Situation) -> Run:
    """Choose with a model fitted to this job's own probes."""
    observations = situation.observations
    model = fit_performance(
        observations,
        situation.dataset_size,
        situation.reference_batch,
        known_epochs(situation),
        situation.kappa,
    )
    count = len({observation.config for observation in observations})
    source = f"after {count} probe{'' if count == 1 else 's'}"
    return choose(situation, model, observations, source, searched=True)


def known_epochs(situation: Situation) -> float | None:
    """Return the epochs to target the user named, or else what earlier jobs took."""
    if situation.epochs_at_reference is not None or situation.stored is None:
        return situation.epochs_at_reference
    return situation.stored.epochs_to(situation.target, situation.reference_batch)


def choose(
    situation: Situation,
    model: PerformanceModel,
    observations: tuple[Observation, ...],
    source: str,
    *,
    searched: bool,
) -> Run:
    """Trace the curve and let the objective choose from it."""
    curve = trace_curve(situation.space, model, situation.price, observations)
    choice = situation.objective.choose(curve)
    why = f"{source}: {choice.point.config}, {choice.why}"
    return Run(choice.point.config, curve, model, why, searched)
