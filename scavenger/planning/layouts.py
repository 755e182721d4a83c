"""`forecast_layouts`: every layout of a model on so many processes, and which of them pays.

Only layouts that the model allows are looked at, with the best cut and number of micro-batches of
each. What another beats in time and cost, beyond what either is uncertain by, is left out.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from scavenger.layout import PLAIN, Layout
from scavenger.measurement.layout_profile import LayoutProfile
from scavenger.models.layout_time import LayoutForecast, forecast_layout
from scavenger.models.partition import Layer, Partition, PartitionLimits, partition_chain

GIB = 2**30
NAME_IN_LAYOUT = re.compile(r"[^\s,+]+")  # + joins the parts of a stack


@dataclass(frozen=True, slots=True)
class LayoutRange:
    """Which layouts are looked at.

    Attributes:
        pipeline: Numbers of stages.
        tensor: Numbers of processes that share a tensor.
        shard: Numbers of processes that share weights and split a batch.
    """

    pipeline: tuple[int, ...] = (1, 2, 3, 4)
    tensor: tuple[int, ...] = (1, 2, 4, 8)
    shard: tuple[int, ...] = (1,)

    def __iter__(self) -> Iterator[Layout]:
        for pipeline in self.pipeline:
            for tensor in self.tensor:
                for shard in self.shard:
                    yield Layout(pipeline, tensor, shard)


@dataclass(frozen=True, slots=True)
class LayoutPlan:
    """Layouts of a model for one global batch.

    Attributes:
        forecasts: The layouts that may be best for someone, the fastest first.
        dominated: How many were left out, since another is faster and cheaper.
        refused: Why the model or the memory does not allow a layout.
        conclusion: In a sentence, what to take.
    """

    forecasts: tuple[LayoutForecast, ...]
    dominated: int
    refused: Mapping[Layout, str]
    conclusion: str


def forecast_layouts(
    profile: LayoutProfile,
    processes: Sequence[int],
    global_batch: int,
    considered: LayoutRange | None = None,
) -> LayoutPlan:
    """Forecast every layout of a model.

    Args:
        profile: The model, its links and its machines.
        processes: Numbers of processes that may be used.
        global_batch: Samples of an iteration.
        considered: Which layouts to look at.
    """
    found: list[LayoutForecast] = []
    refused: dict[Layout, str] = {}
    for layout in considered or LayoutRange():
        why = profile.objection(layout)
        if why is not None:
            refused[layout] = why
            continue
        counts = [count for count in processes if count % layout.processes == 0]
        tried = [forecast_best(profile, layout, count, global_batch) for count in counts]
        own = [each for each in tried if isinstance(each, LayoutForecast)]
        if not counts:
            refused[layout] = f"needs a multiple of {layout.processes} processes"
        elif not own:
            refused[layout] = next(each for each in tried if isinstance(each, str))
        found += own
    found.sort(key=lambda each: (each.seconds, each.processes, each.layout))
    kept = tuple(each for each in found if not is_dominated(each, found))
    said = conclude(profile, found, refused)
    return LayoutPlan(kept, len(found) - len(kept), refused, said)


@dataclass(frozen=True, slots=True)
class PipelineForecast:
    """The fastest asynchronous pipeline (PipeDream) of the processes of one machine.

    Attributes:
        partition: Its stages.
        layout: The same as a worker's layout.
        speedup: Minibatches of it in the time that one process takes for one.
    """

    partition: Partition
    layout: Layout
    speedup: float


def forecast_pipelines(
    profile: LayoutProfile,
    processes: Sequence[int],
    batch: int,
    *,
    process_memory_bytes: float | None = None,
    vertical_sync: bool = False,
) -> tuple[PipelineForecast, ...]:
    """Cut a model into the asynchronous pipeline that ends minibatches fastest.

    Args:
        profile: The model, its link inside a machine, and its machines.
        processes: Numbers of processes of one machine that may be used.
        batch: Samples of a minibatch.
        process_memory_bytes: Memory that each process has; None for its part of the machine's.
        vertical_sync: Whether minibatches use the first stage's version in all stages, which then
            hold more versions. The recurrence cuts without it, and what does not fit is left out.

    Returns:
        One for each number of processes that a machine hosts, that compute at once, and whose
        memory holds a pipeline of two stages or more, where that is faster than processes with the
        whole model each.
    """
    layers = [
        Layer(
            block.fixed_seconds + block.seconds_per_sample * batch,
            block.output_bytes * batch,
            block.weight_bytes,
            block.saved_bytes * batch,
        )
        for block in profile.blocks
    ]
    alone = sum(layer.seconds for layer in layers)
    usable = [count for count in sorted(set(processes)) if 1 < count <= concurrent(profile)]
    by_memory: dict[float, list[int]] = {}
    for count in usable:
        memory = process_memory_bytes or profile.machine_memory_bytes / count
        by_memory.setdefault(memory, []).append(count)
    found = []
    for memory, counts in by_memory.items():  # of which the recurrence finds all at once
        limits = PartitionLimits(profile.inside.bytes_per_second, memory, profile.optimizer_slots)
        partitions = partition_chain(layers, counts[-1], limits)
        for partition in (partitions[count - 1] for count in counts):
            if partition is None or len(partition.stages) == 1:
                continue
            stages = partition.stages
            layout = Layout(
                len(stages),
                replicas=tuple(stage.replicas for stage in stages),
                cuts=first_modules(profile, [stage.first for stage in stages[1:]]),
                vertical_sync=vertical_sync,
            )
            forecast = PipelineForecast(partition, layout, alone / partition.seconds)
            # Without cuts no document can ask for it.
            if layout.cuts and memory_of_pipeline(profile, forecast) <= memory:
                found.append(forecast)
    return tuple(sorted(found, key=lambda each: each.partition.machines))


def concurrent(profile: LayoutProfile) -> int:
    """Return how many processes of a machine compute at full speed at once."""
    hosted = profile.processes_per_machine
    return min(hosted, profile.concurrent_processes or hosted)


def memory_of_pipeline(profile: LayoutProfile, forecast: PipelineForecast) -> float:
    """Return what the process of an asynchronous pipeline needs that needs most, in bytes."""
    needed = []
    for number, stage in enumerate(forecast.partition.stages):
        weights = sum(b.weight_bytes for b in profile.blocks[stage.first : stage.last + 1])
        further = forecast.layout.versions(number) - stage.in_flight
        needed.append(stage.memory_bytes + further * weights)
    return max(needed)


def first_modules(profile: LayoutProfile, places: Sequence[int]) -> tuple[str, ...]:
    """Return the names of modules with weights that stages begin with; none where one has none.

    A stage cannot be told to begin with a module without weights: it begins with the next one. Nor
    can a layout say a name with the signs that it is written with.
    """
    named = []
    for place in places:
        blocks = profile.blocks[place:]
        later = (b for b in blocks if b.weight_bytes > 0 and not b.begins_no_stage)
        found = next(later, None)
        if found is None or found.name in named or not NAME_IN_LAYOUT.fullmatch(found.name):
            return ()
        named.append(found.name)
    return tuple(named)


def forecast_best(
    profile: LayoutProfile,
    layout: Layout,
    processes: int,
    global_batch: int,
    most_tried: int | None = None,
) -> LayoutForecast | str:
    """Return a layout with the micro-batches that are fastest, or why none fits.

    Args:
        profile: The model.
        layout: The layout; its micro-batches do not count.
        processes: Processes of all workers.
        global_batch: Samples of an iteration.
        most_tried: How many numbers of micro-batches are tried; None for all.
    """
    fits, lacking = [], ""
    smallest: Layout | None = None
    tried = micro_batches(layout, processes, global_batch)
    for parts in tried if most_tried is None else evenly_chosen(tried, most_tried):
        cut = replace(layout, micro_batches=parts)
        why = profile.objection(cut) or cut.objection(processes, global_batch)
        forecast = None if why else forecast_layout(profile, cut, processes, global_batch)
        if forecast is not None:
            fits.append(forecast)
        elif why is not None:
            lacking = lacking or why
        else:  # the more parts, the less memory: what is told is the least that is needed
            smallest = cut
    if fits:
        return min(fits, key=lambda each: each.seconds)
    if smallest is None:
        return lacking
    return missing_memory(profile, smallest, processes, global_batch)


def micro_batches(layout: Layout, processes: int, global_batch: int) -> list[int]:
    """Return into how many parts the batch of a worker may be cut; at least one number."""
    if layout.pipeline == 1:
        return [1]
    workers = processes // layout.processes
    local, rest = divmod(global_batch, workers * layout.shard)
    if rest or not local:
        return [1]
    low = [parts for parts in range(1, math.isqrt(local) + 1) if local % parts == 0]
    return sorted({*low, *(local // parts for parts in low)})


def evenly_chosen(values: Sequence[int], most: int) -> list[int]:
    """Return at most so many values, the first, the last and others in even steps.

    >>> evenly_chosen([1, 2, 3, 4, 6, 12], 3)
    [1, 3, 12]
    """
    if len(values) <= most:
        return list(values)
    step = (len(values) - 1) / (most - 1)
    return [values[round(place * step)] for place in range(most)]


def missing_memory(
    profile: LayoutProfile, layout: Layout, processes: int, global_batch: int
) -> str:
    """Say what the layout needs beside what a process has."""
    unlimited = replace(profile, machine_memory_bytes=float("inf"))
    forecast = forecast_layout(unlimited, layout, processes, global_batch)
    assert forecast is not None
    needed, there = forecast.memory_bytes, profile.process_memory_bytes
    return (
        f"a process needs {needed / GIB:.3g} GiB and has {there / GIB:.3g} GiB, so "
        f"{needed - there:,.0f} bytes are missing"
    )


def is_dominated(one: LayoutForecast, others: Sequence[LayoutForecast]) -> bool:
    """Whether another is surely as fast on as few processes, or better in one of them."""
    return any(
        other.processes <= one.processes and other.seconds_high < one.seconds_low
        for other in others
    )


def conclude(
    profile: LayoutProfile, found: Sequence[LayoutForecast], refused: Mapping[Layout, str]
) -> str:
    """Say which layout to take, and why."""
    if not found:
        return (
            f"no layout fits: with {PLAIN}, {refused[PLAIN]}" if PLAIN in refused else "none fits"
        )
    best, plain = found[0], [each for each in found if each.layout.is_plain]
    if not plain:
        why = f"the whole model fits no process ({refused[PLAIN]})"
        return f"{why}: {best.layout} is the fastest layout that fits"
    if best.layout.is_plain:
        return "data parallelism alone is the fastest: no process needs to share a model"
    alone = min(plain, key=lambda each: each.seconds)
    faster = alone.seconds / best.seconds
    place = f"{best.layout} on {best.processes} processes"
    if faster < 1.05 or best.seconds_high > alone.seconds:
        return (
            f"{place} may be {faster:.2f} times as fast as data parallelism alone, less than the "
            "forecast is uncertain by: measure it before you change the layout"
        )
    return f"{place} is {faster:.2f} times as fast as data parallelism alone on {alone.processes}"
