"""AutoSearch: reuse a model that fits, or probe as long as a probe saves more than it takes.

Without any prior three corners come first: before them nothing tells what a probe is worth. A job
that measures like an earlier one may end its search after the first of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np

from scavenger.cluster import ClusterConfig, ConfigColumns, ConfigSpace, Floats, config_columns
from scavenger.planning.search.corners import format_corner_count
from scavenger.planning.search.design import space_filling_order
from scavenger.planning.search.strategy import (
    Probe,
    TrainOn,
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
        stored = state.stored
        if stored is not None and stored.covers(state.space) and not state.observations:
            return choose_by_stored_model(state, stored)
        reason = "corners come first, then what is worth its price"
        if stored is not None:
            reason = "the stored model does not span this space, so corners are probed"
        first = probe_in_order(state, state.space.corners(FIRST_CORNERS), reason)
        if isinstance(first, Probe):
            similar = find_similar_model(state)
            if similar is not None:
                return choose_by_transfer(state, similar)
            # The first probe may show that another job measures alike, and end the search.
            is_last = not state.observations and any(
                other.covers(state.space) for other in state.comparable_models
            )
            return replace(first, next_config=None) if is_last else first
        value = value_of_next_probe(state, first)
        if value is None or value.gain <= 0:
            return first
        why = (
            f"one more probe, {value.config}: choosing better after it is expected to save "
            f"{value.saving:.1%} of the job, and it takes {value.relative_cost:.1%}"
        )
        return Probe(value.config, why)

    def fit(self, state: PlanningState) -> FittedModel | None:
        similar = find_similar_model(state)
        return (
            fit_own_or_stored(state) if similar is None else transfer_similar_model(state, similar)
        )

    def describe(self, space: ConfigSpace) -> str:
        first = format_corner_count(space, FIRST_CORNERS)
        return f"a stored model if one fits, or else probes of {first} and what pays"


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
    probed = {observation.config for observation in state.observations}
    if len(probed) >= len(state.space.corners()) + MAX_EXTRA_PROBES:
        return None
    drawn = [point.config for point in run.curve.points]
    order = space_filling_order(drawn, MAX_PROBE_CANDIDATES + len(probed))
    candidates = [config for config in order if config not in probed]
    costs = relative_probe_costs(state, run, candidates)
    return best_probe(run.curve, state.objective.time_weight, costs)


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
    grid = config_columns((run.config, *candidates))
    seconds = model.parallel.step_times(grid)
    iterations = model.iterations(grid)
    times = iterations * seconds
    costs = state.price.costs(grid, times)
    overhead = state.probe_overhead
    stays = state.observations[-1].config == run.config
    probing = overhead.iterations * seconds + overhead.pause * (2 if stays else 1)
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
