"""How long an iteration of a layout takes, and what memory it needs, from a profile of one process.

The time is that of one forward, one backward with a flush (docs/equations.md): all stages once, the
slowest of them for each further micro-batch, transfers between stages, and the synchronisation of
workers. Of each block a profile has a line in the samples, as the law of one process has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from scavenger.cluster import Floats
from scavenger.layout import Layout
from scavenger.measurement.layout_profile import BlockProfile, LayoutProfile

# Of a layout that never ran: its time lies within this factor, either way, four times in five.
UNCERTAINTY: Final = 1.3
# A process with sharded weights gathers them twice and scatters their gradients once.
SHARD_PASSES: Final = 3


@dataclass(frozen=True, slots=True)
class StageForecast:
    """One stage of a layout.

    Attributes:
        first: Its first block, counted from 0.
        last: Its last block.
        seconds: Of both passes of one micro-batch.
        memory_bytes: What each of its processes needs.
    """

    first: int
    last: int
    seconds: float
    memory_bytes: float


@dataclass(frozen=True, slots=True)
class LayoutForecast:
    """What an iteration of a layout is expected to take.

    Attributes:
        layout: The layout.
        processes: Processes of all workers.
        global_batch: Samples of an iteration.
        seconds: Of an iteration.
        seconds_low: Lower end of its 80 % interval.
        seconds_high: Upper end.
        stages: What each stage has and takes.
    """

    layout: Layout
    processes: int
    global_batch: int
    seconds: float
    seconds_low: float
    seconds_high: float
    stages: tuple[StageForecast, ...]

    @property
    def workers(self) -> int:
        """Copies of the model, D."""
        return self.processes // self.layout.processes

    @property
    def samples_per_second(self) -> float:
        """Samples of an iteration by its seconds."""
        return self.global_batch / self.seconds

    @property
    def memory_bytes(self) -> float:
        """What the process needs that needs most."""
        return max(stage.memory_bytes for stage in self.stages)


def forecast_layout(
    profile: LayoutProfile, layout: Layout, processes: int, global_batch: int
) -> LayoutForecast | None:
    """Return what an iteration takes with the best cut of the model; None if none fits the memory.

    Raises:
        ValueError: The layout fits not the model, the processes or the batch.
    """
    why = profile.objection(layout) or layout.objection(processes, global_batch)
    if why is not None:
        raise ValueError(f"{layout}: {why}")
    pieces = _Pieces(profile, layout, processes, global_batch)
    stages = pieces.cut()
    if stages is None:
        return None
    seconds = pieces.iteration(stages)
    is_measured = layout.is_plain and processes == 1
    factor = 1.0 if is_measured else UNCERTAINTY
    low, high = seconds / factor, seconds * factor
    return LayoutForecast(layout, processes, global_batch, seconds, low, high, stages)


class _Pieces:
    """Figures of one layout on one batch.

    Attributes:
        part: Samples of a micro-batch of a process, µ.
        seconds: Seconds of both passes of one micro-batch up to each block.
    """

    def __init__(
        self, profile: LayoutProfile, layout: Layout, processes: int, global_batch: int
    ) -> None:
        self.profile, self.layout = profile, layout
        self.processes, self.workers = processes, processes // layout.processes
        self.part = global_batch / self.workers / layout.batch_parts_per_worker
        is_inside = processes <= profile.processes_per_machine
        fits = layout.processes <= profile.processes_per_machine
        self.between_workers = profile.inside if is_inside else profile.across
        self.between_stages = profile.inside if fits else profile.across
        blocks = profile.blocks
        # What is shared by the processes of a tensor is divided by their number.
        self.shares = np.array([layout.tensor if block.all_reduces else 1 for block in blocks])
        self.seconds = self._up_to([self._block_seconds(block) for block in blocks])
        weights = np.array([block.weight_bytes for block in blocks]) / self.shares
        self.weights = self._up_to(weights)
        saved = np.array([block.saved_bytes for block in blocks]) / self.shares
        self.saved = self._up_to(saved * self.part)
        whole = [block.weight_bytes * block.keeps_whole_gradient for block in blocks]
        self.whole_gradients = self._up_to(np.array(whole) * (1 - 1 / self.shares))
        self.largest_block = float(weights.max())

    @staticmethod
    def _up_to(values: Sequence[float] | Floats) -> Floats:
        return np.concatenate([[0.0], np.cumsum(values)])

    def _block_seconds(self, block: BlockProfile) -> float:
        shards, part = self.layout.tensor, self.part
        if shards == 1 or not block.all_reduces:
            return block.fixed_seconds + block.seconds_per_sample * part
        shared = self.profile.inside.all_reduce(shards, block.all_reduce_bytes * part)
        compute = block.fixed_seconds + block.seconds_per_sample * part / shards
        return compute + block.all_reduces * shared

    def cut(self) -> tuple[StageForecast, ...] | None:
        """Cut the chain so that the slowest stage is as fast as possible, and all fit the memory.

        From the last stage to the first: then the micro-batches in flight in a stage are known.
        """
        stages, count = self.layout.pipeline, len(self.profile.blocks)
        best = np.full((stages + 1, count + 1), np.inf)
        cuts = np.zeros((stages + 1, count + 1), dtype=np.int64)
        best[0, count] = 0.0
        for behind in range(1, stages + 1):  # stages from this one on
            for first in range(count):
                ends = np.arange(first + 1, count + 1)
                seconds = self.seconds[ends] - self.seconds[first]
                slowest = np.maximum(seconds, best[behind - 1, ends])
                slowest[self._memory(first, ends, behind) > self.profile.process_memory_bytes] = (
                    np.inf
                )
                chosen = int(slowest.argmin())
                best[behind, first], cuts[behind, first] = slowest[chosen], ends[chosen]
        if not np.isfinite(best[stages, 0]):
            return None
        found, first = [], 0
        for behind in range(stages, 0, -1):
            end = int(cuts[behind, first])
            seconds = float(self.seconds[end] - self.seconds[first])
            needed = float(self._memory(first, np.array([end]), behind)[0])
            found.append(StageForecast(first, end - 1, seconds, needed))
            first = end
        return tuple(found)

    def _memory(self, first: int, ends: np.ndarray, behind: int) -> Floats:
        """Return what a process of a stage needs, by where the stage ends.

        Args:
            first: Its first block.
            ends: One behind its last.
            behind: Stages from this one on; so many micro-batches are in flight at most.
        """
        shard = self.layout.shard
        weights = (self.weights[ends] - self.weights[first]) / shard
        kept = weights * (2 + self.profile.optimizer_slots)
        kept += self.whole_gradients[ends] - self.whole_gradients[first]
        gathered = self.largest_block if shard > 1 else 0.0
        in_flight = min(self.layout.micro_batches, behind)
        return np.asarray(kept + gathered + in_flight * (self.saved[ends] - self.saved[first]))

    def _work(self, compute: Sequence[float]) -> float:
        """Return seconds that the passes of a machine's processes take at least.

        They share what it computes with; 0 where each has its own.
        """
        at_once = self.profile.concurrent_processes
        if at_once == 0:
            return 0.0
        of_worker = self.layout.micro_batches * sum(compute) * self.layout.tensor
        hosted = min(self.processes, self.profile.processes_per_machine)
        workers = max(hosted // self.layout.processes, 1)
        return of_worker * self.layout.shard * workers / at_once

    def iteration(self, stages: Sequence[StageForecast]) -> float:
        """Return seconds of an iteration."""
        layout, link = self.layout, self.between_stages
        compute = [stage.seconds for stage in stages]
        heaviest = max(
            float(self.weights[stage.last + 1] - self.weights[stage.first]) for stage in stages
        )
        if layout.shard > 1:
            moved = (layout.shard - 1) / layout.shard * SHARD_PASSES * heaviest
            compute = [max(each, moved / link.bytes_per_second) for each in compute]
        cuts = [self.profile.blocks[stage.last].output_bytes for stage in stages[:-1]]
        transfers = sum(2 * link.send(size * self.part) for size in cuts)
        passes = sum(compute) + (layout.micro_batches - 1) * max(compute)
        passes = max(passes, self._work(compute))
        own = heaviest / layout.shard
        sync = self.between_workers.all_reduce(self.workers, own)
        whole = sum(block.weight_bytes for block in self.profile.blocks)
        step = self.profile.optimizer_seconds * own / whole if whole else 0.0
        return passes + transfers + sync + step
