"""AutoSearch: reuse a model that fits, or probe as long as a probe saves more than it takes.

Without any prior three corners come first: before them nothing tells what a probe is worth. A job
that measures like an earlier one may end its search after the first of them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np

from scavenger.cluster import (
    ClusterConfig,
    ConfigColumns,
    ConfigSpace,
    Floats,
    config_columns,
)
from scavenger.errors import NothingFeasible
from scavenger.planning.curve import TradeoffCurve, curve_from_forecast, forecast_grid
from scavenger.planning.search.corners import format_corner_count
from scavenger.planning.search.design import space_filling_order
from scavenger.planning.search.strategy import (
    Probe,
    TrainOn,
    choose_by_probes,
    choose_by_stored_model,
    choose_config,
    fit_own_or_stored,
    probe_in_order,
)
from scavenger.planning.search.value_of_information import ProbeValue, best_probe
from scavenger.planning.state import (
    FittedModel,
    PlanningState,
    adapt_model,
    adapt_stored_model,
    describe_probes,
    format_job_count,
    format_probe_count,
)
from scavenger.planning.transfer import (
    SIMILARITY_FACTOR,
    StoredModel,
    most_similar_model,
    transfer_model,
)

# Corners probed in any case, without weighing what they are worth. The fourth tells the least.
FIRST_CORNERS = 3
# Configurations weighed for one more probe.
MAX_PROBE_CANDIDATES = 12
MAX_EXTRA_PROBES = 6


class AutoSearch:
    """A stored model if it spans the space, else corners, then each probe that pays."""

    name: ClassVar[str] = "auto"

    def search(self, state: PlanningState) -> Probe | TrainOn:
        reused = reusable_model(state)
        if reused is not None:
            return probe_if_worth_it(state, choose_by_stored_model(state, reused))
        reason = "corners come first, then what is worth its price"
        if state.stored is not None:
            reason = "the stored model does not span this space, so corners are probed"
        first = probe_in_order(state, state.space.corners(FIRST_CORNERS), reason)
        if isinstance(first, Probe):
            similar = find_similar_model(state)
            if similar is not None:
                return choose_by_transfer(state, similar)
            of_stack = stack_probe_on_fewest_workers(state, first)
            if of_stack is not None:
                return of_stack
            # The first probe may show that another job measures alike, and end the search. Probes
            # of stacks may come before machines are added.
            is_last = not state.observations and any(
                other.covers(state.space) for other in state.comparable_models
            )
            is_open = is_last or len(state.space.stacks) > 1
            return replace(first, next_config=None) if is_open else first
        return probe_if_worth_it(state, first)

    def fit(self, state: PlanningState) -> FittedModel | None:
        similar = find_similar_model(state)
        if similar is not None:
            return transfer_similar_model(state, similar)
        reused = reusable_model(state)
        return fit_own_or_stored(state) if reused is None else adapt_stored_model(state, reused)

    def describe(self, space: ConfigSpace) -> str:
        first = format_corner_count(space, FIRST_CORNERS)
        return f"a stored model if one fits, or else probes of {first} and what pays"


def reusable_model(state: PlanningState) -> StoredModel | None:
    """Return the stored model if it spans the space, and this job has measured no more than stacks.

    Further stacks are probed beside it; a probe of the first one begins a search of its own.
    """
    stored, first = state.stored, state.space.stacks[0].name
    is_searched = any(observation.config.stack == first for observation in state.observations)
    return stored if stored is not None and stored.covers(state.space) and not is_searched else None


def stack_probe_on_fewest_workers(state: PlanningState, corner: Probe) -> Probe | None:
    """Return a probe of a further stack that pays before machines are added for a corner.

    Once they run, each probe on fewer workers would pay for machines that wait.
    """
    fewest = state.space.start.workers
    if not state.observations or corner.config.workers == fewest:
        return None
    probed = {observation.config for observation in state.observations}
    candidates = unprobed_stacks(state, probed)
    if not candidates:
        return None
    try:
        run = choose_by_probes(state)
    except NothingFeasible:  # more workers may meet the limits
        return None
    value = value_of_probes(state, run, candidates)
    return None if value is None or value.gain <= 0 else probe_of_value(value)


def probe_if_worth_it(state: PlanningState, run: TrainOn) -> Probe | TrainOn:
    """Return the probe that is worth most, or what would be trained on if none pays."""
    value = value_of_next_probe(state, run)
    return run if value is None or value.gain <= 0 else probe_of_value(value)


def probe_of_value(value: ProbeValue) -> Probe:
    """Return the probe, with what it is worth."""
    why = (
        f"one more probe, {value.config}: choosing better after it is expected to save "
        f"{value.saving:.1%} of the job, and it takes {value.relative_cost:.1%}"
    )
    return Probe(value.config, why)


def find_similar_model(state: PlanningState) -> StoredModel | None:
    """Return the model of a job that measures alike, to be used while corners are missing.

    None once those that come first were probed, and when no job whose model covers the space is
    alike.
    """
    observations, space = state.observations, state.space
    seen = {observation.config for observation in observations}
    if not observations or seen.issuperset(space.corners(FIRST_CORNERS)):
        return None
    settled = (observation for observation in observations if observation.has_settled_noise)
    telling = [*observations[:1], *settled][:2]
    similar = most_similar_model(state.comparable_models, telling)
    return similar if similar is not None and similar.covers(space) else None


def transfer_similar_model(state: PlanningState, similar: StoredModel) -> FittedModel:
    """Make the model of a similar job a prior for this one, at the speed it measured itself."""
    model = transfer_model(adapt_model(similar.model, state), state.observations)
    source = f"{describe_probes(state)}, and {format_job_count([similar])} that measured alike"
    return FittedModel(model, state.observations, source)


def choose_by_transfer(state: PlanningState, similar: StoredModel) -> Probe | TrainOn:
    """Choose with the model of a job that measures alike, or probe where that is worth it."""
    name = similar.signature.split("|")[0]
    source = (
        f"after {format_probe_count(state)}, as the measurements agree with those of {name} "
        f"within a factor of {SIMILARITY_FACTOR}"
    )
    run = choose_config(state, transfer_similar_model(state, similar), source, searched=True)
    value = value_of_next_probe(state, run)
    if value is None or value.gain <= 0:
        return run
    why = (
        f"probe of {value.config}: the measurements agree with those of {name}, but others may "
        f"not, which is expected to cost {value.saving:.1%} of the job; the probe takes "
        f"{value.relative_cost:.1%}"
    )
    return Probe(value.config, why)


def value_of_next_probe(state: PlanningState, run: TrainOn) -> ProbeValue | None:
    """Return what the best further probe is worth; None when there is nothing left to weigh."""
    probed = {observation.config for observation in run.fitted.observations}
    candidates = [*unprobed_configs(state, run, probed), *unprobed_stacks(state, probed)]
    return value_of_probes(state, run, candidates)


def value_of_probes(
    state: PlanningState, run: TrainOn, candidates: Sequence[ClusterConfig]
) -> ProbeValue | None:
    """Return what the best of some probes is worth; None without any."""
    costs = relative_probe_costs(state, run, candidates)
    return best_probe(
        with_unmeasured_stacks(state, run, candidates), state.objective.time_weight, costs
    )


def with_unmeasured_stacks(
    state: PlanningState, run: TrainOn, candidates: Sequence[ClusterConfig]
) -> TradeoffCurve:
    """Return a curve with the stacks that were never measured, which no choice can name yet."""
    drawn = [point.config for point in run.curve.points]
    known, first = {config.stack for config in drawn}, state.space.stacks[0].name
    missing = [stack.name for stack in state.space.stacks if stack.name not in known]
    if not missing:
        return run.curve
    alike = [
        replace(config, stack=name)
        for name in missing
        for config in drawn
        if config.stack == first and replace(config, stack=name) in state.space
    ]
    measured = {o.config: o.indicators.step_time for o in run.fitted.observations}
    grid = config_columns(dict.fromkeys([*drawn, *alike, *candidates]))
    return curve_from_forecast(forecast_grid(grid, run.model, state.price, measured))


def unprobed_configs(
    state: PlanningState, run: TrainOn, probed: Collection[ClusterConfig]
) -> list[ClusterConfig]:
    """Return what one more probe of the first stack may be, best design first."""
    first = state.space.stacks[0].name
    seen = [config for config in probed if config.stack == first]
    is_stored = not run.searched
    if is_stored or len(seen) >= len(state.space.corners()) + MAX_EXTRA_PROBES:
        return []
    drawn = [point.config for point in run.curve.points if point.config.stack == first]
    order = space_filling_order(drawn, MAX_PROBE_CANDIDATES + len(seen))
    return [config for config in order if config not in probed]


def unprobed_stacks(state: PlanningState, probed: Collection[ClusterConfig]) -> list[ClusterConfig]:
    """Return the probes that are left of further stacks; they tell all there is to know of each."""
    seen, space = [config.stack for config in probed], state.space
    found = [(stack, space.stack_probes(stack)) for stack in space.stacks[1:]]
    return [
        config
        for stack, telling in found
        if seen.count(stack.name) < len(telling)
        for config in telling
        if config not in probed
    ]


def relative_probe_costs(
    state: PlanningState, run: TrainOn, candidates: Sequence[ClusterConfig]
) -> list[tuple[ClusterConfig, float]]:
    """Say what probing each candidate takes, as a share of the whole job.

    What it takes in time and money, less what the training done meanwhile is worth. A job that
    already is where it would stay has to come back too.
    """
    epochs = run.model.epochs_at_reference or state.most_epochs
    if epochs is None or not candidates:
        return []
    model = replace(run.model, epochs_at_reference=epochs)
    configs = (run.config, *candidates)
    grid = config_columns(configs)
    seconds = model.parallel.step_times(grid)
    iterations = model.iterations(grid)
    times = iterations * seconds
    costs = state.price.costs(grid, times)
    overhead = state.probe_overhead
    stays = not state.observations or state.observations[-1].config == run.config
    setup = {each.name: each.setup_seconds for each in state.space.stacks}
    ready = {observation.config.stack for observation in state.observations}
    waiting = np.array([0.0 if c.stack in ready else setup.get(c.stack, 0.0) for c in configs])
    changes = 2 if stays else 1
    now = state.observations[-1].config if state.observations else state.space.start
    switching = np.array([state.space.switch_seconds(now.stack, c.stack) for c in configs])
    probing = overhead.iterations * seconds + changes * (overhead.pause + switching) + waiting
    spent = state.price.costs(grid, probing) + idle_machine_cost(state, grid, probing)
    weight = state.objective.time_weight
    # Row 0 is the whole job on the configuration it would choose now.
    of_time = probing / times[0] if times[0] > 0 else probing * 0
    of_cost = spent / costs[0] if costs[0] > 0 else spent * 0
    done = overhead.iterations / iterations
    shares = weight * of_time + (1 - weight) * of_cost - done
    return [(c, max(float(s), 0.0)) for c, s in zip(candidates, shares[1:], strict=True)]


def idle_machine_cost(state: PlanningState, grid: ConfigColumns, probing: Floats) -> Floats:
    """Dollars for machines that do not train: that boot for a probe, or stand by while it runs."""
    boot, machines = state.probe_overhead.boot, state.running_machines
    booting = np.maximum(grid.machines - machines, 0.0) * boot
    # Machines that stand by longer than a boot takes would be ended and started again.
    standing_by = np.maximum(machines - grid.machines, 0.0) * np.minimum(probing, boot)
    per_machine = state.price.rate.per_hour(grid) / grid.machines
    return np.asarray(per_machine * (booting + standing_by) / 3600)
