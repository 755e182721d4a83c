"""Stacks as an axis of the search: their two factors, what a probe of one is worth, and regret."""

from __future__ import annotations

from dataclasses import replace
from statistics import median
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scavenger.cluster import ClusterConfig, ConfigSpace, config_columns, space_columns
from scavenger.measurement.profiling import Measurement
from scavenger.models.epochs import EpochsLaw
from scavenger.models.iteration_time import StepTimeLaw
from scavenger.models.iteration_time_fitting import fit_step_time
from scavenger.models.performance import PerformanceModel
from scavenger.models.stack_factors import PRIOR_DEVIATION
from scavenger.offline.simulator.jobs import ModelTruth, SyntheticJob, TimingJitter
from scavenger.offline.simulator.simulation import ResizeOverheads, SimulationOutcome, simulate
from scavenger.planning.decision import decide
from scavenger.planning.objectives import Cheapest
from scavenger.planning.search.strategy import Probe, TrainOn
from scavenger.planning.state import PlanningState, ProbeOverhead
from scavenger.planning.transfer import StoredModel
from scavenger.pricing import on_demand_price_model
from scavenger.stack import EAGER_OPTION, StackFactors, StackOption

COMPILED, SHORT, WHOLE = "compiled+fused", "bf16+fused", "compiled_whole"
OPTIONS = (
    EAGER_OPTION,
    StackOption("fused", setup_seconds=1.0),
    StackOption(SHORT, setup_seconds=2.0),
    StackOption(COMPILED, setup_seconds=60.0),
)
SAMPLES = 500_000
SPACE = ConfigSpace((1, 2, 4, 8), (32, 64, 128, 256, 512), stacks=OPTIONS)
factors = st.floats(0.4, 2.5)
parts = st.floats(1e-3, 0.5)


@given(parts, parts, factors, factors)
def test_two_probes_tell_both_factors(
    fixed: float, per_sample: float, alpha: float, beta: float
) -> None:
    plain = StepTimeLaw(fixed, per_sample / 64, 0.01, 0.002)
    truth = replace(plain, stacks={COMPILED: StackFactors(alpha, beta)})
    corners = [ClusterConfig(1, 32), ClusterConfig(1, 512), ClusterConfig(8, 512)]
    probes = [ClusterConfig(1, batch, stack=COMPILED) for batch in (32, 512)]
    measured = [
        Measurement(config, truth.step_time(config), truth.compute_time(config))
        for config in (*corners, *probes)
    ]
    model = fit_step_time(measured)
    seen = config_columns(probes)
    predicted = model.step_times(seen) / truth.step_times(seen)
    # The prior pulls a little: by less than its share in what two probes within 3 % tell.
    assert np.abs(np.log(predicted)).max() < 0.05


def test_a_stack_that_was_never_measured_is_as_fast_as_eager_give_or_take_the_prior() -> None:
    law = fit_step_time([Measurement(ClusterConfig(1, b), 0.1 + 0.001 * b) for b in (32, 512)])
    eager, other = (config_columns([ClusterConfig(1, 64, stack=s)]) for s in ("eager", COMPILED))
    assert law.step_times(eager) == pytest.approx(law.step_times(other))
    apart = law.deviations(other) ** 2 - law.deviations(eager) ** 2
    assert PRIOR_DEVIATION / 2 < np.sqrt(apart[0]) <= PRIOR_DEVIATION


def test_nothing_hides_behind_a_backward_pass_that_is_compiled_as_one() -> None:
    law = StepTimeLaw(0.1, 0.001, 0.05, 0.01, overlap=2.0)
    grid = config_columns([ClusterConfig(4, 64, stack=name) for name in ("eager", WHOLE)])
    eager, whole = law.step_times(grid)
    compute, sync = law.compute_times(grid), law.total_sync_times(grid)
    assert whole == pytest.approx(compute[1] + sync[1])
    assert eager == pytest.approx(np.hypot(compute[0], sync[0]))


