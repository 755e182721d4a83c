"""decide(): from what is known about a job to its next probe or its configuration.

Time is measured first and noise last. A probe of time takes seconds and may be anywhere. Noise
takes as long as it needs to settle, but one configuration tells it for all: the job waits for it
where it will probably stay, on what the objective chooses by what is known until then.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, assert_never

import numpy as np

from scavenger.cluster import ClusterConfig, ConfigSpace, Floats, Grid, grid_of
from scavenger.measurement.profiling import MeasuredQuantity, Observation
from scavenger.models.epochs import (
    FinishedRun,
    Kappa,
    LawFamily,
    explain_contradiction,
    fit_statistical,
)
from scavenger.models.forms import Topology
from scavenger.models.performance import PerformanceModel, fit_performance
from scavenger.planning.curve import Forecast, TradeoffCurve, curve_from_forecast, forecast_space
from scavenger.planning.extrapolation import Extrapolation
from scavenger.planning.objectives import (
    Cheapest,
    Choice,
    Fastest,
    Knee,
    Objective,
    Weighted,
    Within,
)
from scavenger.planning.search.corners import CornerSearch
from scavenger.planning.search.design import space_filling_order
from scavenger.planning.search.full import FullSearch
from scavenger.planning.search.strategy import SearchStrategy
from scavenger.planning.search.value_of_information import ProbeValue, best_probe, not_yet_probed
from scavenger.planning.transfer import (
    SIMILARITY_FACTOR,
    StoredModel,
    average_models,
    most_similar_model,
    transfer_model,
)
from scavenger.pricing import PriceModel

SearchName = Literal["auto", "none", "partial", "full", "universal"]

# A larger space is not drawn point by point.
MAX_DRAWN_POINTS = 2000
# Probed in any case, without weighing what it is worth.
FIRST_CORNERS = CornerSearch(per_hardware=3)
# Configurations weighed for one more probe.
MAX_PROBE_CANDIDATES = 12
MAX_EXTRA_PROBES = 6
# Epochs to a metric differ by this much from run to run (SCIENCE §2).
RUN_TO_RUN_DEVIATION = 0.12


@dataclass(frozen=True, slots=True)
class ProbeOverhead:
    """What one probe takes besides training.

    Attributes:
        iterations: Iterations a probe of time runs.
        pause: Seconds of a resize, in which nothing is trained.
        boot: Seconds until an added machine can be used; it is paid, while training goes on.
    """

    iterations: int = 23
    pause: float = 5.0
    boot: float = 0.0


@dataclass(frozen=True, slots=True)
class PlanningInput:
    """Everything a decision rests on.

    Attributes:
        space: Configurations the job may use.
        search_name: How the user wants to search; ``auto`` reuses a model that covers the space,
            starts from one that measures alike, and else from the corners, and goes on as long as
            a probe saves more than it takes.
        objective: What the user wants.
        observations: Settled probes of this job, in the order they were made.
        stored: Model of earlier jobs with the same signature; None if there is none.
        dataset_size: Samples of one epoch.
        reference_batch: Batch in samples the user's recipe was written for.
        epochs_at_reference: Epochs to target at ``reference_batch``; None while unknown.
        price: What workers cost.
        target: The target in words, the key of ``StoredModel.epochs_by_target``.
        kappa: κ in B_crit = κ φ as far as it is known.
        topology: How gradients travel.
        laws: Whether the data choose among forms of the laws, or the paper's are taken.
        others: Models of all other jobs, for similarity and the universal average.
        most_epochs: Reference epochs after which training stops anyway; None without a bound.
        effort: What one probe takes besides training.
        machines: Machines that run and could train at once; 0 before the first.
        extrapolated: Epochs to target by this run's own learning curve; None while it is unclear.
    """

    space: ConfigSpace
    search_name: SearchName
    objective: Objective
    observations: tuple[Observation, ...]
    stored: StoredModel | None
    dataset_size: int
    reference_batch: int
    epochs_at_reference: float | None
    price: PriceModel
    target: str | None = None
    kappa: Kappa = Kappa()  # noqa: RUF009
    topology: Topology = "all_reduce"
    laws: LawFamily = "measured"
    others: tuple[StoredModel, ...] = ()
    most_epochs: float | None = None
    effort: ProbeOverhead = ProbeOverhead()
    machines: int = 0
    extrapolated: Extrapolation | None = None

    @property
    def has_settled_noise(self) -> bool:
        """Whether the noise of this job is known."""
        return any(observation.has_settled_noise for observation in self.observations)


@dataclass(frozen=True, slots=True)
class Probe:
    """Profile this configuration next.

    Attributes:
        config: The configuration.
        why: One sentence for people.
        measures: Its iteration time, or also the noise, which takes as long as it needs to settle.
        then: The probe that follows this one with any result, so that its machines can boot
            meanwhile; None where that depends on what is measured.
    """

    config: ClusterConfig
    why: str
    measures: MeasuredQuantity = "time"
    then: ClusterConfig | None = None


@dataclass(frozen=True, slots=True)
class Run:
    """Train on this configuration until something changes.

    Attributes:
        config: The chosen configuration.
        curve: What it was chosen from.
        model: What the curve was predicted with.
        why: One sentence for people: where the model comes from and why this point.
        searched: Whether this job profiled configurations; if not, a stored model was reused.
        choice: The objective's choice, with support and runner-up.
    """

    config: ClusterConfig
    curve: TradeoffCurve
    model: PerformanceModel
    why: str
    searched: bool
    choice: Choice


def decide(situation: PlanningInput) -> Probe | Run:
    """Choose the next probe, or once enough is known the configuration to train on.

    Raises:
        NothingFeasible: No configuration meets the limits: show the message, change nothing.
    """
    decision = search(situation)
    match decision:
        case Run():
            return settle_noise(situation, decision)
        case Probe() if situation.laws == "paper" and not situation.has_settled_noise:
            # Its noise is measured in every probe, and may be compared once it has settled (V-B).
            return replace(decision, measures="noise")
        case _:
            return decision


def decide_within(situation: PlanningInput, most_workers: int) -> Probe | Run:
    """End the search of time with what at most so many workers can run, once one was measured.

    For money that pays for no more machines. Where nothing of that meets the limits, the objective
    chooses without them: they end the job when they are met.
    """
    wish = situation.objective
    limits = wish if isinstance(wish, Within) else Within(wish)
    within = replace(situation, objective=replace(limits, max_workers=most_workers))
    return settle_noise(within, end_search(within))


def end_search(situation: PlanningInput) -> Run:
    """Return the choice by what is known of time, even where one more probe would pay."""
    found = search(situation)
    return found if isinstance(found, Run) else choose_by_probes(situation)


def settle_noise(situation: PlanningInput, run: Run) -> Probe | Run:
    """Let the noise settle on what a search has chosen, before that is final."""
    if not run.searched or situation.has_settled_noise:
        return run
    why = f"the noise settles on {run.config}, for the time being: {run.why}"
    return Probe(run.config, why, measures="noise")


def search(situation: PlanningInput) -> Probe | Run:
    """Choose the next probe of time, or the configuration to train on by what is known of time.

    Raises:
        NothingFeasible: No configuration meets the limits.
    """
    match situation.search_name:
        case "full":
            return follow_probe_list(situation, FullSearch(), "full search profiles every one")
        case "partial":
            return follow_probe_list(
                situation, CornerSearch(), "partial search profiles corners only"
            )
        case "none":
            if situation.stored is not None:
                return choose_by_stored_model(situation, situation.stored)
            why = "no model is stored to do without a search, so the corners are profiled"
            return follow_probe_list(situation, CornerSearch(), why)
        case "universal":
            model = universal_model(situation)
            if model is not None:
                jobs = sum(other.jobs for other in situation.others)
                source = f"no search: the average over the models of {jobs} earlier jobs"
                return choose_config(
                    situation, model, situation.observations, source, searched=False
                )
            why = "no model is stored to average over, so the corners are profiled"
            return follow_probe_list(situation, CornerSearch(), why)
        case "auto":
            return search_by_value(situation)
        case _:
            assert_never(situation.search_name)


def follow_probe_list(
    situation: PlanningInput, strategy: SearchStrategy, reason: str
) -> Probe | Run:
    """Follow a fixed list of probes to its end."""
    seen = {observation.config for observation in situation.observations}
    config = strategy.next_probe(situation.space, seen)
    if config is None:
        return choose_by_probes(situation)
    planned = strategy.probes(situation.space)
    number = sum(1 for known in seen if known in situation.space) + 1
    then = strategy.next_probe(situation.space, {*seen, config})
    why = f"probe {min(number, planned)} of {planned}, {config}: {reason}"
    return Probe(config, why, then=then)


def search_by_value(situation: PlanningInput) -> Probe | Run:
    """Reuse a model that covers the space, or probe as long as a probe saves more than it takes.

    Without any prior three corners come first: before them nothing tells what a probe is worth.
    """
    stored, observations = situation.stored, situation.observations
    if stored is not None and stored.covers(situation.space) and not observations:
        return choose_by_stored_model(situation, stored)
    first = follow_probe_list(situation, FIRST_CORNERS, explain_search(situation))
    if isinstance(first, Probe):
        alike = find_similar_job(situation)
        if alike is not None:
            return choose_by_transfer(situation, alike)
        return replace(first, then=None) if may_find_similar_job(situation) else first
    worth = value_of_next_probe(situation, first)
    if worth is None or worth.gain <= 0:
        return first
    why = (
        f"one more probe, {worth.config}: choosing better after it is expected to save "
        f"{worth.saving:.1%} of the job, and it takes {worth.price:.1%}"
    )
    return Probe(worth.config, why)


def explain_search(situation: PlanningInput) -> str:
    """Say why a job searches at all."""
    if situation.stored is not None:
        return "the stored model does not span this space, so corners are profiled"
    return "corners come first, then what is worth its price"


def find_similar_job(situation: PlanningInput) -> StoredModel | None:
    """Return the model of a job that measures alike, lent while this job's corners are missing.

    None once those that come first were probed, and when no job whose model covers the space is
    alike.
    """
    observations, space = situation.observations, situation.space
    seen = {observation.config for observation in observations}
    if not observations or FIRST_CORNERS.next_probe(space, seen) is None:
        return None
    telling = [*observations[:1], *(o for o in observations if o.has_settled_noise)][:2]
    alike = most_similar_model(situation.others, telling)
    return alike if alike is not None and alike.covers(space) else None


def may_find_similar_job(situation: PlanningInput) -> bool:
    """Whether the first probe may show that another job measures alike, and end the search."""
    others, space = situation.others, situation.space
    return not situation.observations and any(other.covers(space) for other in others)


def choose_by_transfer(situation: PlanningInput, alike: StoredModel) -> Probe | Run:
    """Choose with the model of a job that measures alike, or probe where that is worth it."""
    model = transfer_model(adapt_model(alike.model, situation), situation.observations)
    name = alike.signature.split("|")[0]
    count = len(situation.observations)
    probes = f"{count} probe{'' if count == 1 else 's'}"
    source = f"after {probes}, as {name} measures alike within a factor of {SIMILARITY_FACTOR}"
    run = choose_config(situation, model, situation.observations, source, searched=True)
    worth = value_of_next_probe(situation, run)
    if worth is None or worth.gain <= 0:
        return run
    why = (
        f"probe of {worth.config}: {name} measures alike but may differ, which is expected to "
        f"cost {worth.saving:.1%} of the job, and the probe takes {worth.price:.1%}"
    )
    return Probe(worth.config, why)


def value_of_next_probe(situation: PlanningInput, run: Run) -> ProbeValue | None:
    """Return what the best further probe is worth; None when there is nothing left to weigh."""
    probed = {observation.config for observation in situation.observations}
    if len(probed) >= len(situation.space.corners()) + MAX_EXTRA_PROBES:
        return None
    drawn = [point.config for point in run.curve.points]
    candidates = not_yet_probed(
        space_filling_order(drawn, MAX_PROBE_CANDIDATES + len(probed)), probed
    )
    prices = price_probes(situation, run, candidates)
    return best_probe(run.curve, time_weight_of(situation.objective), prices)


def price_probes(
    situation: PlanningInput, run: Run, candidates: tuple[ClusterConfig, ...]
) -> list[tuple[ClusterConfig, float]]:
    """Say what probing each candidate takes, as a share of the whole job.

    What it takes in time and money, less what the training done meanwhile is worth. A job that
    already is where it would stay has to come back too.
    """
    if not candidates:
        return []
    epochs = run.model.epochs_at_reference or situation.most_epochs
    if epochs is None:
        return []
    model = replace(run.model, epochs_at_reference=epochs)
    grid = grid_of((run.config, *candidates))
    seconds = model.parallel.step_times(grid)
    batches = model.all_epochs(grid) * model.dataset_size / grid.global_batch
    times = batches * seconds
    costs = situation.price.costs(grid, times)
    effort = situation.effort
    stays = situation.observations[-1].config == run.config
    probing = effort.iterations * seconds + effort.pause * (2 if stays else 1)
    spent = situation.price.costs(grid, probing) + idle_machine_cost(situation, grid, probing)
    weight = time_weight_of(situation.objective)
    of_time = probing / times[0] if times[0] > 0 else probing * 0
    of_cost = spent / costs[0] if costs[0] > 0 else spent * 0
    done = effort.iterations / batches
    prices = weight * of_time + (1 - weight) * of_cost - done
    return [(c, max(float(p), 0.0)) for c, p in zip(candidates, prices[1:], strict=True)]


def idle_machine_cost(situation: PlanningInput, grid: Grid, probing: Floats) -> Floats:
    """Dollars for machines that do not train: that boot for a probe, or stand by while it runs."""
    boot, machines = situation.effort.boot, situation.machines
    booting = np.maximum(grid.machines - machines, 0.0) * boot
    standing_by = np.maximum(machines - grid.machines, 0.0) * np.minimum(probing, boot)
    per_machine = situation.price.rate.per_hour(grid) / grid.machines
    return np.asarray(per_machine * (booting + standing_by) / 3600)


def time_weight_of(objective: Objective) -> float:
    """Weight of time against cost that an objective stands for; a knee weighs both alike."""
    match objective:
        case Within(objective=inner):
            return time_weight_of(inner)
        case Fastest():
            return 1.0
        case Cheapest():
            return 0.0
        case Weighted(time_weight=weight):
            return weight
        case Knee():
            return 0.5
        case _:
            return 0.5


def choose_by_stored_model(situation: PlanningInput, stored: StoredModel) -> Run:
    """Choose with a stored model; what this job measured itself replaces older measurements."""
    model = recall_model(situation, stored)
    note = "" if stored.covers(situation.space) else ", which it does not span"
    jobs = f"{stored.jobs} earlier job{'' if stored.jobs == 1 else 's'}"
    source = f"no search: model of {jobs}{note}"
    measured = stored.observations + situation.observations
    return choose_config(situation, model, measured, source, searched=False)


def recall_model(situation: PlanningInput, stored: StoredModel) -> PerformanceModel:
    """Return a stored model as this job uses it: runs at several batches tell its epochs."""
    model = adapt_model(stored.model, situation)
    runs = stored.runs.get(situation.target or "", ())
    if len({run.global_batch for run in runs}) < 2 or situation.laws == "paper":
        return model
    known = stored.observations + situation.observations
    return replace(model, statistical=fit_statistical(known, situation.kappa, runs))


def adapt_model(model: PerformanceModel, situation: PlanningInput) -> PerformanceModel:
    """Give a stored model this job's data set, reference batch and epochs."""
    return replace(
        model,
        dataset_size=situation.dataset_size,
        reference_batch=situation.reference_batch,
        epochs_at_reference=known_epochs(situation),
        epochs_deviation=epochs_deviation(situation),
    )


