"""How the processes of a worker may share the model, in the job document.

A part of ``Limits``. Several numbers of stages or shards leave the choice to a search.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import (
    BeforeValidator,
    Field,
    PlainSerializer,
    PlainValidator,
    Strict,
    TypeAdapter,
    ValidationInfo,
    field_validator,
)

from scavenger.job.fields import (
    RANGE_TEXT,
    Bounds,
    RangeOrList,
    SpecModel,
    read_range_or_list,
    require_value,
)
from scavenger.job.messages import show_value
from scavenger.layout import MODULE_NAME, PLAIN, Layout, Schedule
from scavenger.planning.layouts import LayoutRange

MAX_STAGES, MAX_MICRO_BATCHES, MAX_CHUNKS = 64, 1024, 64
ModuleName = Annotated[str, Strict(), Field(pattern=f"^{MODULE_NAME.pattern}$", max_length=200)]


def _read_counts(
    value: object, numbers: TypeAdapter[list[int]], *, example: str
) -> int | RangeOrList:
    """Read a whole number, a range or a list, of which one of a single number is that number."""
    found = read_range_or_list(value, numbers, example=example)
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
        ways = (self.pipeline, self.tensor, self.shard)
        return LayoutRange(*(numbers_of(each) for each in ways))


def numbers_of(counts: int | RangeOrList) -> tuple[int, ...]:
    """Return the numbers that a number, a range or a list stands for."""
    if isinstance(counts, Bounds):
        return tuple(range(counts.low, counts.high + 1))
    return (counts,) if isinstance(counts, int) else counts


def read_layout(value: object) -> object:
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
