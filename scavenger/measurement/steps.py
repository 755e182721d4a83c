"""Measured iterations: one row as the agent records it, and columns as they travel and are fitted.

``StepColumns`` declares every column once, with its kind. Agent, intake, storage and fit are
generic over that declaration: a further measured column is two lines in this file and the code
that measures it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from itertools import chain
from typing import Annotated, Any, Literal

from annotated_types import Ge, Le

FINITE_FLOATS = {"allow_inf_nan": False}
Count = Annotated[int, Ge(0), Le(2**53)]
ColumnKind = Literal["count", "norm", "seconds", "loss"]


def _column(kind: ColumnKind, *, stand_in: str | None = None) -> Any:
    """Declare a column; ``stand_in`` names the one to use where an old agent leaves it out."""
    return field(default=(), metadata={"kind": kind, "stand_in": stand_in})


@dataclass(frozen=True, slots=True)
class StepColumns:
    """Measured iterations of one generation, as columns of equal length.

    Attributes:
        iteration: Number of each iteration, counted over the whole job.
        shards: Independent gradient shards the norms were taken over (K, or micro-batches).
        local_norm_sq: Mean over shards of ||g_k||², weighted by shard size; None if not finite.
        mean_norm_sq: ||ḡ||² of the aggregated gradient; None if not finite.
        compute_time: Seconds from first forward to last local gradient, slowest worker.
        sync_time: Exposed seconds of synchronisation, worker that waited least.
        step_time: Wall seconds of the whole iteration on the leader.
        loss: Loss the script logged, leader's; None where none was logged or it is not finite.
        mean_compute_time: The same from first forward to last local gradient, mean over workers;
            left out by old agents, and then the slowest worker's.
        fastest_compute_time: The same, fastest worker.
    """

    __pydantic_config__ = FINITE_FLOATS

    iteration: tuple[Count, ...] = _column("count")
    shards: tuple[Count, ...] = _column("count")
    local_norm_sq: tuple[float | None, ...] = _column("norm")
    mean_norm_sq: tuple[float | None, ...] = _column("norm")
    compute_time: tuple[float, ...] = _column("seconds")
    sync_time: tuple[float, ...] = _column("seconds")
    step_time: tuple[float, ...] = _column("seconds")
    loss: tuple[float | None, ...] = _column("loss")
    mean_compute_time: tuple[float, ...] = _column("seconds", stand_in="compute_time")
    fastest_compute_time: tuple[float, ...] = _column("seconds", stand_in="compute_time")

    def __post_init__(self) -> None:
        for column in fields(self):
            stand_in = column.metadata["stand_in"]
            if stand_in is not None and not getattr(self, column.name):
                object.__setattr__(self, column.name, getattr(self, stand_in))
        if any(len(getattr(self, name)) != len(self) for name in COLUMN_KINDS):
            raise ValueError("columns differ in length")

    def __len__(self) -> int:
        return len(self.iteration)

    def __getitem__(self, rows: slice) -> StepColumns:
        """Return some of the rows: ``steps[3:]`` are those from the fourth on."""
        return StepColumns(*(getattr(self, name)[rows] for name in COLUMN_KINDS))

    @classmethod
    def concat(cls, parts: Sequence[StepColumns]) -> StepColumns:
        """Return the rows of all parts, in their order."""
        if len(parts) == 1:
            return parts[0]
        return cls(
            *(tuple(chain.from_iterable(getattr(p, name) for p in parts)) for name in COLUMN_KINDS)
        )

    @classmethod
    def from_rows(cls, rows: Iterable[StepRow]) -> StepColumns:
        """Turn rows into columns, replacing values that JSON cannot hold."""
        kept = tuple(rows)
        return cls(
            *(
                tuple(_writable(getattr(row, name), kind) for row in kept)
                for name, kind in COLUMN_KINDS.items()
            )
        )


COLUMN_KINDS: dict[str, ColumnKind] = {c.name: c.metadata["kind"] for c in fields(StepColumns)}


@dataclass(frozen=True, slots=True)
class StepRow:
    """One measured iteration and the generation it belongs to; else as in ``StepColumns``."""

    generation: int
    iteration: int
    shards: int
    local_norm_sq: float | None
    mean_norm_sq: float | None
    compute_time: float
    sync_time: float
    step_time: float
    loss: float | None
    mean_compute_time: float
    fastest_compute_time: float


def _writable(value: float | None, kind: ColumnKind) -> Any:
    if value is None or math.isfinite(value):
        return value
    # JSON would hold null for seconds that are not finite, for which the controller refuses the
    # whole report. It leaves out the one row whose seconds are negative.
    return -1.0 if kind == "seconds" else None
