"""Layouts as an axis of the search: what a profile tells, what a probe is worth, and regret."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from functools import lru_cache
from statistics import median

import numpy as np
import pytest

from scavenger.cluster import ClusterConfig, ConfigSpace, config_columns
from scavenger.layout import PLAIN, Layout
from scavenger.measurement.layout_profile import BlockProfile, LayoutProfile, LinkSpeed
from scavenger.models.epochs import EpochsLaw
from scavenger.models.iteration_time import StepTimeLaw
from scavenger.models.layout_time import forecast_layout
from scavenger.models.performance import PerformanceModel
from scavenger.offline.simulator.jobs import ModelTruth, SyntheticJob, TimingJitter
from scavenger.offline.simulator.simulation import ResizeOverheads, SimulationOutcome, simulate
from scavenger.planning.curve import curve_from_forecast, forecast_grid
from scavenger.planning.layout_search import (
    DEVIATION,
    FoundLayouts,
    LayoutSearch,
    PipelineSearch,
    find_layouts,
    find_pipeline,
)
from scavenger.planning.layouts import GIB, LayoutRange, PipelineForecast, memory_of_pipeline
from scavenger.planning.objectives import Cheapest
from scavenger.planning.search.strategy import choose_with_starts
from scavenger.planning.state import PlanningState, ProbeOverhead
from scavenger.pricing import on_demand_price_model
from scavenger.stack import EAGER_NAME, Stack, StackFactors, StackOption
from tests.laws.test_stack_search_laws import share_of_stacks

WORKERS, BATCHES = (1, 2, 4), (32, 64, 128, 256)
LOCAL_BATCHES = (8, 16, 32, 64, 128, 256)
SAMPLES = 500_000
CHIPS = LayoutRange((1, 2, 3, 4), (1, 2, 4, 8), (1,))


def profile_of(number: int) -> LayoutProfile:
    """Draw a model, in every second one of which processes can share weights, and its machine."""
    rng = np.random.default_rng([3, number])
    count, shared = int(rng.integers(4, 12)), number % 2 == 0
    blocks = tuple(
        BlockProfile(
            f"blocks.{place}",
            fixed_seconds=rng.uniform(0.001, 0.01),
            seconds_per_sample=10 ** rng.uniform(-4, -3),
            output_bytes=10 ** rng.uniform(4, 6),
            saved_bytes=10 ** rng.uniform(6, 7),
            weight_bytes=10 ** rng.uniform(7, 8.5),
            all_reduces=4 if shared else 0,
            all_reduce_bytes=10 ** rng.uniform(4, 6) if shared else 0.0,
        )
        for place in range(count)
    )
    hosted = int(rng.choice([2, 4, 8]))
    return LayoutProfile(
        blocks,
        LinkSpeed(2e-5, 10 ** rng.uniform(9, 11)),
        LinkSpeed(1e-4, 1.25e9),
        processes_per_machine=hosted,
        # Chips of every second machine; the others' processes share the cores of one.
        concurrent_processes=0 if number % 4 < 2 else 1,
        start_seconds=rng.uniform(2.0, 20.0),
        optimizer_slots=2,
    )


def whole_bytes(profile: LayoutProfile, batch: int) -> float:
    """Return what one process needs that has the whole model."""
    found = forecast_layout(profile, PLAIN, 1, batch)
    assert found is not None
    return found.memory_bytes


@lru_cache
def found_for(number: int, memory: float) -> FoundLayouts:
    """Return the layouts of a drawn model, with memory as a share of what the whole one needs."""
    profile = profile_of(number)
    each = memory * whole_bytes(profile, LOCAL_BATCHES[0])
    search = LayoutSearch(CHIPS, process_memory_bytes=each)
    return find_layouts(profile, search, LOCAL_BATCHES)


def test_expected_factors_repeat_the_forecast_at_both_ends() -> None:
    for number in range(30):
        profile = profile_of(number)
        for option in find_layouts(profile, LayoutSearch(CHIPS), LOCAL_BATCHES).options:
            expected = option.expected
            assert expected is not None
            variance = 0.0 if option.name == EAGER_NAME else DEVIATION**2
            assert expected.covariance == ((variance, 0.0), (0.0, variance))
            law = StepTimeLaw(0.0, 0.0, 0.0, 0.0)
            small, large = (forecast_layout(profile, PLAIN, 1, b) for b in (8, 256))
            assert small is not None
            assert large is not None
            per_sample = (large.seconds - small.seconds) / (256 - 8)
            fixed = small.seconds - 8 * per_sample
            law = StepTimeLaw(fixed, per_sample, 0.0, 0.0, expected_stacks={option.name: expected})
            for batch in (8, 256):
                grid = config_columns([ClusterConfig(1, batch, stack=option.name)])
                cut = option.layout
                parts = max(m for m in range(1, cut.micro_batches + 1) if batch % m == 0)
                own = replace(cut, micro_batches=parts, cuts=())
                starts = [int(name.removeprefix("blocks.")) for name in cut.cuts]
                told = forecast_layout(profile, own, own.processes, batch, starts)
                assert told is not None
                assert law.step_times(grid)[0] == pytest.approx(told.seconds, rel=0.02)


def test_the_largest_local_batch_is_that_of_the_cut_that_workers_keep() -> None:
    limited = 0
    for number in range(40):
        profile = profile_of(number)
        each = 0.6 * whole_bytes(profile, LOCAL_BATCHES[0])
        whole = each * profile.processes_per_machine
        fitting = replace(profile, machine_memory_bytes=whole)
        for option in found_for(number, 0.6).options:
            cut = option.layout
            starts = [int(name.removeprefix("blocks.")) for name in cut.cuts]
            for batch in LOCAL_BATCHES:
                parts = max(m for m in range(1, cut.micro_batches + 1) if batch % m == 0)
                own = replace(cut, micro_batches=parts, cuts=())
                told = forecast_layout(fitting, own, own.processes, batch, starts)
                if batch == option.most_local_batch or math.isinf(option.most_local_batch):
                    assert told is not None
                elif batch > option.most_local_batch:
                    assert told is None
                    limited += 1
    assert limited > 20


def test_what_does_not_fit_is_refused_with_the_bytes_that_are_missing() -> None:
    fitting = 0
    for number in range(40):
        profile = profile_of(number)
        half = 0.6 * whole_bytes(profile, LOCAL_BATCHES[0])
        alone = LayoutSearch(LayoutRange((1,), (1,), (1,)), process_memory_bytes=half)
        refused = find_layouts(profile, alone, LOCAL_BATCHES)
        assert refused.options == ()
        missing = whole_bytes(profile, LOCAL_BATCHES[0]) - half
        assert f"{missing:,.0f} bytes are missing" in refused.conclusion
        assert f"has {half / GIB:.3g} GiB" in refused.conclusion
        free = find_layouts(profile, replace(alone, considered=CHIPS), LOCAL_BATCHES)
        assert all(option.layout.processes > 1 for option in free.options)
        fitting += bool(free.options)
        for option in free.options:
            most = min(option.most_local_batch, LOCAL_BATCHES[-1])
            parts = max(m for m in range(1, option.layout.micro_batches + 1) if most % m == 0)
            own = replace(option.layout, micro_batches=parts, cuts=())
            limited = replace(profile, machine_memory_bytes=half * profile.processes_per_machine)
            assert forecast_layout(limited, own, own.processes, int(most)) is not None
    assert fitting > 25


def test_processes_that_share_cores_gain_nothing_by_sharing_a_model() -> None:
    for number in range(2, 40, 4):
        found = find_layouts(profile_of(number), LayoutSearch(CHIPS), LOCAL_BATCHES)
        assert found.options[0].name == EAGER_NAME
    alone = find_layouts(profile_of(0), LayoutSearch(LayoutRange((1,), (1,), (1,))), (8,))
    assert [option.name for option in alone.options] == [EAGER_NAME]
    assert alone.refused == {}


def test_parts_cuts_and_machines_are_those_that_a_job_allows() -> None:
    profile = replace(profile_of(0), processes_per_machine=2)
    found = find_layouts(profile, LayoutSearch(CHIPS, micro_batches=4), LOCAL_BATCHES)
    cut = [option.layout for option in found.options if option.layout.pipeline > 1]
    assert cut
    assert all(layout.micro_batches == 4 and len(layout.cuts) == 1 for layout in cut)
    assert found.refused[Layout(4, 1)] == "a machine hosts 2 of the 4 processes of a worker"
    odd = find_layouts(replace(profile, has_batch_statistics=True), LayoutSearch(CHIPS), (8, 64))
    assert all(option.layout.micro_batches == 1 for option in odd.options)


def pipeline_of_model(
    number: int, at_once: int = 0, memory: float | None = None, *, is_synced: bool = False
) -> PipelineForecast | str:
    """Return the asynchronous pipeline of a drawn model, whose weights are slow to average."""
    profile = replace(profile_of(number), inside=LinkSpeed(2e-5, 2e9), concurrent_processes=at_once)
    return find_pipeline(profile, PipelineSearch(16, memory, is_synced))


def test_a_profile_always_has_the_same_pipeline_within_its_machine() -> None:
    found = 0
    for number, is_synced in itertools.product(range(40), (False, True)):
        best = pipeline_of_model(number, is_synced=is_synced)
        if isinstance(best, str):
            assert best.startswith("no asynchronous pipeline")
            continue
        found += 1
        layout, stages = best.layout, best.partition.stages
        assert pipeline_of_model(number, is_synced=is_synced) == best
        assert layout.vertical_sync == is_synced
        assert 1 < best.speedup <= layout.processes * (1 + 1e-9)
        assert layout.processes <= profile_of(number).processes_per_machine
        in_order = replace(layout, vertical_sync=False)
        assert [in_order.versions(n) for n in range(len(stages))] == [s.in_flight for s in stages]
    assert found > 40


def test_no_stage_of_a_pipeline_needs_more_memory_than_its_process_has() -> None:
    smaller = 0
    for number, is_synced in itertools.product(range(40), (False, True)):
        best = pipeline_of_model(number, is_synced=is_synced)
        if isinstance(best, str):
            continue
        needed = memory_of_pipeline(profile_of(number), best)
        assert pipeline_of_model(number, memory=needed, is_synced=is_synced) == best
        other = pipeline_of_model(number, memory=0.95 * needed, is_synced=is_synced)
        if not isinstance(other, str):
            smaller += 1
            assert memory_of_pipeline(profile_of(number), other) <= 0.95 * needed
            assert other.speedup <= best.speedup * (1 + 1e-9)
        assert "needs least" in str(pipeline_of_model(number, memory=1.0, is_synced=is_synced))
    assert smaller > 10


def test_a_pipeline_has_no_more_processes_than_compute_at_once() -> None:
    for number in range(40):
        assert "one process at a time" in str(pipeline_of_model(number, at_once=1))
        hosted, fastest = profile_of(number).processes_per_machine, 1.0
        for at_once in range(2, hosted + 1):
            best = pipeline_of_model(number, at_once)
            if not isinstance(best, str):
                assert best.layout.processes <= at_once
                assert best.speedup >= fastest
                fastest = best.speedup
        assert pipeline_of_model(number, hosted) == pipeline_of_model(number)


@pytest.mark.parametrize("epochs", [0.1, 1.0, 10.0, 100.0])
@pytest.mark.parametrize("seconds", [0.0, 2.0, 200.0])
def test_a_faster_layout_is_chosen_where_it_saves_more_than_its_start_takes(
    epochs: float, seconds: float
) -> None:
    cut = StackOption(str(Stack(layout=Layout(2))), switch_seconds=seconds)
    law = StepTimeLaw(0.01, 0.001, 0.0, 0.0, stacks={cut.name: StackFactors(0.9, 0.9)})
    model = PerformanceModel(law, EpochsLaw(None, None), 1000, 100, epochs)
    space = ConfigSpace((1,), (100,), stacks=(StackOption(EAGER_NAME), cut))
    price = on_demand_price_model(0.5)
    state = PlanningState(
        space=space,
        objective=Cheapest(),
        observations=(),
        stored=None,
        dataset_size=1000,
        reference_batch=100,
        epochs_at_reference=epochs,
        price=price,
    )
    curve = curve_from_forecast(forecast_grid(config_columns(list(space)), model, price, {}))
    choice = choose_with_starts(state, curve)
    whole = max(point.time for point in curve.points)
    pays = 0.9 * whole + seconds < whole
    assert choice.point.config.stack == (cut.name if pays else EAGER_NAME)
    assert ("would save less than" in choice.why) is not pays
    # One that is in the layout already stays there.
    there = replace(space, stacks=(cut, StackOption(EAGER_NAME)))
    assert choose_with_starts(replace(state, space=there), curve).point.config.stack == cut.name


def play(number: int, memory: float) -> SimulationOutcome | None:
    """Train a made-up job, of whose layouts the forecasts miss; None if no layout fits."""
    rng = np.random.default_rng([13, number])
    profile, found = profile_of(number), found_for(number, memory)
    if not found.options:
        return None
    truth = {}
    for option in found.options:
        assert option.expected is not None
        missed = np.exp(rng.normal(0.0, DEVIATION if option.name != EAGER_NAME else 0.0, 2))
        own = option.expected
        truth[option.name] = StackFactors(
            own.compute_fixed * missed[0], own.compute_per_sample * missed[1]
        )
    small, large = (forecast_layout(profile, PLAIN, 1, b) for b in (8, 256))
    assert small is not None
    assert large is not None
    per_sample = (large.seconds - small.seconds) / (256 - 8)
    weights = sum(block.weight_bytes for block in profile.blocks)
    law = StepTimeLaw(
        small.seconds - 8 * per_sample,
        per_sample,
        weights / profile.across.bytes_per_second,
        rng.uniform(0.0, 0.02),
        stacks=truth,
    )
    scale = 10 ** rng.uniform(2, 3.3)
    model = PerformanceModel(law, EpochsLaw(1.5 * scale, scale), SAMPLES, 32, 60.0)
    job = SyntheticJob(ModelTruth(model, 0.02, number), rng, disturbance=TimingJitter())
    state = PlanningState(
        space=ConfigSpace(WORKERS, BATCHES, stacks=found.options),
        objective=Cheapest(),
        observations=(),
        stored=None,
        dataset_size=SAMPLES,
        reference_batch=32,
        epochs_at_reference=60.0,
        price=on_demand_price_model(0.5),
        probe_overhead=ProbeOverhead(pause=2.0),
    )
    return simulate(job, state, ResizeOverheads(pause=2.0))


def assert_layouts_are_chosen_well(jobs: int) -> None:
    played = [play(number, (math.inf, 0.6)[number % 3 == 0]) for number in range(jobs)]
    trained = [outcome for outcome in played if outcome is not None]
    assert len(trained) > 0.8 * jobs
    assert median(outcome.cost_overhead for outcome in trained) <= 0.05
    assert median(map(further_probes, trained)) <= 2
    best_alone = [each for each in trained if each.oracle.config.stack == EAGER_NAME]
    assert len(best_alone) >= jobs / 10
    assert median(map(share_of_stacks, best_alone)) <= 0.01


def further_probes(outcome: SimulationOutcome) -> int:
    """Return how many configurations with another layout than the first a job has probed."""
    configs = {each.config for each in outcome.observations}
    first = outcome.intervals[0].config.stack
    return sum(config.stack != first for config in configs)


def test_a_layout_costs_little_to_find_and_little_where_none_helps() -> None:
    assert_layouts_are_chosen_well(10)


@pytest.mark.slow
def test_a_hundred_jobs_find_their_layout() -> None:
    assert_layouts_are_chosen_well(100)
