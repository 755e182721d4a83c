"""`find_layouts`, `find_pipeline`: which layouts a job may use, from a profile of its model.

A layout is one way for a worker to compute a step, as a stack is: it stands in configurations as
part of the stack, and its two factors on compute are expected from the profile until they are
measured. Layouts that fit no process are not looked at; those that another surely beats come last.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from scavenger.layout import PLAIN, Layout
from scavenger.measurement.layout_profile import LayoutProfile
from scavenger.models.layout_time import UNCERTAINTY, LayoutForecast, forecast_layout
from scavenger.models.partition import TIE
from scavenger.planning.layouts import (
    GIB,
    LayoutRange,
    PipelineForecast,
    concurrent,
    evenly_chosen,
    first_modules,
    forecast_best,
    forecast_pipelines,
    memory_of_pipeline,
    missing_memory,
)
from scavenger.stack import EAGER_NAME, Stack, StackFactors, StackOption

MAX_PIPELINE_PROCESSES = 64  # of the recurrence, whose work grows with their square
OWN_PASSES: Final = "the script makes its own passes: pass loss= to job.prepare and call job.step"
MAX_SEARCHED = 6  # layouts of one job: each takes a probe to be known
# Of a normal distribution, the 80 % interval ends at so many standard deviations.
DEVIATIONS_OF_INTERVAL: Final = 1.2816
DEVIATION: Final = math.log(UNCERTAINTY) / DEVIATIONS_OF_INTERVAL
MAX_PARTS_TRIED: Final = 16  # numbers of micro-batches of one layout and batch
MAX_BATCHES_TRIED: Final = 4  # until one fits the memory
MAX_FACTOR: Final = 20.0  # a forecast beyond it is no more than "much longer"
CHECKPOINT_SECONDS: Final = 1.0  # to write and read the state of a change of layout


@dataclass(frozen=True, slots=True)
class LayoutSearch:
    """Which layouts a job may use.

    Attributes:
        considered: Which stages, shards and parts of data are looked at.
        micro_batches: Parts of a local batch in pipelines; None for the best number.
        process_memory_bytes: Memory that each process has; None for what the profile says.
    """

    considered: LayoutRange = field(default_factory=LayoutRange)
    micro_batches: int | None = None
    process_memory_bytes: float | None = None


@dataclass(frozen=True, slots=True)
class PipelineSearch:
    """Which asynchronous pipelines (PipeDream) a job may use.

    Attributes:
        batch: Samples of a minibatch.
        process_memory_bytes: Memory that each process has; None for what the profile says.
        vertical_sync: Whether a minibatch uses weights of the same minibatches in all stages.
    """

    batch: int
    process_memory_bytes: float | None = None
    vertical_sync: bool = False


@dataclass(frozen=True, slots=True)
class FoundLayouts:
    """The layouts that a job's search looks at.

    Attributes:
        options: The same as stacks, the one that is expected to be best first; none if none fits.
        refused: Why others are not looked at.
        conclusion: In a sentence, what the profile says.
    """

    options: tuple[StackOption, ...]
    refused: Mapping[Layout, str]
    conclusion: str


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A layout that fits, with what it takes for the smallest and the largest local batch."""

    layout: Layout
    small: LayoutForecast
    large: LayoutForecast
    most_local_batch: float

    @property
    def seconds(self) -> float:
        """Mean seconds, by which candidates are ordered."""
        return math.sqrt(self.small.seconds * self.large.seconds)

    def surely_beats(self, other: _Candidate) -> bool:
        """Whether it is faster with small and large batches, even at the ends of both intervals."""
        return self.most_local_batch >= other.most_local_batch and all(
            own.seconds_high < its.seconds_low
            for own, its in ((self.small, other.small), (self.large, other.large))
        )


def find_layouts(
    profile: LayoutProfile, search: LayoutSearch, local_batches: Sequence[int]
) -> FoundLayouts:
    """Return the layouts of a model that are worth looking at.

    Args:
        profile: The model, its link inside a machine, and its machines.
        search: What the job allows.
        local_batches: Samples that a worker may have to train on, ascending, at least one.
    """
    if search.process_memory_bytes is not None:
        whole = search.process_memory_bytes * profile.processes_per_machine
        profile = replace(profile, machine_memory_bytes=whole)
    found: list[_Candidate] = []
    refused: dict[Layout, str] = {}
    for layout in search.considered:
        outcome = _look_at(profile, search, layout, local_batches)
        if isinstance(outcome, str):
            refused[layout] = outcome
        else:
            found.append(outcome)
    # What another surely beats is hardly ever worth a probe, but an order may name it.
    beaten = {each.layout for each in found if any(o.surely_beats(each) for o in found)}
    found.sort(key=lambda each: (each.layout in beaten, each.seconds, each.layout))
    kept = _with_first(found)[:MAX_SEARCHED]
    unlimited = replace(profile, machine_memory_bytes=math.inf)
    small, large = (forecast_layout(unlimited, PLAIN, 1, local_batches[end]) for end in (0, -1))
    assert small is not None
    assert large is not None
    options = tuple(_option(profile, each, (small, large)) for each in kept)
    return FoundLayouts(options, refused, _conclude(kept, beaten, refused))