def test_each_stack_has_its_own_largest_batches() -> None:
    options = (EAGER_OPTION, StackOption("bf16", memory_share=0.5, most_global_batch=256))
    space = ConfigSpace((1, 2, 4), (32, 64, 128, 256, 512), most_local_batch=32, stacks=options)
    listed, grid = list(space), space_columns(space)
    assert [grid.config(row) for row in range(len(grid))] == listed
    assert all(config in space for config in listed)
    short = [config for config in listed if config.stack == "bf16"]
    assert max(config.local_batch for config in short) == 64
    assert max(config.local_batch for config in listed if config.stack == "eager") == 32
    assert max(config.global_batch for config in short) == 256
    assert ClusterConfig(1, 128, stack="bf16") not in space
    assert ClusterConfig(1, 32, stack="fp16") not in space
    assert space.start == ClusterConfig(1, 32)
    assert {corner.stack for corner in space.corners()} == {"eager"}
    assert space.stack_probes(options[1]) == (
        ClusterConfig(1, 32, stack="bf16"),
        ClusterConfig(1, 64, stack="bf16"),
    )


def play(number: int, true_stacks: dict[str, StackFactors]) -> SimulationOutcome:
    """Train a made-up job to its target, with stacks of known factors."""
    rng = np.random.default_rng([7, number])
    fixed, per_sample = rng.uniform(0.02, 0.1), 10 ** rng.uniform(-3.3, -2.3)
    law = StepTimeLaw(
        fixed,
        per_sample,
        rng.uniform(0.0, 0.03),
        rng.uniform(0.0, 0.02),
        overlap=2.0,
        stacks=true_stacks,
    )
    scale = 10 ** rng.uniform(2, 3.3)
    model = PerformanceModel(law, EpochsLaw(1.5 * scale, scale), SAMPLES, 32, 60.0)
    job = SyntheticJob(ModelTruth(model, 0.02, number), rng, disturbance=TimingJitter())
    return simulate(job, situation(), ResizeOverheads(pause=2.0))


def situation(**changes: Any) -> PlanningState:
    state = PlanningState(
        space=SPACE,
        objective=Cheapest(),
        observations=(),
        stored=None,
        dataset_size=SAMPLES,
        reference_batch=32,
        epochs_at_reference=60.0,
        price=on_demand_price_model(0.5),
        probe_overhead=ProbeOverhead(pause=2.0),
    )
    return replace(state, **changes)


def random_stacks(number: int) -> dict[str, StackFactors]:
    """Draw the factors of each stack; a third of the jobs have none that is faster."""
    rng = np.random.default_rng([11, number])
    low = 1.0 if number % 3 == 0 else 0.5
    return {option.name: StackFactors(*rng.uniform(low, 1.4, 2).tolist()) for option in OPTIONS[1:]}


def assert_stacks_are_chosen_well(jobs: int) -> None:
    played = [play(number, random_stacks(number)) for number in range(jobs)]
    assert median(outcome.cost_overhead for outcome in played) <= 0.05
    for outcome in played:
        probed = {each.config for each in outcome.observations}
        of_stacks = [config.stack for config in probed if config.stack != "eager"]
        timed = {interval.config for interval in outcome.intervals if interval.purpose == "probe"}
        on_fewest = [config for config in timed if config.workers == 1]
        assert all(
            sum(config.stack == name for config in on_fewest) <= 3 for name in set(of_stacks)
        )
    best_eager = [outcome for outcome in played if outcome.oracle.config.stack == "eager"]
    assert len(best_eager) > jobs / 5
    assert median(map(share_of_stacks, best_eager)) <= 0.01


def share_of_stacks(outcome: SimulationOutcome) -> float:
    """Return the share of a job's cost that probes of further stacks took."""
    spent = [
        interval.cost
        for interval in outcome.intervals
        if interval.config.stack != "eager" and interval.purpose in ("probe", "pause")
    ]
    return sum(spent) / outcome.cost


def test_a_stack_costs_little_to_find_and_little_where_none_helps() -> None:
    assert_stacks_are_chosen_well(3)


@pytest.mark.slow
def test_a_hundred_jobs_find_their_stack() -> None:
    assert_stacks_are_chosen_well(100)


def test_a_stored_model_needs_no_probe_of_the_stacks_it_knows() -> None:
    first = play(2, random_stacks(2))
    assert first.run is not None
    fitted = first.run.fitted
    stored = StoredModel("same", fitted.model, fitted.observations, {}, 1)
    state = situation(stored=stored)
    again = decide(state)
    assert isinstance(again, TrainOn)
    assert again.config.stack == first.chosen.stack
    further = StackOption("channels_last", setup_seconds=1.0)
    wider = replace(SPACE, stacks=(*OPTIONS, further))
    probe = decide(replace(state, space=wider))
    assert isinstance(probe, Probe)
    assert probe.config.stack == "channels_last"
    assert probe.config.workers == 1