def universal_model(situation: PlanningInput) -> PerformanceModel | None:
    """Average all stored models, at this job's own speed once anything of it was measured."""
    model = average_models(situation.others, situation.space, situation.topology, situation.laws)
    if model is None:
        return None
    own = adapt_model(model, situation)
    return transfer_model(own, situation.observations) if situation.observations else own


def choose_by_probes(situation: PlanningInput) -> Run:
    """Choose with a model fitted to this job's own probes."""
    observations = situation.observations
    model = fit_probes(situation)
    count = len({observation.config for observation in observations})
    source = f"after {count} probe{'' if count == 1 else 's'}"
    return choose_config(situation, model, observations, source, searched=True)


def fit_probes(situation: PlanningInput) -> PerformanceModel:
    """Fit this job's own probes, and what earlier runs to its target took."""
    return fit_performance(
        situation.observations,
        situation.dataset_size,
        situation.reference_batch,
        known_epochs(situation),
        kappa=situation.kappa,
        runs=earlier_runs(situation),
        topology=situation.topology,
        laws=situation.laws,
        epochs_deviation=epochs_deviation(situation),
    )


def known_epochs(situation: PlanningInput) -> float | None:
    """Return the epochs to target the user named, else what earlier jobs took, or an estimate."""
    told = recorded_epochs(situation)
    if told is not None or situation.extrapolated is None:
        return told
    return situation.extrapolated.progress