def find_pipeline(profile: LayoutProfile, search: PipelineSearch) -> PipelineForecast | str:
    """Return the asynchronous pipeline of one machine that ends minibatches fastest.

    Of several that are equally fast it is the one of fewest processes.

    Args:
        profile: The model, its link inside a machine, and its machines.
        search: What the job allows.

    Returns:
        The pipeline, or in words why none is worth its stages.
    """
    if profile.has_own_passes:
        return OWN_PASSES
    if profile.most_stages == 1:
        return profile.uncut_reason or "the model cannot be cut into stages"
    most = min(concurrent(profile), MAX_PIPELINE_PROCESSES)
    if most < 2:
        return (
            "the machine computes with one process at a time, so no stage of an asynchronous "
            "pipeline would work beside another"
        )
    found = _pipelines(profile, search, most)
    if not found:
        return _missing_pipeline(profile, search, most)
    best = found[0]
    for each in found[1:]:
        if each.speedup > best.speedup * (1 + TIE):
            best = each
    if best.speedup <= 1:
        return (
            f"the fastest asynchronous pipeline, {best.partition.shape}, ends {best.speedup:.2f} "
            "minibatches in the time that one process takes for one"
        )
    return best


def _missing_pipeline(profile: LayoutProfile, search: PipelineSearch, most: int) -> str:
    """Say why no pipeline on up to so many processes is worth its stages."""
    unlimited = replace(profile, machine_memory_bytes=math.inf)
    beyond = _pipelines(unlimited, replace(search, process_memory_bytes=None), most)
    if not beyond:
        return (
            f"no asynchronous pipeline on up to {most} processes is faster than processes with "
            "the whole model each"
        )
    least = min(beyond, key=lambda each: memory_of_pipeline(profile, each))
    needed = memory_of_pipeline(profile, least)
    there = search.process_memory_bytes or profile.machine_memory_bytes / least.partition.machines
    return (
        f"no asynchronous pipeline on up to {most} processes fits: of the fastest ones "
        f"{least.partition.shape} needs least, {needed / GIB:.3g} GiB in a process, which has "
        f"{there / GIB:.3g} GiB"
    )


def _pipelines(
    profile: LayoutProfile, search: PipelineSearch, most: int
) -> tuple[PipelineForecast, ...]:
    return forecast_pipelines(
        profile,
        range(2, most + 1),
        search.batch,
        process_memory_bytes=search.process_memory_bytes,
        vertical_sync=search.vertical_sync,
    )


