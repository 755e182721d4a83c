"""What a job may use: worker counts, batches, memory, money and time of the job document.

A part of ``JobSpec``. A range of batches means doublings, so that a document stays short and the
grid of configurations small enough to be predicted as a whole.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping
from functools import lru_cache
from typing import Annotated, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PlainSerializer,
    PlainValidator,
    Strict,
    TypeAdapter,
    ValidationInfo,
    field_validator,
)

from scavenger.cluster import ConfigSpace, MachineType, MemoryModel
from scavenger.job.fields import (
    RANGE_TEXT,
    Bounds,
    DollarAmount,
    Duration,
    SpecModel,
    doublings,
    read_range,
    require_nonzero,
    require_value,
)
from scavenger.job.messages import show_value
from scavenger.job.pricing import MemorySpec
from scavenger.layout import MODULE_NAME, PLAIN, Layout, Schedule
from scavenger.planning.layout_search import LayoutSearch
from scavenger.planning.layouts import GIB, LayoutRange

MAX_WORKERS = 1024
MAX_BATCH = 2**24
MAX_CONFIGURATIONS = 400
MAX_STAGES, MAX_MICRO_BATCHES, MAX_CHUNKS = 64, 1024, 64

RangeOrList = Bounds | tuple[int, ...]
WorkerCount = Annotated[int, Strict(), Field(ge=1, le=MAX_WORKERS)]
ModuleName = Annotated[str, Strict(), Field(pattern=f"^{MODULE_NAME.pattern}$", max_length=200)]
BatchSize = Annotated[int, Strict(), Field(ge=1, le=MAX_BATCH)]

_WORKERS: TypeAdapter[list[int]] = TypeAdapter(list[WorkerCount])
_BATCHES: TypeAdapter[list[int]] = TypeAdapter(list[BatchSize])


def _read_range_or_list(
    value: object, numbers: TypeAdapter[list[int]], *, example: str
) -> RangeOrList:
    """Read a range, a whole number or a list of them, which comes out ascending."""
    if isinstance(value, str):
        bounds = read_range(value, example=example)
        numbers.validate_python([bounds.low])
        numbers.validate_python([bounds.high])
        return bounds
    if isinstance(value, int) and not isinstance(value, bool):
        return tuple(numbers.validate_python([value]))
    if not isinstance(value, (list, tuple)):
        raise ValueError(
            f"must be a range, a whole number or a list of them, got {show_value(value)}: "
            f"write e.g. {example}"
        )
    if not 0 < len(value) <= MAX_CONFIGURATIONS:
        raise ValueError(f"must list 1 to {MAX_CONFIGURATIONS} whole numbers, got {len(value)}")
    return tuple(sorted(set(numbers.validate_python(value))))


_WrittenRangeOrList = PlainSerializer(
    lambda choice: str(choice) if isinstance(choice, Bounds) else list(choice),
    return_type=str | list[int],
    when_used="json",
)
WorkerChoice = Annotated[
    RangeOrList,
    PlainValidator(
        lambda value: _read_range_or_list(value, _WORKERS, example="1..4"),
        json_schema_input_type=WorkerCount | RANGE_TEXT | list[WorkerCount],
    ),
    _WrittenRangeOrList,
]
BatchChoice = Annotated[
    RangeOrList,
    PlainValidator(
        lambda value: _read_range_or_list(value, _BATCHES, example="32..256"),
        json_schema_input_type=BatchSize | RANGE_TEXT | list[BatchSize],
    ),
    _WrittenRangeOrList,
]


def _read_counts(
    value: object, numbers: TypeAdapter[list[int]], *, example: str
) -> int | RangeOrList:
    """Read a whole number, a range or a list, of which one of a single number is that number."""
    found = _read_range_or_list(value, numbers, example=example)
    if isinstance(found, Bounds):
        return found if found.low < found.high else found.low
    return found if len(found) > 1 else found[0]


def _write_counts(counts: int | RangeOrList) -> int | str | list[int]:
    if isinstance(counts, Bounds):
        return str(counts)
    return counts if isinstance(counts, int) else list(counts)


StageCount = Annotated[int, Strict(), Field(ge=1, le=MAX_STAGES)]
_STAGES: TypeAdapter[list[int]] = TypeAdapter(list[StageCount])  # as many as shards
LayoutCounts = Annotated[
    int | RangeOrList,
    PlainValidator(
        lambda value: _read_counts(value, _STAGES, example="1..4"),
        json_schema_input_type=StageCount | RANGE_TEXT | list[StageCount],
    ),
    PlainSerializer(_write_counts, return_type=int | str | list[int], when_used="json"),
]
_PARTS: TypeAdapter[int] = TypeAdapter(Annotated[int, Strict(), Field(ge=1, le=MAX_MICRO_BATCHES)])


def _read_parts(value: object) -> int | Literal["auto"]:
    if value == "auto":
        return "auto"
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"must be auto or a whole number, got {show_value(value)}")
    return _PARTS.validate_python(value)


AUTOMATIC_LAYOUT: Mapping[str, object] = {"pipeline": "1..4", "tensor": [1, 2, 4, 8]}
MAX_LAYOUTS = 256


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


class LayoutSpec(SpecModel):
    """How the processes of each worker share the model; of several ways the job searches the best.

    Attributes:
        pipeline: Numbers of stages that the model's blocks may be cut into.
        tensor: Numbers of processes that may share the large weights of each stage.
        shard: Numbers of processes that each keep a part of all weights and train on a part of the
            batch.
        micro_batches: Parts of a local batch that follow each other through the stages; None for 1,
            or where there are several numbers of stages for the best.
        schedule: Order of the passes of the micro-batches.
        chunks: Chunks of the model that each stage of an interleaved pipeline has; None for 2, or
            for 1 with another schedule.
        cuts: Names of the modules that the stages, or chunks, after the first begin with; None to
            divide by weights, or by time where the layout is searched.
    """

    pipeline: LayoutCounts = Field(1, examples=["1..4"])
    tensor: LayoutCounts = Field(1, examples=[2])
    shard: LayoutCounts = Field(1, examples=[2])
    micro_batches: Annotated[
        int | Literal["auto"] | None,
        PlainValidator(_read_parts, json_schema_input_type=int | Literal["auto"]),
        BeforeValidator(require_value),
    ] = Field(None, examples=[4])
    schedule: Schedule = Field("1f1b", examples=["interleaved"])
    chunks: Annotated[
        Annotated[int, Strict(), Field(ge=2, le=MAX_CHUNKS)] | None, BeforeValidator(require_value)
    ] = Field(None, examples=[2])
    cuts: Annotated[tuple[ModuleName, ...] | None, BeforeValidator(require_value)] = Field(
        None, examples=["[layers.3]"]
    )

    @field_validator("micro_batches")
    @classmethod
    def _follow_each_other(cls, count: object, info: ValidationInfo) -> object:
        if isinstance(count, int) and count > 1 and info.data.get("pipeline") == 1:
            raise ValueError(
                f"{count} need stages that they follow each other through: write pipeline: 2 or "
                "more beside it, or leave it out"
            )
        return count

    @field_validator("schedule")
    @classmethod
    def _orders_passes(cls, schedule: Schedule, info: ValidationInfo) -> Schedule:
        ways = ("pipeline", "tensor", "shard", "micro_batches")
        if schedule == "1f1b" or not set(ways) <= info.data.keys():
            return schedule
        stages, tensor, shard, given = (info.data[way] for way in ways)
        if not all(isinstance(each, int | None) for each in (stages, tensor, shard, given)):
            raise ValueError(
                f"{schedule} is of one layout: write one number of each beside it, e.g. pipeline: "
                "2 and micro_batches: 4, or leave it out"
            )
        parts = given or 1
        if stages == 1:
            raise ValueError(
                f"{schedule} needs stages: write pipeline: 2 or more beside it, or leave it out"
            )
        if schedule == "gpipe":
            return schedule
        if tensor > 1 or shard > 1:
            raise ValueError(
                "interleaved is of stages of one process each: leave tensor and shard out, or "
                "write 1f1b"
            )
        if parts % stages:
            raise ValueError(
                f"interleaved needs as many micro_batches as stages, or a multiple, got {parts}: "
                f"write e.g. {2 * stages}"
            )
        return schedule

    @field_validator("chunks")
    @classmethod
    def _are_interleaved(cls, chunks: int | None, info: ValidationInfo) -> int | None:
        if chunks is not None and info.data.get("schedule", "interleaved") != "interleaved":
            raise ValueError(
                f"{chunks} in each stage are interleaved: write schedule: interleaved beside it, "
                "or leave it out"
            )
        return chunks

    @field_validator("cuts")
    @classmethod
    def _lie_between_stages(
        cls, cuts: tuple[str, ...] | None, info: ValidationInfo
    ) -> tuple[str, ...] | None:
        stages = info.data.get("pipeline", 1)
        if cuts is not None and not isinstance(stages, int):
            raise ValueError("belong to one number of stages: write pipeline: 2, or leave them out")
        if cuts is not None and {"pipeline", "schedule", "chunks"} <= info.data.keys():
            chunks = chunks_per_stage(info.data["schedule"], info.data["chunks"])
            check_cuts(cuts, stages * chunks)
        return cuts

    @property
    def is_searched(self) -> bool:
        """Whether there are several ways, of which the job searches the best."""
        ways = (self.pipeline, self.tensor, self.shard)
        return not all(isinstance(each, int) for each in ways) or self.micro_batches == "auto"

    @property
    def layout(self) -> Layout:
        """The same as the library's value; that of one process where it is searched."""
        if self.is_searched:
            return PLAIN
        assert isinstance(self.pipeline, int)
        assert isinstance(self.tensor, int)
        assert isinstance(self.shard, int)
        parts = self.micro_batches if isinstance(self.micro_batches, int) else 1
        counts = self.pipeline, self.tensor, self.shard, parts
        chunks = chunks_per_stage(self.schedule, self.chunks)
        return Layout(*counts, cuts=self.cuts or (), schedule=self.schedule, chunks=chunks)

    @property
    def considered(self) -> LayoutRange:
        """The layouts that a search looks at."""
        return LayoutRange(_numbers(self.pipeline), _numbers(self.tensor), _numbers(self.shard))


