"""Laws of layouts: their time is that of the schedule played out, their cut the best one."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from scavenger.layout import Layout, Schedule
from scavenger.measurement.layout_profile import BlockProfile, LayoutProfile, LinkSpeed
from scavenger.models.layout_time import (
    SHARD_START,
    LayoutForecast,
    StageForecast,
    forecast_layout,
)
from scavenger.planning.layouts import LayoutRange, forecast_layouts

FREE = LinkSpeed(0.0, 1e30)


def profile_of(blocks: Sequence[BlockProfile], **changes: object) -> LayoutProfile:
    facts = {"inside": FREE, "across": FREE, "processes_per_machine": 8, "heads": 8, **changes}
    return LayoutProfile(tuple(blocks), **facts)  # type: ignore[arg-type]


def blocks_of(rng: np.random.Generator, count: int, spread: float = 1.0) -> list[BlockProfile]:
    return [
        BlockProfile(
            f"b{number}",
            fixed_seconds=0.01 * rng.uniform(1 - spread, 1 + spread),
            seconds_per_sample=0.01 * rng.uniform(1 - spread, 1 + spread),
            output_bytes=rng.uniform(0, 1e5),
            saved_bytes=rng.uniform(0, 1e6),
            weight_bytes=rng.uniform(0, 1e6),
            all_reduces=4,
            all_reduce_bytes=rng.uniform(0, 1e5),
        )
        for number in range(count)
    ]


def forecast(profile: LayoutProfile, layout: Layout, processes: int, batch: int) -> LayoutForecast:
    found = forecast_layout(profile, layout, processes, batch)
    assert found is not None
    return found


def passes_of(layout: Layout, stage: int) -> list[tuple[str, int, int]]:
    """Return forward and backward passes of a stage in order, each with chunk and micro-batch."""
    count, parts = layout.pipeline, layout.micro_batches
    if layout.schedule == "interleaved":
        turns = [
            (chunk, first + k)
            for first in range(0, parts, count)
            for chunk in range(layout.chunks)
            for k in range(count)
        ]
        forward = [("F", stage + chunk * count, k) for chunk, k in turns]
        last = layout.chunks - 1
        backward = [("B", stage + (last - chunk) * count, k) for chunk, k in turns]
        warm = min(last * count + 2 * (count - 1 - stage), len(forward))
    else:
        forward, backward = ([(work, stage, k) for k in range(parts)] for work in "FB")
        warm = parts if layout.schedule == "gpipe" else min(count - 1 - stage, parts)
    order = forward[:warm]
    for pair in zip(forward[warm:], backward, strict=False):
        order += pair
    return order + backward[len(forward) - warm :]


def played(layout: Layout, stages: Sequence[StageForecast], sends: Sequence[float]) -> float:
    """Play a schedule with a flush; a third of a stage is its forward pass."""
    count, ends = len(stages), {}
    orders = [passes_of(layout, stage) for stage in range(layout.pipeline)]
    clock, places = [0.0] * layout.pipeline, [0] * layout.pipeline
    while any(place < len(order) for place, order in zip(places, orders, strict=True)):
        for process in range(layout.pipeline):
            if places[process] == len(orders[process]):
                continue
            work, stage, k = orders[process][places[process]]
            needs = stage - 1 if work == "F" else stage + 1
            source = (work, needs, k) if 0 <= needs < count else ("F", stage, k)
            is_first = work == "F" and needs < 0
            if not is_first and source not in ends:
                continue
            border = min(stage, needs) if 0 <= needs < count else -1
            ready = 0.0 if is_first else ends[source] + (sends[border] if border >= 0 else 0.0)
            share = 1 / 3 if work == "F" else 2 / 3
            clock[process] = max(clock[process], ready) + share * stages[stage].seconds
            ends[work, stage, k] = clock[process]
            places[process] += 1
    return max(clock)


def test_one_process_takes_what_its_profile_says() -> None:
    for number in range(50):
        rng = np.random.default_rng([1, number])
        blocks = blocks_of(rng, int(rng.integers(1, 8)))
        batch = int(rng.integers(1, 200))
        found = forecast(profile_of(blocks, optimizer_seconds=0.5), Layout(), 1, batch)
        lines = (each.fixed_seconds + each.seconds_per_sample * batch for each in blocks)
        assert found.seconds == pytest.approx(sum(lines) + 0.5)
        assert found.seconds_low == found.seconds == found.seconds_high, "it was measured"
        assert found.samples_per_second == pytest.approx(batch / found.seconds)


def test_a_balanced_pipeline_takes_as_many_turns_as_parts_and_other_stages() -> None:
    for stages, parts in itertools.product((1, 2, 4), (1, 2, 8)):
        if stages == 1 and parts > 1:
            continue
        blocks = [BlockProfile("b", 0.25, 0.5, 0.0, 0.0, 0.0)] * 4
        layout = Layout(stages, micro_batches=parts)
        found = forecast(profile_of(blocks), layout, stages, 16)
        turn = 4 / stages * (0.25 + 0.5 * 16 / parts)
        assert found.seconds == pytest.approx((parts + stages - 1) * turn)


def test_chunks_divide_the_idle_time_of_a_balanced_pipeline() -> None:
    for stages, chunks, rounds in itertools.product((2, 4), (2, 3), (1, 4)):
        blocks = [BlockProfile("b", 0.25, 0.5, 0.0, 0.0, 1e6)] * (stages * chunks)
        parts = stages * rounds
        layout = Layout(stages, micro_batches=parts, schedule="interleaved", chunks=chunks)
        found = forecast(profile_of(blocks), layout, stages, parts)
        turn = chunks * (0.25 + 0.5)
        assert found.seconds == pytest.approx((parts + (stages - 1) / chunks) * turn)
        assert found.memory_bytes == 2 * chunks * 1e6, "weights and gradients of all its chunks"


def test_the_chunks_of_a_process_need_memory_together() -> None:
    blocks = [BlockProfile("b", 0.1, 0.0, 0.0, 8.0, 1e6)] * 4
    layout = Layout(2, micro_batches=4, schedule="interleaved", chunks=2)
    needed = 2 * 2e6 + 2.5 * 2 * 8.0  # five forward passes of a chunk before the first one back
    enough, little = (
        profile_of(blocks, machine_memory_bytes=8 * most) for most in (needed, needed - 1)
    )
    found = forecast(enough, layout, 2, 4)
    assert [stage.first for stage in found.stages] == [0, 1, 2, 3]
    assert found.memory_bytes == found.stages[0].memory_bytes == found.stages[2].memory_bytes
    assert found.memory_bytes == needed
    assert forecast_layout(little, layout, 2, 4) is None


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "interleaved"])
def test_the_time_is_that_of_the_schedule_played_out(schedule: Schedule) -> None:
    errors = []
    for number in range(500):
        rng = np.random.default_rng([2, number])
        stages = int(rng.integers(2, 7))
        chunks = int(rng.integers(2, 5)) if schedule == "interleaved" else 1
        parts = int(rng.integers(stages, 8 * stages))
        parts -= parts % stages if schedule == "interleaved" else 0
        layout = Layout(stages, micro_batches=parts, schedule=schedule, chunks=chunks)
        blocks = [
            replace(block, output_bytes=rng.uniform(0, 0.1), weight_bytes=0.0)
            for block in blocks_of(rng, layout.chunk_count, spread=0.2)
        ]
        mean = float(np.mean([b.fixed_seconds + b.seconds_per_sample for b in blocks]))
        link = LinkSpeed(0.0, 1 / mean)  # a transfer takes at most a tenth of a stage
        profile = profile_of(blocks, inside=link, across=link)
        found = forecast(profile, layout, stages, parts)
        sends = [link.send(blocks[stage.last].output_bytes) for stage in found.stages[:-1]]
        errors.append(found.seconds / played(layout, found.stages, sends) - 1)
    assert np.median(errors) < (0.02 if schedule == "interleaved" else 0.01)
    assert np.quantile(np.abs(errors), 0.9) < 0.05
    assert np.abs(errors).max() < 0.15


def test_the_slowest_stage_of_the_cut_is_as_fast_as_memory_allows() -> None:
    unfit = 0
    for number in range(300):
        rng = np.random.default_rng([3, number])
        blocks = blocks_of(rng, int(rng.integers(2, 8)))
        stages = int(rng.integers(1, min(len(blocks), 4) + 1))
        parts = int(rng.choice([1, 2, 4])) if stages > 1 else 1
        slots, memory = int(rng.integers(0, 3)), rng.uniform(1e6, 2e7)
        profile = profile_of(blocks, machine_memory_bytes=8 * memory, optimizer_slots=slots)
        is_gpipe = stages > 1 and number % 2 == 0
        layout = Layout(stages, micro_batches=parts, schedule="gpipe" if is_gpipe else "1f1b")
        found = forecast_layout(profile, layout, stages, 8)
        best = math.inf
        for cuts in itertools.combinations(range(1, len(blocks)), stages - 1):
            bounds = [0, *cuts, len(blocks)]
            own = [blocks[a:b] for a, b in itertools.pairwise(bounds)]
            needed = [
                (2 + slots) * sum(b.weight_bytes for b in stage)
                + (parts if is_gpipe else min(parts, stages - place))
                * sum(b.saved_bytes for b in stage)
                * 8
                / parts
                for place, stage in enumerate(own)
            ]
            slowest = max(
                sum(b.fixed_seconds + b.seconds_per_sample * 8 / parts for b in stage)
                for stage in own
            )
            if max(needed) <= memory:
                best = min(best, slowest)
        unfit += math.isinf(best)
        assert (found is None) == math.isinf(best)
        if found is not None:
            assert max(stage.seconds for stage in found.stages) == pytest.approx(best)
            assert found.memory_bytes <= memory
            assert [stage.first for stage in found.stages[1:]] == [
                stage.last + 1 for stage in found.stages[:-1]
            ]
    assert 20 < unfit < 280


def test_shards_divide_work_and_memory_and_pay_for_all_reduces() -> None:
    block = BlockProfile("b", 0.1, 0.2, 0.0, 1e6, 1e6, all_reduces=4, all_reduce_bytes=100.0)
    embedding = replace(block, name="tok", keeps_whole_gradient=True)
    link = LinkSpeed(0.01, 1000.0)
    profile = profile_of([embedding, block], inside=link, optimizer_slots=2)
    found = forecast(profile, Layout(tensor=2), 2, 10)
    exchange = 2 * 0.01 + 2 * (2 - 1) / 2 * 1000 / 1000.0
    assert found.seconds == pytest.approx(2 * (0.1 + 0.2 * 10 / 2 + 4 * exchange))
    kept = (2 + 2) * 2e6 / 2 + 1e6 / 2  # half a gradient more of the embedding
    assert found.memory_bytes == pytest.approx(kept + 10 * 2e6 / 2)


def test_workers_wait_for_the_all_reduce_of_the_heaviest_stage() -> None:
    light, heavy = (BlockProfile("b", 0.1, 0.0, 0.0, 0.0, size) for size in (1e6, 3e6))
    link = LinkSpeed(0.001, 1e6)
    profile = profile_of([light, heavy], across=link, processes_per_machine=2)
    found = forecast(profile, Layout(2), 8, 8)
    assert found.workers == 4
    assert found.seconds == pytest.approx(2 * 0.1 + 6 * 0.001 + 2 * 3 / 4 * 3.0)
    alone = forecast(profile, Layout(), 4, 8)
    assert alone.seconds == pytest.approx(2 * 0.1 + 6 * 0.001 + 2 * 3 / 4 * 4.0)


def test_sharded_weights_are_kept_once_and_gathered_for_each_pass() -> None:
    blocks = [BlockProfile("b", 0.1, 0.0, 0.0, 0.0, 1e6)] * 4
    link = LinkSpeed(0.01, 1e6)
    profile = profile_of(blocks, inside=link, optimizer_slots=2)
    whole = forecast(profile, Layout(), 1, 8)
    found = forecast(profile, Layout(shard=4), 4, 8)
    assert whole.memory_bytes == 4 * 4e6
    assert found.memory_bytes == 4 * 1e6 + 1e6, "a quarter, and one block that is gathered"
    gathering, reducing = SHARD_START + 3 * 0.01 + 3 / 4 * 1.0, SHARD_START + 6 * 0.01 + 6 / 4 * 1.0
    assert found.seconds == pytest.approx(4 * (0.1 + 2 * gathering + reducing + 3 * 1.0))
    bare = replace(profile, blocks=(*blocks, BlockProfile("tanh", 0.1, 0.0, 0.0, 0.0, 0.0)))
    assert forecast(bare, Layout(shard=4), 4, 8).seconds == pytest.approx(found.seconds + 0.1)


@pytest.mark.parametrize(
    ("layout", "changes", "why"),
    [
        (Layout(5), {}, "4 blocks cannot be cut into 5 stages"),
        (Layout(tensor=3), {}, "8 heads are not divisible by 3"),
        (Layout(tensor=2), {"vocabulary": 101}, "a vocabulary of 101 is not divisible by 2"),
        (Layout(tensor=4), {"processes_per_machine": 2}, "a machine hosts 2 of the 4 processes"),
        (Layout(2, micro_batches=2), {"has_batch_statistics": True}, "a batch normalisation"),
    ],
)
def test_what_the_model_does_not_allow_is_refused(
    layout: Layout, changes: dict[str, object], why: str
) -> None:
    profile = profile_of(blocks_of(np.random.default_rng(1), 4), **changes)
    assert (profile.objection(layout) or "").startswith(why)
    with pytest.raises(ValueError, match=why):
        forecast_layout(profile, layout, layout.processes, 60)


@pytest.mark.parametrize(
    ("layout", "processes", "batch", "why"),
    [
        (Layout(2), 3, 8, "3 processes are no whole number of workers of 2"),
        (Layout(2, micro_batches=4), 4, 12, "a batch of 12 does not divide into 8 equal parts"),
        (Layout(shard=2), 4, 6, "a batch of 6 does not divide into 4 equal parts"),
        (Layout(), 3, 8, None),
        (Layout(2, 2, 2, 2), 16, 8, None),
    ],
)
def test_processes_and_batch_divide_by_the_layout(
    layout: Layout, processes: int, batch: int, why: str | None
) -> None:
    assert layout.objection(processes, batch) == why


@pytest.mark.parametrize(
    "wrong", [{"pipeline": 0}, {"tensor": -1}, {"shard": 0}, {"micro_batches": 2}]
)
def test_a_layout_is_made_of_whole_parts(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong)).replace("_", "[_-]")):
        Layout(**wrong)


def test_what_moves_more_than_it_computes_is_cut_and_what_does_not_is_not() -> None:
    compute = BlockProfile("conv", 0.0, 0.01, 1e4, 0.0, 1e5)
    large = BlockProfile("fc", 0.0, 0.001, 1e3, 0.0, 4e8)
    slow = LinkSpeed(1e-4, 1e9)
    counts = (1, 2, 4, 8)
    moved = profile_of([compute] * 7 + [large], across=slow, processes_per_machine=1)
    made = forecast_layouts(moved, counts, 64)
    assert made.forecasts[0].layout.pipeline > 1
    assert "times as fast as data parallelism alone" in made.conclusion
    small = profile_of([compute] * 8, across=slow, processes_per_machine=1)
    made = forecast_layouts(small, counts, 64)
    assert made.forecasts[0].layout == Layout()
    assert made.conclusion.startswith("data parallelism alone is the fastest")
    assert made.refused[Layout(3)] == "needs a multiple of 3 processes"
    assert (
        made.refused[Layout(tensor=2)]
        == "no block says how its weights can be shared by several processes"
    )


def test_a_model_that_fits_no_process_is_cut_until_it_does_or_the_bytes_are_named() -> None:
    block = BlockProfile("b", 0.1, 0.01, 1e3, 0.0, 2.0**30)
    fits = profile_of([block] * 4, machine_memory_bytes=9 * 2.0**30, processes_per_machine=1)
    profile = replace(fits, optimizer_slots=2)
    made = forecast_layouts(profile, (1, 2, 4), 8)
    assert {each.layout.pipeline for each in made.forecasts} <= {2, 3, 4}
    assert (
        made.refused[Layout()]
        == "a process needs 16 GiB and has 9 GiB, so 7,516,192,768 bytes are missing"
    )
    assert "the whole model fits no process" in made.conclusion
    kept = replace(profile, blocks=(replace(block, saved_bytes=2.0**29),) * 4)
    refused = forecast_layouts(kept, (2,), 8).refused[Layout(2)]
    # Weights, gradients and slots of two blocks; of two parts of one sample in flight, of eight.
    assert refused == "a process needs 10 GiB and has 9 GiB, so 1,073,741,824 bytes are missing"
    least = forecast_layouts(profile, (1,), 8, LayoutRange())
    assert not least.forecasts
    assert least.conclusion == f"no layout fits: with P=1 T=1, {made.refused[Layout()]}"