def _look_at(
    profile: LayoutProfile, search: LayoutSearch, layout: Layout, local_batches: Sequence[int]
) -> _Candidate | str:
    """Return a layout with its best micro-batches and cuts, or why there are none."""
    hosted = profile.processes_per_machine
    if layout.processes > 1 and profile.has_own_passes:
        return OWN_PASSES
    if layout.processes > hosted:
        return f"a machine hosts {hosted} of the {layout.processes} processes of a worker"
    best: LayoutForecast | str = ""
    smaller = local_batches[len(local_batches) // 2 :: -1]  # the middle one, if it fits
    for batch in evenly_chosen(smaller, MAX_BATCHES_TRIED):
        best = _best_parts(profile, search, layout, batch)
        if isinstance(best, LayoutForecast):
            break
    if isinstance(best, str):
        return best
    chosen, starts = best.layout, [stage.first for stage in best.stages[1:]]
    descending = reversed(local_batches)
    most = next(b for b in descending if _forecast(profile, chosen, b, starts) is not None)
    unlimited = replace(profile, machine_memory_bytes=math.inf)
    small, large = (_forecast(unlimited, chosen, local_batches[end], starts) for end in (0, -1))
    assert small is not None
    assert large is not None
    return _Candidate(
        replace(chosen, cuts=first_modules(profile, starts)),
        small,
        large,
        math.inf if most == local_batches[-1] else float(most),
    )


def _best_parts(
    profile: LayoutProfile, search: LayoutSearch, layout: Layout, batch: int
) -> LayoutForecast | str:
    """Return the layout with the fastest number of micro-batches that fits, or why none does."""
    if search.micro_batches is None or layout.pipeline == 1:
        most = MAX_PARTS_TRIED
        return forecast_best(profile, layout, layout.processes, _divisible(layout, batch), most)
    given = replace(layout, micro_batches=search.micro_batches)
    why = profile.objection(given)
    if why is not None:
        return why
    found, cut = _forecast(profile, given, batch), _cut_for(given, batch)
    return found or missing_memory(profile, cut, cut.processes, _divisible(layout, batch))


def _forecast(
    profile: LayoutProfile, layout: Layout, batch: int, starts: Sequence[int] | None = None
) -> LayoutForecast | None:
    """Forecast one worker; None if its processes' memory does not hold its part of the batch.

    Args:
        profile: The model.
        layout: The layout.
        batch: Samples of the worker.
        starts: First block of each stage but the first; None for the best cut for the batch.
    """
    cut = _cut_for(layout, batch)
    return forecast_layout(profile, cut, cut.processes, _divisible(layout, batch), starts)


def _divisible(layout: Layout, batch: int) -> int:
    """Return a batch that sharded processes can divide, the next larger one."""
    return -(-batch // layout.shard) * layout.shard


def _cut_for(layout: Layout, batch: int) -> Layout:
    """Return a layout with as many micro-batches as divide a batch, as a worker cuts it."""
    local = _divisible(layout, batch) // layout.shard
    most = min(layout.micro_batches, local)
    return replace(layout, micro_batches=next(m for m in range(most, 0, -1) if local % m == 0))


def _with_first(candidates: Sequence[_Candidate]) -> list[_Candidate]:
    """Put the layout first that a job starts with: the script as it is, unless another wins surely.

    Its time was measured, those of others are foretold.
    """
    plain = next((each for each in candidates if each.layout.is_plain), None)
    if plain is None:
        return list(candidates)
    best = candidates[0]
    ends = (best.small, plain.small), (best.large, plain.large)
    is_sure = all(own.seconds_high < its.seconds for own, its in ends)
    first = best if is_sure else plain
    return [first, *(each for each in candidates if each is not first)]


def _option(
    profile: LayoutProfile, candidate: _Candidate, alone: tuple[LayoutForecast, LayoutForecast]
) -> StackOption:
    """Return a layout as the search sees it."""
    is_plain = candidate.layout.is_plain
    own = _line(candidate.small, candidate.large)
    script = _line(*alone)
    variance = 0.0 if is_plain else DEVIATION**2
    whole = math.sqrt(
        candidate.small.seconds * candidate.large.seconds / alone[0].seconds / alone[1].seconds
    )
    fixed, per_sample = (
        min(max(its / ours if its > 0 and ours > 0 else whole, 1 / MAX_FACTOR), MAX_FACTOR)
        for its, ours in zip(own, script, strict=True)
    )
    return StackOption(
        EAGER_NAME if is_plain else str(Stack(layout=candidate.layout)),
        switch_seconds=profile.start_seconds + CHECKPOINT_SECONDS,
        most_local_batch=candidate.most_local_batch,
        expected=StackFactors(fixed, per_sample, ((variance, 0.0), (0.0, variance))),
    )


def _line(small: LayoutForecast, large: LayoutForecast) -> tuple[float, float]:
    """Return seconds that no batch changes, and seconds per sample."""
    apart = large.global_batch - small.global_batch
    if apart == 0:
        return 0.0, small.seconds / small.global_batch
    per_sample = max((large.seconds - small.seconds) / apart, 0.0)
    return max(small.seconds - per_sample * small.global_batch, 0.0), per_sample


def _conclude(
    kept: Sequence[_Candidate], beaten: Collection[Layout], refused: Mapping[Layout, str]
) -> str:
    """Say which layout a job starts with, and why."""
    if not kept:
        named = [PLAIN, *(each for each in refused if not each.is_plain)]
        why = "; ".join(f"{each}: {refused[each]}" for each in named[:3] if each in refused)
        return f"no layout fits: {why}"
    first = kept[0].layout
    if not first.is_plain:
        lacking = refused.get(PLAIN)
        why = "it is surely faster" if lacking is None else f"{PLAIN} does not fit: {lacking}"
        return f"the job starts with {first}, since {why}"
    others = [str(each.layout) for each in kept[1:] if each.layout not in beaten]
    if not others:
        return "data parallelism alone is the fastest: no process needs to share a model"
    return f"the job starts with {first}; a probe may show that {', '.join(others)} is faster"
