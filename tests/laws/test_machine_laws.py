import math

import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from scavenger.cluster import (
    ClusterConfig,
    ConfigSpace,
    MachineType,
    MemoryModel,
    config_columns,
    hardware_of,
    make_config,
    space_columns,
)
from scavenger.models.iteration_time import Slowness, StepTimeLaw

unhurried = settings(max_examples=50)

machines = st.builds(
    MachineType,
    st.sampled_from(("small", "large", "wide")),
    st.integers(1, 64),
    st.sampled_from((1.0, 7.5, 16.0, 0.3, 1e6)),
    st.sampled_from((1, 2, 3, 8)),
    st.sampled_from(("", "here", "there")),
)
gib = st.sampled_from((0.0, 0.1, 0.3, 1.0, 1e-9)) | st.floats(1e-6, 20)
memories = st.builds(MemoryModel, gib, gib)


def ascending(largest: int) -> st.SearchStrategy[tuple[int, ...]]:
    numbers = st.sets(st.integers(1, largest), min_size=1, max_size=5)
    return numbers.map(lambda drawn: tuple(sorted(drawn)))


@st.composite
def spaces(draw):
    """A space of any shape, with batches too small for some workers and too large for memory."""
    kinds = draw(st.lists(machines, max_size=4, unique_by=lambda machine: machine.key))
    memory = draw(st.none() | memories)
    most = draw(st.just(math.inf) | st.floats(0.5, 100) | st.integers(1, 100))
    try:
        return ConfigSpace(draw(ascending(40)), draw(ascending(600)), tuple(kinds), memory, most)
    except ValueError:
        reject()


@unhurried
@given(spaces())
def test_laid_out_rows_are_the_configurations_of_the_space(space):
    grid = space_columns(space)
    assert [grid.config(row) for row in range(len(grid))] == list(space)


@unhurried
@given(spaces())
def test_columns_say_what_each_configuration_says(space):
    configs = list(space)
    for grid in (space_columns(space), config_columns(configs)):
        assert grid.local_batch.tolist() == [config.local_batch for config in configs]
        assert grid.machines.tolist() == [config.machines for config in configs]
    assert config_columns(configs).config(len(configs) - 1) == configs[-1]


@unhurried
@given(spaces())
def test_a_space_holds_what_it_yields_and_nothing_else(space):
    configs = set(space)
    kinds = space.machine_types or (None,)
    for machine in kinds:
        for workers in space.workers:
            for batch in space.global_batches:
                if batch >= workers:
                    config = make_config(workers, batch, machine)
                    assert (config in space) is (config in configs)
    assert ClusterConfig(1, 10**6) not in space
    assert ClusterConfig(1, 8, machine_type="unheard-of") not in space


@unhurried
@given(spaces())
def test_every_worker_of_a_space_has_the_memory_it_needs(space):
    by_key = {machine.key: machine for machine in space.machine_types}
    for config in space:
        busiest = -(-config.global_batch // config.workers)
        assert busiest <= space.most_local_batch
        if space.memory is not None and by_key:
            machine = by_key[config.machine_type]
            assert space.memory.needed(busiest) * machine.workers <= machine.memory_gib


@unhurried
@given(spaces())
def test_corners_lie_in_the_space_and_only_add_machines(space):
    corners = space.corners()
    assert len(set(corners)) == len(corners)
    assert all(corner in space for corner in corners)
    for key in {corner.machine_type for corner in corners}:
        machines = [corner.machines for corner in corners if corner.machine_type == key]
        assert machines == sorted(machines)


@unhurried
@given(spaces())
def test_corners_span_all_workers_that_fit_on_the_first_hardware_and_visit_every_other(space):
    corners = space.corners()
    assert {hardware_of(c.machine_type) for c in corners} == {
        hardware_of(c.machine_type) for c in space
    }
    first = corners[0].machine_type
    fitting = [config for config in space if config.machine_type == first]
    spanned = [corner.workers for corner in corners if corner.machine_type == first]
    assert min(spanned) == min(config.workers for config in fitting)
    assert max(spanned) == max(config.workers for config in fitting)
    for workers in (min(spanned), max(spanned)):
        batches = [config.global_batch for config in fitting if config.workers == workers]
        ends = [c.global_batch for c in corners if (c.machine_type, c.workers) == (first, workers)]
        assert {min(batches), max(batches)} == set(ends)


@unhurried
@given(st.integers(1, 500), st.integers(1, 16))
def test_the_last_machine_is_not_empty(workers, shared):
    machines = ClusterConfig(workers, workers, shared).machines
    assert (machines - 1) * shared < workers <= machines * shared


@unhurried
@given(machines)
def test_a_region_changes_no_hardware(machine):
    assert hardware_of(machine.key) == machine.name


@unhurried
@given(memories, machines)
def test_the_largest_batch_fits_and_one_sample_more_does_not(memory, machine):
    largest = memory.max_local_batch(machine)
    if largest > 0:
        assert memory.fits(min(largest, 1e15), machine)
    if largest < 1e15:
        assert not memory.fits(largest + 1, machine)


def smoothly_largest(power: float, one: float, other: float) -> float:
    return (one**power + other**power) ** (1 / power)


def seconds_of(model: StepTimeLaw, config: ClusterConfig) -> tuple[float, float]:
    """Compute and whole iteration of one configuration, written out (Eqs. 8-10)."""
    slowness = model.slowness.get(hardware_of(config.machine_type), Slowness())
    r, q = model.flatness, model.overlap
    several, across = config.workers > 1, config.machines > 1
    variable = model.compute_per_sample * config.local_batch
    compute = slowness.compute * smoothly_largest(r, model.compute_fixed, variable)
    size = {"linear": several * config.workers, "log": math.log2(config.workers)}
    size["servers"] = config.workers
    sync = model.sync_fixed * several + model.sync_per_worker * size[model.growth]
    sync = slowness.sync * (sync + model.sync_across_machines * across)
    return compute, smoothly_largest(q, compute, sync)


coefficients = st.just(0.0) | st.floats(1e-6, 1e3)
slow = st.builds(Slowness, st.floats(0, 10), st.floats(0, 10))
laws = st.builds(
    StepTimeLaw,
    *[coefficients] * 5,
    growth=st.sampled_from(("linear", "log", "servers")),
    overlap=st.sampled_from((1.0, 2.0, 7.5)),
    flatness=st.sampled_from((1.0, 2.0)),
    slowness=st.dictionaries(st.sampled_from(("small", "wide")), slow),
)


@unhurried
@given(spaces(), laws)
def test_all_configurations_at_once_take_what_each_takes_alone(space, model):
    grid = space_columns(space)
    compute, steps = model.compute_times(grid), model.step_times(grid)
    for row, config in enumerate(space):
        alone = seconds_of(model, config)
        assert (compute[row], steps[row]) == (pytest.approx(alone[0]), pytest.approx(alone[1]))
        assert model.compute_time(config) == pytest.approx(compute[row], rel=1e-12)
        assert model.step_time(config) == pytest.approx(steps[row], rel=1e-12)
        assert model.sync_time(config) >= -1e-12 * steps[row]