def _numbers(counts: int | RangeOrList) -> tuple[int, ...]:
    if isinstance(counts, Bounds):
        return tuple(range(counts.low, counts.high + 1))
    return (counts,) if isinstance(counts, int) else counts


def _read_layout(value: object) -> object:
    """Read ``auto`` and ``1``, which stand for mappings."""
    if value == "auto":
        return dict(AUTOMATIC_LAYOUT)
    if value == 1 and not isinstance(value, bool):
        return {}
    if not isinstance(value, dict | LayoutSpec | None):
        raise ValueError(
            f"must be auto, 1 or a mapping, got {show_value(value)}: write e.g. {{pipeline: 1..4}}"
        )
    return require_value(value)


def chunks_per_stage(schedule: Schedule, chunks: int | None) -> int:
    """Return how many chunks of the model each stage has: 1 unless they are interleaved."""
    return (chunks or 2) if schedule == "interleaved" else 1


def check_cuts(cuts: tuple[str, ...], stages: int) -> None:
    """Refuse cuts that do not lie between so many stages, or chunks of an interleaved pipeline."""
    if not cuts:
        raise ValueError(f"must name {stages - 1} modules: write them, or leave it out")
    if len(set(cuts)) < len(cuts):
        raise ValueError(f"{', '.join(cuts)} names a module twice: each stage begins with another")
    if len(cuts) != stages - 1:
        raise ValueError(
            f"{', '.join(cuts)} makes {len(cuts) + 1} stages where there are {stages}: write the "
            "first module of each stage but the first, or leave it out"
        )


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
        BeforeValidator(
            _read_layout, json_schema_input_type=LayoutSpec | Literal["auto", 1] | None
        ),
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
            count = math.prod(len(_numbers(each)) for each in ways)
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
