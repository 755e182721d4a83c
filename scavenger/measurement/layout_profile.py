"""`LayoutProfile`: what one process measured of a model, from which every layout is forecast."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from pydantic import ConfigDict, TypeAdapter

from scavenger.layout import Layout
from scavenger.number_checks import require_above_zero, require_not_negative

NO_OTHER_FIELDS: Final = ConfigDict(extra="forbid")  # a file with a wrong word is no profile


@dataclass(frozen=True, slots=True)
class BlockProfile:
    """What one block of a model takes on one process, and what crosses its borders.

    Attributes:
        name: Its name in the model.
        fixed_seconds: Seconds of both passes that no batch changes, such as launches of kernels.
        seconds_per_sample: Seconds of both passes for each sample.
        output_bytes: Bytes per sample that it hands to the next block.
        saved_bytes: Bytes per sample that its forward pass keeps for its backward pass.
        weight_bytes: Bytes of its weights.
        all_reduces: All-reduces of both passes if its weights are shared by several processes; 0 if
            they cannot be.
        all_reduce_bytes: Bytes per sample of each of them.
        keeps_whole_gradient: Whether each shard holds the gradient of all its weights, as of an
            embedding of a vocabulary.
        begins_no_stage: Whether the model cannot be cut before it.
    """

    name: str
    fixed_seconds: float
    seconds_per_sample: float
    output_bytes: float
    saved_bytes: float
    weight_bytes: float
    all_reduces: int = 0
    all_reduce_bytes: float = 0.0
    keeps_whole_gradient: bool = False
    begins_no_stage: bool = False

    __pydantic_config__ = NO_OTHER_FIELDS

    def __post_init__(self) -> None:
        require_not_negative(
            self,
            *("fixed_seconds", "seconds_per_sample", "output_bytes", "saved_bytes"),
            *("weight_bytes", "all_reduces", "all_reduce_bytes"),
        )


@dataclass(frozen=True, slots=True)
class LinkSpeed:
    """Between two processes.

    Attributes:
        latency_seconds: Of a message without content.
        bytes_per_second: Each way.
    """

    latency_seconds: float
    bytes_per_second: float

    __pydantic_config__ = NO_OTHER_FIELDS

    def __post_init__(self) -> None:
        require_not_negative(self, "latency_seconds")
        require_above_zero(self, "bytes_per_second")

    def send(self, size: float) -> float:
        """Return seconds for one message of a size in bytes."""
        return self.latency_seconds + size / self.bytes_per_second

    def all_reduce(self, processes: int, size: float) -> float:
        """Return seconds of a ring all-reduce of a tensor of a size in bytes."""
        steps = 2 * (processes - 1)
        return steps * self.latency_seconds + steps / processes * size / self.bytes_per_second


USUAL_LINK: Final = LinkSpeed(1e-4, 1.25e9)  # 10 gigabits per second


@dataclass(frozen=True, slots=True)
class LayoutProfile:
    """What the time of any layout of a model follows from.

    Attributes:
        blocks: A chain: each hands its output to the next.
        inside: Link between processes of one machine.
        across: Link between machines.
        processes_per_machine: Processes that one machine hosts.
        concurrent_processes: How many of them compute at full speed at once, as each has cores or a
            device of its own; 0 for all.
        start_seconds: From the start of the script to its first step.
        machine_memory_bytes: Memory of a machine; infinite where nothing tells.
        optimizer_slots: Tensors of the size of the weights that the optimizer keeps: 2 of Adam.
        optimizer_seconds: One step of the optimizer for the whole model on one process.
        heads: Attention heads of a block, which shards must divide; 1 divides by nothing.
        vocabulary: Rows of the embedding, which shards must divide; 0 without one.
        has_batch_statistics: Whether a batch normalisation sees the samples of a micro-batch only.
        most_stages: Stages that the model can be cut into; 0 where nothing tells.
        uncut_reason: Why it cannot be cut into more, in a sentence.
        has_own_passes: Whether the script makes its passes itself, so that no processes can share
            its model before it lets ``job.step`` make them.
    """

    blocks: tuple[BlockProfile, ...]
    inside: LinkSpeed
    across: LinkSpeed
    processes_per_machine: int = 1
    concurrent_processes: int = 0
    start_seconds: float = 0.0
    machine_memory_bytes: float = math.inf
    optimizer_slots: int = 0
    optimizer_seconds: float = 0.0
    heads: int = 1
    vocabulary: int = 0
    has_batch_statistics: bool = False
    most_stages: int = 0
    uncut_reason: str = ""
    has_own_passes: bool = False

    __pydantic_config__ = NO_OTHER_FIELDS

    def __post_init__(self) -> None:
        if not self.blocks:
            raise ValueError("a profile needs at least one block")
        if not self.machine_memory_bytes > 0:
            raise ValueError(f"machine_memory_bytes must be above 0: {self.machine_memory_bytes}")
        require_above_zero(self, "processes_per_machine", "heads")
        require_not_negative(self, "optimizer_slots", "optimizer_seconds", "vocabulary")
        require_not_negative(self, "concurrent_processes", "start_seconds", "most_stages")

    @property
    def process_memory_bytes(self) -> float:
        """Memory that each process of a machine has."""
        return self.machine_memory_bytes / self.processes_per_machine

    def objection(self, layout: Layout) -> str | None:
        """Say in a sentence why the model cannot be laid out so; None if it can."""
        count, shards = layout.chunk_count, layout.tensor
        if count > len(self.blocks):
            kind = "stages" if layout.chunks == 1 else "chunks"
            return f"{len(self.blocks)} blocks cannot be cut into {count} {kind}"
        if self.most_stages and count > self.most_stages:
            tried = f"no more than {self.most_stages} stages were tried"
            return self.uncut_reason or tried
        if layout.micro_batches > 1 and self.has_batch_statistics:
            return "a batch normalisation would see the samples of one micro-batch only"
        if shards == 1:
            return None
        if not any(block.all_reduces for block in self.blocks):
            return "no block says how its weights can be shared by several processes"
        if shards > self.processes_per_machine:
            hosted = self.processes_per_machine
            return f"a machine hosts {hosted} of the {shards} processes of a tensor"
        if self.heads % shards:
            return f"{self.heads} heads are not divisible by {shards}"
        if self.vocabulary % shards:
            return f"a vocabulary of {self.vocabulary} is not divisible by {shards}"
        return None


LAYOUT_PROFILE: Final = TypeAdapter(LayoutProfile)  # reads and writes files
