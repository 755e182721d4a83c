"""How long an iteration of a layout takes, and what memory it needs, from a profile of one process.

The time is that of one forward, one backward with a flush (docs/equations.md): all stages once, the
slowest of them for each further micro-batch, transfers between stages, and the synchronisation of
workers. All forward first (GPipe) takes as long, and an interleaved pipeline fills chunk by chunk.
Of each block a profile has a line in the samples, as the law of one process has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np

from scavenger.cluster import Floats
from scavenger.layout import Layout
from scavenger.measurement.layout_profile import BlockProfile, LayoutProfile

# Of a layout that never ran: its time lies within this factor, either way, four times in five.
UNCERTAINTY: Final = 1.3
# A process with sharded weights gathers them for both passes.
SHARD_GATHERS: Final = 2
# Each gathering and reduction takes PyTorch's hooks so long, measured with ``fully_shard`` of tiny
# blocks in two processes on two cores. A message without content takes a tenth of it.
SHARD_START: Final = 1.5e-3
# Whole weights are copied out of each gathering, and whole gradients into the reduction. Inside a
# machine that is as fast as a message, which is a copy too.
SHARD_COPIES: Final = 3


@dataclass(frozen=True, slots=True)
class StageForecast:
    """One stage of a layout, or one chunk of an interleaved pipeline.

    Attributes:
        first: Its first block, counted from 0.
        last: Its last block.
        seconds: Of both passes of one micro-batch.
        memory_bytes: What each of its processes needs, for all chunks that it has.
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
        stages: What each stage has and takes; of an interleaved pipeline, each chunk.
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
    profile: LayoutProfile,
    layout: Layout,
    processes: int,
    global_batch: int,
    starts: Sequence[int] | None = None,
) -> LayoutForecast | None:
    """Return what an iteration takes; None if it does not fit the memory.

    Args:
        profile: The model.
        layout: The layout; the names of its cuts do not count.
        processes: Processes of all workers.
        global_batch: Samples of an iteration.
        starts: First block of each stage but the first; None for the best cut that fits.

    Raises:
        ValueError: The layout fits not the model, the processes or the batch.
    """
    why = profile.objection(layout) or layout.objection(processes, global_batch)
    if why is not None:
        raise ValueError(f"{layout}: {why}")
    pieces = _Pieces(profile, layout, processes, global_batch)
    stages = pieces.cut() if starts is None else pieces.stages([0, *starts, len(profile.blocks)])
    if stages is None:
        return None
    seconds = pieces.iteration(stages)
    is_measured = layout.is_plain and processes == 1
    factor = 1.0 if is_measured else UNCERTAINTY
    low, high = seconds / factor, seconds * factor
    return LayoutForecast(layout, processes, global_batch, seconds, low, high, stages)