def recorded_epochs(situation: PlanningInput) -> float | None:
    """Return the epochs to target the user named, or else what earlier jobs took."""
    if situation.epochs_at_reference is not None or situation.stored is None:
        return situation.epochs_at_reference
    return situation.stored.epochs_to(situation.target, situation.reference_batch)


def earlier_runs(situation: PlanningInput) -> tuple[FinishedRun, ...]:
    """Return what earlier runs to this target took, at their batches."""
    stored = situation.stored
    return () if stored is None else stored.runs.get(situation.target or "", ())


def epochs_deviation(situation: PlanningInput) -> float:
    """Relative standard deviation of the epochs known: runs differ, a recipe is what it says."""
    if situation.epochs_at_reference is not None:
        return 0.0
    if situation.extrapolated is not None and recorded_epochs(situation) is None:
        return situation.extrapolated.deviation
    return RUN_TO_RUN_DEVIATION


def choose_config(
    situation: PlanningInput,
    model: PerformanceModel,
    observations: tuple[Observation, ...],
    source: str,
    *,
    searched: bool,
) -> Run:
    """Trace the curve and let the objective choose from it."""
    objective = situation.objective
    whole = forecast_space(situation.space, model, situation.price, observations)
    curve = curve_from_forecast(
        whole if len(whole) <= MAX_DRAWN_POINTS else shortlist_forecast(whole, objective)
    )
    curve = replace(curve, left_out=len(whole) - len(curve.points))
    choice = objective.choose(curve)
    warning = explain_contradiction(model.statistical, earlier_runs(situation))
    why = f"{source}: {choice.point.config}, {choice.why}{'; ' + warning if warning else ''}"
    return Run(choice.point.config, curve, model, why, searched, choice)


def shortlist_forecast(forecast: Forecast, objective: Objective) -> Forecast:
    """Return the configurations of a very large space that can matter."""
    limits = objective if isinstance(objective, Within) else Within(objective)
    return forecast.rows(limits.shortlist(forecast))
