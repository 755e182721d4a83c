"""What a job may use: worker counts, batches, memory, money and time of the job document.

A part of ``JobSpec``. A range of batches means doublings, so that a document stays short and the
grid of configurations small enough to be predicted as a whole.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from functools import lru_cache
from typing import Annotated, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PlainValidator,
    Strict,
    TypeAdapter,
    ValidationInfo,
    field_validator,
)

from scavenger.cluster import ConfigSpace, MachineType, MemoryModel
from scavenger.job.fields import (
    MAX_CONFIGURATIONS,
    RANGE_TEXT,
    DollarAmount,
    Duration,
    RangeOrList,
    SpecModel,
    WrittenRangeOrList,
    doublings,
    read_range_or_list,
    require_nonzero,
    require_value,
)
from scavenger.job.layout import MAX_LAYOUTS, LayoutSpec, numbers_of, read_layout
from scavenger.job.pricing import MemorySpec
from scavenger.layout import PLAIN, Layout
from scavenger.planning.layout_search import LayoutSearch
from scavenger.planning.layouts import GIB

MAX_WORKERS = 1024
MAX_BATCH = 2**24

WorkerCount = Annotated[int, Strict(), Field(ge=1, le=MAX_WORKERS)]
BatchSize = Annotated[int, Strict(), Field(ge=1, le=MAX_BATCH)]

_WORKERS: TypeAdapter[list[int]] = TypeAdapter(list[WorkerCount])
_BATCHES: TypeAdapter[list[int]] = TypeAdapter(list[BatchSize])


WorkerChoice = Annotated[
    RangeOrList,
    PlainValidator(
        lambda value: read_range_or_list(value, _WORKERS, example="1..4"),
        json_schema_input_type=WorkerCount | RANGE_TEXT | list[WorkerCount],
    ),
    WrittenRangeOrList,
]
BatchChoice = Annotated[
    RangeOrList,
    PlainValidator(
        lambda value: read_range_or_list(value, _BATCHES, example="32..256"),
        json_schema_input_type=BatchSize | RANGE_TEXT | list[BatchSize],
    ),
    WrittenRangeOrList,
]


class MemoryLimit(MemorySpec):
    """Memory of the machines, each of which hosts one worker, beside what a worker needs.

    Attributes:
        machine_gib: GiB one machine has.
    """

    machine_gib: Annotated[float, Strict(), Field(gt=0, le=1_000_000, allow_inf_nan=False)] = Field(
        examples=[16]
    )

    @property
    def max_local_batch(self) -> float:
        """Samples one worker can hold; 0 when not even the model fits."""
        machine = MachineType("worker", vcpus=1, memory_gib=self.machine_gib)
        return MemoryModel(self.fixed_gib, self.gib_per_sample).max_local_batch(machine)


class Limits(SpecModel):
    """What the job may use.

    Attributes:
        max_cost: The most the job may spend, in dollars; None without a limit.
        max_time: The longest the job may take, in seconds; None without a limit.
        workers: Allowed worker counts: a range or a list.
        worker_step: Distance between the worker counts of a range.
        batch: Allowed global batches in samples: a range, which means its low end, every doubling
            of it below the high end, and the high end; or a list.
        memory: What leaves out configurations whose part of the batch fits no machine; None leaves
            out none.
        layout: How the processes of each worker share the model; None where each has one.
        process_gib: GiB that each process of a worker has, such as the memory of its GPU; layouts
            that do not fit are left out. None for what the machine says.
    """

    max_cost: Annotated[
        Annotated[DollarAmount, AfterValidator(require_nonzero)] | None,
        BeforeValidator(require_value),
    ] = Field(None, examples=["3.40 USD"])
    max_time: Annotated[Duration | None, BeforeValidator(require_value)] = Field(
        None, examples=["3h12m"]
    )
    workers: WorkerChoice = Field(examples=["1..4"])
    worker_step: WorkerCount = Field(1, examples=[4])
    batch: BatchChoice = Field(examples=["32..256"])
    memory: Annotated[MemoryLimit | None, BeforeValidator(require_value)] = Field(
        None, examples=["{machine_gib: 16, fixed_gib: 2, gib_per_sample: 0.01}"]
    )
    layout: Annotated[
        LayoutSpec | None,
        BeforeValidator(read_layout, json_schema_input_type=LayoutSpec | Literal["auto", 1] | None),
    ] = Field(None, examples=["auto"])
    process_gib: Annotated[
        Annotated[float, Strict(), Field(gt=0, le=1_000_000, allow_inf_nan=False)] | None,
        BeforeValidator(require_value),
    ] = Field(None, examples=[16])

    @field_validator("worker_step")
    @classmethod
    def _steps_through_a_range(cls, step: int, info: ValidationInfo) -> int:
        if step > 1 and isinstance(info.data.get("workers"), tuple):
            raise ValueError(f"{step} needs a range: write workers as e.g. 4..24, or leave it out")
        return step

    @field_validator("batch")
    @classmethod
    def _spans_a_grid(cls, batch: RangeOrList, info: ValidationInfo) -> RangeOrList:
        if {"workers", "worker_step"} <= info.data.keys():
            counts = _worker_counts(info.data["workers"], info.data["worker_step"])
            _check_grid(counts, _global_batches(batch))
        return batch

    @field_validator("memory")
    @classmethod
    def _holds_a_part(cls, memory: MemoryLimit | None, info: ValidationInfo) -> MemoryLimit | None:
        if memory is not None and {"workers", "worker_step", "batch"} <= info.data.keys():
            counts = _worker_counts(info.data["workers"], info.data["worker_step"])
            _check_memory(memory, counts, _global_batches(info.data["batch"]))
        return memory

    @field_validator("layout")
    @classmethod
    def _are_few(cls, layout: LayoutSpec | None) -> LayoutSpec | None:
        if layout is not None:
            ways = (layout.pipeline, layout.tensor, layout.shard)
            count = math.prod(len(numbers_of(each)) for each in ways)
            if count > MAX_LAYOUTS:
                raise ValueError(
                    f"pipeline, tensor and shard make {count} layouts, more than {MAX_LAYOUTS}: "
                    "allow fewer"
                )
        return layout

    @field_validator("process_gib")
    @classmethod
    def _is_divided(cls, memory: float | None, info: ValidationInfo) -> float | None:
        layout: LayoutSpec | None = info.data.get("layout")
        if memory is not None and layout is not None and layout.cuts is not None:
            raise ValueError(
                "lets a profile of the model say where it is cut: leave layout.cuts out, or this"
            )
        if memory is not None and layout is not None and layout.schedule != "1f1b":
            raise ValueError(
                f"is not compared with {layout.schedule}: leave layout.schedule out, or this"
            )
        return memory

    @property
    def layout_search(self) -> LayoutSearch | None:
        """Which layouts a profile of the model is to compare; None where none is needed."""
        spec = self.layout
        if spec is None or not (spec.is_searched or self.process_gib is not None):
            return None
        parts = spec.micro_batches if isinstance(spec.micro_batches, int) else None
        if not spec.is_searched:
            parts = spec.layout.micro_batches
        memory = None if self.process_gib is None else self.process_gib * GIB
        return LayoutSearch(spec.considered, parts, memory)

    @property
    def may_share_model(self) -> bool:
        """Whether several processes of a worker share the model, or may."""
        return self.layout_search is not None or not self.layout_of_workers.is_plain

    @property
    def layout_of_workers(self) -> Layout:
        """How the processes of each worker share the model."""
        return PLAIN if self.layout is None else self.layout.layout

    @property
    def space(self) -> ConfigSpace:
        """The grid of configurations these limits allow."""
        counts = _worker_counts(self.workers, self.worker_step)
        most = math.inf if self.memory is None else self.memory.max_local_batch
        return _make_space(counts, _global_batches(self.batch), most)


@lru_cache(maxsize=1024)  # every tick and every page asks several times for every job
def _make_space(
    workers: tuple[int, ...], batches: tuple[int, ...], most_local_batch: float
) -> ConfigSpace:
    return ConfigSpace(workers, batches, most_local_batch=most_local_batch)


def _worker_counts(choice: RangeOrList, step: int) -> tuple[int, ...]:
    if isinstance(choice, tuple):
        return choice
    return tuple(range(choice.low, choice.high + 1, step))


def _global_batches(choice: RangeOrList) -> tuple[int, ...]:
    if isinstance(choice, tuple):
        return choice
    return doublings(choice.low, choice.high)


def _check_grid(workers: tuple[int, ...], batches: tuple[int, ...]) -> None:
    fewest, smallest, largest = workers[0], batches[0], batches[-1]
    if largest < fewest:
        raise ValueError(
            f"largest batch {largest} is below the fewest workers {fewest}, so no configuration "
            f"is left: write a batch of at least {fewest}, or at most {largest} workers"
        )
    if smallest < fewest:
        raise ValueError(
            f"smallest batch {smallest} is below the fewest workers {fewest}, and each worker "
            f"needs a sample: start batch at {fewest} or more, or workers at {smallest} or fewer"
        )
    configurations = sum(len(batches) - bisect_left(batches, count) for count in workers)
    if configurations > MAX_CONFIGURATIONS:
        raise ValueError(
            f"{len(workers)} worker counts and {len(batches)} batches make {configurations} "
            f"configurations, more than {MAX_CONFIGURATIONS}: raise worker_step or list fewer"
        )


def _check_memory(memory: MemoryLimit, workers: tuple[int, ...], batches: tuple[int, ...]) -> None:
    part, batch, count = min(
        (-(-batch // count), batch, count)
        for count in workers
        for batch in batches
        if batch >= count
    )
    if part <= memory.max_local_batch:
        return
    needed = memory.fixed_gib + memory.gib_per_sample * part
    raise ValueError(
        f"no configuration fits: the smallest part of a batch, {batch} on {count} "
        f"worker{'' if count == 1 else 's'}, is {part} samples and needs {needed:g} GiB of the "
        f"{memory.machine_gib:g} GiB of a machine: allow larger machines, more workers or a "
        "smaller batch"
    )