def micro_batches_in_flight(layout: Layout, stage: int) -> float:
    """Return for how many micro-batches a stage keeps what its backward passes need.

    >>> [micro_batches_in_flight(Layout(4, micro_batches=8), stage) for stage in (0, 3)]
    [4, 1]
    >>> micro_batches_in_flight(Layout(4, micro_batches=8, schedule="gpipe"), 3)
    8
    >>> interleaved = Layout(4, micro_batches=8, schedule="interleaved", chunks=2)
    >>> [micro_batches_in_flight(interleaved, stage) for stage in (0, 3)]
    [5.5, 2.5]
    """
    parts, behind = layout.micro_batches, layout.pipeline - stage
    match layout.schedule:
        case "1f1b":
            return min(parts, behind)
        case "gpipe":
            return parts
        case "interleaved":  # forward passes of single chunks, before their first backward pass
            begun = (layout.chunks - 1) * layout.pipeline + 2 * (behind - 1) + 1
            return min(parts, begun / layout.chunks)


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
        shards = self.layout.tensor if block.all_reduces else 1
        compute = block.fixed_seconds + block.seconds_per_sample * self.part / shards
        shared = self.profile.inside.all_reduce(shards, block.all_reduce_bytes * self.part)
        gathering = self._gathering_seconds(block.weight_bytes / shards)
        return compute + block.all_reduces * shared + gathering

    def _gathering_seconds(self, weight_bytes: float) -> float:
        """Return what sharded weights add to both passes of a block.

        The cores that compute also move them, so nothing overlaps. Gloo scatters gradients by an
        all-reduce, of which each process keeps its part.
        """
        count, link = self.layout.shard, self.between_stages
        if count == 1 or weight_bytes == 0:
            return 0.0
        moved = (count - 1) / count * weight_bytes / link.bytes_per_second
        gathering = SHARD_START + (count - 1) * link.latency_seconds + moved
        reducing = SHARD_START + link.all_reduce(count, weight_bytes)
        copying = SHARD_COPIES * weight_bytes / link.bytes_per_second
        return SHARD_GATHERS * gathering + reducing + copying

    def cut(self) -> tuple[StageForecast, ...] | None:
        """Cut the chain so that the slowest stage is as fast as possible, and all fit the memory.

        From the last stage to the first: then the micro-batches in flight in a stage are known. The
        chunks of an interleaved pipeline are cut by time alone, as a process has several.
        """
        count, blocks = self.layout.chunk_count, len(self.profile.blocks)
        is_interleaved, most = self.layout.chunks > 1, self.profile.process_memory_bytes
        best = np.full((count + 1, blocks + 1), np.inf)
        cuts = np.zeros((count + 1, blocks + 1), dtype=np.int64)
        best[0, blocks] = 0.0
        places = np.arange(blocks)
        firsts, ends = np.meshgrid(places, places + 1, indexing="ij")
        for behind in range(1, count + 1):  # stages from this one on
            slowest = np.maximum(self._seconds(firsts, ends), best[behind - 1, ends])
            if not is_interleaved:
                slowest[self._memory([(firsts, ends)], count - behind) > most] = np.inf
            slowest[ends <= firsts] = np.inf
            chosen = slowest.argmin(axis=1)
            best[behind, :blocks] = slowest[places, chosen]
            cuts[behind, :blocks] = chosen + 1
        if not np.isfinite(best[count, 0]):
            return None
        edges = [0]
        for behind in range(count, 0, -1):
            edges.append(int(cuts[behind, edges[-1]]))
        return self.stages(edges)

    def stages(self, edges: Sequence[int]) -> tuple[StageForecast, ...] | None:
        """Return the stages between these blocks; None if one does not fit the memory."""
        pieces = list(pairwise(edges))
        needed = [
            float(self._memory(pieces[stage :: self.layout.pipeline], stage))
            for stage in range(self.layout.pipeline)
        ]
        if max(needed) > self.profile.process_memory_bytes:
            return None
        return tuple(
            StageForecast(
                first,
                end - 1,
                float(self._seconds(first, end)),
                needed[number % self.layout.pipeline],
            )
            for number, (first, end) in enumerate(pieces)
        )

    def _seconds(self, first: int | np.ndarray, end: int | np.ndarray) -> Floats:
        return np.asarray(self.seconds[end] - self.seconds[first])

    def _memory(
        self, pieces: Sequence[tuple[int | np.ndarray, int | np.ndarray]], stage: int
    ) -> Floats:
        """Return what a process of a stage needs, by where its last piece ends.

        Args:
            pieces: First block of each of its chunks, and one behind the last.
            stage: Its number.
        """
        shard = self.layout.shard

        def total(values: Floats) -> Any:
            return sum(values[end] - values[first] for first, end in pieces)

        kept = total(self.weights) / shard * (2 + self.profile.optimizer_slots)
        gathered = self.largest_block if shard > 1 else 0.0
        in_flight = micro_batches_in_flight(self.layout, stage)
        return np.asarray(
            kept + total(self.whole_gradients) + gathered + in_flight * total(self.saved)
        )

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
        owned = [stages[number :: layout.pipeline] for number in range(layout.pipeline)]
        compute = [sum(chunk.seconds for chunk in own) for own in owned]
        heaviest = max(
            sum(float(self.weights[each.last + 1] - self.weights[each.first]) for each in own)
            for own in owned
        )
        cuts = [self.profile.blocks[stage.last].output_bytes for stage in stages[:-1]]
        transfers = sum(2 * link.send(size * self.part) for size in cuts)
        slowest = max(compute)
        filling = (sum(compute) - slowest) / layout.chunks
        passes = layout.micro_batches * slowest + filling
        passes = max(passes, self._work(compute))
        own = heaviest / layout.shard
        sync = self.between_workers.all_reduce(self.workers, own)
        whole = sum(block.weight_bytes for block in self.profile.blocks)
        step = self.profile.optimizer_seconds * own / whole if whole else 0.0
        return passes + transfers + sync + step
